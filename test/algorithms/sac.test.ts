import { afterEach, describe, expect, test } from "vitest";
import { type SacConfigInput, sacConfig, trainSac, valuesAfter } from "../../lib/algorithms/sac.ts";
import type { Environment } from "../../lib/contract/environment.ts";
import { silentProgress } from "../../lib/display/progress.ts";
import { Learner } from "../../lib/learner/learner.ts";
import type {
  SoftQModel,
  SoftQOptions,
  SoftQResult,
  SoftQText,
  StepOptions,
} from "../../lib/model/language-model.ts";
import { learnerDirectory } from "../../lib/run/checkpoints.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import { type MemoryRun, memoryRun } from "../../lib/run/training-run.ts";
import { testDevice } from "../support/device.ts";
import { type Errand, errandEnvironment } from "../support/errand.ts";
import { likeQwq } from "../support/reasoning-templates.ts";
import { endOfTurn, ScriptedModel } from "../support/scripted-model.ts";
import { inDirectory, tinyLearner } from "../support/tiny.ts";

const act = (word: string) => `Thought:\nhm\nAction:\n${word}`;

interface Call {
  texts: (SoftQText & { weight: number[]; rewards: number[] })[];
  options: SoftQOptions;
  /** Number of steps taken before the call. */
  steps: number;
}

/** A scripted model whose results are a function of the position; its entropies are 0.5. */
class ScriptedQ extends ScriptedModel implements SoftQModel {
  readonly softQCalls: Call[] = [];
  /** Number of generations before each reset of the heads. */
  readonly resets: number[] = [];
  steps = 0;

  async softQ(texts: readonly SoftQText[], options: SoftQOptions): Promise<SoftQResult[]> {
    this.softQCalls.push({ texts: structuredClone(texts) as Call["texts"], options, steps: this.steps });
    return texts.map(({ response, weight }) => {
      const list = (value: (t: number) => number) =>
        Float32Array.from(response, (_, t) => ((weight as number[])[t] === 0 ? 0 : value(t)));
      return {
        qLosses: list((t) => t),
        policyLosses: list((t) => 2 * t),
        q: list(() => 0.25),
        targets: list(() => 0.75),
        entropies: list(() => 0.5),
      };
    });
  }

  async resetQHeads(): Promise<void> {
    this.resets.push(this.calls.length);
  }

  override async step(options: StepOptions) {
    this.steps++;
    return super.step(options);
  }
}

const small: SacConfigInput = {
  iterations: 1,
  episodesPerIteration: 1,
  updatesPerIteration: 1,
  batchSize: 4,
  criticUpdatesFirst: 0,
  maxActionTokens: 100,
  maxPromptTokens: 50_000,
};

async function train(
  config: SacConfigInput = {},
  {
    model = new ScriptedQ(() => act("soap")),
    environment = errandEnvironment(),
    run = memoryRun(),
  }: { model?: ScriptedQ; environment?: Environment<Errand>; run?: MemoryRun } = {},
) {
  const result = await trainSac({ model, environment, config: { ...small, ...config }, run });
  const updates = run.rows.filter(({ values }) => "loss/q" in values).map(({ values }) => values);
  return { model, run, result, updates, calls: model.softQCalls };
}

/** The sequences of each update: one batch may be passed to the model in several calls. */
function batches(calls: readonly Call[]): Call["texts"][] {
  const bySteps = new Map<number, Call["texts"]>();
  for (const { texts, steps } of calls) bySteps.set(steps, [...(bySteps.get(steps) ?? []), ...texts]);
  return [...bySteps.values()];
}

const sum = (values: readonly number[]) => values.reduce((a, b) => a + b, 0);

describe("the configuration", () => {
  test("defaults are those of the papers, where given", () => {
    expect(sacConfig.parse({})).toMatchObject({
      iterations: 30,
      updatesPerIteration: 1024,
      targetRate: 0.005,
      temperatureLearningRate: 3e-4,
      learningRate: 5e-6,
      maxPromptTokens: 8192,
      maxActionTokens: 24_576,
    });
  });

  test("unknown keys and invalid values are errors that name the field", async () => {
    await expect(train({ alpha: 1 } as never)).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining("alpha"),
    });
    await expect(train({ temperature: 0 })).rejects.toThrow(/temperature/);
    await expect(train({ discount: 1.5 })).rejects.toThrow(/discount/);
  });
});

