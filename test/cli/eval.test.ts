import { spawn } from "node:child_process";
import {
  copyFileSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import type { EpisodeRecord } from "../../lib/episodes/records.ts";
import { RecordWriter, readRecords } from "../../lib/files/records.ts";
import { type ChatServer, chatServer } from "../support/chat-server.ts";
import { nlac } from "../support/command-line.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-eval-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));
const exitCode = process.exitCode;
afterEach(() => {
  process.exitCode = exitCode;
});

const errands = ["--environment", "errands"];
const json = async (...argv: string[]) => {
  const { output, errors, code } = await nlac("eval", ...argv, "--json");
  expect(errors).not.toContain("ERR_");
  expect(code).toBe(0);
  return JSON.parse(output);
};

describe("do-nothing", () => {
  test("plays without a model, and is its own floor", async () => {
    const figures = await json("do-nothing", ...errands, "--episodes", "4");
    expect(figures).toMatchObject({
      environment: "errands",
      split: "test",
      episodes: 4,
      parseRate: 1,
      success: { estimate: 0 },
      turns: { estimate: 6 },
      outcomes: { done: 4 },
      passHatK: [],
      stopped: false,
    });
    expect(figures).not.toHaveProperty("floor");
    expect(figures).not.toHaveProperty("people");
  });

  test("reports the cause of faulty episodes, and fails if none counts", async () => {
    const file = join(root, "down.mjs");
    writeFileSync(
      file,
      `const no = async () => { throw new Error("db is down"); };
      export default { name: "down", actionFormat: "text", maxTurns: 1, tasks: async () => ["a", "b"], taskId: String,
        idle: { text: "." }, start: no, close: async () => {} };`,
    );
    const { code, errors } = await nlac("eval", "do-nothing", "--environment", file);
    expect(code).toBe(1);
    expect(errors).toMatch(/2 episodes failed, the first with ERR_ENVIRONMENT: .*db is down/);
  });

  test("is rejected by an environment without an idle action, and by --critic", async () => {
    const file = join(root, "mute.mjs");
    writeFileSync(
      file,
      `const no = async () => { throw new Error("no"); };
      export default { name: "mute", actionFormat: "text", maxTurns: 1, tasks: async () => [1], taskId: String,
        start: no, close: async () => {} };`,
    );
    for (const argv of [
      ["do-nothing", "--environment", file],
      ["service:m", "--environment", file, "--floor"],
    ]) {
      vi.stubEnv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1");
      const { errors, code } = await nlac("eval", ...argv);
      expect([code, errors]).toEqual([1, expect.stringContaining('ERR_CONFIG: mute has no "idle" action')]);
    }
    expect((await nlac("eval", "do-nothing", ...errands, "--critic", "x.jsonl")).errors).toContain(
      "ERR_VALUE",
    );
    vi.unstubAllEnvs();
  });
});

describe("a service that plays", () => {
  let server: ChatServer;
  /** Milliseconds until the service replies, and whether it does. */
  let delay = 0;
  let broken = false;
  beforeAll(async () => {
    // Brings what the desk wants on loans and grants, and otherwise a pen.
    server = await chatServer(({ messages }) => {
      const said = messages.map(({ content }) => content).join("\n");
      const wanted = messages.at(-1)!.content.match(/wants the (\w+)/)?.[1];
      const thing = /\[(loan|grant)/.test(said) ? (wanted ?? "pen") : "pen";
      if (broken && /\[loan/.test(said)) return { status: 400 };
      return { text: `Thought:\nThe next thing.\nAction:\n${thing}`, delay };
    });
  });
  afterAll(() => server.close());
  beforeEach(() => {
    vi.stubEnv("OPENAI_BASE_URL", server.baseURL);
    delay = 0;
    broken = false;
  });
  afterEach(() => vi.unstubAllEnvs());

  const settings = [
    "service:m",
    ...errands,
    "--options",
    '{"moves": 9}',
    "--episodes",
    "16",
    "--trials",
    "2",
  ];

  test("is measured beside the floor, with pass^k and the service's usage", async () => {
    const figures = await json(...settings);
    expect(figures).toMatchObject({ episodes: 16, tasks: 8, floor: { estimate: 0 }, stopped: false });
    expect(figures.passHatK).toHaveLength(2);
    expect(figures.passHatK[0].estimate).toBe(figures.success.estimate);
    expect(figures.agent.requests).toBeGreaterThan(16);
    expect(await json(...settings, "--no-floor")).not.toHaveProperty("floor");

    const { output } = await nlac("eval", ...settings);
    expect(output).toMatch(/^errands, test: 16 episodes over 8 tasks\n/);
    expect(output).toMatch(/\n {2}success +0\.25 +\[0\.0\d+, 0\.\d+\] {2}pass\^1\n {2}doing nothing +0 /);
    expect(output).toMatch(/\n {2}pass\^2 +0\.25 /);
    expect(output).toMatch(/\n {2}the agent +\d+ requests, /);
    expect(output).toContain("  ended by      done 16");
  });

  test("stopped by Ctrl-C, it keeps finished episodes; --resume ends with the figures of an uninterrupted evaluation", async () => {
    const whole = await json(...settings);
    const record = join(root, "stopped.jsonl");
    const program = fileURLToPath(new URL("../../lib/cli/main.ts", import.meta.url));
    const argv = ["eval", ...settings, "--concurrency", "2", "--record", record, "--json"];
    delay = 20;
    const child = spawn(process.execPath, ["--import", "jiti/register", program, ...argv], { stdio: "pipe" });
    let [output, errors] = ["", ""];
    child.stdout.on("data", (text) => {
      output += text;
    });
    child.stderr.on("data", (text) => {
      errors += text;
    });
    const lines = () => (existsSync(record) ? readFileSync(record, "utf8").split("\n").length - 1 : 0);
    await vi.waitFor(() => expect(lines()).toBeGreaterThan(2), { timeout: 240_000, interval: 10 });
    child.kill("SIGINT");
    const code = await new Promise((resolve) => child.on("close", resolve));
    expect(code).toBe(130);
    expect(errors).toMatch(/SIGINT: stopping with the finished episodes/);
    expect(errors).toMatch(
      /nlac: stopped after \d+ episodes?; continue with the same command and --resume\n$/,
    );
    const part = JSON.parse(output);
    expect(part.stopped).toBe(true);
    expect(part.episodes).toBe(lines());
    expect(part.episodes).toBeLessThan(16);

    // A crash may have left half a line besides.
    writeFileSync(record, '{"checksum":"0123', { flag: "a" });
    delay = 0;
    const calls = server.calls();
    const resumed = await json(...settings, "--concurrency", "2", "--record", record, "--resume");
    const { agent: _, ...figures } = whole;
    expect(resumed).toMatchObject(figures);
    expect(server.calls() - calls).toBeLessThan(whole.agent.requests);
    const ids = [...readRecords<EpisodeRecord>(record)].map(({ id }) => id);
    expect(ids.sort((a, b) => a - b)).toEqual(Array.from({ length: 16 }, (_, i) => i));

    const before = readFileSync(record);
    const other = await nlac("eval", ...settings, "--seed", "1", "--record", record, "--resume");
    expect(other.errors).toContain("ERR_CONFIG");
    expect(readFileSync(record)).toEqual(before);
    expect((await nlac("eval", ...settings, "--record", record)).errors).toContain("--resume");
  }, 300_000);

  test("episodes that a fault ended are played again", async () => {
    const whole = await json(...settings);
    const record = join(root, "faults.jsonl");
    broken = true;
    const first = await nlac("eval", ...settings, "--record", record, "--json");
    expect(JSON.parse(first.output).outcomes).toEqual({ done: 14, "service-fault": 2 });
    expect(first.code).toBe(0);
    expect(first.errors).toMatch(/2 episodes failed, the first with ERR_SERVICE/);
    broken = false;
    const { agent: _, ...figures } = whole;
    expect(await json(...settings, "--record", record, "--resume")).toMatchObject(figures);
    const viewed = JSON.parse((await nlac("view", record, "--json")).output);
    const { floor: __, environment: ___, split: ____, stopped: _____, ...played } = figures;
    expect(viewed).toEqual(played);
    // Whatever it is called: a file is a record.
    const renamed = join(root, "episodes");
    copyFileSync(record, renamed);
    expect(JSON.parse((await nlac("view", renamed, "--json")).output)).toEqual(played);
  });

  test("--report writes a page of them, and so does view of a record", async () => {
    const [record, page, again] = ["shown.jsonl", "shown.html", "again.html"].map((name) => join(root, name));
    await json(...settings, "--record", record!, "--report", page!);
    const html = readFileSync(page!, "utf8");
    expect(html).toContain("<h1>errands, test</h1>");
    expect(html).toContain("service:m: 16 episodes over 8 tasks");
    const { output } = await nlac("view", record!, "--report", again!, "--episodes", "3");
    expect(output).toMatch(/16 episodes over 8 tasks\n/);
    expect(output).toMatch(/\n {2}pass\^2 +0\.25 /);
    const shown = (text: string) =>
      JSON.parse(/id="data">(.*)<\/script>/.exec(text)![1]!).episodes.map(({ id }: EpisodeRecord) => id);
    expect(shown(html)).toEqual(Array.from({ length: 16 }, (_, i) => i));
    expect(shown(readFileSync(again!, "utf8"))).toHaveLength(3);
  });
});

test("a spent budget ends an evaluation with the figures of finished episodes; --resume continues with another", async () => {
  const server = await chatServer(() => ({
    text: "no",
    usage: { prompt_tokens: 90, completion_tokens: 10 },
  }));
  const record = join(root, "budget.jsonl");
  const evaluation = (tokens: number, ...more: string[]) => {
    const oracle = { model: "m", baseURL: server.baseURL, budget: { tokens } };
    const options = JSON.stringify({ turns: 4, oracle });
    const game = ["--environment", "twentyQuestions", "--options", options, "--episodes", "4"];
    return nlac("eval", "do-nothing", ...game, "--concurrency", "1", "--record", record, "--json", ...more);
  };
  const first = await evaluation(600); // 100 tokens an answer, four answers an episode
  expect(first.code).toBe(1);
  expect(first.errors).toMatch(
    /nlac: stopped after 1 episode \(ERR_BUDGET: .*600 of 600 tokens.*\); continue with the same command and --resume/,
  );
  expect(JSON.parse(first.output)).toMatchObject({
    ...{ episodes: 1, stopped: true, outcomes: { done: 1 } },
    people: { requests: 6, promptTokens: 540 },
  });
  process.exitCode = undefined; // the commands of a test are one process
  const second = await evaluation(10_000, "--resume");
  await server.close();
  expect([second.code, JSON.parse(second.output).outcomes]).toEqual([0, { done: 4 }]);
  expect(server.calls()).toBe(6 + 12);
});

test("a served model has a budget, and no more requests at once than episodes", async () => {
  // The first answers take so long that requests pile up, as far as they may.
  const server = await chatServer((_, call) => ({
    ...{ text: "no", delay: call < 70 ? 3000 : 0 },
    usage: { prompt_tokens: 90, completion_tokens: 10 },
  }));
  vi.stubEnv("OPENAI_BASE_URL", server.baseURL);
  const evaluation = (...flags: string[]) =>
    nlac("eval", "service:m", ...errands, "--trials", "12", "--no-floor", "--json", ...flags);
  const tokens = await evaluation("--concurrency", "80", "--budget-tokens", "10000");
  expect([tokens.code, tokens.errors]).toEqual([1, expect.stringMatching(/\(ERR_BUDGET: .*of 10000 tokens/)]);
  expect(server.calls()).toBeGreaterThanOrEqual(100);
  expect(server.calls()).toBeLessThan(100 + 80);
  expect(server.mostAtOnce()).toBeGreaterThan(64); // what a service takes by itself
  expect(server.mostAtOnce()).toBeLessThanOrEqual(80);
  const cost = await evaluation("--concurrency", "1", "--price", "1000,2000", "--budget-cost", "0.5");
  expect(cost.errors).toMatch(/\(ERR_BUDGET: .*\$0\.5500 of \$0\.5/); // 11 cents an answer
  expect(JSON.parse(cost.output).agent).toMatchObject({ requests: 5, cost: expect.closeTo(0.55) });
  for (const [message, ...flags] of [
    ["needs the price", "--budget-cost", "1"],
    ["two numbers", "--price", "1"],
    ["must be a number", "--price", "1,x"],
    ["whole number", "--budget-tokens", "0"],
  ] as const)
    expect((await evaluation(...flags)).errors).toContain(message);
  const idle = await nlac("eval", "do-nothing", ...errands, "--budget-tokens", "5");
  expect(idle.errors).toContain("are only for service:MODEL");
  vi.unstubAllEnvs();
  process.exitCode = undefined; // the commands of a test are one process
  await server.close();
});

test("incompatible options, and files without records, are rejected before anything is played", async () => {
  const empty = join(root, "empty.jsonl");
  writeFileSync(empty, "");
  const none = join(root, "none.jsonl");
  for (const [code, named, ...argv] of [
    ["ERR_VALUE", "--record", "eval", "do-nothing", ...errands, "--resume"],
    ["ERR_IO", none, "eval", "do-nothing", ...errands, "--record", none, "--resume"],
    ["ERR_VALUE", "--constrain-actions", "eval", "do-nothing", ...errands, "--constrain-actions"],
    ["ERR_VALUE", "--report", "eval", "do-nothing", ...errands, "--critic", "x", "--report", "y.html"],
    ["ERR_IO", "none", "eval", "do-nothing", ...errands, "--report", join(root, "none", "x.html")],
    ["ERR_IO", "directory", "eval", "do-nothing", ...errands, "--report", root],
    ["ERR_IO", empty, "eval", "do-nothing", ...errands, "--report", join(empty, "x.html")],
    ["ERR_EMPTY", empty, "view", empty],
    ["ERR_IO", none, "view", none],
    ["ERR_CONFIG", "do-nothing", "eval", "do-nothing", "--environment", "x.ts"],
  ] as const) {
    const { errors, output, code: exit } = await nlac(...argv);
    expect([exit, output]).toEqual([1, ""]);
    expect(errors).toContain(`nlac: ${code}: `);
    if (code !== "ERR_CONFIG") expect(errors).toContain(named);
  }
  expect(existsSync(none)).toBe(false);
});

test("a continued record loses no complete line", () => {
  const path = join(root, "lines.jsonl");
  const writer = RecordWriter.resume(path);
  for (let i = 0; i < 3; i++) writer.append({ i, padding: "x".repeat(50_000) });
  writer.close();
  const whole = readFileSync(path);
  for (const cut of [whole.length, whole.length - 1, whole.length - 60_000, 10, 0]) {
    const copy = join(root, "cut.jsonl");
    copyFileSync(path, copy);
    truncateSync(copy, cut);
    const again = RecordWriter.resume(copy);
    again.append({ i: "new" });
    again.close();
    const kept = cut === whole.length ? 3 : cut === 0 || cut === 10 ? 0 : cut > whole.length - 2 ? 2 : 1;
    expect([...readRecords<{ i: unknown }>(copy)].map(({ i }) => i)).toEqual([
      ...[0, 1, 2].slice(0, kept),
      "new",
    ]);
  }
});
