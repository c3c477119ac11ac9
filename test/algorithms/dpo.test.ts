import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { type DpoConfigInput, dpoConfig, trainDpo } from "../../lib/algorithms/dpo.ts";
import { toRecord } from "../../lib/episodes/records.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { type Checkpoint, memoryRun } from "../../lib/run/training-run.ts";
import { errandEnvironment, luckyReply } from "../support/errand.ts";
import { ScriptedPreferences } from "../support/scripted-preferences.ts";
import { inDirectory } from "../support/tiny.ts";

const small = {
  batchSize: 4,
  learningRate: 1,
  maxActionTokens: 100,
  maxPromptTokens: 10_000,
  maxTokens: 100_000,
};

async function record(
  directory: string,
  share = 0.5,
  environment = errandEnvironment({ turns: 2 }),
  episodes = 12,
) {
  const tasks = await environment.tasks("train");
  const trajectories = await collectTrajectories({
    model: new ScriptedPreferences(luckyReply(() => share)),
    ...{ environment, seed: 3, maxActionTokens: 100, maxPromptTokens: 10_000, temperature: 1 },
    episodes: Array.from({ length: episodes }, (_, id) => ({ id, task: tasks[id % tasks.length]! })),
  });
  const path = join(directory, "episodes.jsonl");
  const writer = new RecordWriter(path);
  for (const trajectory of trajectories) writer.append(toRecord(trajectory));
  writer.close();
  return { path, trajectories };
}

async function train(config: DpoConfigInput) {
  const model = new ScriptedPreferences(luckyReply(() => 0.5));
  const run = memoryRun();
  const environment = errandEnvironment({ turns: 2 });
  const result = await trainDpo({ model, environment, config: { ...small, ...config }, run });
  return { model, run, result, pairs: model.preferences.flatMap(({ pairs }) => pairs) };
}

test("defaults are the papers', and files must be named", () => {
  expect(dpoConfig.parse({ recorded: ["a"] })).toMatchObject({
    ...{ beta: 0.1, loss: "sigmoid", labelSmoothing: 0, learningRate: 1e-6, batchSize: 64, epochs: 1 },
  });
  expect(() => dpoConfig.parse({})).toThrow(/nothing to compare/);
  const { schedule } = dpoConfig.parse({ recorded: ["a"], schedule: { warmupSteps: 150 } });
  expect(schedule).toMatchObject({ shape: "linear", warmupSteps: 150 });
});

test("options without an effect are refused", () => {
  const recorded = ["a"];
  expect(() => dpoConfig.parse({ recorded, discount: 0.9 })).toThrow(/pairs \\"actions\\"/);
  expect(dpoConfig.parse({ recorded, pairs: "actions", discount: 0.9 }).discount).toBe(0.9);
  expect(() => dpoConfig.parse({ recorded, actionTemperature: 0.7 })).toThrow(/actionTemperature/);
  for (const loss of ["hinge", "ipo"])
    expect(() => dpoConfig.parse({ recorded, loss, labelSmoothing: 0.1 })).toThrow(/labelSmoothing/);
});

