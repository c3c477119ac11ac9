import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { gradeMath } from "../../../lib/environments/math/grade.ts";
import { judge } from "../../../lib/environments/math/judge.ts";
import { dataFile } from "../data.ts";
import { different, equal, falseIdentities, identities } from "./grade-cases.ts";

/** CPU time of this process in milliseconds, which other processes do not change. */
function cpuMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

/** docs/environments/math.md says what 200,000 runs found. */
const hostileRuns = Number(process.env.NLAC_HOSTILE_RUNS ?? 20_000);

describe("gradeMath", () => {
  it.each(equal)("accepts %s and %s as equal", async (gold, prediction) => {
    expect(await gradeMath(gold, `So it is $\\boxed{${prediction}}$.`)).toBe(true);
    expect(await gradeMath(gold, prediction)).toBe(true);
  });

  it.each(different)("distinguishes %s from %s", async (gold, prediction) => {
    expect(await gradeMath(gold, `So it is $\\boxed{${prediction}}$.`)).toBe(false);
  });

  it.each(identities)("knows that %s is %s, in both directions", async (a, b) => {
    expect(await gradeMath(a, `\\boxed{${b}}`)).toBe(true);
    expect(await gradeMath(b, `\\boxed{${a}}`)).toBe(true);
  });

  it.each(falseIdentities)("knows that %s is not %s, in both directions", async (a, b) => {
    expect(await gradeMath(a, `\\boxed{${b}}`)).toBe(false);
    expect(await gradeMath(b, `\\boxed{${a}}`)).toBe(false);
  });

  it("reads the last box, with nested braces, an unclosed one, fbox and no braces", async () => {
    expect(await gradeMath("2", "first \\boxed{1}, no: \\boxed{2}")).toBe(true);
    expect(await gradeMath("1", "first \\boxed{1}, no: \\boxed{2}")).toBe(false);
    expect(await gradeMath("\\frac{1}{2}", "\\boxed{\\frac{1}{2}} as said")).toBe(true);
    expect(await gradeMath("7", "\\boxed{7")).toBe(true);
    expect(await gradeMath("7", "\\fbox{7}")).toBe(true);
    expect(await gradeMath("5", "\\boxed 5.")).toBe(true);
  });

  it("reads boxes joined by commas or words as one list", async () => {
    expect(await gradeMath("1, 2, 3", "\\boxed{1},\\boxed{2},\\boxed{3}")).toBe(true);
    expect(await gradeMath("(1,2), (3,4)", "\\boxed{(1,2)} \\text{ and } \\boxed{(3,4)}")).toBe(true);
  });

  it("reads a text without a box as a person would", async () => {
    expect(await gradeMath("1000.99", "the number is not 10 which is 1,000.99€")).toBe(true);
    expect(await gradeMath("5", "Hence the final answer is 5. I hope it is correct.")).toBe(true);
    expect(await gradeMath("x \\ge 5", "Therefore $x \\geq 5$ is the solution.")).toBe(true);
    expect(await gradeMath("12", "With $d = 90/n$ there are 12 such sequences.")).toBe(true);
    expect(await gradeMath("2", "AZYUK2A")).toBe(false);
  });

  it.each([
    ["5", "We have x=2.\nFinal Answer: 5"],
    ["5", "Final Answer: $5$. Check: $2+3=5$, and $7$ is too much."],
    ["5", "**Final Answer**\n\n\\[ x = 5 \\]"],
    ["(1,2)", "With $3$ known, the lines meet at (1, 2)."],
    ["(1,2,3)", "So the point is (1, 2, 3)."],
    ["[1,2)", "So the set is [1, 2)."],
    ["2,3", "Thus x = 2 or x = 3."],
    ["2,3", "The discriminant is 1. Thus the roots are 3 and 2."],
    ["2,3", "Hence the solutions are $x = 2$ and $x = 3$."],
    ["y=2x+1", "So the line is y = 2x + 1."],
    ["x \\le 3", "So x ≤ 3."],
    ["12", "It is $12$, because $3 \\cdot 4 = 12$ and $5 \\cdot 2 = 10$."],
    ["4", "The minimum value is 4, attained at x = 1."],
    ["\\text{odd}", "Final Answer: odd"],
    ["C", "The correct answer is (C)."],
  ])("reads %s in %j", async (gold, solution) => {
    expect(await gradeMath(gold, solution)).toBe(true);
  });

  it.each([
    ["2", "We have x=2.\nFinal Answer: 5"],
    ["3", "Thus the roots are 2 and 3."],
    ["3", "Hence the solutions are $x = 2$ and $x = 3$."],
    ["3", "Hence the minimum is -3."],
    ["7", "First 7, then. Final Answer: 8. Not 7."],
  ])("does not read %s in %j", async (gold, solution) => {
    expect(await gradeMath(gold, solution)).toBe(false);
  });

  it("takes the last box before a final answer in words", async () => {
    expect(await gradeMath("7", "\\boxed{7}. Final Answer: 8")).toBe(true);
    expect(await gradeMath("8", "\\boxed{7}. Final Answer: 8")).toBe(false);
  });

  it("is reflexive on everything it can read", async () => {
    for (const [gold, prediction] of [...equal, ...different]) {
      if (gold !== "") expect(await gradeMath(gold, `\\boxed{${gold}}`), gold).toBe(true);
      if (prediction !== "") expect(await gradeMath(prediction, prediction), prediction).toBe(true);
    }
  });

  it("compares fractions exactly and without delay", () => {
    const fraction = fc.tuple(fc.integer({ min: -999, max: 999 }), fc.integer({ min: 1, max: 999 }));
    fc.assert(
      fc.property(fraction, fraction, fc.integer({ min: 1, max: 50 }), ([a, b], [c, d], k) => {
        expect(judge(`\\frac{${a}}{${b}}`, `\\boxed{${a * k}/${b * k}}`)).toBe(true);
        expect(judge(`\\frac{${a}}{${b}}`, `\\boxed{\\frac{${c}}{${d}}}`)).toBe(a * d === b * c);
      }),
      { numRuns: 300 },
    );
  });

  it.each(["\\frac{1}{2 \\cup \\pm 1}", "\\frac{[0,1)}{2:\\pm 1}", "2+(1:\\pm 3)", "x=\\frac{1:\\pm 2}{3}"])(
    "judges a ± inside of a union or a ratio: %s",
    async (answer) => {
      expect(await gradeMath("5", `\\boxed{${answer}}`)).toBe(false);
      expect(await gradeMath(answer, "5")).toBe(false);
      expect(await gradeMath(answer, `\\boxed{${answer}}`)).toBe(true);
    },
  );

  it("survives hostile strings, in bounded time each", async () => {
    const pieces = fc.constantFrom(
      ..."\\frac \\sqrt { } ( ) [ ] \\{ \\} | ^ _ , ; : $ % ! & \\\\ + - * / = < > \\le \\cup \\pm \\pi \\infty e i x 1 9 0. .5".split(
        " ",
      ),
      ..."\\boxed{ \\text{ \\begin{pmatrix} \\end{pmatrix} \\left( \\right) \\sin \\log_ \\binom \\overline{3} and cm ∞ − ½ \u0000 \ud800".split(
        " ",
      ),
      "999999999999",
      "99999!",
      "9^9^9^9",
      "9^{9^{9^{9}}}",
      "\\frac{1}{3}",
      "\\sum_{k=1}^{9999}",
      "\\times 10^{",
      "!".repeat(20),
      "^9".repeat(12),
      "(".repeat(80),
      "\\sqrt{".repeat(30),
      "1,".repeat(60),
      "\\begin{pmatrix}2&3\\\\1&x\\end{pmatrix}",
      "^{-1}",
      "^{99}",
      "1<-2x<",
      "Final Answer: ",
      "So it is $",
      ". ",
      " and ",
      "I",
      " ",
      "\n",
    );
    const hostile = fc.oneof(
      fc.array(pieces, { maxLength: 40 }).map((parts) => parts.join("")),
      // Parsable strings get further.
      fc
        .array(
          fc.constantFrom(
            ..."+ - \\cdot / ^ x n 2 9 99999 \\pi i (1+x) \\sqrt{2} n! \\sin \\frac{x}{3} ,".split(" "),
          ),
          {
            maxLength: 12,
          },
        )
        .map((parts) => parts.join(" ")),
      fc.string({ unit: "binary", maxLength: 60 }),
    );
    await gradeMath("\\pi", "\\pi+0");
    let slowestHere = 0;
    let slowest = 0;
    let asked = 0;
    await fc.assert(
      fc.asyncProperty(hostile, hostile, async (gold, prediction) => {
        const start = performance.now();
        const before = cpuMs();
        const verdict = judge(gold, prediction);
        slowestHere = Math.max(slowestHere, cpuMs() - before);
        if (verdict !== undefined) return;
        asked++;
        expect(await gradeMath(gold, prediction)).toBeTypeOf("boolean");
        slowest = Math.max(slowest, performance.now() - start);
      }),
      { numRuns: hostileRuns },
    );
    console.info(
      `${hostileRuns} hostile pairs: ${asked} needed the library; slowest ${slowestHere.toFixed(0)} ms on this thread, ` +
        `${slowest.toFixed(0)} ms in all`,
    );
    // Bounds against hangs, far above what a loaded machine needs; not a measurement.
    expect(slowestHere).toBeLessThan(2000);
    expect(slowest).toBeLessThan(60_000);
  }, 3_600_000);

  it("is not slowed by long input", () => {
    const long = [
      "\\boxed{".repeat(14_000),
      "\\boxed{\n".repeat(12_000),
      "\\(".repeat(50_000),
      "$".repeat(100_000),
      "a".repeat(100_000),
      "9".repeat(100_000),
      "9".repeat(1999),
      "1 ".repeat(50_000),
      "answer is ".repeat(10_000),
      `${"\\text{(A)}".repeat(190)}5`,
      "\\begin{cases}1&".repeat(120),
      "2\\text{ h }".repeat(180),
      "Final Answer: $1$. ".repeat(6000),
      "$1$. ".repeat(20_000),
      `It is ${"!".repeat(100_000)}1`,
      `It is ${". ".repeat(50_000)}`,
      `It is ${"\n \n".repeat(30_000)}`,
      `${"$1$ and ".repeat(10_000)} x`,
      `The sum is ${"1 + ".repeat(20_000)}`,
      "x<y<".repeat(490),
      "-2x<".repeat(490),
      "1;".repeat(900),
      `(${"1,5;".repeat(480)}1)`,
      `${"1,1".repeat(600)}`,
      "3I".repeat(900),
      "W(n)=1,".repeat(280),
      "(".repeat(1900),
      "\\pm 1+".repeat(300),
      "1,".repeat(950),
      "x=".repeat(900),
      "9^{9^{9^{9^9}}}",
      "999999!",
      `\\binom{${"9".repeat(1900)}}{600}`,
      "\\begin{pmatrix}".repeat(120),
      "\\begin{pmatrix}1&1\\\\1&1\\end{pmatrix}".repeat(50),
      "7^{999}/9^{999},".repeat(48),
      Array.from({ length: 40 }, (_, i) => `7^{${900 + i}}/9^{${990 - i}}`).join("+"),
      "x^2".repeat(600),
      "x!".repeat(900),
      `x${"!".repeat(1900)}`,
      `\\{${"0.1234567,".repeat(47)}1\\}`,
    ];
    const before = cpuMs();
    for (const prediction of long) {
      for (const gold of ["5", prediction.slice(0, 1999), prediction]) judge(gold, prediction);
    }
    expect(cpuMs() - before).toBeLessThan(20_000);
  });
});

