import { describe, expect, test } from "vitest";
import { parseConfig } from "../../lib/algorithms/nlac.ts";
import type { Environment } from "../../lib/contract/environment.ts";
import { guessMyCity } from "../../lib/environments/guess-my-city/index.ts";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import { transitionsOf } from "../../lib/episodes/trajectory.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { criticRequest, parseCritique } from "../../lib/prompts/critic.ts";
import { parseAction } from "../../lib/prompts/policy.ts";
import { RoleWriter } from "../../lib/roles/role-writer.ts";
import { writeTargets } from "../../lib/roles/targets.ts";
import { demonstratedTexts, warmUp } from "../../lib/training/warmup.ts";
import { type Errand, errandEnvironment } from "../support/errand.ts";
import { endOfTurn, ScriptedModel } from "../support/scripted-model.ts";

const environment = twentyQuestions({ turns: 12 });

test("a scripted game has every role's reply in the form that its parser reads", async () => {
  const model = new ScriptedModel(() => "");
  const tasks = await environment.tasks("train");
  const kinds = { action: 0, critique: 0, yes: 0, future: 0 };
  for (const [i, task] of tasks.slice(0, 20).entries()) {
    const demonstration = await environment.demonstrate!(task, { seed: i });
    for (const { prompt, response } of demonstratedTexts(model, environment, demonstration)) {
      expect(response.at(-1)).toBe(endOfTurn);
      const text = model.decode(response.slice(0, -1));
      const request = model.decode(prompt).split("<|im_start|>user").at(-1)!;
      if (request.includes("Optimality:")) {
        const critique = parseCritique(text, false);
        expect(critique.ok).toBe(true);
        kinds.critique++;
        if (critique.ok && critique.yes) kinds.yes++;
      } else if (request.includes("describe one course")) {
        expect(text.length).toBeGreaterThan(20);
        kinds.future++;
      } else {
        expect(parseAction(text, "text").ok).toBe(true);
        kinds.action++;
      }
    }
  }
  expect(kinds.action).toBeGreaterThan(100);
  expect(kinds.future).toBeGreaterThan(100);
  // Per turn, the critic and the target say Yes to the good action and No to the poor one; an
  // episode's last target is only the good one's.
  expect(kinds.yes / kinds.critique).toBeGreaterThan(0.5);
  expect(kinds.yes / kinds.critique).toBeLessThan(0.55);
});

test("targets without a bootstrapped future are included on request, with the same reply", async () => {
  const model = new ScriptedModel(() => "");
  const [task] = await environment.tasks("train");
  const demonstration = await environment.demonstrate!(task!, { seed: 1 });
  const requests = (observedTargets: boolean) =>
    demonstratedTexts(model, environment, demonstration, { observedTargets })
      .filter(({ role }) => role === "target")
      .map(({ prompt, response }) => ({
        request: model.decode(prompt).split("<|im_start|>user").at(-1)!,
        said: model.decode(response),
      }));
  const usual = requests(false);
  const all = requests(true);
  const observed = all.filter(({ request }) =>
    /answered as follows[\s\S]*Now judge your latest action\./.test(request),
  );
  const going = usual.filter(({ request }) => request.includes("judge your latest action again"));
  expect(going.length).toBeGreaterThan(5);
  expect(all).toHaveLength(usual.length + going.length);
  expect(observed.filter(({ request }) => !request.includes("Final score")).map(({ said }) => said)).toEqual(
    going.map(({ said }) => said),
  );
});

/** A single-step task that demonstrates the right word, and the judgement of a wrong one. */
function solvedErrand(): Environment<Errand> {
  const world = errandEnvironment({ turns: 1, singleStep: true });
  return {
    ...world,
    rewardRange: [0, 2],
    async demonstrate(task, options) {
      const judged = ["soap", task.word].map(async (text) => {
        const episode = await world.start(task, options);
        const action = { text, thought: "hm" };
        const { observation, reward, terminated } = await episode.step(action);
        return {
          ...{ action, future: "", better: { text: task.word, thought: "hm" } },
          ...(reward === 1 ? {} : { advice: "It brings the wrong thing." }),
          outcome: { observation, reward, terminated, joined: "" },
        };
      });
      const { observation } = await world.start(task, options);
      const [wrong, right] = await Promise.all(judged);
      const answer = right!.outcome.observation;
      return {
        observation,
        turns: [{ action: right!.action, judged: [wrong!, right!], observation: answer }],
      };
    },
  };
}

