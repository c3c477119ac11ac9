import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { gradeMath, gradeMathSync } from "../../lib/environments/math/grade.ts";
import { dataFile } from "./data.ts";

const equal: [gold: string, prediction: string][] = [
  // layout
  ["\\frac{1}{2}", "\\dfrac12"],
  ["(1,2)", "\\left(1, 2\\right)"],
  ["1{,}000", "1000"],
  ["11,\\! 111,\\! 111", "11111111"],
  ["12,345", "12345"],
  ["-4", "−4"],
  ["\\$12.50", "12.5"],
  ["5\\text{ cm}", "5 centimeters"],
  ["15\\mbox{ cm}^2", "15"],
  ["90^\\circ", "90 degrees"],
  ["10\\%", "0.1"],
  ["10\\%", "10"],
  ["\\text{(A)}", "A"],
  ["\\text{Monday}", "monday"],
  // numbers
  ["\\frac{1}{2}", "0.5"],
  ["2\\frac{1}{2}", "5/2"],
  ["1\\frac34", "1.75"],
  ["2 5/8", "2.625"],
  ["1.5\\times 10^{3}", "1500"],
  ["1500", "1.5e3"],
  ["0.\\overline{3}", "1/3"],
  ["0.1\\overline{6}", "\\frac16"],
  ["2^{10}", "1024"],
  ["5!", "120"],
  ["\\binom{5}{2}", "10"],
  ["101_2", "101_{2}"],
  ["1/3", "0.333333"],
  // roots, π, functions, complex numbers
  ["\\sqrt{8}", "2\\sqrt{2}"],
  ["\\frac{1}{\\sqrt2}", "\\frac{\\sqrt2}{2}"],
  ["\\sqrt[3]{2}", "2^{1/3}"],
  ["\\sqrt[3]{-8}", "-2"],
  ["\\frac94\\pi", "9\\pi/4"],
  ["\\pi", "3.14159"],
  ["\\tan^{-1}(1)", "\\pi/4"],
  ["\\sin(90^{\\circ}-x)", "\\cos(x)"],
  ["\\log_2 8", "3"],
  ["3+4i", "4i+3"],
  ["e^{i\\pi}", "-1"],
  // names
  ["x^2+2x+1", "(x+1)^2"],
  ["\\frac{x+2}{7}", "\\frac{x}{7}+\\frac{2}{7}"],
  ["x=5", "5"],
  ["f(x) = 2x + 3", "y = 2x + 3"],
  ["2x+4y-3=0", "y=-\\frac{1}{2}x+\\frac{3}{4}"],
  // sets, tuples, intervals, matrices
  ["1,2", "2,1"],
  ["3 \\pm 2\\sqrt{2}", "3-2\\sqrt2, 3+2\\sqrt2"],
  ["\\{1,2,3\\}", "{3,2,1}"],
  ["6 \\text{ and } 8", "6, 8"],
  ["(p,q)=(3,2)", "(3,2)"],
  ["x\\ge 2", "[2,\\infty)"],
  ["-2 \\le x \\le 7", "x \\in [-2,7]"],
  ["x \\leq 5", "5 \\geq x"],
  ["[0,1]\\cup(2,3)", "(2,3)\\cup[0,1]"],
  ["\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{bmatrix} 1 \\\\ 2 \\end{bmatrix}"],
  [
    "\\begin{pmatrix} 1 & 1/2 \\\\ 3 & 4 \\end{pmatrix}",
    "\\begin{pmatrix} 1 & 0.5 \\\\ 3 & 4 \\end{pmatrix}",
  ],
];

const different: [gold: string, prediction: string][] = [
  ["1", "2"],
  ["-3", "3"],
  ["\\frac12", "0.51"],
  ["0.5", "0.50001"],
  ["10000000000001", "10000000000002"],
  ["1/3", "0.333"],
  ["\\pi", "3.14"],
  ["\\pi", "22/7"],
  ["\\sqrt2", "1.41"],
  ["5\\text{ cm}", "5\\text{ m}"],
  ["(1,2)", "(2,1)"],
  ["[0,1]", "(0,1)"],
  ["\\{1,2\\}", "(1,2)"],
  ["2", "2,3"],
  ["2,3", "2"],
  ["\\pm 2", "2"],
  ["4, .1, 2", "0.1, 4, 2"],
  ["x=5", "y=5"],
  ["x>3", "x\\ge 3"],
  ["x^2", "x^3"],
  ["|x|", "x"],
  ["\\sqrt{x^2}", "x"],
  ["3", "3x"],
  ["2x+z=1", "1"],
  ["\\infty", "-\\infty"],
  ["101_2", "101_3"],
  ["7", "7_8"],
  ["A", "B"],
  ["12:00", "1:00"],
  ["34", "\\frac34"],
  ["23", "2^3"],
  ["", "5"],
  ["5", ""],
];

