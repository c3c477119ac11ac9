import { expect, test, vi } from "vitest";
import { stderrReporter } from "../../lib/display/reporter.ts";

test("a step is named before its first part is done, then has a bar, which is removed at the end", () => {
  const written: string[] = [];
  const stream = { isTTY: true, columns: 60, write: (text: string) => written.push(text) };
  stderrReporter(stream).progress("build cpu", 0, undefined, "steps");
  expect(written).toEqual(["build cpu …"]);
  written.length = 0;
  const report = stderrReporter(stream);
  report.progress("build cpu", 10, 40, "steps");
  expect(written[0]).toMatch(/^build cpu █+░+ {2}25 % of 40$/);
  expect(written[0]!.length).toBeLessThan(60);
  report.progress("build cpu", 40, 40, "steps");
  expect(written.at(-1)).toBe("\r\x1b[0J");
});

test("a clock that is set back does not stop the bar", async () => {
  const written: string[] = [];
  const stream = { isTTY: true, columns: 60, write: (text: string) => written.push(text) };
  const report = stderrReporter(stream);
  report.progress("build cpu", 10, 40, "steps");
  const clock = vi.spyOn(Date, "now").mockReturnValue(Date.now() - 86_400_000);
  await new Promise((resolve) => setTimeout(resolve, 120));
  report.progress("build cpu", 20, 40, "steps");
  clock.mockRestore();
  expect(written.at(-1)).toContain("50 % of 40");
});