describe("an episode", () => {
  test("is one sequence: the policy's tokens are its actions, rewards are at the ends of turns", async () => {
    const replies = ["soap", "soap", "key"];
    const model = new ScriptedQ((prompt) => act(replies[prompt.split("OBSERVED").length - 1]!));
    const { calls, run } = await train({}, { model, environment: errandEnvironment({ words: ["key"] }) });
    const [batch] = batches(calls);
    expect(batch).toHaveLength(4); // drawn with replacement
    const { prompt, response, weight, rewards } = batch![0]!;
    const [trajectory] = run.trajectories;
    expect([...prompt, ...response]).toEqual(
      trajectory!.conversation.tokens.slice(0, prompt.length + response.length),
    );
    const written = response.filter((_, t) => weight[t] !== 0);
    expect(written).toEqual(replies.flatMap((word) => [...model.encode(act(word)), endOfTurn]));
    expect(weight.at(-1)).not.toBe(0); // nothing after the last action is scored
    const received = rewards.flatMap((reward, t) => (reward === 0 ? [] : [{ reward, t }]));
    expect(received).toEqual([{ reward: 1, t: response.length - 1 }]);
    expect(model.decode(response)).toContain("OBSERVED wants key");
  });

  test("every action of a batch has the same weight, 1 in total", async () => {
    // Episodes of different lengths: a lucky one ends after one turn.
    const model = new ScriptedQ(() => act("key"));
    const { calls, updates } = await train({ episodesPerIteration: 3, batchSize: 6 }, { model });
    const [batch] = batches(calls);
    const weights = batch!.flatMap(({ weight }) => weight).filter((w) => w !== 0);
    expect(new Set(weights).size).toBe(1);
    expect(sum(weights)).toBeCloseTo(1, 12);
    expect(new Set(batch!.map(({ response }) => response.length)).size).toBeGreaterThan(1);
    expect(updates[0]!["tokens/actions"]).toBe(weights.length);
    const expected = sum(batch!.map(({ weight }) => sum(weight.map((w, t) => w * t))));
    expect(updates[0]!["loss/q"]).toBeCloseTo(expected, 4);
    expect(updates[0]).toMatchObject({ skipped: 0, learning_rate: 5e-6 });
    expect(updates[0]!["loss/policy"]).toBeCloseTo(2 * expected, 4);
    expect(updates[0]!["q/mean"]).toBeCloseTo(0.25, 6);
    expect(updates[0]!["target/mean"]).toBeCloseTo(0.75, 6);
    expect(updates[0]!.entropy).toBeCloseTo(0.5, 6);
  });

  test("that ended in a fault of the environment is not replayed", async () => {
    const environment = errandEnvironment({ words: ["key"] });
    const start = environment.start;
    let episodes = 0;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      const breaks = episodes++ === 0;
      let turns = 0;
      // The first turn has an outcome: the rest of such an episode would look complete.
      const step: typeof episode.step = (action) =>
        breaks && ++turns === 2 ? Promise.reject(new Error("shut")) : episode.step(action);
      return { ...episode, step };
    };
    const { calls, run } = await train({ episodesPerIteration: 2, batchSize: 8 }, { environment });
    expect(run.trajectories.map(({ outcome }) => outcome)).toEqual(["environment-fault", "done"]);
    expect(run.rows[0]!.values["replay/episodes"]).toBe(1);
    expect(new Set(batches(calls)[0]!.map(({ response }) => response.length)).size).toBe(1);
    // If later all episodes fail, the earlier ones stay.
    let started = 0;
    environment.start = (task, options) =>
      ++started > 1 ? Promise.reject(new Error("shut")) : start(task, options);
    const later = await train({ iterations: 2 }, { environment });
    expect(later.run.trajectories.map(({ outcome }) => outcome)).toEqual(["done", "environment-fault"]);
    const kept = later.run.rows.flatMap(({ values }) => values["replay/episodes"] ?? []);
    expect(kept).toEqual([1, 1]);
  });
});

test("Q starts as the policy at the start of training", async () => {
  const { model } = await train({ iterations: 2 });
  expect(model.resets).toEqual([0]);
});

