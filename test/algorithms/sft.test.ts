import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { type SftConfigInput, sftConfig, trainSft } from "../../lib/algorithms/sft.ts";
import { NlacError } from "../../lib/base/errors.ts";
import type { Environment } from "../../lib/contract/environment.ts";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import { toRecord } from "../../lib/episodes/records.ts";
import type { Trajectory } from "../../lib/episodes/trajectory.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { servicePlayer } from "../../lib/playing/service-player.ts";
import { type Checkpoint, memoryRun } from "../../lib/run/training-run.ts";
import { openService } from "../../lib/services/open-service.ts";
import { type Errand, errandEnvironment, luckyReply } from "../support/errand.ts";
import { ScriptedPolicy } from "../support/scripted-policy.ts";
import { inDirectory } from "../support/tiny.ts";

const small = {
  batchSize: 4,
  learningRate: 1,
  maxActionTokens: 100,
  maxPromptTokens: 10_000,
  maxTokens: 100_000,
};

/** Episodes of which some succeed, written to a file of `directory`. */
async function record(directory: string, model = new ScriptedPolicy(luckyReply(() => 0.5)) as never) {
  const environment = errandEnvironment({ turns: 2 });
  const tasks = await environment.tasks("train");
  const trajectories = await collectTrajectories({
    ...{ model, environment, seed: 3, maxActionTokens: 100, maxPromptTokens: 10_000, temperature: 1 },
    episodes: Array.from({ length: 12 }, (_, id) => ({ id, task: tasks[id % tasks.length]! })),
  });
  const path = join(directory, "episodes.jsonl");
  const writer = new RecordWriter(path);
  for (const trajectory of trajectories) writer.append(toRecord(trajectory));
  writer.close();
  return { path, trajectories };
}

async function train(
  config: SftConfigInput,
  environment: Environment<never> | Environment<Errand> = errandEnvironment({ turns: 2 }),
) {
  const model = new ScriptedPolicy(luckyReply(() => 0.5));
  const run = memoryRun();
  const result = await trainSft({
    model,
    environment: environment as Environment<unknown>,
    config: { ...small, ...config },
    run,
  });
  const batches = model.events.flatMap((event) => (event.kind === "nll" ? [event.texts] : []));
  const rates = model.events.flatMap((event) => (event.kind === "step" ? [event.options.learningRate] : []));
  return { model, run, result, texts: batches.flat(), rates };
}

const keys = (trajectories: readonly Trajectory[]) =>
  trajectories.flatMap(({ turns }) =>
    turns.map(({ state, tokens }) => String([...state.prompt(), ...tokens])),
  );

test("defaults are the paper's", async () => {
  expect(sftConfig.parse({ recorded: ["a"] })).toMatchObject({
    epochs: 3,
    batchSize: 64,
    learningRate: 3e-5,
    schedule: { shape: "cosine", floor: 0 },
    maxTokens: 2048,
  });
  expect(() => sftConfig.parse({ actionTemperature: 0.7 })).toThrow(/actionTemperature/);
  expect(sftConfig.parse({ schedule: { floor: 0.1 } }).schedule).toMatchObject({
    shape: "cosine",
    floor: 0.1,
  });
  await expect(train({})).rejects.toMatchObject({
    ...{ code: "ERR_CONFIG", message: expect.stringContaining("nothing to imitate") },
  });
});

