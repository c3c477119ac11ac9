import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, test } from "vitest";
import { compactRuns } from "../../lib/compare/compact.ts";
import type { Comparison } from "../../lib/compare/comparison.ts";
import { makeReport, type Report } from "../../lib/compare/report.ts";
import { findRuns, requireSameRecipe, type TrainableRun } from "../../lib/compare/schedule.ts";
import { notes, runTable } from "../../lib/compare/table.ts";
import { writeReport } from "../../lib/compare/write.ts";
import { loadRecipe } from "../../lib/recipe/recipe.ts";
import { nlac } from "../support/command-line.ts";
import { comparisonOf, writeOutcome, writeRun, writeRuns } from "../support/comparison.ts";
import { cut, damages } from "../support/damage.ts";
import { temporaryDirectory } from "../support/files-and-servers.ts";

const comparison = comparisonOf();
let directory = "";
let harmed = "";
beforeEach(() => {
  directory = temporaryDirectory();
  writeRuns(comparison, directory);
  harmed = join(directory, "grpo", "1");
});

function reportOn(of: Comparison, from = directory) {
  const names = of.methods.flatMap(({ name: method }) => of.seeds.map((seed) => ({ method, seed })));
  return makeReport(of, findRuns(names, from));
}

/** The figures without the damaged run, the same in all tests. */
let without: Report | undefined;

/** The report names the file, and the other runs have the figures of a report without this run. */
function expectOthers(file: string, message: RegExp): Report {
  const report = reportOn(comparison);
  const [nlac, grpo] = report.methods;
  without ??= reportOn(comparisonOf({ seeds: [0, 2] }));
  expect(nlac).toMatchObject({ counted: 3 });
  expect(grpo).toMatchObject({ counted: 2, mean: without.methods[1]!.mean, curveRuns: 2 });
  const found = report.runs.find(({ method, seed }) => method === "grpo" && seed === 1)!;
  expect(found).toMatchObject({ success: null, curve: [], fault: expect.stringMatching(message) });
  expect(found.fault).toContain(file);
  expect(report.runs.filter(({ fault }) => fault !== null)).toHaveLength(1);
  expect(notes(report)[0]).toBe(`grpo, seed 1 does not count: ${found.fault}`);
  writeReport(report, directory);
  for (const name of ["index.html", "table.md"])
    expect(readFileSync(join(directory, name), "utf8")).toContain("grpo, seed 1 does not count:");
  return report;
}

describe("a damaged file of one run does not hide the others: metrics.jsonl with", () => {
  test.each(damages)("%s", (_, harm, message) => {
    const file = join(harmed, "metrics.jsonl");
    harm(file);
    const report = expectOthers(file, message);
    expect(runTable(report).rows.map(([, , state]) => state)).toContain("finished, unreadable");
  });

  test("a last row that is cut, if the run has finished", () => {
    const file = join(harmed, "metrics.jsonl");
    cut(file, 20);
    expectOthers(file, /is cut: it ends within a row/);
    // A run that is not over may end so: its process was killed.
    const outcome = JSON.parse(readFileSync(`${harmed}.json`, "utf8"));
    writeFileSync(`${harmed}.json`, JSON.stringify({ ...outcome, state: "failed", reason: "killed" }));
    expect(reportOn(comparison).methods[1]).toMatchObject({ counted: 3 });
  });
});

test("a damaged run.json or outcome does not hide the others either", () => {
  const file = join(harmed, "run.json");
  const description = readFileSync(file, "utf8");
  writeFileSync(file, description.replace("recipe", "recipf"));
  expectOthers(file, /is damaged or was edited/);
  writeFileSync(file, description);
  const outcome = `${harmed}.json`;
  writeFileSync(outcome, "\0\0{");
  expectOthers(outcome, /it is not JSON/);
});

test("nlac compare --report shows the other runs, and --copy-to copies them", async () => {
  const { methods, seeds } = comparison;
  const current = [{ step: 0, values: { "eval/success": 0.5, environment_steps: 1000 } }];
  directory = temporaryDirectory();
  for (const path of methods.flatMap(({ name }) =>
    seeds.map((seed) => join(directory, name, String(seed))),
  )) {
    writeRun(path, current);
    writeOutcome(path);
  }
  const file = join(directory, "grpo", "1", "metrics.jsonl");
  writeFileSync(join(directory, "comparison.json"), JSON.stringify({ comparison }));
  writeFileSync(file, "\0garbage\n");
  const shown = await nlac("compare", directory, "--report");
  expect(shown.code).toBe(0);
  expect(shown.output).toMatch(/^grpo +2\/3 /m);
  expect(shown.output.replace(/\s+/g, " ")).toContain(`grpo, seed 1 does not count: ${file}: line 1`);
  const to = join(temporaryDirectory(), "copy");
  const copied = await nlac("compare", directory, "--copy-to", to);
  expect(copied.code).toBe(1);
  expect(copied.errors).toContain(`5 runs copied to ${to}\n`);
  expect(copied.errors).toContain(`ERR_RUN: 1 run not copied: ${file}: line 1`);
  expect(existsSync(join(to, "grpo", "1"))).toBe(false);
  expect(reportOn(comparison, to).methods.map(({ counted }) => counted)).toEqual([3, 2]);
});

test("a copy that fails leaves nothing", () => {
  const to = join(temporaryDirectory(), "copy");
  writeRun(join(directory, "new", "0"), [{ step: 0, values: { "eval/success": 0.5 } }]);
  writeOutcome(join(directory, "new", "0"));
  const runs = findRuns([{ method: "new", seed: 0 }], directory);
  expect(() => compactRuns(comparison, [{ ...runs[0]!, method: "x".repeat(300) }], to)).toThrow(
    expect.objectContaining({ code: "ERR_IO" }),
  );
  expect(readdirSync(to)).toEqual([]);
  expect(compactRuns(comparison, runs, to)).toEqual({ copied: 1, faults: [] });
});

test("a run whose run.json is damaged does not stop the others from being resumed", async () => {
  writeFileSync(join(harmed, "run.json"), "{");
  const [run] = findRuns([{ method: "grpo", seed: 1 }], directory);
  const resolved = await loadRecipe("errands");
  const trainable: TrainableRun = { ...run!, recipe: "errands", changes: [], resolved };
  expect(() => requireSameRecipe(trainable)).not.toThrow();
});
