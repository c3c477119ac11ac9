import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import type { PlannedRun } from "../../lib/compare/comparison.ts";
import { type ComparedRun, findRuns, requireSameRecipe, Schedule } from "../../lib/compare/schedule.ts";
import { loadRecipe } from "../../lib/recipe/recipe.ts";
import { writeRun } from "../support/comparison.ts";
import { lockOf } from "../support/locks.ts";
import { inDirectory } from "../support/tiny.ts";

const fake = fileURLToPath(new URL("../support/fake-train.mjs", import.meta.url));
const resolved = await loadRecipe("errands");

const run = (method: string, seed: number): PlannedRun => ({
  ...{ method, seed, recipe: "errands", resolved },
  changes: [`config.seed=${seed}`],
});

interface Call {
  what: "begin" | "end";
  argv: string[];
  threads: string;
}

/**
 * A directory with `modes`, what the fake training does for each run, beside `out`, the
 * comparison's.
 */
function scene(directory: string, modes: Record<string, string>) {
  const at = join(directory, "modes");
  mkdirSync(at, { recursive: true });
  const set = (modes: Record<string, string>) => {
    for (const [name, mode] of Object.entries(modes)) writeFileSync(join(at, name), mode);
  };
  set(modes);
  const calls = (): Call[] =>
    readFileSync(join(at, "calls"), "utf8")
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as Call);
  const out = join(directory, "out");
  const schedule = (
    jobs: number,
    onChange?: (run: ComparedRun) => void,
    onWait?: (run: ComparedRun, holder: string) => void,
  ) => new Schedule({ jobs, threads: 5, program: [process.execPath, fake, at], onChange, onWait });
  const forget = () => rmSync(join(at, "calls"), { force: true });
  const hanging = async () => {
    while (!existsSync(join(at, "hanging"))) await setTimeout(10);
  };
  return { out, set, calls, schedule, forget, hanging };
}

const states = (runs: readonly ComparedRun[]) => runs.map(({ state }) => state);

test("runs are trained so many at once, by this command line, and finished ones only once", () =>
  inDirectory(async (directory) => {
    const { out, schedule, calls, forget } = scene(directory, { any: "finish" });
    const planned = [run("a", 0), run("b", 0), run("a", 1), run("b", 1)];
    const runs = findRuns(planned, out);
    expect(states(runs)).toEqual(["waiting", "waiting", "waiting", "waiting"]);
    const changes: string[] = [];
    const atOnce: number[] = [];
    const onChange = ({ method, seed, state }: ComparedRun) => {
      changes.push(`${method}${seed} ${state}`);
      atOnce.push(states(runs).filter((state) => state === "running").length);
    };
    await schedule(2, onChange).train(runs);
    expect(states(runs)).toEqual(["finished", "finished", "finished", "finished"]);
    expect(changes.slice(0, 2)).toEqual(["a0 running", "b0 running"]);
    expect(changes).toHaveLength(8);
    const first = calls().find(({ argv }) => argv.includes(join(out, "a", "0")));
    expect(first!.argv).toEqual([
      ...["train", "errands", "--set", "config.seed=0", "--run", join(out, "a", "0"), "--json"],
    ]);
    expect(calls().every(({ threads }) => threads === "2")).toBe(true);
    expect(Math.max(...atOnce)).toBe(2);

    forget();
    const again = findRuns([...planned, run("a", 2)], out);
    expect(states(again)).toEqual(["finished", "finished", "finished", "finished", "waiting"]);
    await schedule(1).train(again);
    expect(calls().map(({ argv }) => argv.at(-2))).toEqual([join(out, "a", "2"), join(out, "a", "2")]);
    // What was deleted is trained anew.
    rmSync(join(out, "a", "0"), { recursive: true });
    expect(findRuns(planned, out)[0]!.state).toBe("waiting");
  }));

