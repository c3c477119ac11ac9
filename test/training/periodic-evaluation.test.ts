import { describe, expect, test } from "vitest";
import { silentProgress } from "../../lib/display/progress.ts";
import { errands } from "../../lib/environments/errands/index.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { endless, memoryRun, shareOver } from "../../lib/run/training-run.ts";
import { wilsonInterval } from "../../lib/statistics/intervals.ts";
import { evaluatePeriodically, evaluationConfig } from "../../lib/training/periodic-evaluation.ts";
import { errandEnvironment } from "../support/errand.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

/** Brings one word at once: right for one task of three. */
const model = () => new ScriptedModel(() => "Thought:\nhm\nAction:\nkeys");

function training(evaluation: object, iterations = 5) {
  const run = memoryRun();
  return {
    model: model(),
    environment: errandEnvironment({ turns: 2 }),
    run,
    state: { iteration: 0, collected: false, updates: 0, environmentSteps: 0 } as {
      iteration: number;
      collected: boolean;
      updates: number;
      environmentSteps: number;
      evaluated?: number;
    },
    config: {
      iterations,
      environmentSteps: 0,
      evaluation: evaluationConfig.parse(evaluation),
      maxActionTokens: 50,
      maxPromptTokens: 10_000,
      constrainActions: false,
      seed: 7,
    },
  };
}

describe("a training shows the number of its iteration", () => {
  test.each([
    { iterations: 5, environmentSteps: 0, total: 5, share: 0.5 },
    { iterations: 5, environmentSteps: 100, total: undefined, share: 0.5 },
    { iterations: endless, environmentSteps: 0, total: undefined, share: 0 },
  ])("and the total if there is one: %o", async ({ iterations, environmentSteps, total, share }) => {
    const shown: unknown[] = [];
    const iteration = (...numbers: unknown[]) => shown.push(numbers);
    const run = memoryRun({ progress: { ...silentProgress, iteration } });
    const { config, state, ...rest } = training({}, iterations);
    state.iteration = 2;
    await evaluatePeriodically({ ...rest, state, config: { ...config, environmentSteps }, run });
    expect(shown).toEqual([[3, total]]);
    expect(shareOver({ ...state, stepsBefore: 0 }, { iterations, environmentSteps }, 0.5)).toBe(share);
  });
});