describe("an update", () => {
  test("takes one step on both losses, then moves θ̄; the first ones train only Q", async () => {
    const { model, calls } = await train({
      updatesPerIteration: 3,
      criticUpdatesFirst: 2,
      targetRate: 0.25,
      temperature: 0.3,
      discount: 0.9,
      qCoefficient: 0.7,
      policyCoefficient: 1.3,
      learningRate: 1e-3,
      betas: [0.9, 0.98],
    });
    expect(model.events).toMatchObject([
      { kind: "target", targetRate: 1 }, // θ̄ starts as θ
      ...[1, 2, 3].flatMap(() => [
        { kind: "step", options: { learningRate: 1e-3, betas: [0.9, 0.98] } },
        { kind: "target", targetRate: 0.25 },
      ]),
    ]);
    const first = (steps: number) => calls.find((call) => call.steps === steps)!.options;
    expect(first(0)).toEqual({
      ...{ temperature: 0.3, discount: 0.9, qCoefficient: 0.7, policyCoefficient: 0 },
      detached: false,
    });
    expect(first(1).policyCoefficient).toBe(0);
    expect(first(2).policyCoefficient).toBe(1.3);
  });

  test("replays old episodes too, up to the capacity", async () => {
    const played = async (replayCapacity: number) => {
      let episode = 0;
      const model = new ScriptedQ(() => act(`word${episode++}`));
      const environment = errandEnvironment({ words: ["key"], turns: 1 });
      const config = { iterations: 3, updatesPerIteration: 4, batchSize: 8, replayCapacity };
      const { calls, run } = await train(config, { model, environment });
      expect(run.rows.at(-5)!.values["replay/episodes"]).toBe(Math.min(3, replayCapacity));
      const last = batches(calls).slice(-4).flat();
      return new Set(last.map(({ response }) => /word\d/.exec(model.decode(response))![0]));
    };
    expect(await played(10)).toEqual(new Set(["word0", "word1", "word2"]));
    expect(await played(2)).toEqual(new Set(["word1", "word2"]));
  });

  test("draws by seed and update number only", async () => {
    const drawn = async (seed: number) => {
      let episode = 0;
      const model = new ScriptedQ(() => act(`word${episode++}`));
      const config = { episodesPerIteration: 6, updatesPerIteration: 3, seed };
      const { calls } = await train(config, { model, environment: errandEnvironment({ turns: 1 }) });
      return batches(calls).map((batch) => batch.map(({ response }) => model.decode(response)));
    };
    const [a, b, c] = [await drawn(1), await drawn(1), await drawn(2)];
    expect(a).toEqual(b);
    expect(c).not.toEqual(a);
    expect(new Set(a.map((batch) => batch.join())).size).toBe(3);
  });

  test("tunes α to the target entropy, once the policy learns", async () => {
    const { updates, run } = await train({
      updatesPerIteration: 3,
      criticUpdatesFirst: 1,
      temperature: 0.1,
      targetEntropy: 0.9,
      temperatureLearningRate: 0.5,
    });
    const factor = Math.exp(0.5 * (0.9 - 0.5));
    const temperatures = [0.1, 0.1, 0.1 * factor];
    for (const [i, expected] of temperatures.entries())
      expect(updates[i]!.temperature).toBeCloseTo(expected, 6);
    expect((run.checkpoints.at(-1) as { temperature: number }).temperature).toBeCloseTo(0.1 * factor ** 2, 6);
    const fixed = await train({ updatesPerIteration: 3, temperature: 0.1 });
    expect(fixed.updates.map(({ temperature }) => temperature)).toEqual([0.1, 0.1, 0.1]);
  });

  test("that was skipped does not change α, and too many in a row stop the run", async () => {
    const model = new ScriptedQ(() => act("soap"));
    model.skip = () => true;
    const run = memoryRun();
    const config = { updatesPerIteration: 20, maxSkippedSteps: 4, targetEntropy: 0.9 };
    await expect(train(config, { model, run })).rejects.toMatchObject({ code: "ERR_NOT_FINITE" });
    expect(model.steps).toBe(4);
    expect(run.rows.at(-1)!.values).toMatchObject({ skipped: 1, temperature: 0.01 });
  });
});

test("no iterations: nothing is played, and earlier results stay", async () => {
  const { result, run } = await train({ iterations: 0 });
  expect(result).toMatchObject({ updates: 0, episodes: 0, stopped: false });
  expect(run.checkpoints.length).toBeGreaterThan(0);
});

test("a stop rolls back to the last boundary, forgets gradients, and checkpoints", async () => {
  const controller = new AbortController();
  const run = memoryRun({ signal: controller.signal });
  const model = new ScriptedQ(() => act("soap"));
  const softQ = model.softQ.bind(model);
  model.softQ = async (...call) => {
    if (model.steps === 2) controller.abort();
    return softQ(...call);
  };
  const { result } = await train({ updatesPerIteration: 5 }, { model, run });
  expect(result).toMatchObject({ stopped: true, updates: 2 });
  expect(model.events.at(-1)).toEqual({ kind: "discard" });
  expect(model.steps).toBe(2);
  expect(run.checkpoints.at(-1)).toMatchObject({ updates: 2, updatesDone: 2, collected: true });
});

