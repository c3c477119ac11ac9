import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { main } from "../../lib/cli/main.ts";
import { readRecords } from "../../lib/run/records.ts";
import { tinyConfig, tinyLearner } from "../support/tiny.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-commands-"));
const model = join(root, "model");
const run = join(root, "run");
const recipe = join(root, "recipe.json");

/** Runs one command line; what it prints, and its exit code. */
async function nlac(...argv: string[]): Promise<{ code: number; output: string; errors: string }> {
  let output = "";
  let errors = "";
  const spies = [
    vi.spyOn(console, "log").mockImplementation((text) => {
      output += `${text}\n`;
    }),
    vi.spyOn(process.stdout, "write").mockImplementation((text) => {
      output += String(text);
      return true;
    }),
    vi.spyOn(process.stderr, "write").mockImplementation((text) => {
      errors += String(text);
      return true;
    }),
  ];
  try {
    return { code: await main(argv), output, errors };
  } finally {
    for (const spy of spies) spy.mockRestore();
  }
}

beforeAll(async () => {
  mkdirSync(model);
  const learner = await tinyLearner({}, { ...tinyConfig, max_position_embeddings: 8192 });
  await learner.exportHuggingFace(model);
  await learner.dispose();
  writeFileSync(
    recipe,
    JSON.stringify({
      name: "tiny",
      model,
      learner: { dtype: "float32" },
      environment: { name: "twentyQuestions", options: { turns: 2 } },
      config: {
        iterations: 1,
        episodesPerIteration: 2,
        updatesPerIteration: 1,
        batchSize: 2,
        maxActionTokens: 8,
        maxCriticTokens: 8,
      },
    }),
  );
  const trained = await nlac("train", recipe, "--run", run, "--json");
  expect(trained.errors).not.toContain("ERR_");
  expect(JSON.parse(trained.output)).toMatchObject({ run, updates: 1, episodes: 2, stopped: false });
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

describe("every command on a run that train left", () => {
  test("view prints figures and samples with their texts", async () => {
    const { code, output } = await nlac("view", run, "--samples", "1");
    expect(code).toBe(0);
    expect(output).toContain("tiny:");
    expect(output).toContain("loss/l1");
    expect(output).toContain("▸ observation");
    expect(JSON.parse((await nlac("view", run, "--json")).output)).toMatchObject({
      samples: [{ update: 0 }, { update: 0 }],
    });
  });

  test("eval plays the run's environment, records, and measures the critic on the record", async () => {
    const record = join(root, "held-out.jsonl");
    const played = await nlac("eval", run, "--episodes", "3", "--record", record);
    expect(played.code).toBe(0);
    expect(played.output).toContain("twentyQuestions, test, 3 episodes");
    expect(played.output).toMatch(/success +0 +\[0, 0\.56/);
    expect(readRecords(record)).toHaveLength(3);
    const critic = await nlac("eval", run, "--critic", record, "--transitions", "4", "--json");
    expect(critic.code).toBe(0);
    const figures = JSON.parse(critic.output);
    expect(figures.transitions).toBe(4);
    expect(figures.nll.estimate).toBeGreaterThan(figures.l1.estimate);
    expect((await nlac("eval", run, "--episodes", "1", "--record", record)).errors).toContain("ERR_IO");
  });

  test("generate, of a run and of a model", async () => {
    for (const source of [run, model]) {
      const { code, output } = await nlac("generate", source, "Hello", "--max-new-tokens", "5", "--json");
      expect(code).toBe(0);
      const generation = JSON.parse(output);
      expect(generation.tokens.length).toBe(generation.logProbs.length);
      expect(generation.tokens.length).toBeLessThanOrEqual(5);
    }
    expect((await nlac("generate", run, "Hello", "--max-new-tokens", "3")).output).toMatch(/\n$/);
  });

  test("play shows an episode", async () => {
    const { code, output } = await nlac("play", run, "--max-action-tokens", "5");
    expect(code).toBe(0);
    expect(output).toContain("[system]");
    expect(output).toContain("(the task: ");
    expect(output).toContain("not readable");
  });

  test("export writes what loads again", async () => {
    const out = join(root, "exported");
    expect((await nlac("export", run, out)).code).toBe(0);
    for (const file of ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]) {
      expect(existsSync(join(out, file))).toBe(true);
    }
    expect((await nlac("generate", out, "Hi", "--max-new-tokens", "1", "--json")).code).toBe(0);
    expect((await nlac("export", run, out)).errors).toContain("is not empty");
  });

  test("a run directory is not written to twice, and a resumed one that is done ends at once", async () => {
    expect((await nlac("train", recipe, "--run", run)).errors).toContain("--resume");
    const resumed = await nlac("train", "--resume", "--run", run, "--json");
    expect(JSON.parse(resumed.output)).toMatchObject({ updates: 1, stopped: false });
  });

  test("--dry-run prints the resolved recipe and touches nothing", async () => {
    const { code, output } = await nlac("train", recipe, "--dry-run", "--set", "config.seed=9");
    expect(code).toBe(0);
    expect(JSON.parse(output)).toMatchObject({ config: { seed: 9, targetRate: 0.005 } });
  });
});

test("every command has help with an example, and faults are one line and an exit code", async () => {
  for (const command of ["setup", "doctor", "train", "eval", "generate", "play", "view", "export"]) {
    const { code, output } = await nlac(command, "--help");
    expect(code).toBe(0);
    expect(output).toMatch(/Examples?:/);
  }
  for (const argv of [
    ["train"],
    ["eval"],
    ["view", root],
    ["generate", join(root, "none"), "x"],
    ["train", "--resume"],
  ]) {
    const { code, errors } = await nlac(...argv);
    expect(code).toBe(1);
    expect(errors).toMatch(/^nlac: ERR_[A-Z_]+: .+\n$/);
  }
  expect(readFileSync(join(run, "run.json"), "utf8")).toContain('"name": "tiny"');
});