describe("recorded episodes", () => {
  test("each action of the successes is imitated once per epoch, after its own state", async () => {
    await inDirectory(async (directory) => {
      const { path, trajectories } = await record(directory);
      const good = trajectories.filter(({ reward }) => reward === 1);
      expect(good.length).toBeGreaterThan(2);
      expect(good.length).toBeLessThan(12);
      const { texts, run, result } = await train({ recorded: [path], epochs: 2 });
      const trained = texts.map(({ prompt, response }) => String([...prompt, ...response]));
      const expected = keys(good);
      expect(trained.toSorted()).toEqual([...expected, ...expected].toSorted());
      expect(trained.slice(0, expected.length)).not.toEqual(trained.slice(expected.length));
      const perEpoch = Math.ceil(expected.length / 4);
      expect(result).toMatchObject({ updates: 2 * perEpoch, episodes: 0, stopped: false });
      expect(run.rows[0]!.values).toMatchObject({ "data/episodes": 12, "data/actions": expected.length });
      expect(run.rows.at(-1)!.values.epoch).toBe(2);
      const all = await train({ recorded: [path], epochs: 1, select: "all" });
      expect(all.texts.map(({ prompt, response }) => String([...prompt, ...response])).toSorted()).toEqual(
        keys(trajectories).toSorted(),
      );
      // Nothing of an episode that ended in a fault is imitated: how it would have gone on is unknown.
      const [faulty, ...others] = trajectories;
      const mixed = join(directory, "mixed.jsonl");
      const writer = new RecordWriter(mixed);
      for (const one of [{ ...faulty!, outcome: "service-fault" as const }, ...others])
        writer.append(toRecord(one));
      writer.close();
      const some = await train({ recorded: [mixed], epochs: 1, select: "all" });
      expect(some.texts.map(({ prompt, response }) => String([...prompt, ...response])).toSorted()).toEqual(
        keys(others).toSorted(),
      );
    });
  });

  test("actions that branches repeat of an episode are imitated once per epoch, also if it failed", async () => {
    await inDirectory(async (directory) => {
      const { trajectories } = await record(directory);
      const long = trajectories.filter(({ turns }) => turns.length === 2);
      const [original, won, also] = [
        long.find(({ reward }) => reward === 0)!,
        ...long.filter((one) => one.reward === 1),
      ];
      const path = join(directory, "branched.jsonl");
      const writer = new RecordWriter(path);
      const branch = { trajectory: original.id, turn: 1 };
      const branches = [won!, also!].map((one, i) => ({ ...one, id: 2 ** 30 + i, branch }));
      for (const one of [original, ...branches]) writer.append(toRecord(one));
      writer.close();
      const actions = async (select: "all" | "successes") => {
        const { run } = await train({ recorded: [path], epochs: 1, select });
        return run.rows[0]!.values["data/actions"];
      };
      expect(await actions("all")).toBe(2 + 1 + 1);
      expect(await actions("successes")).toBe(1 + 1 + 1);
    });
  });

  test("the loss is the mean over tokens and the batch, and the rate follows the cosine", async () => {
    await inDirectory(async (directory) => {
      const { path } = await record(directory);
      const { texts, rates } = await train({ recorded: [path], epochs: 1, batchSize: 1000, select: "all" });
      for (const { response, weight } of texts)
        expect(weight).toBeCloseTo(1 / (response.length * texts.length), 12);
      expect(rates).toEqual([1]);
      const many = await train({ recorded: [path], epochs: 3, batchSize: 6, select: "all" });
      const steps = many.rates.length;
      const cosine = Array.from({ length: steps }, (_, i) => (1 + Math.cos((Math.PI * i) / steps)) / 2);
      for (const [i, rate] of many.rates.entries()) expect(rate).toBeCloseTo(cosine[i]!, 12);
    });
  });

  test("of a service are written again with the model's tokenizer and template", async () => {
    await inDirectory(async (directory) => {
      const player = servicePlayer(openService(() => "Thought:\nhm\nAction:\nkey"));
      const { path } = await record(directory, player as never);
      const { texts, model, run } = await train({ recorded: [path], epochs: 1 });
      expect(texts.length).toBeGreaterThan(0);
      for (const { prompt, response } of texts) {
        expect(model.decode(prompt)).toMatch(
          /^<\|im_start\|>system\nYou run errands\..*<\|im_start\|>assistant\n$/s,
        );
        expect(model.decode(response)).toBe("Thought:\nhm\nAction:\nkey<|im_end|>");
      }
      // The run's own copy is of the model's ids: it can be resumed without the file.
      expect(run.trajectories).toHaveLength(12);
      expect(model.decode(run.trajectories[0]!.conversation.tokens)).toContain("<|im_start|>system");
    });
  });

  test("that are too long are left out and counted; none left is an error", async () => {
    await inDirectory(async (directory) => {
      const { path, trajectories } = await record(directory);
      const lengths = trajectories.flatMap(({ turns }) =>
        turns.map(({ state, tokens }) => state.prompt().length + tokens.length),
      );
      const maxTokens = lengths.toSorted((a, b) => a - b)[lengths.length >> 1]!;
      const { run } = await train({ recorded: [path], epochs: 1, select: "all", maxTokens });
      expect(run.rows[0]!.values["data/too_long"]).toBe(
        lengths.filter((length) => length > maxTokens).length,
      );
      const short = Object.assign(new ScriptedPolicy(() => ""), { maxPositions: maxTokens });
      const limited = memoryRun();
      const config: SftConfigInput = { ...small, recorded: [path], epochs: 1, select: "all" };
      const environment = errandEnvironment({ turns: 2 });
      await trainSft({ model: short, environment, config, run: limited });
      expect(limited.rows[0]!.values).toEqual(run.rows[0]!.values); // the context is a limit, too
      await expect(train({ recorded: [path], maxTokens: 5 })).rejects.toMatchObject({ code: "ERR_CONFIG" });
      await expect(train({ recorded: [path], successReward: 7 })).rejects.toMatchObject({
        code: "ERR_CONFIG",
      });
      await expect(train({ recorded: [join(directory, "none")] })).rejects.toMatchObject({ code: "ERR_IO" });
    });
  });
});

test("scripted episodes are imitated without a file, and are a function of the seed", async () => {
  const environment = twentyQuestions({ words: ["cat", "hammer", "apple", "car"], trainWords: 2, turns: 4 });
  const config = { demonstrationsPerTask: 2, epochs: 1 };
  const { texts, model } = await train(config, environment as never);
  expect(texts.length).toBeGreaterThanOrEqual(4);
  for (const { response } of texts)
    expect(model.decode(response)).toMatch(/^Thought:\n.*\nAction:\n.*<\|im_end\|>$/s);
  const again = await train(config, environment as never);
  expect(again.texts).toEqual(texts);
  await expect(train(config)).rejects.toMatchObject({ code: "ERR_CONFIG" });
});

test("the last imitation of the corrections so far is saved as the end of an iteration", async () => {
  const controller = new AbortController();
  const model = new ScriptedPolicy(luckyReply(() => 0.5));
  const example = { prompt: model.encode("Well?"), response: [...model.encode("Well."), model.endOfTurn] };
  let left = 2;
  const saved: Record<string, unknown>[] = [];
  const run = {
    ...memoryRun({ signal: controller.signal }),
    nextDemonstrations: async () => {
      if (left > 0) return { examples: [example], imitated: () => --left };
      controller.abort();
      throw new NlacError("ERR_ABORTED", "stopped");
    },
    checkpoint: async ({ state }: Checkpoint) => void saved.push(state),
  };
  await trainSft({ model, environment: errandEnvironment(), config: small, run });
  // A server that is killed after the second step evaluates when it starts again.
  expect(saved.map(({ updates, iteration }) => [updates, iteration])).toEqual([
    [0, 0],
    [1, 0],
    [2, 1],
    [2, 1],
  ]);
});