test("a run continued before its first episode does not start heads and θ̄ again", async () => {
  const before = memoryRun();
  const first = new ScriptedQ(() => act("soap"));
  await train({ iterations: 0 }, { model: first, run: before });
  expect(first.resets).toEqual([0]);
  const state = before.checkpoints[0]!;
  expect(state).toMatchObject({ episodes: 0 });
  const run = { ...memoryRun(), restore: async () => ({ state, trajectories: [], replay: "" }) };
  const model = new ScriptedQ(() => act("soap"));
  const { result } = await train({}, { model, run });
  expect(result).toMatchObject({ updates: 1, episodes: 1 });
  expect(model.resets).toEqual([]);
});

// ---------------------------------------------------------------------------------- a real learner

const open: Learner[] = [];
afterEach(() => Promise.all(open.splice(0).map((learner) => learner.dispose())));

function keep(learner: Learner): Learner {
  open.push(learner);
  return learner;
}

/** One turn; an answer is right if it begins with a letter or a digit: 62 of 264 ids. */
function bandit(): Environment<Errand> {
  const environment = errandEnvironment({ turns: 1, words: ["go"] });
  environment.start = async () => ({
    observation: { messages: [{ role: "user", content: "Go." }] },
    step: async ({ text }) => ({
      observation: [],
      reward: /^[0-9A-Za-z]/.test(text) ? 1 : 0,
      terminated: true,
      truncated: false,
      info: {},
    }),
    close: async () => undefined,
  });
  return environment;
}

const learning: SacConfigInput = {
  episodesPerIteration: 48,
  updatesPerIteration: 10,
  batchSize: 24,
  criticUpdatesFirst: 5,
  targetRate: 0.1,
  temperature: 0.1,
  learningRate: 1e-2,
  maxActionTokens: 2,
};

test.each([
  { maxActionTokens: 1, iterations: 5, least: 0.75 },
  // The first of two tokens decides: its reward reaches it through the second one's value.
  { maxActionTokens: 2, iterations: 8, least: 0.75 },
])(
  "a tiny model learns which answers of $maxActionTokens tokens are rewarded",
  { timeout: 180_000 },
  async ({ least, ...config }) => {
    const model = keep(await tinyLearner({ heads: "q", seed: 3, threads: 1 }));
    const run = memoryRun();
    await trainSac({ model, environment: bandit(), config: { ...learning, ...config }, run });
    const success = run.rows.flatMap(({ values }) => values["rollout/success"] ?? []);
    expect(success[0]).toBeLessThan(0.4);
    expect((success.at(-1)! + success.at(-2)!) / 2).toBeGreaterThan(least);
    const updates = run.rows.filter(({ values }) => "loss/q" in values);
    expect(updates[0]!.values["loss/policy"]).toBeLessThan(1e-5); // the heads started as the policy
    expect(updates.every(({ values }) => values.skipped === 0)).toBe(true);
  },
);

