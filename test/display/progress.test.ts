import { expect, test, vi } from "vitest";
import { formatFigure, formatSeconds, TerminalProgress } from "../../lib/display/progress.ts";

function recorder(isTTY: boolean, columns = 200) {
  const written: string[] = [];
  return { written, stream: { isTTY, columns, write: (text: string) => written.push(text) } };
}

test("a terminal gets one line that is updated, with bar, figures, speed and time left", () => {
  const { written, stream } = recorder(true);
  let now = 0;
  const progress = new TerminalProgress(stream, () => now);
  progress.phase("update", 4);
  progress.overall(0);
  now = 10;
  progress.show({ L1: 1.23456, L2: 0.5 });
  now = 20;
  progress.advance(2, 1000);
  progress.overall(0.25);
  now = 20.2;
  progress.advance(2, 10);
  const last = written.at(-1)!;
  expect(last.startsWith("\r\x1b[0J")).toBe(true);
  expect(last).toContain("update   ████████████░░░░░░░░░░░░ 2/4");
  expect(last).toContain("L1 1.23  L2 0.5");
  expect(last).toContain("50 tok/s");
  expect(last).toContain("1m00s left");
  expect(written.join("")).not.toContain("\n");
});

test("a pipe gets plain lines, not more than one every 15 seconds", () => {
  const { written, stream } = recorder(false);
  let now = 0;
  const progress = new TerminalProgress(stream, () => now);
  progress.phase("play", 100);
  for (let i = 1; i <= 100; i++) {
    now = i;
    progress.advance(i);
  }
  expect(written.every((line) => line.endsWith("\n") && !line.includes("\x1b"))).toBe(true);
  expect(written.length).toBe(7);
  progress.end();
  expect(written).toHaveLength(8);
  expect(written.at(-1)).toBe(`1m40s  play     ${"█".repeat(24)} 100/100\n`);
});

test("a pipe gets a line every 15 seconds while a step takes long, and the last state at the end", () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const { written, stream } = recorder(false);
  let now = 0;
  const progress = new TerminalProgress(stream, () => now);
  progress.phase("play", 32);
  expect(written).toHaveLength(1);
  now = 16;
  vi.advanceTimersByTime(16_000);
  expect(written).toHaveLength(2);
  now = 17;
  progress.show({ success: 0.25 });
  progress.advance(32);
  progress.end();
  expect(written[2]).toMatch(/^17s {2}play .* 32\/32 {2}success 0\.25\n$/);
  progress.end();
  expect(written).toHaveLength(3);
  vi.useRealTimers();
});

test("times and the iteration come first, and a narrow terminal omits figures, not times", () => {
  const lineAt = (columns: number) => {
    const { written, stream } = recorder(true, columns);
    let now = 0;
    const progress = new TerminalProgress(stream, () => now);
    progress.iteration(7, 12);
    progress.phase("update", 40);
    progress.overall(0);
    progress.show({ L1: 1.23456, L2: 0.5, success: 0.7125, "test success": 0.5 });
    now = 283;
    progress.overall(0.5);
    progress.advance(20, 28_300);
    return written.at(-1)!.replace("\r\x1b[0J", "");
  };
  expect(lineAt(80)).toBe(`4m43s, 4m43s left  iteration 7/12  update   █████░░░░░ 20/40  success 0.713`);
  expect(lineAt(120)).toBe(
    `4m43s, 4m43s left  iteration 7/12  update   ${"█".repeat(12)}${"░".repeat(12)} 20/40  success 0.713  test success 0.5  100 tok/s`,
  );
  expect(lineAt(160)).toMatch(
    /20\/40 {2}L1 1\.23 {2}L2 0\.5 {2}success 0\.713 {2}test success 0\.5 {2}100 tok\/s$/,
  );
  expect(lineAt(40)).toContain("4m43s, 4m43s left  iteration 7/12");
});

test("once every update is done, no remaining time is given", () => {
  const { written, stream } = recorder(true);
  let now = 0;
  const progress = new TerminalProgress(stream, () => now);
  progress.overall(0);
  progress.phase("update", 4);
  now = 60;
  progress.overall(1);
  progress.phase("evaluate", 64);
  expect(written.at(-1)).toContain("1m00s, finishing  evaluate");
  // The last state has the latest figures.
  now = 61;
  progress.advance(64);
  progress.show({ "test success": 1 });
  progress.end();
  expect(written.at(-2)).toMatch(/1m01s {2}evaluate .* 64\/64 {2}test success 1$/);
  expect(written.at(-1)).toBe("\n");
});

test("a resumed run's remaining time is computed from the progress since resuming", () => {
  const { written, stream } = recorder(true);
  let now = 0;
  const progress = new TerminalProgress(stream, () => now);
  progress.phase("update", 10);
  progress.overall(0.5);
  now = 60;
  progress.overall(0.75);
  now = 61;
  progress.advance(5);
  expect(written.at(-1)).toContain("1m01s, 59s left");
});

test("in the first iteration, evaluation and episodes count once per iteration", () => {
  const { written, stream } = recorder(true);
  let now = 0;
  const progress = new TerminalProgress(stream, () => now);
  now = 5; // the model was loaded
  progress.overall(0);
  progress.iteration(1, 8);
  progress.phase("play", 16);
  const update = (done: number) => {
    progress.overall(done / 24 / 8);
    progress.advance(done);
    return written.at(-1);
  };
  now = 15;
  progress.phase("update", 24);
  // An iteration has 10 s of episodes and 24 updates of a second.
  now = 17;
  expect(update(2)).toContain("17s, 4m20s left");
  now = 39;
  expect(update(24)).toContain("39s, 3m58s left");
});

test("figures and times are formatted", () => {
  expect([0, 12, 0.123456, 1234.5, 1e-7, Number.NaN].map(formatFigure)).toEqual([
    "0",
    "12",
    "0.123",
    "1230",
    "1.0e-7",
    "–",
  ]);
  expect([5, 75, 3725, Number.POSITIVE_INFINITY].map(formatSeconds)).toEqual(["5s", "1m15s", "1h02m", "–"]);
});