describe("gradeMath", () => {
  it.each(equal)("takes %s and %s for the same", async (gold, prediction) => {
    expect(await gradeMath(gold, `So it is $\\boxed{${prediction}}$.`)).toBe(true);
    expect(await gradeMath(gold, prediction)).toBe(true);
  });

  it.each(different)("tells %s from %s", async (gold, prediction) => {
    expect(await gradeMath(gold, `So it is $\\boxed{${prediction}}$.`)).toBe(false);
  });

  it("reads the last box, with nested braces, an unclosed one, fbox and no braces", () => {
    expect(gradeMathSync("2", "first \\boxed{1}, no: \\boxed{2}")).toBe(true);
    expect(gradeMathSync("1", "first \\boxed{1}, no: \\boxed{2}")).toBe(false);
    expect(gradeMathSync("\\frac{1}{2}", "\\boxed{\\frac{1}{2}} as said")).toBe(true);
    expect(gradeMathSync("7", "\\boxed{7")).toBe(true);
    expect(gradeMathSync("7", "\\fbox{7}")).toBe(true);
    expect(gradeMathSync("5", "\\boxed 5.")).toBe(true);
  });

  it("reads boxes joined by commas or words as one list", () => {
    expect(gradeMathSync("1, 2, 3", "\\boxed{1},\\boxed{2},\\boxed{3}")).toBe(true);
    expect(gradeMathSync("(1,2), (3,4)", "\\boxed{(1,2)} \\text{ and } \\boxed{(3,4)}")).toBe(true);
  });

  it("reads a text without a box as a person would", () => {
    expect(gradeMathSync("1000.99", "the number is not 10 which is 1,000.99€")).toBe(true);
    expect(gradeMathSync("5", "Hence the final answer is 5. I hope it is correct.")).toBe(true);
    expect(gradeMathSync("x \\ge 5", "Therefore $x \\geq 5$ is the solution.")).toBe(true);
    expect(gradeMathSync("2", "AZYUK2A")).toBe(false);
  });

  it("is reflexive on what it can read", () => {
    for (const [gold, prediction] of [...equal, ...different]) {
      if (gold !== "") expect(gradeMathSync(gold, `\\boxed{${gold}}`), gold).toBe(true);
      if (prediction !== "") expect(gradeMathSync(prediction, prediction), prediction).toBe(true);
    }
  });

  it("compares fractions exactly", () => {
    const fraction = fc.tuple(fc.integer({ min: -999, max: 999 }), fc.integer({ min: 1, max: 999 }));
    fc.assert(
      fc.property(fraction, fraction, fc.integer({ min: 1, max: 50 }), ([a, b], [c, d], k) => {
        expect(gradeMathSync(`\\frac{${a}}{${b}}`, `\\boxed{${a * k}/${b * k}}`)).toBe(true);
        expect(gradeMathSync(`\\frac{${a}}{${b}}`, `\\boxed{\\frac{${c}}{${d}}}`)).toBe(a * d === b * c);
      }),
      { numRuns: 300 },
    );
  });

  it("survives 100,000 hostile strings, in bounded time each", () => {
    const pieces = fc.constantFrom(
      ..."\\frac \\sqrt { } ( ) [ ] \\{ \\} | ^ _ , ; : $ % ! & \\\\ + - * / = < > \\le \\cup \\pm \\pi \\infty e i x 1 9 0. .5".split(
        " ",
      ),
      ..."\\boxed{ \\text{ \\begin{pmatrix} \\end{pmatrix} \\left( \\right) \\sin \\log_ \\binom \\overline{3} and cm ∞ − ½ \u0000".split(
        " ",
      ),
      "999999999999",
      "\\times 10^{",
      "!".repeat(20),
      "^9".repeat(12),
      "(".repeat(80),
      " ",
      "\n",
    );
    const hostile = fc.oneof(
      fc.array(pieces, { maxLength: 40 }).map((parts) => parts.join("")),
      fc.string({ unit: "binary", maxLength: 60 }),
    );
    let slowest = 0;
    fc.assert(
      fc.property(hostile, hostile, (gold, prediction) => {
        const start = performance.now();
        const verdict = gradeMathSync(gold, prediction);
        slowest = Math.max(slowest, performance.now() - start);
        return typeof verdict === "boolean";
      }),
      { numRuns: 100_000 },
    );
    // A bound on hangs, far above what a loaded machine needs; not a measurement.
    expect(slowest).toBeLessThan(5000);
  });

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
      "(".repeat(1900),
      "\\pm 1+".repeat(300),
      "1,".repeat(950),
      "x=".repeat(900),
      "9^{9^{9^{9^9}}}",
      "999999!",
      "\\begin{pmatrix}".repeat(120),
    ];
    const start = performance.now();
    for (const prediction of long) {
      for (const gold of ["5", prediction.slice(0, 1999), prediction]) gradeMathSync(gold, prediction);
    }
    expect(performance.now() - start).toBeLessThan(20_000);
  });
});

describe("agreement with other graders' suites", () => {
  const suites: [file: string, floor: number][] = [
    ["math/grader_pairs_math_verify.json", 0.96],
    ["math/grader_pairs_hendrycks.json", 1],
    ["math/grader_pairs_mario.json", 1],
  ];
  for (const [file, floor] of suites) {
    const path = dataFile(file);
    it.skipIf(path === undefined)(`${file}: at least ${100 * floor} %`, () => {
      const pairs = JSON.parse(readFileSync(path!, "utf8")) as {
        gold: string;
        prediction: string;
        expected: boolean;
      }[];
      const agreeing = pairs.filter((pair) => gradeMathSync(pair.gold, pair.prediction) === pair.expected);
      console.info(`${file}: ${agreeing.length} of ${pairs.length}`);
      expect(agreeing.length / pairs.length).toBeGreaterThanOrEqual(floor);
    });
  }

  const files = ["math/train12000.jsonl", "math/test500.jsonl"].map(dataFile);
  it.skipIf(files.includes(undefined))(
    "finds every gold answer of MATH in itself and in its solution",
    () => {
      let count = 0;
      for (const path of files) {
        for (const line of readFileSync(path!, "utf8").trim().split("\n")) {
          const { answer, solution } = JSON.parse(line) as { answer: string; solution: string };
          expect(gradeMathSync(answer, `\\boxed{${answer}}`), answer).toBe(true);
          expect(gradeMathSync(answer, solution), answer).toBe(true);
          count++;
        }
      }
      expect(count).toBe(12_500);
    },
  );
});