describe("pairs", () => {
  test("of episodes prefer the higher reward on the same task; the environment's tokens have no weight", async () => {
    await inDirectory(async (directory) => {
      const { path, trajectories } = await record(directory);
      const { pairs, model, run } = await train({ recorded: [path], pairsPerGroup: 3 });
      expect(pairs.length).toBeGreaterThan(2);
      expect(pairs.length).toBeLessThanOrEqual(9); // three tasks
      expect(run.rows[0]!.values).toMatchObject({ "data/episodes": 12, "data/pairs": pairs.length });
      const byText = new Map(
        trajectories.map((one) => [model.decode(one.conversation.tokens).trimEnd(), one] as const),
      );
      const of = ({ prompt, response }: { prompt: readonly number[]; response: readonly number[] }) =>
        [...byText].find(([text]) => text.startsWith(model.decode([...prompt, ...response])))![1];
      for (const { chosen, rejected, weight } of pairs) {
        expect(of(chosen)).toMatchObject({ reward: 1, task: of(rejected).task });
        expect(of(rejected).reward).toBe(0);
        expect(chosen.prompt).toEqual(rejected.prompt);
        const own = (chosen.weight as number[]).flatMap((one, t) => (one === 1 ? [chosen.response[t]!] : []));
        expect(own).toEqual(of(chosen).turns.flatMap(({ tokens }) => tokens));
        expect(weight! * pairs.length).toBeGreaterThan(0.9);
      }
    });
  });

  test("of episodes have the same opening, even if the environment draws it", async () => {
    await inDirectory(async (directory) => {
      const plain = errandEnvironment({ turns: 2 });
      // Like a customer who is played by a model: the first message depends on the episode's seed.
      const environment = {
        ...plain,
        start: async (...options: Parameters<typeof plain.start>) => {
          const episode = await plain.start(...options);
          const greeting = {
            role: "user" as const,
            content: `Good ${options[1].seed % 2 ? "day" : "night"}!`,
          };
          return { ...episode, observation: { messages: [...episode.observation.messages, greeting] } };
        },
      };
      const { path } = await record(directory, 0.5, environment, 48);
      const { pairs, model } = await train({ recorded: [path], pairsPerGroup: 100 });
      expect(pairs.length).toBeGreaterThan(20);
      for (const { chosen, rejected } of pairs) expect(chosen.prompt).toEqual(rejected.prompt);
      const openings = new Set(pairs.map(({ chosen }) => model.decode(chosen.prompt)));
      expect(openings.size).toBe(2);
    });
  });

  test("of actions prefer the higher mean return in the same state", async () => {
    await inDirectory(async (directory) => {
      const { path } = await record(directory);
      const { pairs, model } = await train({ recorded: [path], pairs: "actions" });
      expect(pairs.length).toBeGreaterThan(0);
      for (const { chosen, rejected } of pairs) {
        expect(chosen.prompt).toEqual(rejected.prompt);
        expect(model.decode(chosen.response)).not.toContain("soap");
        expect(model.decode(rejected.response)).toContain("soap");
      }
    });
  });

  test("of actions do not credit those before a branch with what followed it", async () => {
    await inDirectory(async (directory) => {
      const environment = errandEnvironment({ turns: 2 });
      const played = async (id: number, ...words: string[]) => {
        const model = new ScriptedPreferences(() => `Thought:\nhm\nAction:\n${words.shift()}`);
        const [trajectory] = await collectTrajectories({
          ...{ model, environment, episodes: [{ id, task: { word: "key" } }], seed: 3, temperature: 1 },
          ...{ maxActionTokens: 100, maxPromptTokens: 10_000 },
        });
        return trajectory!;
      };
      const path = join(directory, "branched.jsonl");
      const writer = new RecordWriter(path);
      writer.append(toRecord(await played(0, "map", "soap")));
      writer.append(toRecord(await played(1, "lamp", "soap")));
      writer.append(toRecord({ ...(await played(2, "map", "key")), branch: { trajectory: 0, turn: 1 } }));
      writer.close();
      const { pairs, model } = await train({ recorded: [path], pairs: "actions" });
      // After "map", "key" is better than "soap". "map" itself is not better than "lamp".
      expect(pairs).toHaveLength(1);
      expect(model.decode(pairs[0]!.chosen.response)).toContain("key");
    });
  });

  test("with a text beyond maxTokens, preferred or rejected, are left out and counted", async () => {
    await inDirectory(async (directory) => {
      const { path } = await record(directory);
      const all = await train({ recorded: [path], pairsPerGroup: 3 });
      const length = ({ prompt, response }: (typeof all.pairs)[0]["chosen"]) =>
        prompt.length + response.length;
      // With "key" or "map", which are shorter than "soap", the rejected text is the longer one.
      const shortest = Math.min(...all.pairs.map(({ chosen }) => length(chosen)));
      expect(Math.min(...all.pairs.map(({ rejected }) => length(rejected)))).toBeGreaterThan(shortest);
      const limited = (maxTokens: number) => train({ recorded: [path], pairsPerGroup: 3, maxTokens });
      await expect(limited(shortest)).rejects.toMatchObject({
        code: "ERR_CONFIG",
        message: expect.stringContaining(`All ${all.pairs.length} pairs have a text that is longer`),
      });
      const some = await limited(shortest + 1);
      expect(some.pairs.length).toBeGreaterThan(0);
      expect(some.run.rows[0]!.values).toMatchObject({
        "data/pairs": some.pairs.length,
        "data/too_long": all.pairs.length - some.pairs.length,
      });
    });
  });

  test("that do not exist, because all returns are equal, are an error", async () => {
    await inDirectory(async (directory) => {
      const { path } = await record(directory, 0);
      for (const pairs of ["episodes", "actions"] as const)
        await expect(train({ recorded: [path], pairs })).rejects.toMatchObject({
          code: "ERR_CONFIG",
          message: expect.stringContaining("different returns"),
        });
    });
  });
});

