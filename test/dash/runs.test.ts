import { appendFileSync, mkdirSync, mkdtempSync, rmSync, statSync, truncateSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { serialize } from "node:v8";
import { afterAll, describe, expect, test, vi } from "vitest";
import { answer, history } from "../../lib/dash/api.ts";
import { DashRuns } from "../../lib/dash/runs.ts";
import { versionStream } from "../../lib/dash/server.ts";
import type { Comparison, RunSummary } from "../../lib/dash/types.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { damages } from "../support/damage.ts";
import { episodeOf, recipeOf, rowsOf, statusOf, wholeRun, writeRun } from "../support/recorded-run.ts";

vi.mock("node:fs", async (original) => {
  const fs = await original<typeof import("node:fs")>();
  const readdirSync = ((path: string, options: object) => {
    if (path.endsWith("closed")) throw new Error("EACCES: permission denied");
    return fs.readdirSync(path, options as { withFileTypes: true });
  }) as typeof fs.readdirSync;
  return { ...fs, readdirSync };
});

const place = mkdtempSync(join(tmpdir(), "nlac-runs-"));
afterAll(() => rmSync(place, { recursive: true }));
const directory = () => mkdtempSync(join(place, "runs-"));

test("a file that cannot be read is an error of its run, and everything else is shown", async () => {
  const root = directory();
  writeRun(join(root, "a"), wholeRun());
  writeRun(join(root, "b"), wholeRun());
  // A directory cannot be read as a file, not even by root, whom permissions do not stop.
  rmSync(join(root, "a", "draws.jsonl"));
  mkdirSync(join(root, "a", "draws.jsonl"));
  const runs = new DashRuns([root]);
  await runs.poll();
  const [a, b] = runs.all.map((run) => run.summary());
  expect(a!.errors).toEqual([expect.stringContaining("is not a regular file")]);
  expect([a!.episodes, a!.updates]).toEqual([8, 3]);
  expect([b!.episodes, b!.errors]).toEqual([8, []]);
  const version = runs.all[0]!.version();
  rmSync(join(root, "a", "draws.jsonl"), { recursive: true });
  await runs.poll();
  expect(runs.all[0]!.summary().errors).toEqual([]);
  expect(runs.all[0]!.version()).not.toBe(version);
});

describe("damaged records are an error of their run, and everything else is shown:", () => {
  const names = ["metrics", "draws", "probes", "samples", "trajectories", "evaluations"];
  for (const [damage, harm, message] of damages)
    test.each(names)(`${damage}, in %s.jsonl`, async (name) => {
      const root = directory();
      for (const run of ["a", "b"]) writeRun(join(root, run), wholeRun());
      const file = join(root, "a", `${name}.jsonl`);
      harm(file);
      const runs = new DashRuns([root]);
      await runs.poll();
      const [a, b] = (await answer(runs, "runs", {})) as RunSummary[];
      expect(a!.errors).toEqual([expect.stringMatching(message)]);
      if (!damage.startsWith("a directory")) expect(a!.errors[0]).toContain(file);
      expect([b!.episodes, b!.errors]).toEqual([8, []]);
      for (const path of ["config", "metrics", "episodes", "samples", "probes"])
        for (const run of ["a", "b"]) await answer(runs, path, { run });
      await answer(runs, "compare", {});
      await answer(runs, "history", { run: "a", episode: "0", turn: "0" });
    });

  test("what follows the last record is named while it is there, and read again once it is truncated", async () => {
    const root = directory();
    writeRun(join(root, "a"), wholeRun());
    const file = join(root, "a", "metrics.jsonl");
    const { size } = statSync(file);
    appendFileSync(file, Buffer.alloc(512));
    const runs = new DashRuns([root]);
    await runs.poll();
    const [run] = runs.all;
    expect(run!.summary()).toMatchObject({ updates: 3, errors: [expect.stringContaining(file)] });
    const version = run!.version();
    truncateSync(file, size);
    await runs.poll();
    expect(run!.summary().errors).toEqual([]);
    expect(run!.version()).not.toBe(version);
  });
});

test("a record of a run that was removed meanwhile is a coded error", async () => {
  const root = directory();
  writeRun(join(root, "a"), wholeRun());
  const runs = new DashRuns([root]);
  await runs.poll();
  rmSync(join(root, "a"), { recursive: true });
  for (const path of ["episode", "sample", "probe"])
    await expect(answer(runs, path, { run: "a", n: "0" })).rejects.toMatchObject({
      code: "ERR_IO",
      message: expect.stringContaining(join(root, "a")),
    });
});

test("a run that was started anew at the same path has its new description", async () => {
  const root = directory();
  const path = join(root, "a");
  writeRun(path, { ...wholeRun(), recipe: recipeOf(1) });
  const runs = new DashRuns([root]);
  await runs.poll();
  expect(runs.all[0]!.summary().seed).toBe(1);
  rmSync(path, { recursive: true });
  writeRun(path, { recipe: recipeOf(2) });
  await runs.poll();
  expect(runs.all[0]!.summary()).toMatchObject({ seed: 2, episodes: 0 });
});

test("a directory that cannot be read is named, and the others are searched", async () => {
  const root = directory();
  writeRun(join(root, "b"), wholeRun());
  // Permissions do not stop root, as whom tests may run.
  mkdirSync(join(root, "closed"));
  const runs = new DashRuns([root]);
  expect(runs.faults).toEqual([expect.stringMatching(/closed cannot be read: EACCES/)]);
  expect(runs.all.map(({ id }) => id)).toEqual(["b"]);
});

test("a run without a recipe shows no model, and one with a model of its own shows a new one", async () => {
  const root = directory();
  writeRun(join(root, "a"), { ...wholeRun(), recipe: {} });
  writeRun(join(root, "b"), { ...wholeRun(), recipe: { model: { layers: 2 } } });
  const runs = new DashRuns([root]);
  await runs.poll();
  expect(runs.all.map((run) => run.summary().model)).toEqual(["", "new model"]);
});

test("a served run shows the episodes of its clients, and neither a last iteration nor a time left", async () => {
  const root = directory();
  const path = join(root, "served");
  const recipe = recipeOf(0, { iterations: Number.MAX_SAFE_INTEGER });
  writeRun(path, {
    recipe,
    metrics: wholeRun().metrics,
    status: { ...statusOf("running"), fraction: 1e-15 },
  });
  const runs = new DashRuns([root]);
  await runs.poll();
  expect(runs.all[0]!.summary()).toMatchObject({ episodes: 0, iteration: 4, errors: [] });
  const writer = RecordWriter.resume(join(path, "episodes.jsonl"));
  for (const id of [0, 1, 2]) writer.append(episodeOf(id));
  writer.close();
  await runs.poll();
  const [run] = runs.all;
  expect(run!.summary()).toMatchObject({ episodes: 3, iterations: null, left: null, fraction: null });
  expect(await run!.episode(2)).toMatchObject({ id: 2, task: "lamp-2" });
  expect(run!.succeeded(1)).toBe(false);
});

test("of compared runs with the same seed, the longest counts", async () => {
  const root = directory();
  const run = (name: string, seed: number, updates: number) =>
    writeRun(join(root, name), { metrics: rowsOf(updates, () => 0.5), recipe: recipeOf(seed) });
  run("begun", 0, 2);
  run("copied", 0, 4);
  run("other", 1, 4);
  const runs = new DashRuns([root]);
  await runs.poll();
  const { groups } = (await answer(runs, "compare", {})) as Comparison;
  expect(groups).toMatchObject([{ name: "lamps", runs: ["copied", "other"] }]);
});

test("a summary is computed again only after a change", async () => {
  const root = directory();
  writeRun(join(root, "a"), { ...wholeRun(), status: statusOf("finished") });
  const runs = new DashRuns([root]);
  await runs.poll();
  const [run] = runs.all;
  const first = run!.summary();
  await runs.poll();
  expect(run!.summary()).toBe(first);
  writeRun(join(root, "a"), { ...wholeRun(), recipe: recipeOf(5), status: statusOf("finished", 1) });
  await runs.poll();
  expect(run!.summary()).toMatchObject({ seed: 5, updated: expect.any(Number) });
});

test("an episode of a served run ended between the updates around its time, and has its own draws", async () => {
  const root = directory();
  const path = join(root, "served");
  const draws = (update: number, trajectory: number[]) => ({
    ...{ update, trajectory, turn: trajectory.map(() => 1), l1: trajectory.map((id) => id + 0.5) },
    ...{ probability: trajectory.map(() => 0.5), age: trajectory.map(() => 0) },
    ...{ target: trajectory.map(() => "no"), critique: trajectory.map(() => "no") },
    refinement: trajectory.map(() => "changed"),
  });
  writeRun(path, {
    // The first iteration has one episode; the others ended while its updates ran.
    metrics: [1, 2, 3].map((step) => ({ step, time: 100 * step, values: { episodes: 1 } })),
    draws: [draws(1, [0]), draws(2, [0, 1])],
  });
  const writer = RecordWriter.resume(join(path, "episodes.jsonl"));
  const times = [50, 150, 150, 250, 350];
  for (const [id, time] of times.entries())
    writer.append({ ...episodeOf(id), time: 1000 * time, ...(id === 1 && { split: "test" }) });
  writer.close();
  const runs = new DashRuns([root]);
  await runs.poll();
  const [run] = runs.all;
  expect(run!.updatesBefore()).toEqual([0, 1, 1, 2, 3]);
  // Draws number the episodes without the held-out one: of episode 2, they name 1.
  const found = await Promise.all(times.map((_, id) => history(run!, id, 1)));
  expect(found.map((all) => all.map(({ update, l1 }) => [update, l1]))).toEqual([
    [
      [1, 0.5],
      [2, 0.5],
    ],
    [],
    [[2, 1.5]],
    [],
    [],
  ]);
});

test("branches of HOPE are played before the same update as the episodes of their iteration", async () => {
  const root = directory();
  const branch = (id: number, trajectory: number) => ({
    ...episodeOf(2 ** 30 + id),
    branch: { trajectory, turn: 0 },
  });
  writeRun(join(root, "hope"), {
    metrics: [2, 4, 6].map((episodes, i) => ({ step: 10 * i, time: i, values: { episodes } })),
    episodes: [
      ...[episodeOf(0), episodeOf(1), branch(0, 0), branch(1, 1)],
      ...[episodeOf(2), episodeOf(3), branch(2, 3)],
      ...[episodeOf(4), episodeOf(5)],
    ],
  });
  const runs = new DashRuns([root]);
  await runs.poll();
  expect(runs.all[0]!.updatesBefore()).toEqual([0, 0, 0, 0, 10, 10, 10, 20, 20]);

  // An NLAC run on the episodes of a run of HOPE, and two iterations of its own.
  writeRun(join(root, "nlac"), {
    recipe: recipeOf(0, { recorded: ["hope/trajectories.jsonl"] }),
    metrics: [2, 4].map((episodes, i) => ({ step: 10 * i, time: i, values: { episodes } })),
    episodes: [
      ...[episodeOf(0), episodeOf(1), branch(2, 0), branch(3, 1)],
      ...[episodeOf(4), episodeOf(5), episodeOf(6), episodeOf(7)],
    ],
  });
  const [run] = new DashRuns([join(root, "nlac")]).all;
  await run!.poll();
  expect(run!.updatesBefore()).toEqual([0, 0, 0, 0, 0, 0, 10, 10]);
});

test("of the draws of a long run, only a few bytes each are held", async () => {
  const root = directory();
  const [updates, size] = [20, 500];
  const at = (draw: (i: number) => number) => Array.from({ length: size }, (_, i) => draw(i));
  writeRun(join(root, "long"), {
    draws: Array.from({ length: updates }, (_, update) => ({
      ...{ update, trajectory: at((i) => i + update), turn: at((i) => i % 7) },
      ...{ l1: at((i) => i / 3), probability: at((i) => 1 / (i + 3)), age: at((i) => i) },
      ...{ target: at((i) => i).map(String), critique: at((i) => i).map(() => "no") },
      refinement: at((i) => i).map(() => "changed"),
    })),
  });
  const runs = new DashRuns([root]);
  await runs.poll();
  const [run] = runs.all;
  expect(serialize(run!.draws.items).length / (updates * size)).toBeLessThan(5);
  // Update u drew it at i = 30 - u, with turn i % 7.
  const draws = await history(run!, 30, 2);
  expect(draws).toEqual(
    [0, 7, 14].map((update) => {
      const i = 30 - update;
      return {
        ...{ update, l1: i / 3, probability: 1 / (i + 3), age: i, target: String(i), critique: "no" },
        ...{ refinement: "changed", sample: null },
      };
    }),
  );
  // Its key is that of another transition, which was not drawn.
  expect(await history(run!, 30 + 2 ** 22, 2)).toEqual([]);
});

test("a run that environment steps end has no number of iterations, and is complete when finished", async () => {
  const root = directory();
  const recipe = recipeOf(0, { iterations: 200, environmentSteps: 100 });
  const status = { ...statusOf("finished"), fraction: 0 };
  writeRun(join(root, "steps"), { ...wholeRun(), recipe, status });
  const runs = new DashRuns([root]);
  await runs.poll();
  expect(runs.all[0]!.summary()).toMatchObject({ iteration: 4, iterations: null, fraction: 1, left: null });
});

test("whether a run is lost does not depend on its clock once its heartbeat was seen to change", async () => {
  const root = directory();
  const path = join(root, "a");
  const beat = (heartbeat: number) => writeRun(path, { status: statusOf("running", heartbeat) });
  const now = vi.spyOn(performance, "now");
  const began = performance.now();
  try {
    for (const days of [-1, 1]) {
      rmSync(path, { recursive: true, force: true });
      const clock = Date.now() / 1000 + days * 86_400;
      beat(clock);
      now.mockReturnValue(began);
      const runs = new DashRuns([root]);
      await runs.poll();
      expect(runs.all[0]!.state()).toBe(days < 0 ? "lost" : "running");
      beat(clock + 5);
      now.mockReturnValue(began + 4000);
      await runs.poll();
      expect(runs.all[0]!.state()).toBe("running");
      now.mockReturnValue(began + 40_000);
      await runs.poll();
      expect(runs.all[0]!.state()).toBe("lost");
    }
  } finally {
    now.mockRestore();
  }
});

test("a change while the stream is full is sent once it is read", async () => {
  const root = directory();
  writeRun(join(root, "a"), wholeRun());
  const runs = new DashRuns([root]);
  await runs.poll();
  const listeners = new Set<() => void>();
  const stop = new AbortController();
  const reader = versionStream(runs, listeners, stop.signal).getReader();
  const next = async () => {
    const { value } = await reader.read();
    return JSON.parse(new TextDecoder().decode(value).slice("data: ".length)) as Record<string, string>;
  };
  const writer = RecordWriter.resume(join(root, "a", "trajectories.jsonl"));
  writer.append(episodeOf(8));
  writer.close();
  await runs.poll();
  for (const tell of listeners) tell();
  await next();
  expect(await next()).toEqual({ a: runs.all[0]!.version() });
  stop.abort();
  expect((await reader.read()).done).toBe(true);
});
