import {
  cpSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { silentProgress } from "../../lib/display/progress.ts";
import { writeChecksums } from "../../lib/files/checksums.ts";
import { readRecords } from "../../lib/files/records.ts";
import { newestCheckpoint } from "../../lib/run/checkpoints.ts";
import { readDescription } from "../../lib/run/description.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import { readStatus } from "../../lib/run/status.ts";
import { errandEnvironment } from "../support/errand.ts";
import { lockOf } from "../support/locks.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

const options = (signal = new AbortController().signal) => ({
  signal,
  progress: silentProgress,
  description: { recipe: { name: "test" } },
  checkpointSeconds: 0,
});
const fresh = () => join(mkdtempSync(join(tmpdir(), "nlac-run-")), "run");

/**
 * A model whose texts depend on the requests' seeds, so that runs that differ anywhere differ in
 * their files.
 */
function seededModel(onGenerate: () => void = () => undefined): ScriptedModel {
  const words = ["key", "lamp", "map", "soap"];
  return new ScriptedModel((prompt, _weights, _index, request) => {
    onGenerate();
    const word = words[Number(request.seed) % 4]!;
    const last = prompt.slice(prompt.lastIndexOf("<|im_start|>user"));
    if (last.includes("Optimality:"))
      return `Future:\nit will be ${word}\nOptimality:\nNo, bring the ${word}.`;
    return `Thought:\nhm\nAction:\n${word}`;
  });
}

const config = {
  iterations: 2,
  episodesPerIteration: 2,
  updatesPerIteration: 3,
  batchSize: 4,
  maxActionTokens: 100,
  maxCriticTokens: 100,
  priorityExponent: 1,
};

function metricsOf(path: string): { step: number; values: Record<string, unknown> }[] {
  return [...readRecords<MetricsRow>(join(path, "metrics.jsonl"))].map(({ step, values }) => ({
    step,
    values: Object.fromEntries(Object.entries(values).filter(([name]) => !name.startsWith("time/"))),
  }));
}

test("a run directory contains the documented files", async () => {
  const path = fresh();
  const run = RunDirectory.create(path, options());
  await trainNlac({ model: seededModel(), environment: errandEnvironment(), config, run });
  expect(readStatus(path)).toMatchObject({ state: "running" });
  run.close();
  expect(metricsOf(path)).toHaveLength(8); // two collections, six updates
  expect([...readRecords(join(path, "trajectories.jsonl"))]).toHaveLength(4);
  expect([...readRecords(join(path, "samples.jsonl"))]).toHaveLength(24);
  expect([...readRecords(join(path, "draws.jsonl"))]).toHaveLength(6);
  expect(readStatus(path)).toMatchObject({ state: "stopped", phase: "update", done: 3, total: 3 });
  expect(readdirSync(join(path, "checkpoints"))).toHaveLength(2);
  expect(readdirSync(newestCheckpoint(path)).sort()).toEqual([
    "checksums.json",
    "learner",
    "replay.json",
    "sampler.bin",
    "state.json",
  ]);
  expect(existsSync(join(path, "lock"))).toBe(false);
});

test.each([1, 2])(
  "a run cut anywhere and resumed writes the same files as an uncut one, with completions of %i updates at once",
  async (updatesAhead) => {
    const whole = fresh();
    const ahead = { ...config, updatesAhead };
    let generations = 0;
    const uncut = RunDirectory.create(whole, options());
    await trainNlac({
      model: seededModel(() => generations++),
      environment: errandEnvironment(),
      config: ahead,
      run: uncut,
    });
    uncut.close();
    expect(generations).toBeGreaterThan(100);

    for (const share of [0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95]) {
      const path = fresh();
      const controller = new AbortController();
      let left = Math.floor(generations * share);
      const first = RunDirectory.create(path, options(controller.signal));
      const result = await trainNlac({
        model: seededModel(() => {
          if (left-- === 0) controller.abort();
        }),
        environment: errandEnvironment(),
        config: ahead,
        run: first,
      });
      first.close();
      expect(result.stopped).toBe(true);
      const model = seededModel();
      const second = await RunDirectory.resume(path, model, options());
      await trainNlac({ model, environment: errandEnvironment(), config: ahead, run: second });
      second.close();
      expect(metricsOf(path)).toEqual(metricsOf(whole));
      for (const file of ["trajectories.jsonl", "samples.jsonl", "draws.jsonl", "probes.jsonl"]) {
        expect(readFileSync(join(path, file), "utf8")).toBe(readFileSync(join(whole, file), "utf8"));
      }
    }
  },
);

test("records after the checkpoint are removed on resuming", async () => {
  const path = fresh();
  const run = RunDirectory.create(path, options());
  await trainNlac({ model: seededModel(), environment: errandEnvironment(), config, run });
  run.close();
  const before = readFileSync(join(path, "trajectories.jsonl"), "utf8");
  writeFileSync(join(path, "trajectories.jsonl"), `${before}{"checksum":"00000000","record":{"half`);
  const model = seededModel();
  const again = await RunDirectory.resume(path, model, options());
  const result = await trainNlac({
    model,
    environment: errandEnvironment(),
    config: { ...config, iterations: 3 },
    run: again,
  });
  again.close();
  expect(result.episodes).toBe(6);
  const after = readFileSync(join(path, "trajectories.jsonl"), "utf8");
  expect(after.startsWith(before)).toBe(true);
  expect([...readRecords(join(path, "trajectories.jsonl"))]).toHaveLength(6);
});

test("a directory in use, not empty, or without a checkpoint is refused with a reason", async () => {
  const path = fresh();
  const run = RunDirectory.create(path, options());
  expect(() => RunDirectory.create(path, options())).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
  await expect(RunDirectory.resume(path, seededModel(), options())).rejects.toMatchObject({
    code: "ERR_RUN",
    message: expect.stringContaining(`in use by process ${process.pid}`),
  });
  expect(() => newestCheckpoint(path)).toThrow(expect.objectContaining({ code: "ERR_CHECKPOINT" }));
  expect(() => newestCheckpoint(tmpdir())).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
  await trainNlac({
    model: seededModel(),
    environment: errandEnvironment(),
    config: { ...config, iterations: 1 },
    run,
  });
  run.close();
  writeFileSync(join(path, "lock"), lockOf(process.ppid));
  await expect(RunDirectory.resume(path, seededModel(), options())).rejects.toThrow(
    `in use by process ${process.ppid}`,
  );
  writeFileSync(join(path, "lock"), lockOf(process.ppid, { ended: true })); // a crash left it
  (await RunDirectory.resume(path, seededModel(), options())).close();
});

test("a half-written checkpoint never counts", async () => {
  const path = fresh();
  const run = RunDirectory.create(path, options());
  await trainNlac({ model: seededModel(), environment: errandEnvironment(), config, run });
  run.close();
  const newest = newestCheckpoint(path);
  cpSync(newest, join(path, "checkpoints", ".000099"), { recursive: true });
  rmSync(join(path, "checkpoints", ".000099", "state.json"));
  expect(newestCheckpoint(path)).toBe(newest);
  (await RunDirectory.resume(path, seededModel(), options())).close();
});

test("a checkpoint that cannot be completed leaves nothing: it would fill a disk that is full", async () => {
  const path = fresh();
  const run = RunDirectory.create(path, options());
  const model = seededModel();
  await trainNlac({ model, environment: errandEnvironment(), config, run });
  const before = readdirSync(join(path, "checkpoints"));
  vi.spyOn(model, "save").mockImplementation(async (directory) => {
    writeFileSync(join(directory, "model.safetensors"), "half of it");
    throw new Error("The disk is full.");
  });
  await expect(run.checkpoint({ state: {}, model }, true)).rejects.toThrow("The disk is full.");
  expect(readdirSync(join(path, "checkpoints"))).toEqual(before);
  run.close();
});

test("a path that cannot be written is an error that names it", async () => {
  const file = join(fresh(), "..", "file");
  writeFileSync(file, "");
  for (const path of [file, join(file, "run")]) {
    expect(() => RunDirectory.create(path, options())).toThrow(
      expect.objectContaining({ code: "ERR_IO", message: expect.stringContaining(path) }),
    );
  }
  // A checkpoint whose place is taken by a file: the last good one stays the newest.
  const path = fresh();
  const run = RunDirectory.create(path, options());
  const training = { model: seededModel(), environment: errandEnvironment(), config, run };
  await trainNlac(training);
  const newest = newestCheckpoint(path);
  rmSync(join(path, "checkpoints"), { recursive: true });
  writeFileSync(join(path, "checkpoints"), "");
  await expect(trainNlac(training)).rejects.toMatchObject({
    code: "ERR_IO",
    message: expect.stringContaining(join(path, "checkpoints")),
  });
  expect(readFileSync(join(path, "latest"), "utf8")).toBe(newest.slice(-6));
  run.close();
});

test.each([
  ["nothing", ""],
  ["half of it", '{"added": 3'],
  ["JSON of another kind", "[1]"],
  ["other JSON", '{"added": "three",\n"files": {"metrics": -1}}'],
])("run.json, state.json or replay.json that holds %s is an error that names the file", async (_, text) => {
  const path = fresh();
  const single = { ...options(), keepCheckpoints: 1 };
  const run = RunDirectory.create(path, single);
  const training = { environment: errandEnvironment(), config: { ...config, iterations: 1 } };
  await trainNlac({ ...training, model: seededModel(), run });
  run.close();
  const [newest, model] = [newestCheckpoint(path), seededModel()];
  const resume = async () => {
    const resumed = await RunDirectory.resume(path, model, single);
    await trainNlac({ ...training, model, run: resumed }).finally(() => resumed.close());
  };
  for (const name of ["replay.json", "state.json"]) {
    const file = join(newest, name);
    const content = readFileSync(file);
    writeFileSync(file, text);
    await expect(resume()).rejects.toMatchObject({
      code: "ERR_CHECKPOINT",
      message: expect.stringContaining(`${file} is damaged`),
    });
    await writeChecksums(newest, ["learner"]); // as if it had been written so
    await expect(resume()).rejects.toMatchObject({
      code: "ERR_CHECKPOINT",
      message: expect.stringMatching(new RegExp(`^\\S+/${name} cannot be read: .+$`)),
    });
    writeFileSync(file, content);
    await writeChecksums(newest, ["learner"]);
  }
  if (text.endsWith("}")) return; // any object describes a run
  writeFileSync(join(path, "run.json"), text);
  expect(() => readDescription(path)).toThrow(
    expect.objectContaining({
      code: "ERR_RUN",
      message: expect.stringMatching(/^\S+\/run\.json cannot be read: .+$/),
    }),
  );
});

test("resuming reads the episodes one at a time, and counts them", async () => {
  const path = fresh();
  const run = RunDirectory.create(path, options());
  const training = { environment: errandEnvironment(), config: { ...config, replayCapacity: 4 } };
  await trainNlac({ ...training, model: seededModel(), run });
  run.close();
  const model = seededModel();
  let restored = 0;
  const restore = model.restoreConversation.bind(model);
  model.restoreConversation = (json) => {
    restored++;
    return restore(json);
  };
  const again = await RunDirectory.resume(path, model, options());
  const episodes = (await again.restore())!.trajectories[Symbol.iterator]();
  expect(restored).toBe(0);
  expect([episodes.next().value!.id, episodes.next().value!.id, restored]).toEqual([0, 1, 2]);
  const more = await trainNlac({ ...training, model, run: again });
  expect([more.episodes, restored]).toEqual([4, 6]);
  again.close();
  const first = readFileSync(join(path, "trajectories.jsonl"), "utf8").split("\n", 1)[0]!;
  const { size } = statSync(join(path, "trajectories.jsonl"));
  const unfinished = '{"checksum":"00000000","record":';
  writeFileSync(join(path, "trajectories.jsonl"), `${first}\n${unfinished}`.padEnd(size, " "));
  await expect(RunDirectory.resume(path, model, options())).rejects.toMatchObject({
    code: "ERR_CHECKPOINT",
    message: expect.stringContaining("trajectories.jsonl is damaged"),
  });
});

test("a run that could not be started leaves an empty directory, in which it can be started again", () => {
  const path = fresh();
  // JSON has no bigint: run.json cannot be written, as on a full disk.
  const bad = { ...options(), description: { recipe: 1n } };
  expect(() => RunDirectory.create(path, bad)).toThrow();
  expect(readdirSync(path)).toEqual([]);
  RunDirectory.create(path, options()).close();
  expect(readDescription(path)).toMatchObject({ recipe: { name: "test" } });
});
