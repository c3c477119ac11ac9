import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { afterAll, expect, test } from "vitest";
import type { Report } from "../../lib/compare/report.ts";
import { nlac } from "../support/command-line.ts";
import { comparisonOf, writeRuns } from "../support/comparison.ts";
import { inDirectory } from "../support/tiny.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-compare-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const listeners = process.listenerCount("SIGTERM");

const short = {
  warmup: { steps: 2, batchSize: 4, episodes: 2 },
  config: {
    ...{ iterations: 2, episodesPerIteration: 3, updatesPerIteration: 1, batchSize: 2 },
    ...{ maxPromptTokens: 256, maxActionTokens: 8, maxCriticTokens: 16 },
  },
};
const longer = { ...short, config: { ...short.config, iterations: 10_000 } };

/** A comparison whose runs take seconds: a model from nothing that hardly learns the forms. */
function tinyComparison(name = "tiny", changes: object = {}): string {
  const path = join(root, `${name}.json`);
  const comparison = {
    name,
    environmentSteps: 20,
    seeds: [0],
    set: short,
    methods: [
      { name: "nlac", recipe: "errands-base" },
      // This device does not exist, so this run fails; the other continues.
      { name: "broken", recipe: "errands-base", set: { learner: { device: "cuda:99" } } },
    ],
    ...changes,
  };
  writeFileSync(path, JSON.stringify(comparison));
  return path;
}

test("two tiny runs, one of which fails: the report, and the continuation", async () => {
  const out = join(root, "out");
  const ran = await nlac("compare", tinyComparison(), "--out", out, "--jobs", "2", "--json");
  expect(ran.code).toBe(1);
  expect(ran.errors).toMatch(/nlac: ERR_RUN: 1 of 2 runs failed: broken, seed 0\. .+broken\/0\.log\n$/);
  const report = JSON.parse(ran.output) as Report;
  const [trained, broken] = report.runs;
  expect(trained).toMatchObject({ method: "nlac", state: "finished", updates: 2 });
  expect(trained!.environmentSteps).toBeGreaterThanOrEqual(6);
  expect(trained!.generatedTokens).toBeGreaterThan(0);
  expect(trained!.seconds).toBeGreaterThan(0);
  expect(trained!.peakBytes === null || trained!.peakBytes > 1e7).toBe(true);
  expect(broken).toMatchObject({ method: "broken", state: "failed", success: null });
  expect(broken!.reason).toMatch(/^ERR_/);
  expect(ran.errors).toMatch(/^nlac, seed 0 +finished .+ steps {2}success \d\.\d\d/m);
  expect(ran.errors).toMatch(/^broken, seed 0 +failed .+ERR_/m);
  for (const name of ["index.html", "curves.svg", "table.md", "comparison.json"])
    expect(existsSync(join(out, name))).toBe(true);
  expect(readFileSync(join(out, "nlac", "0.log"), "utf8")).toContain("run directory");

  // The same command does not start it again.
  const twice = await nlac("compare", tinyComparison(), "--out", out);
  expect(twice.errors).toMatch(/^nlac: ERR_RUN: .+ is not empty\. Continue with --resume/);
  // The chosen method is finished: nothing is trained, and the other's failure is still reported.
  const again = await nlac("compare", out, "--resume", "--only", "nlac");
  expect([again.code, again.errors]).toEqual([1, expect.stringContaining("1 of 2 runs failed")]);
  expect(again.errors).not.toMatch(/running/);
  expect(again.output).toMatch(/^nlac +1\/1 +\d\.\d\d/m);
  // Another recipe would not be the same comparison.
  const other = await nlac("compare", tinyComparison("other", { set: {} }), "--out", out, "--resume");
  expect(other.errors).toMatch(/^nlac: ERR_RUN: .+nlac\/0 was trained with a different recipe/);
}, 240_000);

test("SIGTERM stops the runs at a safe point, and the output says how to continue", async () => {
  const out = join(root, "stopped");
  const tiny = tinyComparison("long", { environmentSteps: 100_000, set: longer });
  const running = nlac("compare", tiny, "--out", out, "--only", "nlac", "--seeds", "0");
  while (!existsSync(join(out, "nlac", "0", "latest"))) await setTimeout(20);
  process.emit("SIGTERM", "SIGTERM");
  const ran = await running;
  expect(ran.errors).toContain("SIGTERM: stopping the runs at their next safe point");
  expect(ran.errors).toMatch(/^nlac, seed 0 +stopped/m);
  expect(ran.errors).toContain(`Continue: npx nlac compare ${out} --resume --only nlac --seeds 0\n`);
  expect(ran.output).toContain(
    "Not finished, and therefore not counted: 1 stopped (nlac, seed 0), 1 waiting (broken, seed 0).",
  );
  expect(ran.code).toBe(0);
  expect(process.listenerCount("SIGTERM")).toBe(listeners);
}, 240_000);

