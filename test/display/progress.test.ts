import { expect, test } from "vitest";
import { formatFigure, formatSeconds, TerminalProgress } from "../../lib/display/progress.ts";

function recorder(isTTY: boolean) {
  const written: string[] = [];
  return { written, stream: { isTTY, columns: 200, write: (text: string) => written.push(text) } };
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
  expect(last).toContain("1m01s left");
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
  expect(written.at(-1)).toContain("1m01s left");
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