describe("evaluation during training", () => {
  test("never by default", async () => {
    const one = training({});
    await evaluatePeriodically(one);
    expect(one.run.rows).toEqual([]);
    expect(one.model.calls).toEqual([]);
  });

  test("at the interval, before the first iteration and after the last; each once", async () => {
    const one = training({ every: 2, episodes: 3 });
    for (; one.state.iteration <= 5; one.state.iteration++) {
      one.state.updates = one.state.iteration * 10;
      one.state.environmentSteps = one.state.iteration * 100;
      await evaluatePeriodically(one);
      await evaluatePeriodically(one); // a resumed run gets here again
    }
    expect(one.run.rows.map(({ step }) => step)).toEqual([0, 20, 40, 50]);
    expect(one.run.rows.map(({ values }) => values["eval/environment_steps"])).toEqual([0, 200, 400, 500]);
  });

  test("plays other episodes than training, the same ones each time", async () => {
    const one = training({ every: 1, episodes: 3, split: "train" });
    const seeds: number[] = [];
    const { start } = one.environment;
    one.environment.start = (task, options) => {
      seeds.push(options.seed);
      return start(task, options);
    };
    await evaluatePeriodically(one);
    one.state.iteration = 1;
    await evaluatePeriodically(one);
    const tasks = await one.environment.tasks("train");
    await collectTrajectories({
      ...{ model: one.model, environment: one.environment, seed: one.config.seed, temperature: 1 },
      ...{ episodes: tasks.map((task, id) => ({ id, task })), maxActionTokens: 50, maxPromptTokens: 10_000 },
    });
    expect(seeds).toHaveLength(9);
    expect(seeds.slice(3, 6).sort()).toEqual(seeds.slice(0, 3).sort());
    expect(new Set(seeds).size).toBe(6);
  });

  test("records the episodes, with the updates before", async () => {
    const one = training({ every: 1, episodes: 3 });
    one.state.updates = 7;
    await evaluatePeriodically(one);
    const [recorded, ...others] = one.run.evaluations;
    expect(others).toEqual([]);
    expect(recorded!.update).toBe(7);
    const rewards = recorded!.trajectories.map(({ reward }) => reward);
    expect(rewards).toHaveLength(3);
    expect(rewards.reduce((sum, reward) => sum + reward) / 3).toBe(one.run.rows[0]!.values["eval/reward"]);
  });

  test("leaves no cache, so that what follows does not depend on whether there was one", async () => {
    const one = training({ every: 2, episodes: 3 });
    const generatedBefore: number[] = [];
    one.model.dropCaches = async () => void generatedBefore.push(one.model.calls.length);
    for (; one.state.iteration <= 2; one.state.iteration++) await evaluatePeriodically(one);
    // Iterations 0 and 2 are evaluated, with the same episodes.
    const calls = one.model.calls.length;
    expect(generatedBefore).toEqual([calls / 2, calls]);
  });

  test("after the iteration in which the environment steps are reached", async () => {
    const one = training({ every: 3, episodes: 3 });
    one.config.environmentSteps = 100;
    one.state.iteration = 1;
    one.state.environmentSteps = 99;
    await evaluatePeriodically(one);
    one.state.environmentSteps = 100;
    one.state.collected = true; // its updates are still to come
    await evaluatePeriodically(one);
    expect(one.run.rows).toEqual([]);
    one.state.collected = false;
    await evaluatePeriodically(one);
    expect(one.run.rows).toHaveLength(1);
  });

  test("success has Wilson's interval over the held-out tasks", async () => {
    const one = training({ every: 1, episodes: 3 });
    await evaluatePeriodically(one);
    const { low, high } = wilsonInterval(1 / 3, 3);
    expect(one.run.rows[0]!.values).toMatchObject({
      "eval/success": 1 / 3,
      "eval/success_low": low,
      "eval/success_high": high,
      "eval/reward": 1 / 3,
      "eval/turns": (1 + 2 + 2) / 3,
      "eval/faults": 0,
    });
    const trained = training({ every: 1, episodes: 3, split: "train" });
    await evaluatePeriodically(trained);
    expect(trained.run.rows[0]!.values["eval/success"]).toBe(0); // there, the word is "key"
  });

  test("the same episodes each time, independent of the training in between; different seeds for repeats of a task", async () => {
    const environment = errands({ kinds: 2, moves: 4 });
    const seeds: number[] = [];
    const start = environment.start;
    environment.start = (task, options) => {
      seeds.push(options.seed);
      return start(task, options);
    };
    const one = { ...training({ every: 1, episodes: 4, temperature: 0.5 }), environment };
    await evaluatePeriodically(one);
    const first = one.model.calls.splice(0).map(({ request }) => request);
    one.state.iteration = 1;
    one.state.updates = 99;
    await evaluatePeriodically(one);
    expect(one.model.calls.map(({ request }) => request)).toEqual(first);
    expect(first.every(({ temperature }) => temperature === 0.5)).toBe(true);
    expect(seeds.slice(4)).toEqual(seeds.slice(0, 4));
    expect(new Set(seeds).size).toBe(4);
  });

  test("episodes that ended by a fault are counted, and are in no other figure", async () => {
    const one = training({ every: 1, episodes: 3 });
    const start = one.environment.start;
    let started = 0;
    one.environment.start = (task, options) => {
      if (started++ === 2) throw new Error("the desk is closed");
      return start(task, options);
    };
    await evaluatePeriodically(one);
    const { values } = one.run.rows[0]!;
    expect(values["eval/faults"]).toBe(1);
    expect([0, 0.5]).toContain(values["eval/success"]);
  });

  test("a stop logs nothing: the evaluation is repeated", async () => {
    const controller = new AbortController();
    const one = { ...training({ every: 1, episodes: 3 }), run: memoryRun({ signal: controller.signal }) };
    one.model.reply = () => {
      controller.abort();
      return "Thought:\nhm\nAction:\nsoap";
    };
    await expect(evaluatePeriodically(one)).rejects.toMatchObject({ code: "ERR_ABORTED" });
    expect(one.run.rows).toEqual([]);
    expect(one.run.evaluations).toEqual([]);
    expect(one.state.evaluated).toBeUndefined();
  });

  test("a split without tasks is an error that says so", async () => {
    const one = training({ every: 1 });
    one.environment.tasks = async () => [];
    await expect(evaluatePeriodically(one)).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining("test"),
    });
  });
});
