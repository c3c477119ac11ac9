import { readFileSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { checkEnvironment } from "../../../lib/environments/check.ts";
import { gradeMath } from "../../../lib/environments/math/grade.ts";
import { type MathProblem, math } from "../../../lib/environments/math/index.ts";
import { ownProblems } from "../../../lib/environments/math/problems.ts";
import { evaluate } from "../../../lib/playing/evaluate.ts";
import { ScriptedModel } from "../../support/scripted-model.ts";
import { dataFile } from "../data.ts";

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
  it("satisfies the contract", async () => {
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
        terminated: true,
        observation: [],
        info: { correct: false, boxed: true },
      });
    }
  });

  it("has original problems whose answers are right", async () => {
    const answers = new Map([...ownProblems.train, ...ownProblems.test].map((p) => [p.problem, p.answer]));
    const check = async (problem: string, value: string) => {
      const answer = answers.get(problem);
      expect(answer, problem).toBeDefined();
      expect(await gradeMath(answer!, value), problem).toBe(true);
    };
    await check("What is $17 \\cdot 6$?", "17\\cdot 6");
    await check("What is $\\frac{5}{6} - \\frac{1}{4}$, as a fraction in lowest terms?", "5/6-1/4");
    await check("Simplify $\\sqrt{98}$.", "\\sqrt{98}");
    await check("Compute $(2 + 3i)(1 - i)$.", "(2+3i)(1-i)");
    await check("Write $(2x - 1)(x + 5)$ as a polynomial in $x$.", "(2x-1)(x+5)");
    await check("What is the sum of the whole numbers from 1 to 40?", "40 \\cdot 41 / 2");
  });

  it("requires the answer in a box, unless configured otherwise", async () => {
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

  it("splits off the hardest problems of MATH's test split, the same ones each time", async () => {
    const row = (id: string, level: number) => ({
      problem: `What is ${id}?`,
      answer: "1",
      level,
      unique_id: id,
    });
    const train = [...Array(6).keys()].flatMap((i) => [
      row(`test/algebra/${i}.json`, 5),
      row(`train/algebra/${i}.json`, 5),
    ]);
    const test = [row("test/geometry/1.json", 5), row("test/geometry/2.json", 4)];
    const lines = (rows: object[]) => rows.map((each) => JSON.stringify(each)).join("\n");
    await writeFile(join(directory, "train12000.jsonl"), lines(train));
    await writeFile(join(directory, "test500.jsonl"), lines(test));
    const ids = async (hard: number, split: "train" | "test") =>
      (await math({ data: directory, hard }).tasks(split)).map((task) => task.id);
    const three = await ids(3, "test");
    expect(three).toHaveLength(3);
    expect(await ids(7, "test")).toEqual(expect.arrayContaining(["test/geometry/1.json"]));
    expect((await ids(7, "test")).slice(0, 3)).toEqual(three);
    const rest = await ids(3, "train");
    expect(rest).toHaveLength(11);
    expect(rest.filter((id) => three.includes(id))).toEqual([]);
    await expect(ids(8, "test")).rejects.toMatchObject({ code: "ERR_CONFIG" });
    await expect(math({ hard: 1 }).tasks("test")).rejects.toMatchObject({ code: "ERR_CONFIG" });
    expect(() => math({ hard: 0 })).toThrowError(expect.objectContaining({ code: "ERR_CONFIG" }));
  });

  it("scores an idle answer 0", async () => {
    const environment = math();
    for (const task of await environment.tasks("test")) {
      const episode = await environment.start(task, { seed: 0 });
      expect((await episode.step(environment.idle!)).reward).toBe(0);
    }
  });

  it("plays many samples per problem as trials of one task, each with its own seed", async () => {
    const environment = math();
    const problems = (await environment.tasks("train")).slice(0, 2);
    const samples = 4;
    const model = new ScriptedModel((prompt, _weights, index) => {
      const { answer } = problems.find(({ problem }) => prompt.includes(problem))!;
      return `So \\boxed{${index % 2 === 0 ? answer : "-987"}}.`;
    });
    const { trajectories, passHatK } = await evaluate({
      model,
      environment,
      tasks: problems.flatMap((problem) => Array<MathProblem>(samples).fill(problem)),
      trials: samples,
      seed: 0,
      concurrency: 2 * samples,
      maxActionTokens: 100,
      maxPromptTokens: 10_000,
      temperature: 1,
    });
    expect(trajectories.map(({ reward }) => reward)).toEqual([1, 0, 1, 0, 1, 0, 1, 0]);
    expect(new Set(model.calls.map(({ request }) => request.seed)).size).toBe(2 * samples);
    expect(passHatK.map(({ estimate }) => estimate)).toEqual(
      [1 / 2, 1 / 6, 0, 0].map((p) => expect.closeTo(p)),
    );
  });

  it("reports problems with options and files", async () => {
    expect(() => math({ dta: "x" } as never)).toThrowError(expect.objectContaining({ code: "ERR_CONFIG" }));
    await expect(math({ data: join(directory, "absent") }).tasks("train")).rejects.toMatchObject({
      code: "ERR_CONFIG",
    });
    await writeFile(join(directory, "bad.jsonl"), '{"problem": "x"}\n');
    await expect(math({ data: join(directory, "bad.jsonl") }).tasks("train")).rejects.toThrow(/bad\.jsonl:1/);
    await writeFile(join(directory, "torn.jsonl"), '{"problem": ');
    const torn = math({ data: join(directory, "torn.jsonl") });
    await expect(torn.tasks("train")).rejects.toThrow(/not JSON/);
    // It is read again once it is repaired.
    await writeFile(join(directory, "torn.jsonl"), '{"problem": "1+1?", "answer": "2"}');
    expect((await torn.tasks("train")).map((task) => task.answer)).toEqual(["2"]);
  });

  const train = dataFile("math/train12000.jsonl");
  it("does not fall back to other problems if NLAC_DATA has no MATH", async () => {
    process.env.NLAC_DATA = import.meta.dirname;
    await expect(math().tasks("test")).rejects.toMatchObject({ code: "ERR_CONFIG" });
  });

  it("takes another grader, which must return true or false", async () => {
    const reward = async (result: unknown) => {
      const environment = math({ grade: async () => result as boolean });
      const [task] = await environment.tasks("train");
      const episode = await environment.start(task!, { seed: 0 });
      return (await episode.step({ text: "\\boxed{1}" })).reward;
    };
    expect(await reward(true)).toBe(1);
    expect(await reward(false)).toBe(0);
    for (const other of ["false", 0.5, undefined])
      await expect(reward(other)).rejects.toMatchObject({
        code: "ERR_ENVIRONMENT",
        message: expect.stringMatching(/grade must return true or false/),
      });
  });

  it("finds named files under NLAC_DATA, and else where they are", async () => {
    process.env.NLAC_DATA = directory;
    await mkdir(join(directory, "math"));
    const line = (answer: string) => JSON.stringify({ problem: `Write ${answer}.`, answer });
    await writeFile(join(directory, "math", "one.jsonl"), line("1"));
    await writeFile(join(directory, "two.jsonl"), line("2"));
    const there = relative(process.cwd(), join(directory, "two.jsonl"));
    const environment = math({ train: "one.jsonl", test: there });
    expect(await environment.tasks("train")).toMatchObject([{ answer: "1" }]);
    expect(await environment.tasks("test")).toMatchObject([{ answer: "2" }]);
    await expect(math({ train: "three.jsonl" }).tasks("train")).rejects.toThrow("there is no three.jsonl");
  });

  it.skipIf(train === undefined)("finds MATH under NLAC_DATA", async () => {
    process.env.NLAC_DATA = join(train!, "../..");
    const environment = math();
    expect(await environment.tasks("train")).toHaveLength(12_000);
    expect(await environment.tasks("test")).toHaveLength(500);
  });

  const hardest = dataFile("math/level5_test_ids.json");
  it.skipIf(train === undefined || hardest === undefined)("knows MATH's hardest test problems", async () => {
    const data = join(train!, "..");
    const ids = JSON.parse(readFileSync(hardest!, "utf8")) as string[];
    const all = await math({ data, hard: ids.length }).tasks("test");
    expect(all.map((task) => task.id).sort()).toEqual([...ids].sort());
    expect(await math({ data, hard: ids.length }).tasks("train")).toHaveLength(12_500 - ids.length);
    const paper = math({ data, hard: 500 });
    const test = new Set((await paper.tasks("test")).map((task) => task.id));
    expect(test.size).toBe(500);
    const rest = await paper.tasks("train");
    expect(rest).toHaveLength(12_000);
    expect(rest.filter((task) => test.has(task.id))).toEqual([]);
    await expect(math({ data, hard: 1325 }).tasks("test")).rejects.toThrow(/has only 1324/);
  });
});
