import { describe, expect, test } from "vitest";
import { type NlacConfigInput, parseConfig } from "../../lib/algorithms/nlac.ts";
import type { Action, Message } from "../../lib/contract/environment.ts";
import { type Progress, silentProgress } from "../../lib/display/progress.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { meanInterval } from "../../lib/statistics/intervals.ts";
import { diagnose, overlap } from "../../lib/training/diagnose.ts";
import { type Errand, errandEnvironment } from "../support/errand.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

const act = (word: string) => `Thought:\nhm\nAction:\n${word}`;
const critique = (future: string, verdict: string) => `Future:\n${future}\nOptimality:\n${verdict}`;

/** Brings soap, and the key when asked to, but never the lamp; poor at predicting the end. */
function reply(prompt: string): string {
  const last = prompt.slice(prompt.lastIndexOf("<|im_start|>user"));
  const wanted = prompt.split("OBSERVED wants ").slice(1);
  const key = wanted[0]?.startsWith("key") ?? false;
  if (last.includes("Starting from this point"))
    return key ? "OBSERVED thanks: win" : "OBSERVED wants lamp, maybe";
  if (last.includes("Judge your last action")) {
    if (wanted.length === 0) return critique("maybe", "No, bring another thing.");
    if (key) return critique("win", "Yes");
    return wanted.length === 1 ? "I cannot say." : critique("win", "No, bring the lamp.");
  }
  if (last.includes("Picture what follows")) return wanted.length === 0 ? "maybe" : "win";
  if (last.includes("Weigh them together")) return "Optimality:\nYes";
  if (last.includes("revised action")) return act(wanted.length > 0 && !key ? "lamp" : "key");
  return act(key ? "key" : "soap");
}

const tasks = [{ word: "key" }, { word: "lamp" }];

function environment() {
  const forecasts: Record<string, number> = { win: 1, maybe: 0.5 };
  return {
    ...errandEnvironment(),
    foretold: (future: string) => forecasts[/win|maybe/.exec(future)?.[0] ?? ""],
  };
}

async function measure(config: NlacConfigInput, number = 0, world = environment()) {
  const model = new ScriptedModel(reply);
  const trajectories = await collectTrajectories<Errand>({
    model,
    environment: world,
    episodes: tasks.map((task, id) => ({ id, task })),
    seed: 0,
    maxActionTokens: 50,
    maxPromptTokens: 10_000,
    temperature: 0,
  });
  model.calls.length = 0;
  const steps: string[] = [];
  const progress: Progress = {
    ...silentProgress,
    phase: (name, total) => steps.push(`${name} ${total}`),
    advance: (done) => steps.push(String(done)),
  };
  const figures = await diagnose({
    model,
    environment: world,
    tasks,
    trajectories,
    config: parseConfig(config),
    number,
    run: memoryRun({ progress }),
  });
  return { figures, model, trajectories, steps: [...new Set(steps)] };
}

test("its progress goes from the critiques over the futures to the branches", async () => {
  // Five transitions. One branch goes on after its action; the others end with it.
  const { steps } = await measure({ diagnostics: { branches: 1 } });
  expect(steps).toEqual(["diagnose 15", "5", "10", "11", "15"]);
  const { steps: without } = await measure({ diagnostics: { branches: 0 } });
  expect(without).toEqual(["diagnose 10", "5", "10"]);
});

