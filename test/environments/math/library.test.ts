import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { gradeMath } from "../../../lib/environments/math/grade.ts";
import { judge } from "../../../lib/environments/math/judge.ts";
import { limit } from "../../../lib/environments/math/library.ts";

/** A million terms at each of several points: minutes of work. */
const endless = "\\sum_{a=1}^{999}\\sum_{b=1}^{999}\\sqrt{ab}";

describe("the grader's thread", () => {
  it("is used only for what the caller's thread cannot decide", () => {
    expect(judge("\\frac{1}{2}", "\\boxed{0.5}")).toBe(true);
    expect(judge("\\frac{1}{2}", "\\boxed{0.6}")).toBe(false);
    expect(judge("(1, 2, x)", "\\boxed{(1, 3, x^2)}")).toBe(false);
    expect(judge("\\sqrt{8}", "\\boxed{2\\sqrt{2}}")).toBeUndefined();
    expect(judge("\\sqrt{8}", "\\boxed{\\sqrt{8}}")).toBe(true);
  });

  it("is killed at its timeout, with the result false, and the next request starts another one", async () => {
    await gradeMath("\\pi", "\\pi + 0");
    const start = performance.now();
    expect(await gradeMath("5", endless)).toBe(false);
    expect(performance.now() - start).toBeGreaterThanOrEqual(limit - 1);
    expect(await gradeMath("\\sqrt{8}", "2\\sqrt{2}")).toBe(true);
  });

  it("answers in order, even after a thread was killed", async () => {
    const verdicts = await Promise.all([
      gradeMath("\\sqrt{2}", "\\frac{2}{\\sqrt{2}}"),
      gradeMath("5", endless),
      gradeMath("\\sqrt{3}", "\\frac{3}{\\sqrt{3}}"),
      gradeMath("\\sqrt{3}", "\\frac{2}{\\sqrt{3}}"),
    ]);
    expect(verdicts).toEqual([true, false, true, false]);
  });

  it("is not killed because the caller was blocked", async () => {
    await gradeMath("\\pi", "\\pi + 0");
    const verdict = gradeMath("\\sqrt{12}", "2\\sqrt{3}");
    await Promise.resolve().then(() => Promise.resolve());
    const until = performance.now() + 2 * limit;
    while (performance.now() < until);
    expect(await verdict).toBe(true);
  });

  it("does not block the caller's thread", async () => {
    let ticks = 0;
    const timer = setInterval(() => ticks++, 10);
    await gradeMath("5", endless);
    clearInterval(timer);
    expect(ticks).toBeGreaterThan(1);
  });

  it("does not keep the process alive", () => {
    const file = fileURLToPath(new URL("../../support/grade-child.ts", import.meta.url));
    const child = spawnSync(process.execPath, ["--import", "jiti/register", file], {
      timeout: 60_000,
      encoding: "utf8",
    });
    expect(child.stderr).toBe("");
    expect(child.stdout).toBe("true\n");
    expect(child.status).toBe(0);
  });
});
