/** Runs the complete TypeScript examples of the pages; test/package.test.ts compiles them. */

import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { beforeAll, expect, test, vi } from "vitest";
import { loadModule } from "../../lib/base/load-module.ts";
import { loadComparison, planRuns } from "../../lib/compare/comparison.ts";
import { checkEnvironment } from "../../lib/environments/check.ts";
import { openEnvironment } from "../../lib/environments/registry.ts";
import { readEpisodeRecords } from "../../lib/episodes/records.ts";
import { readRecords } from "../../lib/files/records.ts";
import { loadRecipe } from "../../lib/recipe/recipe.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { serve } from "../../lib/serve/server.ts";
import { reportConfig } from "../../lib/sinks/config.ts";
import { openSinks, Reporting } from "../../lib/sinks/reporting.ts";
import { CallingModel } from "../support/calling-model.ts";
import { nlac } from "../support/command-line.ts";
import { jsonServer } from "../support/json-server.ts";
import { tinyConfig, tinyLearner } from "../support/tiny.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
/** A directory with every example, so that they find each other as the pages say. */
const directory = mkdtempSync(join(tmpdir(), "nlac-examples-"));
const model = join(directory, "model");

/**
 * "docs/tutorial.md 1" → its code. Excerpts, without an import or export or with "…", are not
 * examples.
 */
const examples = new Map<string, string>(
  ["README.md", ...readdirSync(join(root, "docs"), { recursive: true, encoding: "utf8" })]
    .filter((page) => page.endsWith(".md") && page !== "api.md")
    .map((page) => (page === "README.md" ? page : join("docs", page)))
    .flatMap((page) => {
      const blocks = [...readFileSync(join(root, page), "utf8").matchAll(/^```ts\n(.*?)^```/gms)];
      return blocks.map(([, code], i) => [`${page} ${i + 1}`, code!] as const);
    })
    .filter(([, code]) => /^(import|export) /m.test(code) && !code.includes("…")),
);

/** Writes an example, under the name in its first line if it has one, and returns its path. */
function written(name: string, replace: (code: string) => string = (code) => code): string {
  const code = examples.get(name)!;
  const file = /^\/\/ (\S+\.ts)$/m.exec(code.split("\n")[0]!)?.[1] ?? `${name.replaceAll(/\W+/g, "-")}.ts`;
  // Node loads a file once: another one of the same name has its own folder.
  const folder = name === "docs/reporting.md 3" ? join(directory, "another") : directory;
  mkdirSync(folder, { recursive: true });
  const path = join(folder, file);
  writeFileSync(path, replace(code));
  return path;
}

/** Trains a recipe for one update, with a tiny model in the place of its own. */
async function trained(name: string, fields: Record<string, unknown> = {}): Promise<void> {
  const shortened = {
    ...{ model, "learner.dtype": "float32", "config.iterations": 1, "config.updatesPerIteration": 1 },
    ...{ "config.episodesPerIteration": 2, "config.batchSize": 2, "config.maxPromptTokens": 6000 },
    ...{ "config.maxActionTokens": 8, "config.maxCriticTokens": 8, "config.evaluation.episodes": 2 },
    ...fields,
  };
  const set = Object.entries(shortened).flatMap(([field, value]) => [
    "--set",
    `${field}=${JSON.stringify(value)}`,
  ]);
  const run = join(directory, `run-${name.replaceAll(/\W+/g, "-")}`);
  const { code, output, errors } = await nlac("train", written(name), "--run", run, "--json", ...set);
  expect([code, errors]).toEqual([0, expect.not.stringContaining("ERR_")]);
  expect(JSON.parse(output)).toMatchObject({ updates: 1, stopped: false });
}

/** The violations of the contract of an environment. */
async function problemsOf(path: string): Promise<string[]> {
  const environment = await openEnvironment(path);
  return checkEnvironment(environment, undefined, { tasks: 2, seed: 0, timeout: 30_000 });
}

