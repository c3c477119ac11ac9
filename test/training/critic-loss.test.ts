import { expect, test } from "vitest";
import { type NlacConfigInput, parseConfig } from "../../lib/algorithms/nlac.ts";
import { transitionsOf } from "../../lib/episodes/trajectory.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { criticLoss } from "../../lib/training/critic-loss.ts";
import { errandEnvironment } from "../support/errand.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

/** Two episodes of three turns, and the critic's loss on all of their transitions. */
async function measure(config: NlacConfigInput, target = "Future:\njoined\nOptimality:\nYes") {
  const model = new ScriptedModel((prompt) =>
    prompt.slice(prompt.lastIndexOf("<|im_start|>user")).includes("Optimality:")
      ? target
      : "Thought:\nhm\nAction:\nsoap",
  );
  // The first episode's word makes the critic fail.
  model.kl = (text) => (model.decode(text.student).includes("wants key") ? 3 : 1);
  const environment = errandEnvironment();
  const trajectories = await collectTrajectories({
    model,
    environment,
    episodes: [
      { id: 0, task: { word: "key" } },
      { id: 1, task: { word: "lamp" } },
    ],
    seed: 0,
    maxActionTokens: 50,
    maxPromptTokens: 10_000,
    temperature: 0,
  });
  const transitions = trajectories.flatMap(transitionsOf);
  const loss = await criticLoss(model, environment, transitions, parseConfig(config));
  const { events } = model;
  return {
    loss,
    options: events.flatMap((event) => (event.kind === "kl" ? [event.options] : [])),
    distilled: events.flatMap((event) => (event.kind === "kl" ? event.texts : [])),
    scored: events.flatMap((event) => (event.kind === "nll" ? event.texts : [])),
  };
}

test.each([
  [{}, "full"],
  [{ support: { topK: 4 } }, { topK: 4 }],
  [{ support: "sampled" }, "sampled"],
  [{ reasoning: true }, "sampled"],
  [{ reasoning: true, support: "full" }, "sampled"],
] satisfies [NlacConfigInput, unknown][])(
  "L1 is computed and named as in training: %j",
  async (config, support) => {
    const { loss, options } = await measure(config);
    expect(options).toEqual([{ support, withGradient: false }]);
    expect(loss.support).toEqual(support);
  },
);

test("the interval is clustered by episode", async () => {
  const { loss } = await measure({});
  expect(loss).toMatchObject({ transitions: 6, episodes: 2, dropped: 0 });
  // At turn 1, neither episode has an observation: 1, 3, 3 and 1, 1, 1.
  expect(loss.l1.estimate).toBeCloseTo(5 / 3, 12);
  // Means of the episodes: 7/3 and 1; their difference is 4/3, so the standard error is 2/3. Two
  // episodes: Student's t of one degree.
  expect(loss.l1.high - loss.l1.low).toBeCloseTo(2 * Math.tan(0.475 * Math.PI) * (2 / 3), 6);
});

test("the negative log-likelihood is that of the student, which has not seen the outcome", async () => {
  const { distilled, scored } = await measure({});
  expect(distilled).toHaveLength(6);
  expect(scored.map(({ prompt, response }) => ({ prompt, response }))).toEqual(
    distilled.map(({ student, response }) => ({ prompt: student, response })),
  );
});

test("transitions without a target are counted by cause, as in training", async () => {
  const { loss } = await measure({ targets: "parsed" }, "in no form");
  expect(loss).toMatchObject({ transitions: 0, dropped: 6 });
  expect(loss.roles).toMatchObject({ "targets/dropped": 6, "targets/dropped_unreadable": 6 });
  expect(loss.l1.estimate).toBeNaN();
  expect((await measure({})).loss.roles).toMatchObject({ "targets/dropped": 0 });
});
