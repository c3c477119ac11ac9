import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type Progress, silentProgress } from "../../lib/display/progress.ts";
import { heartbeatMs, readStatus, StatusWriter } from "../../lib/run/status.ts";

const path = mkdtempSync(join(tmpdir(), "nlac-status-"));

beforeEach(() => {
  vi.useFakeTimers({ now: 1_000_000 });
});
afterEach(() => {
  vi.useRealTimers();
});

test("it shows the current work, its progress, and whether the process runs", () => {
  const phases: string[] = [];
  const shown: Progress = { ...silentProgress, phase: (name, total) => phases.push(`${name} ${total}`) };
  const status = new StatusWriter(path, shown);
  expect(readStatus(path)).toMatchObject({ state: "running", heartbeat: 1000, phase: "" });
  status.phase("update", 8);
  status.overall(0.25);
  vi.advanceTimersByTime(4000);
  status.overall(0.5);
  vi.advanceTimersByTime(heartbeatMs - 4000);
  expect(readStatus(path)).toMatchObject({ heartbeat: 1005, phase: "update", total: 8 });
  expect(readStatus(path)).toMatchObject({ fraction: 0.5, left: 7 });
  expect(phases).toEqual(["update 8"]);
  status.end("failed", { code: "ERR_NOT_FINITE", message: "ten skipped steps" });
  expect(readStatus(path)).toMatchObject({ state: "failed", error: { code: "ERR_NOT_FINITE" } });
  // An end is final, and nothing is written after it.
  status.end("stopped");
  vi.advanceTimersByTime(60_000);
  expect(readStatus(path)).toMatchObject({ state: "failed", heartbeat: 1005 });
  expect(readdirSync(path)).toEqual(["status.json"]);
});

test("the time left counts what comes before the updates once per iteration", () => {
  const status = new StatusWriter(path, silentProgress);
  status.iteration(1, 4);
  status.overall(0);
  status.phase("rollout", 16);
  expect(readStatus(path)!.left).toBeUndefined();
  vi.advanceTimersByTime(60_000);
  status.phase("update", 8);
  vi.advanceTimersByTime(10_000);
  status.overall(1 / 16);
  vi.advanceTimersByTime(heartbeatMs);
  // 15 of 16 parts of 10 s each, of which 5 s are over, and three iterations more that begin with 60 s of episodes.
  expect(readStatus(path)!.left).toBeCloseTo(150 - 5 + 180, 6);
  status.end("finished");
});

test.each([-1, 1])(
  "a clock that jumps by %d days neither stops the writes nor changes the duration",
  (days) => {
    const status = new StatusWriter(path, silentProgress);
    status.phase("update", 8);
    vi.advanceTimersByTime(2000);
    vi.setSystemTime(Date.now() + days * 86_400_000);
    status.advance(3);
    const { started, heartbeat, done } = readStatus(path)!;
    expect(done).toBe(3);
    expect(heartbeat).toBeCloseTo(Date.now() / 1000, 6);
    expect(heartbeat - started).toBeCloseTo(2, 6);
    status.end("finished");
  },
);

test("every call is passed on to the display", () => {
  const calls: unknown[][] = [];
  const record =
    (name: string) =>
    (...args: unknown[]) =>
      calls.push([name, ...args]);
  const shown: Required<Progress> = {
    ...{ phase: record("phase"), advance: record("advance"), show: record("show"), hide: record("hide") },
    note: record("note"),
    ...{ iteration: record("iteration"), overall: record("overall") },
  };
  const status: Required<Progress> = new StatusWriter(path, shown);
  const made: { [Name in keyof Progress]-?: Parameters<Required<Progress>[Name]> } = {
    ...{ phase: ["update", 8], advance: [3, 40], show: [{ loss: 0.5 }], hide: ["loss"] },
    note: ["an episode failed"],
    ...{ iteration: [2, 4], overall: [0.5] },
  };
  for (const [name, args] of Object.entries(made))
    (status[name as keyof Progress] as (...args: unknown[]) => void)(...args);
  expect(calls).toEqual(Object.entries(made).map(([name, args]) => [name, ...args]));
  (status as StatusWriter).end("finished");
});

test("a directory that cannot be written does not stop the training", () => {
  const gone = join(path, "gone");
  const status = new StatusWriter(gone, silentProgress);
  status.phase("update", 1);
  status.end("finished");
  expect(readStatus(gone)).toBeUndefined();
  // Nor one in whose place is a file: the partial file can then not be removed either.
  writeFileSync(gone, "");
  const hidden = new StatusWriter(join(gone, "run"), silentProgress);
  hidden.end("finished");
});

test("a damaged status is an error that names it", () => {
  writeFileSync(join(path, "status.json"), '{"state":"asleep"}');
  expect(() => readStatus(path)).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
  rmSync(path, { recursive: true });
});