test("each epoch has its own order; a resumed run continues with it, and with its reference", async () => {
  await inDirectory(async (directory) => {
    const { path } = await record(directory, 0.5, undefined, 24);
    const config = { ...small, recorded: [path], epochs: 2, batchSize: 1000, pairsPerGroup: 4 };
    const environment = errandEnvironment({ turns: 2 });
    const states: Record<string, unknown>[] = [];
    const begun = {
      ...memoryRun(),
      checkpoint: async ({ state }: Checkpoint) => void states.push(structuredClone(state)),
    };
    const textsOf = ({ preferences }: ScriptedPreferences) =>
      preferences.flatMap(({ pairs }) =>
        pairs.map(({ chosen, rejected }) => String([chosen.response, rejected.response])),
      );
    const whole = new ScriptedPreferences(() => "");
    await trainDpo({ model: whole, environment, config, run: begun });
    const texts = textsOf(whole);
    const [first, second] = [texts.slice(0, texts.length / 2), texts.slice(texts.length / 2)];
    expect(first.length).toBeGreaterThan(4);
    expect([...second].sort()).toEqual([...first].sort());
    expect(second).not.toEqual(first);

    const state = states.find(({ updatesDone }) => updatesDone === 1)!;
    const saved = { state, trajectories: begun.trajectories, replay: "" };
    const model = new ScriptedPreferences(() => "");
    Object.assign(model, { theta: 0.5, reference: 0.25 });
    const run = { ...memoryRun(), restore: async () => saved };
    await trainDpo({ model, environment, config, run });
    expect(model.reference).toBe(0.25);
    expect(textsOf(model)).toEqual(second);
  });
});

test("the reference is the start, and the metrics are of the loss on exactly these pairs", async () => {
  await inDirectory(async (directory) => {
    const { path } = await record(directory);
    const { model, run, pairs } = await train({ recorded: [path], epochs: 2, batchSize: 1000, beta: 0.3 });
    expect(model.reference).toBe(0);
    const { options } = model.preferences[0]!;
    expect(options).toMatchObject({ beta: 0.3, loss: "sigmoid" });
    for (const { chosen, referenceChosen, rejected, referenceRejected } of pairs) {
      const total = ({ response, weight }: typeof chosen) =>
        response.reduce(
          (sum, id, t) => sum + (weight as number[])[t]! * Math.fround(model.logProb(id, 0)),
          0,
        );
      expect(referenceChosen).toBeCloseTo(total(chosen), 4);
      expect(referenceRejected).toBeCloseTo(total(rejected), 4);
    }
    const [first] = run.rows.filter(({ values }) => "loss/preference" in values);
    expect(first!.values["loss/preference"]).toBeCloseTo(Math.log(2), 4); // θ is the reference
    expect(first!.values["rewards/margins"]).toBeCloseTo(0, 4);
    // Like the loss, the count leaves out the environment's tokens.
    const ofPolicy = pairs
      .slice(0, pairs.length / 2)
      .flatMap(({ chosen, rejected }) =>
        [chosen, rejected].map(({ weight }) => (weight as number[]).filter((one) => one === 1).length),
      );
    const tokens = ofPolicy.reduce((sum, own) => sum + own, 0);
    expect(first!.values).toMatchObject({ "tokens/preference": tokens, "tokens/gradient": tokens });
  });
});