const runs: Record<string, () => Promise<void>> = {
  async "README.md 1"() {
    const log = vi.spyOn(console, "log").mockImplementation(() => {});
    try {
      const tiny = JSON.stringify(model);
      await loadModule(
        written("README.md 1", (code) =>
          code
            .replace('"SmolLM2-135M-Instruct"', tiny)
            .replace("iterations: 2", "iterations: 1")
            .replace("maxNewTokens: 32", "maxNewTokens: 4"),
        ),
      );
      expect(log).toHaveBeenCalledWith(expect.any(String));
    } finally {
      log.mockRestore();
    }
  },
  "README.md 2": async () => expect(await problemsOf(written("README.md 2"))).toEqual([]),
  async "docs/agents.md 1"() {
    const called = new CallingModel((prompt) =>
      prompt.includes("<tool_response>")
        ? "Done."
        : '<tool_call>\n{"name": "order", "arguments": {"item": "rice"}}\n</tool_call>',
    );
    const record = join(directory, "agent.jsonl");
    const server = await serve({ learner: called, name: "Qwen2.5-0.5B-Instruct", port: 0, record });
    try {
      const path = written("docs/agents.md 1", (code) => code.replace("http://127.0.0.1:8000", server.url));
      const { orderRice } = (await loadModule(path)) as { orderRice(): Promise<number> };
      expect([await orderRice(), await orderRice()]).toEqual([1, 1]);
    } finally {
      await server.close(20);
    }
    expect([...readEpisodeRecords(record)].map(({ reward, turns }) => [reward, turns.length])).toEqual([
      [1, 2],
      [1, 2],
    ]);
  },
  async "docs/comparing.md 1"() {
    copyFileSync(join(root, "recipes", "errands.ts"), join(directory, "my-recipe.ts"));
    const planned = await planRuns(await loadComparison(written("docs/comparing.md 1")));
    expect(planned).toHaveLength(15);
  },
  async "docs/reporting.md 1"() {
    for (const name of ["MLFLOW_TRACKING_URI", "TRACKIO_SERVER_URL", "SLACK_WEBHOOK"])
      vi.stubEnv(name, "http://127.0.0.1:1");
    vi.stubEnv("TRACKIO_WRITE_TOKEN", "secret");
    written("docs/reporting.md 2");
    const { report } = await loadRecipe(written("docs/reporting.md 1"));
    expect(await openSinks(report)).toHaveLength(report.length);
    vi.unstubAllEnvs();
  },
  "docs/reporting.md 2": () => reported("docs/reporting.md 2", [], [["step 3: 1"]]),
  "docs/reporting.md 3": () =>
    reported(
      "docs/reporting.md 3",
      [[{ number: 0, step: 3, time: expect.any(Number), values: { "eval/success": 1 } }]],
      [
        ["mine begins", ["model"]],
        ["finished", "4 episodes, 3 updates."],
      ],
    ),
  // Its servers do not exist.
  async "docs/scaling.md 1"() {
    expect(await loadRecipe(written("docs/scaling.md 1"))).toMatchObject({ rollouts: { engine: "vllm" } });
  },
  async "docs/training.md 1"() {
    written("docs/environments/your-own.md 1");
    await trained("docs/training.md 1");
  },
  async "docs/tutorial.md 1"() {
    copyFileSync(join(root, "templates", "project", "desk.ts"), join(directory, "desk.ts"));
    await trained("docs/tutorial.md 1");
  },
  "docs/cookbook/lora.md 1": () => trained("docs/cookbook/lora.md 1"),
  async "docs/cookbook/mcp.md 1"() {
    const server = ["--import", "jiti/register", join(root, "test", "support", "mcp-server.ts")];
    const path = written("docs/cookbook/mcp.md 1", (code) =>
      code.replace('["server.js"]', JSON.stringify(server)),
    );
    const environment = await openEnvironment(path);
    const [task] = await environment.tasks("train");
    const episode = await environment.start(task, { seed: 0 });
    const { observation } = await episode.step({
      ...{ text: "", tool: { name: "find", arguments: { item: "pen" } } },
    });
    expect(observation[0]!.content).toBe("3 pens");
    await episode.close();
    await environment.close();
  },
  async "docs/cookbook/own-method.md 1"() {
    const own = join(directory, "reinforce");
    await loadModule(
      written("docs/cookbook/own-method.md 1", (code) =>
        code
          .replace('"runs/reinforce"', JSON.stringify(own))
          .replace("iterations = 40", "iterations = 2")
          .replace("new TerminalProgress()", "undefined"),
      ),
    );
    const rows = [...readRecords<MetricsRow>(join(own, "metrics.jsonl"))];
    expect(rows.map(({ values }) => values.episodes)).toEqual([32, 64]);
    expect(rows[0]!.values.grad_norm).toBeGreaterThan(0);
    // It has no recipe, and the commands accept it all the same.
    const verified = await nlac("verify", own);
    expect([verified.code, verified.output]).toEqual([0, expect.stringContaining("Nothing is damaged.")]);
    const options = JSON.stringify({ kinds: 4, chain: 3, moves: 5 });
    const played = ["eval", own, "--environment", "errands", "--options", options, "--json"];
    expect(JSON.parse((await nlac(...played)).output)).toMatchObject({ episodes: 4 });
    expect((await nlac("export", own, join(directory, "reinforced"))).code).toBe(0);
    expect((await nlac("train", "--resume", "--run", own)).errors).toContain("ERR_RUN");
  },
  async "docs/cookbook/recorded-agents.md 1"() {
    const server = await jsonServer();
    const path = written("docs/cookbook/recorded-agents.md 1", (code) =>
      code.replace("http://127.0.0.1:8000", server.url),
    );
    const { ended } = (await loadModule(path)) as { ended(episode: string, reward: number): Promise<void> };
    await ended("e1", 1);
    expect(server.requests).toMatchObject([{ path: "/v1/episodes/e1/reward", body: { reward: 1 } }]);
    await server.close();
  },
  async "docs/cookbook/recorded-agents.md 2"() {
    // Two episodes of another policy.
    const out = join(directory, "episodes.jsonl");
    const played = await nlac(
      "eval",
      model,
      "--environment",
      "twentyQuestions",
      "--episodes",
      "2",
      "--max-action-tokens",
      "4",
      "--split",
      "train",
      "--record",
      out,
      "--json",
    );
    expect([played.code, played.errors]).toEqual([0, expect.not.stringContaining("ERR_")]);
    await trained("docs/cookbook/recorded-agents.md 2", {
      "config.episodesPerIteration": 0,
      "config.recorded": [out],
    });
  },
  "docs/cookbook/single-step.md 1": async () =>
    expect(await problemsOf(written("docs/cookbook/single-step.md 1"))).toEqual([]),
  "docs/cookbook/tools.md 1": async () =>
    expect(await problemsOf(written("docs/cookbook/tools.md 1"))).toEqual([]),
  "docs/environments/your-own.md 1": async () =>
    expect(await problemsOf(written("docs/environments/your-own.md 1"))).toEqual([]),
  "docs/environments/your-own.md 2": async () =>
    expect(await problemsOf(written("docs/environments/your-own.md 2"))).toEqual([]),
};