test("a report trains nothing and needs no recipe", () =>
  inDirectory(async (directory) => {
    const comparison = comparisonOf({ methods: [{ name: "nlac", recipe: "gone.ts" }] });
    writeRuns(comparison, directory);
    expect((await nlac("compare", directory, "--report")).errors).toMatch(/^nlac: ERR_/);
    writeFileSync(join(directory, "comparison.json"), JSON.stringify({ comparison }));
    const ran = await nlac("compare", directory, "--report");
    expect(ran.code).toBe(0);
    expect(ran.output).toMatch(/^method +runs +success, IQM/);
    expect(ran.output).toMatch(/^nlac +3\/3 +0\.\d\d \[0\.\d\d, 0\.\d\d\]/m);
    expect(ran.errors).toContain(`Report:   ${join(directory, "index.html")}\n`);
    expect(ran.errors).toContain(`Inspect:  npx nlac dash ${directory}\n`);
    expect(existsSync(join(directory, "index.html"))).toBe(true);
    const curves = () => readFileSync(join(directory, "curves.svg"), "utf8");
    expect(curves()).toContain(">environment steps<");
    for (const [axis, name] of [
      ["generated-tokens", "generated tokens"],
      ["gradient-tokens", "gradient tokens"],
    ]) {
      expect((await nlac("compare", directory, "--report", "--axis", axis!)).code).toBe(0);
      expect(curves()).toContain(`>${name} (logarithmic)<`);
    }
    const wrong = await nlac("compare", directory, "--report", "--axis", "hours");
    expect([wrong.code, wrong.errors]).toEqual([1, expect.stringMatching(/ERR_VALUE: .+generated-tokens/)]);
    const json = await nlac("compare", directory, "--report", "--json");
    expect((JSON.parse(json.output) as Report).methods).toHaveLength(1);
  }));

test("a report by name shows the runs with the settings that they were started with, and keeps them", () =>
  inDirectory(async (directory) => {
    const comparison = comparisonOf({ methods: [{ name: "nlac", recipe: "gone.ts" }] });
    writeRuns(comparison, directory);
    const path = join(directory, "comparison.json");
    writeFileSync(path, JSON.stringify({ comparison }));
    const other = tinyComparison("shipped", { environmentSteps: 7, seeds: [5] });
    const report = await nlac("compare", other, "--out", directory, "--report", "--json");
    expect(report.code).toBe(0);
    expect((JSON.parse(report.output) as Report).methods).toMatchObject([{ name: "nlac", counted: 3 }]);
    expect(JSON.parse(readFileSync(path, "utf8")).comparison).toEqual(comparison);
    const copy = join(directory, "copy");
    await nlac("compare", other, "--out", directory, "--copy-to", copy);
    expect(JSON.parse(readFileSync(join(copy, "comparison.json"), "utf8")).comparison).toEqual(comparison);
  }));

test("help has an example, and an impossible comparison ends with one line that gives the reason", async () => {
  expect((await nlac("compare", "--help")).output).toContain("nlac compare errands --jobs 2");
  const tiny = tinyComparison();
  const out = join(root, "never");
  const fault = async (...argv: string[]) => {
    const ran = await nlac("compare", ...argv);
    expect(ran.code).toBe(1);
    return ran.errors;
  };
  expect(await fault("sorting")).toMatch(/^nlac: ERR_CONFIG: There is no comparison "sorting": .+errands/);
  expect(await fault(tiny, "--out", out, "--only", "nlac,ppo")).toBe(
    "nlac: ERR_VALUE: The comparison has no method ppo; there are nlac, broken.\n",
  );
  expect(await fault(tiny, "--out", out, "--seeds", "0,3")).toMatch(/ERR_VALUE: .+no seed 3; there are 0\./);
  expect(await fault(tiny, "--seeds", "0,x")).toMatch(/ERR_VALUE: .+whole numbers/);
  expect(await fault(tiny, "--jobs", "0")).toMatch(/ERR_VALUE: .+1 or more/);
  expect(await fault(tiny, "--out", out, "--set", "seeds=[]")).toMatch(/ERR_CONFIG/);
  for (const shown of [["--report"], ["--copy-to", join(root, "copy")]])
    expect(await fault(tiny, "--out", out, ...shown, "--set", "seeds=[1]")).toMatch(/ERR_CONFIG.+--set/);
  expect(await fault(tiny, "--out", out, "--report")).toMatch(
    /ERR_RUN: .+ contains no comparison .+ to report on/,
  );
  expect(await fault(tiny, "--out", out, "--resume")).toContain(
    `ERR_RUN: ${out} contains no comparison (there is no comparison.json) to resume.`,
  );
  expect(existsSync(out)).toBe(false);
});
