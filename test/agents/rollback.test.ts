/**
 * Rollbacks and failures while a run is opened again: the server goes on, with the requested
 * weights.
 */

import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { afterEach, expect, it, vi } from "vitest";
import {
  type ServeAndTrainOptions,
  serveAndTrain,
  type TrainingServer,
} from "../../lib/agents/serve-and-train.ts";
import { findVersion, listVersions } from "../../lib/agents/versions.ts";
import { NlacError } from "../../lib/base/errors.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { checkpointPath } from "../../lib/run/checkpoints.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import { Episodes } from "../../lib/serve/episodes.ts";
import { runErrand, servedErrands } from "../support/served-errands.ts";
import { inDirectory } from "../support/tiny.ts";

let server: TrainingServer | undefined;
afterEach(() => vi.restoreAllMocks());

async function until(is: () => boolean): Promise<void> {
  while (!is()) await new Promise((resolve) => setTimeout(resolve, 20));
}

/** A server after two updates, with the names of its versions, the newest first. */
async function trained(run: string, options: Partial<ServeAndTrainOptions> = {}) {
  const log: string[] = [];
  server = await serveAndTrain({
    ...{ recipe: servedErrands(), directory: run, port: 0, log: (line: string) => void log.push(line) },
    ...options,
  });
  const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
  const started = server.version;
  let errands = 0;
  const play = async () => {
    const before = server!.updates;
    for (let i = 0; i < 2; i++) await runErrand(client, "errands-base", `${started}-${errands}`, errands++);
    const newest = () => listVersions(run, () => {})[0]!.name;
    await until(() => server!.updates === before + 2 && newest() === server!.version);
  };
  await play();
  const rollBack = (name: string) => client.post(`/versions/${name}/rollback`);
  return { server, log, play, rollBack, versions: listVersions(run).map(({ name }) => name) };
}

const inRun = (body: (run: string) => Promise<void>) =>
  inDirectory(async (run) => {
    try {
      await body(run);
    } finally {
      await server?.close(20);
    }
  });

/** The second part of a version: the weight changes. */
const changesIn = (version: string) => version.split(".")[1];

it("goes back to the later of two versions, if the second is requested while the run is opened again", () =>
  inRun(async (run) => {
    const { server, rollBack, versions, play } = await trained(run);
    const [oldest, second] = [versions.at(-1)!, versions.at(-2)!];
    const resume = Learner.resume.bind(Learner);
    const opened: string[] = [];
    vi.spyOn(Learner, "resume").mockImplementation(async (path, options) => {
      opened.push(path);
      if (opened.length === 1) await rollBack(oldest);
      return resume(path, options);
    });
    await rollBack(second);
    await until(() => opened.length === 2 && changesIn(server.version) === changesIn(oldest));
    await play(); // training goes on
    expect(opened).toHaveLength(2);
  }));

it("keeps a rollback if the run cannot be opened or continued at first", () =>
  inRun(async (run) => {
    const { server, rollBack, versions, log, play } = await trained(run);
    const oldest = versions.at(-1)!;
    const paused = "training paused: cannot be";
    const resume = RunDirectory.resume.bind(RunDirectory);
    vi.spyOn(RunDirectory, "resume")
      .mockImplementationOnce(async () => {
        throw new Error("cannot be opened");
      })
      // Then it is opened, but cannot read its state.
      .mockImplementationOnce(async (...options) => {
        const opened = await resume(...options);
        vi.spyOn(opened, "restore").mockRejectedValueOnce(new Error("cannot be read"));
        return opened;
      });
    await rollBack(oldest);
    await until(() => log.at(-1)!.startsWith("training continues") && log.includes(`${paused} read`));
    expect(log).toContain(`${paused} opened`);
    expect(changesIn(server.version)).toBe(changesIn(oldest));
    await play();
    expect(changesIn(listVersions(run)[0]!.name)).toBe(changesIn(server.version));
  }));

it.each([0, 2])("ends if a new run cannot save its first checkpoint, after a warm-up of %i steps", (steps) =>
  inDirectory(async (directory) => {
    const run = join(directory, "run");
    const recipe = { ...servedErrands(), warmup: { steps, batchSize: 1, episodes: 1 } };
    const log: string[] = [];
    const start = () =>
      serveAndTrain({ recipe, directory: run, port: 0, log: (line) => void log.push(line) });
    const checkpoint = RunDirectory.prototype.checkpoint;
    vi.spyOn(RunDirectory.prototype, "checkpoint").mockImplementation(function (
      this: RunDirectory,
      ...given
    ) {
      if (given[0].warmup !== undefined) return checkpoint.apply(this, given);
      return Promise.reject(new NlacError("ERR_IO", "The disk is full."));
    });
    vi.spyOn(RunDirectory.prototype, "close").mockImplementationOnce(function (this: RunDirectory) {
      vi.mocked(this.close).mockRestore();
      this.close();
      throw new Error("cannot be closed");
    });
    await expect(start()).rejects.toMatchObject({ code: "ERR_IO", message: "The disk is full." });
    expect(log).toContain("training paused: The disk is full.");
    // What cannot be continued is removed.
    expect(existsSync(run)).toBe(steps > 0);
    vi.restoreAllMocks();
    server = await start();
    expect(server.version).toMatch(/\.0$/);
    await server.close(20);
  }),
);

