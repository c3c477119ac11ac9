import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { checkEnvironment } from "../../lib/environments/check.ts";
import { gradeMathSync } from "../../lib/environments/math/grade.ts";
import { math } from "../../lib/environments/math/index.ts";
import { ownProblems } from "../../lib/environments/math/problems.ts";
import { dataFile } from "./data.ts";

let directory: string;
const before = process.env.NLAC_DATA;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "nlac-math-"));
  delete process.env.NLAC_DATA;
});
afterEach(async () => {
  if (before === undefined) delete process.env.NLAC_DATA;
  else process.env.NLAC_DATA = before;
  await rm(directory, { recursive: true });
});

describe("math", () => {
  it("keeps the contract", async () => {
    expect(await checkEnvironment(math(), () => ({ text: "It is \\boxed{102}." }))).toEqual([]);
  });

  it("runs on its own problems without data, and grades them", async () => {
    const environment = math();
    const tasks = await environment.tasks("train");
    expect(tasks).toHaveLength(ownProblems.train.length);
    for (const task of [...tasks, ...(await environment.tasks("test"))]) {
      const right = await environment.start(task, { seed: 0 });
      expect((await right.step({ text: `So \\boxed{${task.answer}}.` })).reward).toBe(1);
      const wrong = await environment.start(task, { seed: 0 });
      const result = await wrong.step({ text: "So \\boxed{-987}." });
      expect(result).toMatchObject({
        reward: 0,
        done: true,
        observation: [],
        info: { correct: false, boxed: true },
      });
    }
  });

  it("has own problems whose arithmetic holds", () => {
    const answers = new Map([...ownProblems.train, ...ownProblems.test].map((p) => [p.problem, p.answer]));
    const check = (problem: string, value: string) => {
      const answer = answers.get(problem);
      expect(answer, problem).toBeDefined();
      expect(gradeMathSync(answer!, value), problem).toBe(true);
    };
    check("What is $17 \\cdot 6$?", "17\\cdot 6");
    check("What is $\\frac{5}{6} - \\frac{1}{4}$, as a fraction in lowest terms?", "5/6-1/4");
    check("Simplify $\\sqrt{98}$.", "\\sqrt{98}");
    check("Compute $(2 + 3i)(1 - i)$.", "(2+3i)(1-i)");
    check("Write $(2x - 1)(x + 5)$ as a polynomial in $x$.", "(2x-1)(x+5)");
    check("What is the sum of the whole numbers from 1 to 40?", "40 \\cdot 41 / 2");
  });

  it("wants the answer in a box, unless told otherwise", async () => {
    const [task] = await math().tasks("train");
    const strict = await math().start(task!, { seed: 0 });
    expect((await strict.step({ text: "It is 102." })).info).toMatchObject({ correct: false, boxed: false });
    const lenient = await math({ requireBox: false }).start(task!, { seed: 0 });
    expect((await lenient.step({ text: "The answer is 102." })).reward).toBe(1);
  });

  it("reads JSONL files and filters by level and subject", async () => {
    const rows = [
      { problem: "1+1?", answer: "2", level: 1, subject: "Algebra", unique_id: "a" },
      { problem: "2+2?", answer: "4", level: 5, subject: "Geometry" },
    ];
    await writeFile(
      join(directory, "mine.jsonl"),
      `${rows.map((row) => JSON.stringify(row)).join("\n")}\n\n`,
    );
    const all = math({ data: directory, train: "mine.jsonl", test: ["mine.jsonl"] });
    expect((await all.tasks("train")).map((task) => task.answer)).toEqual(["2", "4"]);
    expect(all.taskId((await all.tasks("test"))[0]!)).toBe("a");
    const hard = math({ data: join(directory, "mine.jsonl"), levels: [5] });
    expect((await hard.tasks("test")).map((task) => task.answer)).toEqual(["4"]);
    const none = math({ data: join(directory, "mine.jsonl"), subjects: ["Topology"] });
    await expect(none.tasks("train")).rejects.toMatchObject({ code: "ERR_CONFIG" });
  });

  it("says what is wrong with options and files", async () => {
    expect(() => math({ dta: "x" } as never)).toThrowError(expect.objectContaining({ code: "ERR_CONFIG" }));
    await expect(math({ data: join(directory, "absent") }).tasks("train")).rejects.toMatchObject({
      code: "ERR_CONFIG",
    });
    await writeFile(join(directory, "bad.jsonl"), '{"problem": "x"}\n');
    await expect(math({ data: join(directory, "bad.jsonl") }).tasks("train")).rejects.toThrow(/bad\.jsonl:1/);
    await writeFile(join(directory, "torn.jsonl"), '{"problem": ');
    await expect(math({ data: join(directory, "torn.jsonl") }).tasks("train")).rejects.toThrow(/not JSON/);
  });

  const train = dataFile("math/train12000.jsonl");
  it.skipIf(train === undefined)("finds MATH under NLAC_DATA", async () => {
    process.env.NLAC_DATA = join(train!, "../..");
    const environment = math();
    expect(await environment.tasks("train")).toHaveLength(12_000);
    expect(await environment.tasks("test")).toHaveLength(500);
  });
});