describe("the prompts of futures and targets are those that training writes", () => {
  const worlds: [name: string, world: unknown][] = [
    ["20 Questions", twentyQuestions({ turns: 12 })],
    ["20 Questions, where a turn costs 1", twentyQuestions({ turns: 12, reward: "turns" })],
    ["Guess My City, where a turn costs 1", guessMyCity()],
    ["a single-step task", solvedErrand()],
  ];

  test.each(worlds)("%s", async (_, given) => {
    const world = given as Environment<unknown>;
    for (const [seed, task] of (await world.tasks("train")).slice(0, 4).entries()) {
      const demonstration = await world.demonstrate!(task, { seed });
      const replies = new Map<string, string>();
      const model = new ScriptedModel((prompt) => {
        const reply = replies.get(prompt);
        if (reply === undefined) throw new Error(`Not demonstrated: …${prompt.slice(-900)}`);
        return reply;
      });
      const shown = demonstratedTexts(model, world, demonstration, { observedTargets: true });
      for (const { prompt, response } of shown)
        replies.set(model.decode(prompt), model.decode(response.slice(0, -1)));
      const [trajectory] = await collectTrajectories({
        ...{ model, environment: world, episodes: [{ id: 0, task }], seed: 0, temperature: 0 },
        ...{ maxActionTokens: 1000, maxPromptTokens: 100_000 },
      });
      expect(trajectory!.turns).toHaveLength(demonstration.turns.length);
      for (const bootstrap of ["request", "none"] as const) {
        const config = { ...parseConfig({ bootstrap }), seed: 0 };
        const writer = new RoleWriter(model, world, config, 0, new AbortController().signal);
        for (const { parsed } of await writeTargets(writer, transitionsOf(trajectory!)))
          expect(parsed).toEqual({ ok: true, yes: true });
      }
    }
  });
});

test("the critic and the refiner of a single-step task are shown its own requests", async () => {
  const world = solvedErrand();
  const [task] = await world.tasks("train");
  const model = new ScriptedModel(() => "");
  const shown = demonstratedTexts(model, world, await world.demonstrate!(task!, { seed: 0 }));
  const said = shown.map(({ role, prompt, response }) => ({
    role,
    request: model.decode(prompt).split("<|im_start|>user").at(-1)!,
    reply: model.decode(response.slice(0, -1)),
  }));
  const critiques = said.filter(({ role }) => role === "critique");
  expect(critiques.map(({ request }) => request.includes(criticRequest(true, "text")))).toEqual([true, true]);
  expect(critiques.map(({ reply }) => parseCritique(reply, true))).toEqual([
    { ok: true, yes: false, advice: "It brings the wrong thing." },
    { ok: true, yes: true, advice: "" },
  ]);
  for (const { role, request } of said) if (role !== "attempt") expect(request).not.toContain("Optimality:");
});

test("nothing before an answer reveals the answer or a test word", async () => {
  const model = new ScriptedModel(() => "");
  const tasks = await environment.tasks("train");
  const testWords = new Set((await environment.tasks("test")).map(({ word }) => word));
  for (const [i, task] of tasks.slice(0, 20).entries()) {
    const demonstration = await environment.demonstrate!(task, { seed: i });
    for (const { prompt, response } of demonstratedTexts(model, environment, demonstration)) {
      const text = model.decode([...prompt, ...response]);
      for (const [, word] of text.matchAll(/Is it an? ([a-z -]+)\?/g))
        expect(testWords.has(word!)).toBe(false);
    }
  }
});

test("the learning rate falls to 0, θ̄ does not change, and the same seed draws the same examples", async () => {
  const run = async () => {
    const model = new ScriptedModel(() => "");
    await warmUp({
      model,
      environment,
      config: { steps: 4, batchSize: 3, learningRate: 1, episodes: 2 },
      seed: 5,
    });
    return model.events;
  };
  const events = await run();
  expect(events.map(({ kind }) => kind)).toEqual(Array(4).fill(["nll", "step"]).flat());
  const rates = events.flatMap((event) => (event.kind === "step" ? [event.options.learningRate] : []));
  expect(rates).toEqual([1, 0.75, 0.5, 0.25]);
  expect(await run()).toEqual(events);
});

test("a warm-up that was interrupted shows the rest of the examples, at the rates of its steps", async () => {
  const options = {
    environment: solvedErrand(),
    config: { steps: 7, batchSize: 3, episodes: 1 },
    seed: 0,
  };
  const events = async (stepsDone?: number) => {
    const model = new ScriptedModel(() => "");
    await warmUp({ ...options, model, ...(stepsDone !== undefined && { stepsDone }) });
    return model.events.filter(({ kind }) => kind === "nll" || kind === "step");
  };
  const whole = await events();
  expect(whole).toHaveLength(14);
  for (const done of [0, 1, 3, 6, 7]) expect(await events(done)).toEqual(whole.slice(2 * done));
});

test("fields that are left out have the recipe's defaults; a bad field is an error that names it", async () => {
  const model = new ScriptedModel(() => "");
  const options = { model, environment: solvedErrand(), seed: 0 };
  await warmUp({ ...options, config: { steps: 1 } });
  const [batch] = model.events.flatMap((event) => (event.kind === "nll" ? [event.texts] : []));
  const [step] = model.events.flatMap((event) => (event.kind === "step" ? [event.options] : []));
  expect(batch).toHaveLength(16);
  expect(step).toMatchObject({ learningRate: 1e-4, betas: [0.9, 0.999] });
  const misspelt = { steps: 1, learningrate: 1 } as { steps: number };
  await expect(warmUp({ ...options, config: misspelt })).rejects.toMatchObject({
    code: "ERR_CONFIG",
    message: expect.stringContaining('did you mean "learningRate"?'),
  });
});