/** Sends a row and an end to the sink of an example, and expects requests and lines on stderr. */
async function reported(name: string, requests: unknown[], lines: unknown[][]): Promise<void> {
  const server = await jsonServer();
  const error = vi.spyOn(console, "error").mockImplementation(() => {});
  try {
    const path = written(name, (code) => code.replace("http://localhost:9000", server.url));
    const sinks = await openSinks(reportConfig.parse([{ to: "module", path }]));
    const report = new Reporting(sinks, { id: "1", name: "mine", directory, recipe: { model: "m" } });
    report.of(memoryRun()).metrics(3, { "eval/success": 1 });
    report.ended({ updates: 3, episodes: 4, environmentSteps: 9, stopped: false });
    await report.close((line) => expect.fail(line));
    expect(server.requests.map(({ body }) => body)).toEqual(requests);
    expect(error.mock.calls).toEqual(lines);
  } finally {
    error.mockRestore();
    await server.close();
  }
}

beforeAll(async () => {
  mkdirSync(join(directory, "node_modules"));
  for (const name of ["zod", "openai"])
    symlinkSync(join(root, "node_modules", name), join(directory, "node_modules", name));
  const learner = await tinyLearner({}, { ...tinyConfig, max_position_embeddings: 8192 });
  await learner.exportHuggingFace(model);
  await learner.dispose();
});

test("every complete example of the pages is run", () => {
  expect([...examples.keys()].sort()).toEqual(Object.keys(runs).sort());
});

test.each(Object.keys(runs))("%s", async (name) => runs[name]!());
