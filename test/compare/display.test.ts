import { appendFileSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RunsDisplay } from "../../lib/compare/display.ts";
import { makeReport } from "../../lib/compare/report.ts";
import * as figures from "../../lib/compare/run-figures.ts";
import type { ComparedRun } from "../../lib/compare/schedule.ts";
import type { RunStatus } from "../../lib/run/status.ts";
import { comparisonOf, learningRows, writeRun } from "../support/comparison.ts";
import { inDirectory } from "../support/tiny.ts";

vi.mock("../../lib/compare/run-figures.ts", async (original) => {
  const module = await original<typeof figures>();
  return { ...module, readFigures: vi.fn(module.readFigures) };
});

beforeEach(() => void vi.useFakeTimers({ toFake: ["setInterval", "clearInterval", "performance"] }));
afterEach(() => void vi.useRealTimers());

function screen(options: { isTTY: boolean; rows?: number; columns?: number }) {
  const written: string[] = [];
  return { ...options, written, write: (text: string) => written.push(text) };
}

const writeStatus = (run: ComparedRun, status: Partial<RunStatus>) => {
  const now = Date.now() / 1000;
  const live = { state: "running", started: now, heartbeat: now, ...status };
  writeFileSync(join(run.path, "status.json"), JSON.stringify(live));
};

const waiting = (directory: string, count: number): ComparedRun[] =>
  Array.from({ length: count }, (_, seed) => ({
    ...{ method: "nlac", seed, path: join(directory, String(seed)), state: "waiting" },
  }));

test("where output is piped: a line when a run begins or ends, and one a minute", () =>
  inDirectory((directory) => {
    const runs = waiting(directory, 2);
    const [run] = runs;
    const stream = screen({ isTTY: false });
    const display = new RunsDisplay(runs, () => 1000, stream);
    Object.assign(run!, { state: "running", started: performance.now() });
    display.changed(run!);
    expect(stream.written).toEqual([`nlac, seed 0  running   0s  ${"░".repeat(16)}  0/1,000 steps\n`]);
    // Episodes of half of the steps were played, and a quarter of all updates made.
    writeRun(run!.path, learningRows(0.5, 0.5, { seed: 1, iterations: 5 }));
    writeStatus(run!, { phase: "update", done: 4, total: 8, fraction: 0.25, left: 180 });
    vi.advanceTimersByTime(61_000);
    expect(stream.written).toHaveLength(2);
    expect(stream.written[1]).toMatch(
      /^nlac, seed 0 {2}update 4\/8 {2}1m00s, 3m00s left {2}█{4}░{12} {2}500\/1,000 steps {2}success 0\.\d\d\n$/,
    );
    Object.assign(run!, { state: "failed", started: undefined });
    run!.outcome = { state: "failed", reason: "ERR_NOT_FINITE: ten", seconds: 75, peakBytes: null };
    display.changed(run!);
    expect(stream.written[2]).toMatch(/failed {4}1m15s .+ {2}ERR_NOT_FINITE: ten\n$/);
    display.end();
    vi.advanceTimersByTime(300_000);
    expect(stream.written).toHaveLength(3);
  }));

test("a run shows its phase before it has steps, and nothing that an earlier process has written", () =>
  inDirectory((directory) => {
    const [run] = waiting(directory, 1);
    const stream = screen({ isTTY: false });
    const display = new RunsDisplay([run!], () => 1000, stream);
    mkdirSync(run!.path);
    const later = { phase: "update", done: 4, total: 8, fraction: 0.25, left: 180 };
    for (const old of [{ state: "stopped" }, { heartbeat: Date.now() / 1000 - 60 }] as const) {
      writeStatus(run!, { ...later, ...old });
      Object.assign(run!, { state: "running", started: performance.now() });
      display.changed(run!);
      expect(stream.written.at(-1)).toBe(`nlac, seed 0  running   0s  ${"░".repeat(16)}  0/1,000 steps\n`);
    }
    writeStatus(run!, { phase: "warm-up", done: 6, total: 60, fraction: 0 });
    vi.advanceTimersByTime(61_000);
    expect(stream.written.at(-1)).toMatch(
      /^nlac, seed 0 {2}warm-up 6\/60 {2}1m00s {2}░+ {2}0\/1,000 steps\n$/,
    );
    writeFileSync(join(run!.path, "status.json"), "{");
    vi.advanceTimersByTime(60_000);
    expect(stream.written.at(-1)).toMatch(/^nlac, seed 0 {2}running .+ 0\/1,000 steps\n$/);
    display.end();
  }));

test("metrics that take long to read are read less often, and at the run's end", () =>
  inDirectory((directory) => {
    const [run] = waiting(directory, 1);
    const stream = screen({ isTTY: true });
    const read = vi.mocked(figures.readFigures);
    const display = new RunsDisplay([run!], () => 1000, stream);
    Object.assign(run!, { state: "running", started: performance.now() });
    writeRun(run!.path, learningRows(0.5, 0.5, { seed: 1, iterations: 5 }));
    read.mockImplementationOnce((...given) => {
      vi.advanceTimersByTime(1000); // as long as it takes to read
      return read(...given);
    });
    display.changed(run!);
    read.mockClear();
    const grow = () => appendFileSync(join(run!.path, "metrics.jsonl"), "{");
    for (let i = 0; i < 20; i++) {
      grow();
      vi.advanceTimersByTime(2000);
    }
    expect(read).not.toHaveBeenCalled();
    vi.advanceTimersByTime(20_000);
    expect(read).toHaveBeenCalledTimes(1);
    read.mockImplementationOnce((...given) => {
      vi.advanceTimersByTime(1000);
      return read(...given);
    });
    grow();
    display.changed(run!);
    read.mockClear();
    grow();
    Object.assign(run!, { state: "finished", started: undefined });
    display.changed(run!);
    expect(read).toHaveBeenCalledTimes(1);
    display.end();
  }));