test("every epoch shows each example once, also if it begins within a batch", async () => {
  const world = solvedErrand();
  const model = new ScriptedModel(() => "");
  // Seven examples: two each of critic, refiner and backup, and an action. Three epochs of them.
  const config = { steps: 7, batchSize: 3, episodes: 1 };
  await warmUp({ model, environment: world, config, seed: 0 });
  const shown = model.events.flatMap((event) => (event.kind === "nll" ? event.texts : []));
  const counts = new Map<string, number>();
  for (const { prompt, response } of shown) {
    const key = `${prompt.join()} ${response.join()}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  expect([...counts.values()]).toEqual(Array(7).fill(3));
  // Each example of a step has the same weight, however long it is; they add up to 1.
  for (const { response, weight } of shown)
    expect((weight as number) * response.length).toBeCloseTo(1 / 3, 12);
});

test("a model with random weights has a rising rate first", async () => {
  const model = new ScriptedModel(() => "");
  await warmUp({
    ...{ model, environment, seed: 0 },
    config: { steps: 5, learningRate: 1, rampSteps: 3, betas: [0.8, 0.9] },
  });
  const rates = model.events.flatMap((event) => (event.kind === "step" ? [event.options.learningRate] : []));
  expect(rates.map((rate) => rate.toFixed(3))).toEqual(["0.333", "0.533", "0.600", "0.400", "0.200"]);
  for (const event of model.events)
    if (event.kind === "step") expect(event.options.betas).toEqual([0.8, 0.9]);
});

test("an environment without demonstrations, or without tasks, is an error that says so", async () => {
  const options = {
    model: new ScriptedModel(() => ""),
    config: { steps: 1 },
    seed: 0,
  };
  await expect(warmUp({ ...options, environment: errandEnvironment() })).rejects.toMatchObject({
    code: "ERR_CONFIG",
  });
  const empty = { ...environment, tasks: async () => [] };
  await expect(warmUp({ ...options, environment: empty })).rejects.toMatchObject({ code: "ERR_CONFIG" });
});

test("an action that the policy's parser refuses is not taught", async () => {
  const world = solvedErrand();
  const demonstrate: NonNullable<typeof world.demonstrate> = async (...given) => {
    const { turns, ...rest } = await world.demonstrate!(...given);
    return { ...rest, turns: turns.map((turn) => ({ ...turn, action: { text: turn.action.text } })) };
  };
  const options = { model: new ScriptedModel(() => ""), config: { steps: 1 }, seed: 0 };
  await expect(warmUp({ ...options, environment: { ...world, demonstrate } })).rejects.toMatchObject({
    code: "ERR_ENVIRONMENT",
    message: expect.stringContaining('(nothing stands after "Thought:")'),
  });
});

test("a demonstration that fails is tried again with another seed, and again in a repeated run", async () => {
  const failing = (times: number) => {
    const seeds: number[] = [];
    const demonstrate: NonNullable<typeof environment.demonstrate> = (task, options) => {
      seeds.push(options.seed);
      if (seeds.length <= times) throw new Error("the scale is broken");
      return environment.demonstrate!(task, options);
    };
    return { seeds, environment: { ...environment, demonstrate } };
  };
  const options = { model: new ScriptedModel(() => ""), config: { steps: 1, episodes: 2 }, seed: 3 };
  const [healthy, flaky, again, broken] = [failing(0), failing(2), failing(2), failing(3)];
  for (const { environment } of [healthy, flaky, again]) await warmUp({ ...options, environment });
  expect(flaky.seeds).toHaveLength(4);
  expect(new Set(flaky.seeds).size).toBe(4);
  expect(again.seeds).toEqual(flaky.seeds);
  expect([flaky.seeds[0], flaky.seeds[3]]).toEqual(healthy.seeds);
  await expect(warmUp({ ...options, environment: broken.environment })).rejects.toMatchObject({
    code: "ERR_ENVIRONMENT",
    message: expect.stringMatching(
      /^The demonstration of the task ".+" failed three times: the scale is broken$/,
    ),
  });
});

test("a demonstration that never ends is a fault after the time of an episode", async () => {
  const hanging = { ...environment, stepTimeout: 5, demonstrate: () => new Promise<never>(() => {}) };
  const options = { model: new ScriptedModel(() => ""), config: { steps: 1 }, seed: 0 };
  await expect(warmUp({ ...options, environment: hanging })).rejects.toMatchObject({
    ...{ code: "ERR_ENVIRONMENT", message: expect.stringContaining(`${5 * (environment.maxTurns + 1)} ms`) },
  });
});