it("goes on after the run could not be closed", () =>
  inRun(async (run) => {
    const { server, log, rollBack, versions, play } = await trained(run);
    const { close } = RunDirectory.prototype;
    vi.spyOn(RunDirectory.prototype, "close").mockImplementationOnce(function (this: RunDirectory, ...how) {
      close.apply(this, how);
      throw new Error("cannot be closed");
    });
    await rollBack(versions.at(-1)!);
    await until(() => log.some((line) => line.includes("training continues")));
    expect(log).toContain("training paused: cannot be closed");
    expect(changesIn(server.version)).toBe(changesIn(versions.at(-1)!));
    await play();
  }));

it("ends training and releases the run also if the recording cannot be closed", () =>
  inDirectory(async (run) => {
    const { server } = await trained(run);
    const { close } = Episodes.prototype;
    vi.spyOn(Episodes.prototype, "close").mockImplementationOnce(function (this: Episodes) {
      close.call(this);
      throw new Error("cannot be closed");
    });
    await expect(server.close(20)).rejects.toThrow("cannot be closed");
    expect(existsSync(join(run, "lock"))).toBe(false);
  }));

it("keeps a rollback that was answered if the server is killed before the next checkpoint", () =>
  inRun(async (run) => {
    const { server, rollBack, versions, play } = await trained(run);
    const oldest = versions.at(-1)!;
    expect(changesIn(versions[0]!)).not.toBe(changesIn(oldest));
    await rollBack(oldest);
    await until(() => changesIn(server.version) === changesIn(oldest));
    // What a killed server leaves; its locks would be those of an ended process.
    const left = `${run}-left`;
    cpSync(run, left, { recursive: true });
    for (const name of readdirSync(left)) if (/lock$/.test(name)) rmSync(join(left, name));
    // The note is there, and need not be written again: the disk may be full.
    mkdirSync(join(left, `rollback.json.${process.pid}.partial`));
    const next = await serveAndTrain({ recipe: servedErrands(), directory: left, port: 0 });
    try {
      await until(() => changesIn(next.version) === changesIn(oldest));
    } finally {
      await next.close(20);
      rmSync(left, { recursive: true });
    }
    await play(); // and saves a checkpoint
    expect(existsSync(join(run, "rollback.json"))).toBe(false);
  }));

it("frees the weights that it loaded if it cannot use them", () =>
  inRun(async (run) => {
    const { rollBack, versions, log } = await trained(run);
    const resume = Learner.resume.bind(Learner);
    const held = new Set<Learner>();
    vi.spyOn(Learner, "resume").mockImplementation(async (path, options) => {
      const learner = await resume(path, options);
      const dispose = learner.dispose.bind(learner);
      held.add(learner);
      vi.spyOn(learner, "dispose").mockImplementation(async () => {
        held.delete(learner);
        await dispose();
      });
      return learner;
    });
    const starts = join(run, "starts.json");
    const before = readFileSync(starts);
    writeFileSync(starts, "");
    await rollBack(versions.at(-1)!);
    await until(() => log.filter((line) => line.includes("starts.json")).length === 2);
    expect(held.size).toBe(0);
    writeFileSync(starts, before);
    await until(() => log.at(-1)!.startsWith("training continues"));
    expect(held.size).toBe(1);
  }));

it("keeps training if the version to go back to is damaged", () =>
  inRun(async (run) => {
    const { server, rollBack, versions, log, play } = await trained(run);
    const version = server.version;
    const { checkpoint } = findVersion(run, versions.at(-1)!);
    writeFileSync(join(checkpointPath(run, checkpoint), "learner", "model.safetensors"), "damaged");
    await rollBack(versions.at(-1)!);
    await until(() => log.at(-1)!.startsWith("training continues"));
    expect(log.at(-2)).toMatch(/^version 1\..* is not restored: .*model\.safetensors is damaged/);
    expect(server.version).toBe(version);
    expect(existsSync(join(run, "rollback.json"))).toBe(false);
    await play();
  }));

it("goes on, and back to other versions, if the state of a version is damaged", () =>
  inRun(async (run) => {
    const { log, rollBack, versions, play } = await trained(run, {
      guard: { episodes: 2, maxFall: { success: 2 } },
    });
    const { checkpoint } = listVersions(run)[1]!;
    writeFileSync(join(checkpointPath(run, checkpoint), "state.json"), "damaged");
    await play();
    expect(log.filter((line) => line.includes("paused"))).toEqual([]);
    expect(log.filter((line) => line.includes("state.json cannot be read"))).toHaveLength(1);
    await rollBack(versions[0]!);
    await until(() => log.at(-1)!.startsWith("training continues"));
  }));

it("keeps the best version after a restart, before metrics are measured again", () =>
  inRun(async (run) => {
    const first = await trained(run, { guard: { episodes: 2, maxFall: { success: 2 } } });
    await first.server.close(20);
    const best = listVersions(run).find(({ quality }) => "success" in quality)!;
    expect(best).toBeDefined();
    const { play } = await trained(run, { guard: { episodes: 64, maxFall: { success: 2 } } });
    await play();
    await play();
    expect(listVersions(run).length).toBeGreaterThan(5);
    expect(listVersions(run)).toContainEqual(best);
  }));