// The key takes two turns and succeeds, the lamp three and fails: 2 and 3 transitions.
describe("a diagnosis of two episodes, by hand", () => {
  test("calibration: the critic's forecasts against the ends of the episodes", async () => {
    const { figures } = await measure({});
    // Critiques of the key: No and maybe, Yes and win; of the lamp: No and maybe, nothing readable,
    // No and win.
    expect(figures["calibration/yes"]).toBeCloseTo(1 / 4, 12);
    expect(figures["calibration/success"]).toBeCloseTo(2 / 5, 12);
    expect(figures["calibration/success_after_yes"]).toBe(1);
    expect(figures["calibration/success_after_no"]).toBeCloseTo(1 / 3, 12);
    expect(figures["calibration/difference"]).toBeCloseTo(2 / 3, 12);
    expect(figures["calibration/foretold"]).toBeCloseTo((0.5 + 1 + 0.5 + 1) / 4, 12);
    expect(figures["calibration/brier"]).toBeCloseTo((0.25 + 0 + 0.25 + 1) / 4, 12);
  });

  test("the futures that θ̄ generates at s' against the next answers", async () => {
    const { figures, model } = await measure({});
    // Of "observed thanks win" two words of three and two follow; of the lamp's four words, three
    // of four and three.
    expect(figures["future/agreement"]).toBeCloseTo((4 / 5 + 6 / 7 + 6 / 7) / 3, 12);
    expect(figures["future/agreement_chance"]).toBeCloseTo((2 / 6 + 6 / 7 + 2 / 6) / 3, 12);
    expect(figures["future/brier"]).toBeCloseTo((0 + 0.25 + 0.25) / 3, 12);
    const futures = model.calls.filter(({ prompt }) => /Starting from this point.*$/s.test(prompt));
    expect(futures).toHaveLength(3);
    expect(new Set(futures.map(({ weights }) => weights))).toEqual(new Set(["target"]));
  });

  test("an environment may rate futures itself; undecided ones do not count", async () => {
    const agreement = (future: string, [answer]: readonly Message[]) =>
      future.includes("lamp") ? Number(answer!.content.includes("lamp")) : undefined;
    const { figures } = await measure({}, 0, { ...environment(), agreement } as never);
    expect(figures["future/agreement"]).toBe(1); // both of the lamp's
    expect(figures["future/agreement_chance"]).toBe(1 / 2); // one of them meets the key's answer
  });

  test("gain: episodes continued with the refined action against the recorded ones", async () => {
    const { figures } = await measure({});
    // Refined, the key's two bring the key; the lamp's first brings the key in vain, its others the
    // lamp.
    expect(figures["gain/reached"]).toBe(1);
    expect(figures["gain/original"]).toBeCloseTo(2 / 5, 12);
    expect(figures["gain/refined"]).toBeCloseTo(4 / 5, 12);
    const { low, high } = meanInterval([
      [0, 0],
      [0, 1, 1],
    ]);
    expect(figures["gain/difference"]).toBeCloseTo(2 / 5, 12);
    expect(figures["gain/difference_low"]).toBeCloseTo(low, 12);
    expect(figures["gain/difference_high"]).toBeCloseTo(high, 12);
  });

  test("gain counts successes as the environment defines them, whatever the rewards are", async () => {
    // As in Guess My City: a turn costs 1, a success nothing, and the last step says which it was.
    const plain = environment();
    const costly = {
      ...plain,
      rewardRange: [-3, 0] as const,
      start: async (...options: Parameters<typeof plain.start>) => {
        const episode = await plain.start(...options);
        return {
          ...episode,
          step: async (action: Action) => {
            const { reward, ...result } = await episode.step(action);
            const info = result.terminated ? { success: reward === 1 } : {};
            return { ...result, reward: reward - 1, info };
          },
        };
      },
    };
    const [usual, other] = [await measure({}), await measure({}, 0, costly)];
    for (const name of ["original", "refined", "difference", "difference_low", "difference_high", "reached"])
      expect(other.figures[`gain/${name}`]).toBe(usual.figures[`gain/${name}`]);
  });

  test("k > 1: the forecast is the mean of the k futures that the evaluator read", async () => {
    const { figures } = await measure({ futures: 2 });
    expect(figures["calibration/yes"]).toBe(1);
    // Maybe before anything was answered (once for each word), else win: the key's 1, 1 / 2 and the
    // lamp's 1 / 2, 1, 1.
    expect(figures["calibration/foretold"]).toBeCloseTo((0.5 + 1 + 0.5 + 1 + 1) / 5, 12);
    expect(figures["calibration/brier"]).toBeCloseTo((0.25 + 0 + 0.25 + 1 + 1) / 5, 12);
  });
});

test("the stored action is judged and refined, whatever `attempt` and `refinements` are", async () => {
  const usual = await measure({});
  for (const config of [
    { attempt: "stored" },
    { refinements: 0 },
    { refinementsKept: "approved" },
  ] satisfies NlacConfigInput[]) {
    const { figures, model } = await measure(config);
    expect(figures).toEqual(usual.figures);
    expect(model.calls).toEqual(usual.model.calls);
  }
});

test("parts that are turned off, or that the environment does not support, are left out", async () => {
  const { figures } = await measure({ diagnostics: { branches: 0 } });
  expect(figures["gain/difference"]).toBeNaN();
  expect(figures["gain/reached"]).toBeNaN();
  const silent = await measure({}, 0, { ...environment(), foretold: () => undefined } as never);
  expect(silent.figures["calibration/brier"]).toBeNaN();
  expect(silent.figures["future/brier"]).toBeNaN();
  expect(silent.figures["calibration/difference"]).toBeCloseTo(2 / 3, 12);
});

test("draws the configured number of transitions, different for each number, reproducibly", async () => {
  const judged = async (number: number) => {
    const { model } = await measure({ diagnostics: { transitions: 2, branches: 0 } }, number);
    return model.calls
      .map(({ prompt }) => prompt)
      .filter((prompt) => /Judge your last action.*$/s.test(prompt));
  };
  const first = await judged(0);
  expect(first.filter((prompt) => !prompt.includes("revised action"))).toHaveLength(2);
  expect(await judged(0)).toEqual(first);
  const others = await Promise.all([1, 2, 3, 4, 5].map(judged));
  expect(others.some((prompts) => JSON.stringify(prompts) !== JSON.stringify(first))).toBe(true);
});

test("overlap is the F1 of shared words, without case and punctuation", () => {
  expect(overlap("The desk took the form.", "the DESK took the form")).toBe(1);
  expect(overlap("the the the", "the")).toBeCloseTo((2 * 1) / 4, 12);
  expect(overlap("Übung macht", "übung")).toBeCloseTo(2 / 3, 12);
  expect(overlap("yes", "no")).toBe(0);
  expect(overlap("", "")).toBe(0);
});