test("damaged metrics do not end the display, which keeps the last figures", () =>
  inDirectory((directory) => {
    const [run] = waiting(directory, 1);
    const stream = screen({ isTTY: false });
    const display = new RunsDisplay([run!], () => 1000, stream);
    writeRun(run!.path, learningRows(0.5, 0.5, { seed: 1, iterations: 5 }));
    Object.assign(run!, { state: "running", started: performance.now() });
    display.changed(run!);
    writeFileSync(join(run!.path, "metrics.jsonl"), "no record\nnor this\n");
    vi.advanceTimersByTime(61_000);
    expect(stream.written).toHaveLength(2);
    expect(stream.written[1]).toContain("500/1,000 steps");
    display.end();
  }));

test("at a terminal: a line a run, renewed in place, as many and as long as there is room for", () =>
  inDirectory((directory) => {
    const runs = waiting(directory, 9);
    const stream = screen({ isTTY: true, rows: 6, columns: 40 });
    const display = new RunsDisplay(runs, () => 1000, stream);
    for (const run of runs.slice(0, 7)) run.state = "finished";
    runs[0]!.state = "running";
    runs[0]!.started = performance.now();
    display.changed(runs[0]!);
    const lines = stream.written.join("").split("\n");
    // The running one is the last; those that ended first are no longer shown.
    expect(lines.map((line) => line.slice(0, 12))).toEqual([
      ...["nlac, seed 4", "nlac, seed 5", "nlac, seed 6", "nlac, seed 0", "2 waiting"],
    ]);
    expect(Math.max(...lines.map((line) => line.length))).toBeLessThan(40);
    stream.written.length = 0;
    vi.advanceTimersByTime(2000);
    expect(stream.written[0]!.startsWith("\r\x1b[4A\x1b[0J")).toBe(true);
    stream.written.length = 0;
    display.note("stopping");
    expect(stream.written[0]).toBe("\r\x1b[4A\x1b[0Jstopping\n");
    display.end();
  }));

test("a run that exceeds its steps is shown at them, with the report's success and no remaining time", () =>
  inDirectory((directory) => {
    const runs = waiting(directory, 1);
    const [run] = runs;
    const stream = screen({ isTTY: false });
    const display = new RunsDisplay(runs, () => 400, stream);
    Object.assign(run!, { state: "running", started: performance.now() });
    display.changed(run!);
    const row = (step: number, success: number, steps: number) => ({
      step,
      values: { "eval/success": success, environment_steps: steps },
    });
    writeRun(run!.path, [row(0, 0, 0), row(4, 0.1, 320), row(8, 0.71, 480)]);
    writeStatus(run!, { phase: "evaluate", done: 0, total: 64, fraction: 1, left: 0 });
    vi.advanceTimersByTime(61_000);
    expect(stream.written[1]).toBe(
      `nlac, seed 0  evaluate 0/64  1m00s, finishing  ${"█".repeat(16)}  400/400 steps  success 0.41\n`,
    );
    const comparison = comparisonOf({
      environmentSteps: 400,
      seeds: [0],
      methods: [{ name: "nlac", recipe: "errands" }],
    });
    run!.state = "finished";
    expect(makeReport(comparison, runs).runs[0]!.success!.toFixed(2)).toBe("0.41");
    display.end();
  }));

test("at 80 columns a line keeps the time and the success", () =>
  inDirectory((directory) => {
    const runs = waiting(directory, 1).map((run) => ({ ...run, method: "errands-hindsight" }));
    const stream = screen({ isTTY: true, columns: 80 });
    const display = new RunsDisplay(runs, () => 1000, stream);
    Object.assign(runs[0]!, { state: "running", started: performance.now() - 283_000 });
    writeRun(runs[0]!.path, learningRows(0.5, 0.5, { seed: 1, iterations: 5 }));
    display.changed(runs[0]!);
    const line = stream.written.at(-1)!;
    expect(line.length).toBeLessThan(80);
    expect(line).toMatch(
      /^errands-hindsight, seed 0 {2}running {3}4m43s.*500\/1,000 steps {2}success 0\.\d\d$/,
    );
    display.end();
  }));

test("the lines of all runs have the same columns", () =>
  inDirectory((directory) => {
    const runs = waiting(directory, 3);
    const stream = screen({ isTTY: true, columns: 80 });
    const display = new RunsDisplay(runs, () => 1000, stream);
    for (const { path, seed } of runs.slice(0, 2))
      writeRun(path, learningRows(0.5, 0.5, { seed, iterations: 5 * (seed + 1) }));
    Object.assign(runs[0]!, { state: "finished", outcome: { seconds: 23 } });
    Object.assign(runs[1]!, { state: "finished", outcome: { seconds: 149 } });
    Object.assign(runs[2]!, { state: "running", started: performance.now() - 119_000 });
    display.changed(runs[2]!);
    const lines = stream.written.at(-1)!.split("\x1b[0J").at(-1)!.split("\n");
    expect(lines).toHaveLength(3);
    for (const part of [/\d+m?\d*s/, / steps/]) {
      const places = lines.map((line) => line.search(part));
      expect([part, new Set(places).size, places[0]! > 0]).toEqual([part, 1, true]);
    }
    display.end();
  }));