describe("agreement with other graders' suites", () => {
  it("distinguishes rewritings from near misses, as generated by scripts/fixtures/math_pairs.py", async () => {
    const pairs = JSON.parse(
      readFileSync(new URL("../../fixtures/math/pairs.json", import.meta.url), "utf8"),
    ) as { kind: string; gold: string; prediction: string; equal: boolean; mathVerify: boolean }[];
    const wrong: string[] = [];
    for (const { kind, gold, prediction, equal } of pairs) {
      if ((await gradeMath(gold, `\\boxed{${prediction}}`)) !== equal)
        wrong.push(`${kind}: ${gold} and ${prediction}`);
    }
    expect(wrong).toEqual([]);
    expect(pairs.length).toBeGreaterThan(600);
  });

  const suites: [file: string, floor: number][] = [
    ["math/grader_pairs_math_verify.json", 0.96],
    ["math/grader_pairs_hendrycks.json", 1],
    ["math/grader_pairs_mario.json", 1],
  ];
  for (const [file, floor] of suites) {
    const path = dataFile(file);
    it.skipIf(path === undefined)(`${file}: at least ${100 * floor} %`, async () => {
      const pairs = JSON.parse(readFileSync(path!, "utf8")) as {
        gold: string;
        prediction: string;
        expected: boolean;
      }[];
      let agreeing = 0;
      for (const { gold, prediction, expected } of pairs) {
        if ((await gradeMath(gold, prediction)) === expected) agreeing++;
      }
      console.info(`${file}: ${agreeing} of ${pairs.length}`);
      expect(agreeing / pairs.length).toBeGreaterThanOrEqual(floor);
    });
  }

  const files = ["math/train12000.jsonl", "math/test500.jsonl"].map(dataFile);
  it.skipIf(files.includes(undefined))(
    "finds every gold answer of MATH in itself and in its solution",
    async () => {
      let count = 0;
      for (const path of files) {
        for (const line of readFileSync(path!, "utf8").trim().split("\n")) {
          const { answer, solution } = JSON.parse(line) as { answer: string; solution: string };
          expect(await gradeMath(answer, `\\boxed{${answer}}`), answer).toBe(true);
          expect(await gradeMath(answer, solution), answer).toBe(true);
          count++;
        }
      }
      expect(count).toBe(12_500);
    },
  );
});