describe("the value after the last action of a sequence", () => {
  test("equals the value in a single sequence that contains all turns", async () => {
    const model = keep(await tinyLearner({ heads: "q", seed: 4, threads: 1 }));
    const ids = (length: number, from: number) => Array.from({ length }, (_, t) => (from + 37 * t) % 256);
    const [prompt, first, answer, second] = [ids(9, 1), ids(5, 2), ids(7, 3), ids(4, 5)];
    const options = { temperature: 0.05, discount: 0.9, qCoefficient: 1 };
    const [whole] = await model.softQ(
      [
        {
          prompt,
          response: [...first, ...answer, ...second],
          weight: [...first.map(() => 1), ...answer.map(() => 0), ...second.map(() => 1)],
          rewards: new Array(16).fill(0),
        },
      ],
      { ...options, policyCoefficient: 0, withGradient: false },
    );
    const turns = [{ start: 0, end: 5, reward: 0 }];
    const text = { prompt, response: first, weight: first.map(() => 1), turns };
    const next = [...prompt, ...first, ...answer];
    const { signal } = new AbortController();
    const [ended, going] = await valuesAfter(model, [text, { ...text, next }], options, signal);
    expect(ended).toBe(0);
    expect(going).not.toBe(0);
    expect(going).toBeCloseTo(whole!.targets[first.length - 1]!, 5);
  });

  test("is added to the last turn's reward if a limit truncated the episode", async () => {
    const environment = errandEnvironment({ turnLimitEnds: false });
    const { calls, run } = await train({ batchSize: 1 }, { environment });
    const [values, losses] = [false, undefined].map((gradient) =>
      calls.filter(({ options }) => options.withGradient === gradient).flatMap(({ texts }) => texts),
    );
    const cut = run.trajectories[0]!.conversation.prompt();
    expect(values!.map(({ prompt, response }) => [...prompt, response[0]!])).toEqual([cut]);
    expect(losses!.map(({ rewards }) => rewards.filter((reward) => reward !== 0))).toEqual([[0.75]]);
    expect(losses![0]!.rewards.at(-1)).toBe(0.75);
    const ended = await train({ batchSize: 1 });
    expect(ended.calls.flatMap(({ texts }) => texts).map(({ rewards }) => sum(rewards))).toEqual([0]);
    // It does not replace a reward that the last turn has.
    const paying = errandEnvironment({ turnLimitEnds: false });
    const { start } = paying;
    paying.start = async (...args) => {
      const episode = await start(...args);
      return { ...episode, step: async (action) => ({ ...(await episode.step(action)), reward: 0.25 }) };
    };
    const paid = (await train({ batchSize: 1 }, { environment: paying })).calls.at(-1)!;
    expect(paid.texts[0]!.rewards.filter((reward) => reward !== 0)).toEqual([0.25, 0.25, 0.25 + 0.75]);
  });

  test("is at the temperature of the update, which tuning changes", async () => {
    const environment = errandEnvironment({ turnLimitEnds: false });
    const config = { temperature: 0.1, targetEntropy: 0.9, temperatureLearningRate: 0.5 };
    const { calls } = await train({ ...config, updatesPerIteration: 2, batchSize: 1 }, { environment });
    const temperatures = (gradient?: false) =>
      calls.flatMap(({ options }) => (options.withGradient === gradient ? [options.temperature] : []));
    expect(new Set(temperatures()).size).toBe(2);
    expect(temperatures(false)).toEqual(temperatures());
  });

  test("is added to the turn's reward if reasoning makes each turn a sequence of its own", async () => {
    const model = new ScriptedQ(() => `why\n</think>\n\n${act("soap")}`, likeQwq);
    const { calls, updates } = await train({ batchSize: 1 }, { model, environment: errandEnvironment() });
    const [values, losses] = [false, undefined].map((gradient) =>
      calls.filter(({ options }) => options.withGradient === gradient).flatMap(({ texts }) => texts),
    );
    expect(values!.map(({ prompt, response }) => [...prompt, ...response].slice(0, -1))).toEqual(
      losses!.slice(1).map(({ prompt }) => prompt),
    );
    expect(losses!.map(({ rewards }) => rewards.at(-1))).toEqual([0.75, 0.75, 0]);
    expect(updates[0]!["tokens/actions"]).toBe(losses!.flatMap(({ response }) => response).length);
  });
});

test("a stopped and resumed run ends like an uninterrupted one, bit for bit", {
  timeout: 120_000,
}, async () => {
  const config = {
    ...learning,
    episodesPerIteration: 6,
    updatesPerIteration: 4,
    batchSize: 4,
    iterations: 2,
  };
  const tuned = { ...config, targetEntropy: 2, temperatureLearningRate: 0.05, criticUpdatesFirst: 1 };
  const learnerOptions = { dtype: "float32", device: testDevice, threads: 1, seed: 3 } as const;
  const play = async (path: string, stopAfter: number | undefined) => {
    const controller = new AbortController();
    let updates = 0;
    const options = {
      signal: controller.signal,
      progress: {
        ...silentProgress,
        advance: () => void (++updates === stopAfter && controller.abort()),
      },
      description: { recipe: { name: "sac" } },
      checkpointSeconds: 0,
    };
    const resuming = stopAfter === undefined && path.endsWith("cut");
    const model = keep(
      resuming
        ? await Learner.resume(learnerDirectory(path), { ...learnerOptions, heads: "q" })
        : await tinyLearner({ ...learnerOptions, heads: "q" }),
    );
    const run = resuming
      ? await RunDirectory.resume(path, model, options)
      : RunDirectory.create(path, options);
    const environment = errandEnvironment({ turns: 1 });
    const result = await trainSac({ model, environment, config: tuned, run });
    run.close();
    const [logits] = await model.logits([[3, 5, 7]]);
    const [target] = await model.logits([[3, 5, 7]], { weights: "target" });
    return { result, numbers: [...logits!, ...target!] };
  };
  await inDirectory(async (directory) => {
    const whole = await play(`${directory}/whole`, undefined);
    expect(whole.result).toMatchObject({ updates: 8, stopped: false });
    const cut = await play(`${directory}/cut`, 6);
    expect(cut.result.stopped).toBe(true);
    expect(cut.result.updates).toBeLessThan(8);
    const resumed = await play(`${directory}/cut`, undefined);
    expect(resumed.result).toEqual(whole.result);
    expect(resumed.numbers).toEqual(whole.numbers);
  });
});