test("a failed run reports why, and the others continue; it is retried from the start", () =>
  inDirectory(async (directory) => {
    const { out, set, schedule, calls, forget } = scene(directory, {
      any: "finish",
      "a-0": "crash",
      "b-0": "kill",
      "c-0": "mute",
    });
    const runs = findRuns([run("a", 0), run("b", 0), run("a", 1), run("c", 0)], out);
    await schedule(1).train(runs);
    expect(runs.map(({ state, outcome }) => [state, outcome!.reason])).toEqual([
      ["failed", "ERR_NOT_FINITE: ten steps in a row"],
      ["failed", "ended by SIGKILL"],
      ["finished", null],
      ["failed", "ended without a result"],
    ]);
    expect(readFileSync(join(out, "a", "0.log"), "utf8")).toBe(
      "working …\nnlac: ERR_NOT_FINITE: ten steps in a row\n",
    );
    expect(findRuns([run("a", 0)], out)[0]!.outcome).toEqual(runs[0]!.outcome);

    set({ "a-0": "finish", "b-0": "crash" });
    forget();
    const before = runs[0]!.outcome!.seconds!;
    const again = findRuns([run("a", 0), run("b", 0), run("a", 1)], out);
    await schedule(1).train(again);
    expect(states(again)).toEqual(["finished", "failed", "finished"]);
    expect(calls()[0]!.argv).not.toContain("--resume");
    expect(again[0]!.outcome!.seconds).toBeGreaterThan(before);
    // The log has both processes of b; the reason is the second one's.
    expect(again[1]!.outcome!.reason).toBe("ERR_NOT_FINITE: ten steps in a row");
  }));

test("a stop reaches the processes and starts no more; the runs continue with --resume", () =>
  inDirectory(async (directory) => {
    const { out, set, schedule, calls, forget, hanging } = scene(directory, { any: "hang" });
    const planned = [run("a", 0), run("b", 0)];
    const runs = findRuns(planned, out);
    const stopped = schedule(1);
    const training = stopped.train(runs);
    await hanging();
    stopped.stop();
    await training;
    expect(states(runs)).toEqual(["stopped", "waiting"]);
    expect(runs[0]!.outcome!.peakBytes).toSatisfy((bytes) => bytes === null || (bytes as number) > 1e6);

    set({ any: "finish" });
    forget();
    const again = findRuns(planned, out);
    expect(states(again)).toEqual(["stopped", "waiting"]);
    await schedule(1).train(again);
    expect(states(again)).toEqual(["finished", "finished"]);
    expect(calls()[0]!.argv).toEqual(["train", "--resume", "--run", join(out, "a", "0"), "--json"]);
    expect(calls()[2]!.argv).toContain("errands");
  }));

test("a killed comparison continues from checkpoints, and waits for a run that another process trains", () =>
  inDirectory(async (directory) => {
    const { out, schedule, calls } = scene(directory, { any: "finish" });
    const [a, b] = [join(out, "a", "0"), join(out, "b", "0")];
    for (const path of [a, b]) mkdirSync(path, { recursive: true });
    writeFileSync(join(a, "latest"), "000000");
    // A process that lives and is not this one.
    writeFileSync(join(b, "lock"), lockOf(process.ppid));
    const runs = findRuns([run("a", 0), run("b", 0)], out);
    expect(states(runs)).toEqual(["stopped", "waiting"]);
    const waits: string[] = [];
    const hasWaited = async (times: number) => {
      while (waits.length < times) await setTimeout(10);
    };
    const onWait = ({ method }: ComparedRun, holder: string) => waits.push(`${method}: ${holder}`);

    // A stop ends the wait, and leaves the run as it is.
    const stopped = schedule(1, undefined, onWait);
    const first = stopped.train(runs);
    await hasWaited(1);
    stopped.stop();
    await first;
    expect(states(runs)).toEqual(["finished", "waiting"]);
    expect(existsSync(`${b}.json`)).toBe(false);
    expect(existsSync(join(b, "lock"))).toBe(true);

    const second = schedule(1, undefined, onWait).train(runs);
    await hasWaited(2);
    writeFileSync(join(b, "latest"), "000000");
    rmSync(join(b, "lock"));
    await second;
    expect(states(runs)).toEqual(["finished", "finished"]);
    expect(waits).toEqual(Array(2).fill(`b: process ${process.ppid}`));
    // From the checkpoint that the other process has written meanwhile.
    expect(calls().at(-1)!.argv).toEqual(["train", "--resume", "--run", b, "--json"]);
  }));

