import { rmSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { type NlacConfigInput, trainNlac } from "../../lib/algorithms/nlac.ts";
import { NlacError } from "../../lib/base/errors.ts";
import { toRecord } from "../../lib/episodes/records.ts";
import { transitionsOf } from "../../lib/episodes/trajectory.ts";
import { RecordWriter, readRecords } from "../../lib/files/records.ts";
import { ReplayBuffer } from "../../lib/replay/buffer.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import { type Checkpoint, memoryRun } from "../../lib/run/training-run.ts";
import { errandEnvironment } from "../support/errand.ts";
import { small, train } from "../support/nlac-training.ts";
import { act, scriptedRoles as script } from "../support/roles.ts";
import { inDirectory } from "../support/tiny.ts";

describe("replay draws from", () => {
  const many: NlacConfigInput = {
    iterations: 3,
    episodesPerIteration: 2,
    updatesPerIteration: 6,
    batchSize: 4,
  };

  /** The episodes that the updates of each iteration train on. */
  async function drawn(config: NlacConfigInput) {
    const { run } = await train(script(), { ...many, ...config });
    const all = [0, 1, 2].map(() => new Set<number>());
    for (const { update, trajectory } of run.samples) all[Math.floor(update / 6)]!.add(trajectory);
    return all.map((episodes) => [...episodes].sort());
  }

  test("all episodes, those of the latest iterations, or only of the last one", async () => {
    expect(await drawn({})).toEqual([
      [0, 1],
      [0, 1, 2, 3],
      [0, 1, 2, 3, 4, 5],
    ]);
    expect(await drawn({ replayIterations: 2 })).toEqual([
      [0, 1],
      [0, 1, 2, 3],
      [2, 3, 4, 5],
    ]);
    expect(await drawn({ replayIterations: 1 })).toEqual([
      [0, 1],
      [2, 3],
      [4, 5],
    ]);
  });

  describe("served episodes, of which an iteration may have more than were asked for,", () => {
    /** Serves two, four and three of twelve episodes. */
    async function served() {
      const { run } = await train(script(), { ...many, episodesPerIteration: 12 });
      const sizes = [2, 4, 3];
      return async (first: number) => run.trajectories.slice(first, first + sizes.shift()!);
    }
    const config = { ...small, ...many };
    const environment = errandEnvironment();

    test.each([
      [
        1,
        [
          [0, 1],
          [2, 3, 4, 5],
          [6, 7, 8],
        ],
      ],
      [
        2,
        [
          [0, 1],
          [0, 1, 2, 3, 4, 5],
          [2, 3, 4, 5, 6, 7, 8],
        ],
      ],
    ])("all those of the latest %i iterations", async (replayIterations, expected) => {
      const run = { ...memoryRun(), nextEpisodes: await served() };
      await trainNlac({
        ...{ model: script(), environment, run },
        config: { ...config, replayIterations, updatesPerIteration: 24 },
      });
      const all = expected.map(() => new Set<number>());
      for (const { update, trajectory } of run.drawn)
        for (const one of trajectory) all[Math.floor(update / 24)]!.add(one);
      expect(all.map((episodes) => [...episodes].sort())).toEqual(expected);
    });

    test("only those of the latest, also after a resumption with a new buffer", async () => {
      await inDirectory(async (directory) => {
        const saved: Record<string, unknown>[] = [];
        const nextEpisodes = await served();
        const begun = {
          ...memoryRun(),
          nextEpisodes,
          checkpoint: async ({ state }: Checkpoint) => void saved.push(structuredClone(state)),
        };
        const options = { model: script(), environment, config: { ...config, replayIterations: 1 } };
        await trainNlac({ ...options, run: begun });
        // As after a deletion: the same transitions, with equal priorities.
        const replay = new ReplayBuffer({
          ...{ capacity: 100_000, priorityExponent: 0.1, importanceExponent: 0, seed: 0 },
        });
        const trajectories = begun.trajectories.slice(0, 6);
        for (const trajectory of trajectories) replay.add(transitionsOf(trajectory));
        replay.save(directory);
        replay.dispose();
        const state = saved.find(({ iteration, updatesDone }) => iteration === 1 && updatesDone === 2)!;
        const run = {
          ...memoryRun(),
          nextEpisodes,
          restore: async () => ({ state, trajectories, replay: directory }),
        };
        await trainNlac({ ...options, config: { ...options.config, iterations: 2 }, run });
        const drawn = new Set(run.drawn.flatMap(({ trajectory }) => trajectory));
        expect([...drawn].sort()).toEqual([2, 3, 4, 5]);
      });
    });
  });

  test("the last iteration, also after an earlier version's checkpoint, which lacks the iterations' sizes", async () => {
    await inDirectory(async (directory) => {
      let earlier: Record<string, unknown> = {};
      const begun = {
        ...memoryRun(),
        checkpoint: async ({ state, replay }: Checkpoint) => {
          if (state.iteration !== 1 || state.updatesDone !== 2) return;
          const { latest: _, ...others } = structuredClone(state) as Record<string, unknown>;
          earlier = others;
          replay!.save(directory);
        },
      };
      const options = { model: script(), environment: errandEnvironment() };
      const config = { ...small, ...many, replayIterations: 1, iterations: 2 };
      await trainNlac({ ...options, config, run: begun });
      const saved = { state: earlier, trajectories: begun.trajectories, replay: directory };
      const run = { ...memoryRun(), restore: async () => saved };
      await trainNlac({ ...options, config, run });
      expect(run.drawn).toHaveLength(4);
      const drawn = new Set(run.drawn.flatMap(({ trajectory }) => trajectory));
      expect([...drawn].sort()).toEqual([2, 3]);
    });
  });

  test("an iteration without drawable transitions has no updates", async () => {
    const environment = errandEnvironment();
    const start = environment.start;
    let started = 0;
    environment.start = (...args) =>
      ++started > 2 ? Promise.reject(new Error("the office is closed")) : start(...args);
    const { result } = await train(script(), { ...many, replayIterations: 1 }, environment);
    expect(result).toMatchObject({ episodes: 6, updates: 6 });
  });
});

describe("recorded episodes", () => {
  /** A file of three episodes of an earlier run. */
  async function record(directory: string): Promise<string> {
    const { run } = await train(script({ policy: act("lamp") }), { episodesPerIteration: 3 });
    const path = join(directory, "earlier.jsonl");
    const writer = new RecordWriter(path);
    for (const trajectory of run.trajectories)
      writer.append(toRecord({ ...trajectory, id: trajectory.id + 7 }));
    writer.close();
    return path;
  }

  test("on their own, they are learned from and nothing is played", async () => {
    await inDirectory(async (directory) => {
      const path = await record(directory);
      const model = script();
      const environment = errandEnvironment();
      environment.start = async () => Promise.reject(new Error("must not be played"));
      const { run, result } = await train(
        model,
        { recorded: [path], episodesPerIteration: 0, iterations: 2, updatesPerIteration: 3 },
        environment,
      );
      expect(result).toMatchObject({ updates: 6, episodes: 0, environmentSteps: 0 });
      expect(run.trajectories.map(({ id }) => id)).toEqual([0, 1, 2]);
      expect(new Set(run.samples.map(({ trajectory }) => trajectory))).toEqual(new Set([0, 1, 2]));
      for (const { trajectory, turn } of run.samples)
        expect(run.trajectories[trajectory]!.turns[turn!]!.text).toContain("lamp");
    });
  });

  test("a branch adds the transitions from its own action on, also to a resumed run", async () => {
    await inDirectory(async (directory) => {
      const played = await train(script({ policy: act("lamp") }));
      const [episode] = played.run.trajectories;
      expect(episode!.turns).toHaveLength(3);
      const path = join(directory, "earlier.jsonl");
      const writer = new RecordWriter(path);
      writer.append(toRecord(episode!));
      writer.append(toRecord({ ...episode!, id: 2 ** 30, branch: { trajectory: episode!.id, turn: 1 } }));
      writer.close();
      let saved: Record<string, unknown> = {};
      const begun = {
        ...memoryRun(),
        checkpoint: async ({ state, replay }: Checkpoint) => {
          if (state.iteration !== 1 || state.updatesDone !== 2) return;
          saved = structuredClone(state) as Record<string, unknown>;
          replay!.save(directory);
        },
      };
      const config = { ...small, recorded: [path], episodesPerIteration: 0, updatesPerIteration: 4 };
      const options = {
        model: script(),
        environment: errandEnvironment(),
        config: { ...config, iterations: 2 },
      };
      await trainNlac({ ...options, run: begun });
      const restored = { state: saved, trajectories: begun.trajectories, replay: directory };
      const run = { ...memoryRun(), restore: async () => restored };
      await trainNlac({ ...options, run });
      for (const { rows, drawn } of [begun, run]) {
        expect(rows.at(-1)!.values["replay/size"]).toBe(3 + 2);
        const places = drawn.flatMap(({ trajectory, turn }) => trajectory.map((id, i) => `${id} ${turn[i]}`));
        expect([...new Set(places)].sort()).toEqual(["0 0", "0 1", "0 2", "1 1", "1 2"]);
      }
    });
  });

  test("with others, they come first, and are not counted as played", async () => {
    await inDirectory(async (directory) => {
      const path = await record(directory);
      const { run, result } = await train(script(), { recorded: [path, path], episodesPerIteration: 2 });
      expect(run.trajectories.map(({ id }) => id)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
      expect(result.episodes).toBe(2);
      expect(run.rows[0]!.values).toMatchObject({ episodes: 2, environment_steps: 6 });
    });
  });

  test("a run stores them itself: it resumes without their file", async () => {
    await inDirectory(async (directory) => {
      const path = await record(directory);
      const config: NlacConfigInput = { ...small, recorded: [path], updatesPerIteration: 4 };
      const environment = errandEnvironment();
      const train_ = async (name: string, stopAfter: number, forget: boolean) => {
        const at = join(directory, name);
        for (const resumed of [false, true]) {
          const model = script();
          const controller = new AbortController();
          let updates = -1; // the first is θ̄'s beginning
          model.updateTarget = async () => {
            if (++updates === stopAfter && !resumed) controller.abort();
          };
          const options = { signal: controller.signal, progress: memoryRun().progress, description: {} };
          const run = resumed
            ? await RunDirectory.resume(at, model, options)
            : RunDirectory.create(at, options);
          await trainNlac({ model, environment, config, run });
          run.close();
          if (forget) rmSync(path, { force: true });
        }
        return [...readRecords<{ trajectory: number; texts: object }>(join(at, "samples.jsonl"))];
      };
      const whole = await train_("whole", -1, false);
      const cut = await train_("cut", 2, true);
      expect(whole).toHaveLength(16);
      expect(cut).toEqual(whole);
      expect(new Set(whole.map(({ trajectory }) => trajectory)).size).toBe(4);
    });
  });

  test("a control token within an action is not mistaken for another tokenizer", async () => {
    await inDirectory(async (directory) => {
      const model = script({ policy: act("lamp") });
      const generate = model.generate.bind(model);
      model.generate = async (...given) =>
        (await generate(...given)).map(({ tokens, logProbs, ...rest }) => {
          const opening = model.tokenizer.idOf("<|im_start|>")!; // which the text does not show
          return {
            ...rest,
            tokens: tokens.toSpliced(3, 0, opening),
            logProbs: Float32Array.of(-1, ...logProbs),
          };
        });
      const { run } = await train(model, { episodesPerIteration: 1 });
      const path = join(directory, "earlier.jsonl");
      const writer = new RecordWriter(path);
      for (const trajectory of run.trajectories) writer.append(toRecord(trajectory));
      writer.close();
      const { result } = await train(script(), { recorded: [path], episodesPerIteration: 0 });
      expect(result.updates).toBeGreaterThan(0);
    });
  });

  test("ids of another tokenizer are rejected", async () => {
    await inDirectory(async (directory) => {
      const path = await record(directory);
      const model = script();
      const decode = model.decode.bind(model);
      model.decode = (ids) => decode(ids.map((id) => (id + 1) % 256));
      await expect(train(model, { recorded: [path] })).rejects.toMatchObject({
        code: "ERR_RUN",
        message: expect.stringContaining("episode 7"),
      });
    });
  });
});

test("no further iteration begins once the environment steps are reached", async () => {
  const { result, run } = await train(script(), {
    iterations: 30,
    environmentSteps: 7, // an episode takes three
    evaluation: { every: 2, episodes: 1 },
  });
  expect(result).toMatchObject({ environmentSteps: 9, episodes: 3, updates: 3 });
  const measured = run.rows.flatMap(({ values }) => values["eval/environment_steps"] ?? []);
  expect(measured).toEqual([0, 6, 9]);
});

test("no iterations: nothing is played, and earlier results stay", async () => {
  const model = script();
  const { result, run } = await train(model, { iterations: 0 });
  expect(result).toMatchObject({ updates: 0, episodes: 0, stopped: false });
  expect(model.events).toEqual([{ kind: "target", targetRate: 1 }]);
  expect(run.checkpoints.length).toBeGreaterThan(0);
});

describe("interruption", () => {
  const long: NlacConfigInput = { iterations: 2, updatesPerIteration: 3, episodesPerIteration: 2 };

  test("a stop rolls back to the last boundary, forgets gradients, and checkpoints", async () => {
    const model = script();
    const controller = new AbortController();
    const run = memoryRun({ signal: controller.signal });
    const speak = model.reply;
    model.reply = (prompt, weights, i, request) => {
      if (model.events.filter(({ kind }) => kind === "target").length === 3) controller.abort();
      return speak(prompt, weights, i, request);
    };
    const result = await trainNlac({
      model,
      environment: errandEnvironment(),
      config: { ...small, ...long },
      run,
    });
    expect(result).toMatchObject({ stopped: true, updates: 2 });
    expect(model.events.at(-1)).toEqual({ kind: "discard" });
    expect(run.checkpoints.at(-1)).toMatchObject({
      updates: 2,
      updatesDone: 2,
      iteration: 0,
      collected: true,
    });
  });

  test("a spent budget is reported, and everything it paid for is stored", async () => {
    const run = memoryRun();
    const environment = errandEnvironment();
    const { start } = environment;
    let begun = 0;
    environment.start = (...args) =>
      ++begun > 2 ? Promise.reject(new NlacError("ERR_BUDGET", "spent")) : start(...args);
    const training = trainNlac({ model: script(), environment, config: { ...small, ...long }, run });
    await expect(training).rejects.toMatchObject({ code: "ERR_BUDGET" });
    expect(run.checkpoints.at(-1)).toMatchObject({ iteration: 1, episodes: 2, updates: 3, collected: false });
  });

  test("a stop between the two steps preserves the generations of the second", async () => {
    const model = script();
    const controller = new AbortController();
    const run = memoryRun({ signal: controller.signal });
    const step = model.step.bind(model);
    model.step = async (options) => {
      const result = await step(options);
      controller.abort();
      return result;
    };
    await trainNlac({ model, environment: errandEnvironment(), config: { ...small, ...long }, run });
    const saved = run.checkpoints.at(-1) as { updates: number; pending: { texts: unknown[] } };
    expect(saved.updates).toBe(0);
    expect(saved.pending.texts).toHaveLength(8);
    expect(model.events.filter(({ kind }) => kind === "step")).toHaveLength(1);
  });

  test("a stop after the second step does not repeat the update", async () => {
    const model = script();
    const controller = new AbortController();
    const run = memoryRun({ signal: controller.signal });
    // As a served learner does, which waits for its share of the device.
    model.targetDistance = async () => {
      controller.abort();
      throw new NlacError("ERR_ABORTED", "stopped");
    };
    const options = { model, environment: errandEnvironment(), config: { ...small, ...long }, run };
    expect(await trainNlac(options)).toMatchObject({ stopped: true, updates: 1 });
    expect(run.checkpoints.at(-1)).toMatchObject({ updates: 1, updatesDone: 1 });
    expect(run.checkpoints.at(-1)).not.toHaveProperty("pending");
    expect(run.rows.at(-1)).toMatchObject({ step: 1, values: { "loss/l2": expect.any(Number) } });
  });
});
