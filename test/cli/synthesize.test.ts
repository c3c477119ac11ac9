import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { tauBench } from "../../lib/environments/tau-bench/index.ts";
import type { TauBenchTaskRecord } from "../../lib/environments/tau-bench/synthesize.ts";
import { chatServer } from "../support/chat-server.ts";
import { nlac } from "../support/command-line.ts";
import { shop } from "../support/scenarios.ts";

describe("on the command line", () => {
  const run = (out: string, ...more: string[]) =>
    nlac(
      "data",
      "synthesize",
      "tau-bench-retail",
      "--data",
      shop.data,
      "--out",
      out,
      "--train",
      "12",
      "--test",
      "4",
      ...more,
    );

  test("writes tasks that the environment plays, and describes them", async () => {
    const out = join(shop.data, "made");
    const { code, output, errors } = await run(out);
    expect([errors, code]).toEqual(["", 0]);
    expect(output).toMatch(
      /^16 tasks in [\d.]+ s, from \d+ candidates; rejected: does not fit the records \d+/,
    );
    expect(output).toMatch(/train: 12 tasks of \d customers/);
    const environment = tauBench({
      data: shop.data,
      train: join(out, "tasks_train.json"),
      test: join(out, "tasks_test.json"),
    });
    expect((await environment.tasks("train")).length).toBe(12);
    const [task] = await environment.tasks("test");
    const { observation } = await environment.start(task!, { seed: 0 });
    expect(observation.messages[1]!.content).toContain("I");
  });

  test("existing files stay", async () => {
    const out = join(shop.data, "twice");
    await run(out);
    const before = readFileSync(join(out, "tasks_train.json"), "utf8");
    const { code, errors } = await run(out, "--seed", "1");
    expect(code).toBe(1);
    expect(errors).toMatch(/ERR_VALUE: .*tasks_train.json already exists/);
    expect(readFileSync(join(out, "tasks_train.json"), "utf8")).toBe(before);
  });

  test("a directory that cannot be created is rejected before a service is used", async () => {
    const out = join(shop.data, "retail", "users.json", "made");
    let asked = 0;
    const server = await chatServer(() => {
      asked++;
      return { text: "No." };
    });
    const rewrite = JSON.stringify({ model: "m", baseURL: server.baseURL });
    const { code, errors } = await run(out, "--rewrite", rewrite);
    await server.close();
    expect([code, asked]).toEqual([1, 0]);
    expect(errors).toMatch(/^nlac: ERR_IO: .*users\.json/);
  });

  test.skipIf(!existsSync("/proc/self"))("a directory below /proc is refused", async () => {
    const { code, errors } = await run("/proc/nlac/made");
    expect(code).toBe(1);
    expect(errors).toMatch(/^nlac: ERR_IO: \/proc\/nlac/);
  });

  test("customers of other tasks are held out", async () => {
    const first = join(shop.data, "first");
    await run(first);
    const file = join(first, "tasks_test.json");
    const { output } = await run(join(shop.data, "second"), "--hold-out", file, "--seed", "1", "--json");
    const { files, splits } = JSON.parse(output) as {
      files: { train: string };
      splits: { train: { tasks: number } };
    };
    expect(splits.train.tasks).toBe(12);
    const users = (path: string) =>
      (JSON.parse(readFileSync(path, "utf8")) as TauBenchTaskRecord[]).map(({ user_id }) => user_id);
    expect(users(files.train).filter((id) => users(file).includes(id))).toEqual([]);
  });

  test.each([
    [["data", "synthesize", "tau-bench-airline", "--out", "x"], /tau-bench-retail only/],
    [["data", "synthesize", "tau-bench-retail"], /--out/],
    [["data", "synthesize", "tau-bench-retail", "--out", "x", "--questions", "2"], /from 0 to 1/],
  ])("%j is rejected", async (argv, message) => {
    const { code, errors } = await nlac(...argv);
    expect([code, errors]).toEqual([1, expect.stringMatching(message)]);
  });
});