test("time and memory of a run are unknown once a comparison was killed while it ran", () =>
  inDirectory(async (directory) => {
    const { out, set, schedule, hanging } = scene(directory, { any: "hang" });
    const killed = schedule(1);
    const training = killed.train(findRuns([run("a", 0)], out));
    await hanging();
    // What a killed comparison leaves.
    const unknown = { state: "stopped", reason: null, seconds: null, peakBytes: null };
    expect(JSON.parse(readFileSync(join(out, "a", "0.json"), "utf8"))).toEqual(unknown);
    const left = findRuns([run("a", 0)], out);
    killed.stop();
    await training;
    expect(findRuns([run("a", 0)], out)[0]!.outcome!.seconds).toBeGreaterThan(0);
    set({ any: "finish" });
    await schedule(1).train(left);
    expect(left[0]!.outcome).toEqual({ ...unknown, state: "finished" });
    // An outcome that cannot be read is unknown too.
    writeFileSync(join(out, "a", "0.json"), "{");
    const [damaged] = findRuns([run("a", 0)], out);
    expect(damaged).toMatchObject({
      state: "stopped",
      fault: expect.stringContaining("0.json"),
      outcome: unknown,
    });
    await schedule(1).train([damaged!]);
    expect(damaged!.fault).toBeUndefined();
    expect(damaged!.outcome).toEqual({ ...unknown, state: "finished" });
  }));

test("after an I/O error, training rejects only when all processes have ended", () =>
  inDirectory(async (directory) => {
    const { out, schedule } = scene(directory, { "a-0": "finish", "b-0": "hang" });
    const runs = findRuns([run("a", 0), run("b", 0), run("c", 0)], out);
    const training = schedule(2, ({ method, state }) => {
      if (method === "a" && state === "finished") throw new Error("disk full");
    }).train(runs);
    await expect(training).rejects.toThrow("disk full");
    expect(states(runs)).toEqual(["finished", "stopped", "waiting"]);
  }));

test("a run that began under another recipe is not mixed with this one's", () =>
  inDirectory((directory) => {
    const found = () => findRuns([run("a", 0)], directory)[0]!;
    expect(() => requireSameRecipe(found())).not.toThrow(); // nothing is there yet
    writeRun(join(directory, "a", "0"), [], resolved);
    expect(() => requireSameRecipe(found())).not.toThrow();
    const other = { ...found(), resolved: { ...resolved, config: { ...resolved.config, batchSize: 7 } } };
    expect(() => requireSameRecipe(other as never)).toThrow(/trained with a different recipe/);
  }));

test("a run resumes after the description of its recipe was changed", () =>
  inDirectory((directory) => {
    const path = join(directory, "a", "0");
    writeRun(path, [], { ...resolved, description: "An earlier description." });
    const found = findRuns([run("a", 0)], directory)[0]!;
    expect(found.resolved.description).not.toBe("An earlier description.");
    expect(() => requireSameRecipe(found)).not.toThrow();
  }));

test("a run whose recipe leaves the dtype to nlac resumes", () =>
  inDirectory((directory) => {
    const auto = { ...resolved, learner: { ...resolved.learner, dtype: "auto" as const } };
    const recorded = { ...auto, learner: { ...auto.learner, dtype: "bfloat16" as const } };
    writeRun(join(directory, "a", "0"), [], recorded);
    const found = findRuns([{ ...run("a", 0), resolved: auto }], directory)[0]!;
    expect(() => requireSameRecipe(found)).not.toThrow();
    const float32 = { ...auto, learner: { ...auto.learner, dtype: "float32" as const } };
    expect(() => requireSameRecipe({ ...found, resolved: float32 })).toThrow(
      /different recipe .+\(learner\)/,
    );
  }));
