import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { colours, lineStyles, renderCurves, spread, ticks } from "../../lib/compare/chart.ts";
import type { Comparison } from "../../lib/compare/comparison.ts";
import { renderPage } from "../../lib/compare/page.ts";
import { makeReport, type RunReport, rangeOf } from "../../lib/compare/report.ts";
import { findRuns } from "../../lib/compare/schedule.ts";
import { methodTable, notes, renderMarkdown, renderText, runTable } from "../../lib/compare/table.ts";
import { writeReport } from "../../lib/compare/write.ts";
import { comparisonOf, learningRows, writeOutcome, writeRun, writeRuns } from "../support/comparison.ts";
import { inDirectory } from "../support/tiny.ts";
import { faultOf } from "../support/xml.ts";

function reportOn(comparison: Comparison, directory: string) {
  const names = comparison.methods.flatMap(({ name: method }) =>
    comparison.seeds.map((seed) => ({ method, seed })),
  );
  return makeReport(comparison, findRuns(names, directory));
}

test("methods are compared at the budget, over all runs that are over", () =>
  inDirectory((directory) => {
    const comparison = comparisonOf();
    writeRuns(comparison, directory);
    const report = reportOn(comparison, directory);
    expect(report.measure).toBe("collected");
    const [nlac, grpo] = report.methods;
    const scores = report.runs.filter(({ method }) => method === "nlac").map(({ success }) => success!);
    expect(nlac!.mean).toBeCloseTo(scores.reduce((sum, score) => sum + score, 0) / 3, 12);
    expect(nlac!.success!.estimate).toBeCloseTo(nlac!.mean!, 12); // of three, none is cut off
    expect(nlac!.success!.low).toBeCloseTo(Math.min(...scores), 12); // a 27th of the draws
    expect(nlac).toMatchObject({ counted: 3, improvement: null, updates: 20, seconds: 60, peakBytes: 5e8 });
    // 10 iterations: 150 of NLAC's and 50 of the others' losses; 300 written for them and 8 a step.
    expect(nlac).toMatchObject({ gradientTokens: 2000, generatedTokens: 3000 + 8 * 1000 });
    expect(grpo!.improvement!.estimate).toBeLessThan(0.5);
    expect(nlac!.curves.steps.at(-1)).toMatchObject({ at: 1000, ...nlac!.success });
    expect(nlac!.curves.steps[0]!.at).toBe(100);
    // JSON keeps every number.
    expect(JSON.parse(JSON.stringify(report))).toEqual(report);
  }));

/** Writes finished runs of a method with these successes, one for each seed from 0. */
const writer = (directory: string) => (name: string, values: readonly number[]) => {
  for (const [seed, value] of values.entries()) {
    const path = join(directory, name, String(seed));
    writeRun(path, [{ step: 0, values: { "eval/success": value, environment_steps: 1000 } }]);
    writeOutcome(path);
  }
};

test("differences have an interval and an exact p, and pairs are permuted within", () =>
  inDirectory((directory) => {
    const seeds = [0, 1, 2, 3, 4];
    const write = writer(directory);
    // Dead ends of 2026-11-22 (docs/experiments.md); the p are scipy's, see test/fixtures/compare/permutation.json.
    write("nlac", [0.73, 0.66, 0.78, 0.71, 0.63]);
    write("grpo", [0.83, 0.75, 0.77, 0.83, 0.8]);
    const report = reportOn(comparisonOf({ seeds }), directory);
    const [reference, other] = report.methods;
    expect(reference!.difference).toBeNull();
    expect(other!.difference!.test).toMatchObject({ exact: true, permutations: 252 });
    expect(other!.difference!.test.p).toBeCloseTo(6 / 252, 12);
    const { estimate, low, high } = other!.difference!.means;
    expect(estimate).toBeCloseTo(0.094, 12);
    expect(low).toBeGreaterThan(0.02);
    expect(high).toBeLessThan(0.17);
    const row = methodTable(report).rows[1]!;
    expect(row.slice(5, 7)).toEqual([expect.stringMatching(/^\+0\.09 \[\+0\.0\d, \+0\.1\d\]$/), "0.024"]);
    const text = renderMarkdown(report);
    expect(text).toContain("| − nlac | p |");
    expect(text).toContain("none can be below 0.008");
    const paired = reportOn(comparisonOf({ seeds, paired: true }), directory).methods[1]!.difference!;
    expect(paired.test).toMatchObject({ exact: true, permutations: 32, p: 0.125 });
    expect(paired.means.estimate).toBeCloseTo(0.094, 12);
  }));

test("a single run has no difference from the reference", () =>
  inDirectory((directory) => {
    const write = writer(directory);
    write("nlac", [0.7, 0.6, 0.8]);
    write("grpo", [0.5]);
    const [, grpo] = reportOn(comparisonOf(), directory).methods;
    expect(grpo).toMatchObject({ counted: 1, mean: 0.5, difference: null });
  }));

test("the curve of a method that takes fewer steps ends there", () =>
  inDirectory((directory) => {
    const methods = [
      { name: "nlac", recipe: "errands" },
      { name: "grpo", recipe: "errands", environmentSteps: 500 },
    ];
    const comparison = comparisonOf({ methods });
    writeRuns(comparison, directory);
    const ends = reportOn(comparison, directory).methods.map(({ curves }) => curves.steps.at(-1)!.at);
    expect(ends).toEqual([1000, 500]);
  }));

test("a single method has no columns of comparisons", () =>
  inDirectory((directory) => {
    writer(directory)("nlac", [0.1, 0.2, 0.3]);
    const methods = [{ name: "nlac", recipe: "errands" }];
    const { headings } = methodTable(reportOn(comparisonOf({ methods }), directory));
    expect(headings.slice(0, 6)).toEqual(["method", "runs", "success, IQM", "mean", "median", "updates"]);
  }));

test("pairs are compared within a seed: worlds that differ more than the methods do not blur it", () =>
  inDirectory((directory) => {
    const seeds = [0, 1, 2, 3, 4];
    const write = writer(directory);
    write("nlac", [0.1, 0.3, 0.5, 0.7, 0.9]);
    write("grpo", [0.15, 0.35, 0.55, 0.75, 0.9]); // above in four worlds, equal in one
    const improvementOf = (paired: boolean) => {
      const report = reportOn(comparisonOf({ seeds, paired }), directory);
      return { ...report.methods[1]!.improvement!, text: renderMarkdown(report) };
    };
    const paired = improvementOf(true);
    expect(paired.estimate).toBeCloseTo(0.9, 12);
    // Wilson's of 4.5 of 5, by its formula.
    const [p, n, z] = [0.9, 5, 1.959964];
    const half = z * Math.sqrt((p * (1 - p)) / n + z ** 2 / (4 * n ** 2));
    expect(paired.low).toBeCloseTo((p + z ** 2 / (2 * n) - half) / (1 + z ** 2 / n), 12);
    expect(paired.high).toBeCloseTo((p + z ** 2 / (2 * n) + half) / (1 + z ** 2 / n), 12);
    expect(paired.text).toContain("| seeds above nlac |");
    expect(paired.text).toContain("the share of seeds with which the method ends above nlac");
    expect(paired.text).not.toContain("P(>");
    const apart = improvementOf(false);
    expect(apart.estimate).toBeCloseTo(14.5 / 25, 12);
    expect(apart.text).toContain("| P(> nlac) |");
  }));

test("five worlds above the reference do not make an interval without a width", () =>
  inDirectory((directory) => {
    const seeds = [0, 1, 2, 3, 4];
    const write = writer(directory);
    write("nlac", [0.1, 0.2, 0.3, 0.4, 0.5]);
    write("grpo", [0.2, 0.3, 0.4, 0.5, 0.6]);
    const report = reportOn(comparisonOf({ seeds, paired: true }), directory);
    const { improvement, difference } = report.methods[1]!;
    // Of 5 of 5, by statsmodels' proportion_confint(5, 5, method="wilson"). The exact p is 2 / 32.
    expect(improvement).toEqual({ estimate: 1, low: expect.closeTo(0.5655175, 6), high: 1 });
    expect(difference!.test.p).toBe(2 / 32);
    expect(methodTable(report).rows[1]![6]).toBe("0.063");
  }));

test("over tokens a line ends where the first of its runs ends, with any number of runs", () =>
  inDirectory((directory) => {
    const seeds = [0, 1, 2, 3, 4];
    // The worst run generates the fewest tokens. Without it, the others would look better together.
    for (const seed of seeds) {
      const path = join(directory, "nlac", String(seed));
      const success = seed === 0 ? 0.1 : 0.9;
      writeRun(path, [
        { step: 0, values: { "eval/success": 0, environment_steps: 1, "rollout/tokens": 100 } },
        { step: 1, values: { "tokens/generated": seed === 0 ? 500 : 5000, "tokens/gradient": 10 } },
        { step: 1, values: { "eval/success": success, environment_steps: 1000 } },
      ]);
      writeOutcome(path);
    }
    const comparison = comparisonOf({ seeds, methods: [{ name: "nlac", recipe: "errands" }] });
    const { curves, success } = reportOn(comparison, directory).methods[0]!;
    expect(success!.estimate).toBeCloseTo(0.9, 12);
    expect(curves.steps.at(-1)!.at).toBe(1000);
    const last = curves.generatedTokens.at(-1)!;
    expect(last.at).toBeGreaterThan(500);
    expect(last.at).toBeLessThanOrEqual(600);
  }));

test("each group has its own reference, table and chart", () =>
  inDirectory((directory) => {
    const groups = ["explained", "silent"];
    const methods = groups.flatMap((group) => [
      { name: `grpo-${group}`, recipe: "errands-grpo", group, environmentSteps: 5000 },
      { name: `nlac-${group}`, recipe: "errands", group },
    ]);
    const comparison = comparisonOf({ methods, reference: "nlac-silent" });
    const write = writer(directory);
    write("grpo-explained", [0.1, 0.2, 0.3]);
    write("nlac-explained", [0.9, 0.8, 0.7]);
    write("grpo-silent", [0.5, 0.6, 0.7]);
    write("nlac-silent", [0.2, 0.1, 0]);
    const report = reportOn(comparison, directory);
    // The comparison's reference in its group, the first method in the other.
    const differences = report.methods.map(({ name, difference }) => [name, difference?.means.estimate]);
    expect(differences).toEqual([
      ["grpo-explained", undefined],
      ["nlac-explained", expect.closeTo(0.6, 12)],
      ["grpo-silent", expect.closeTo(0.5, 12)],
      ["nlac-silent", undefined],
    ]);
    const [page, markdown] = [renderPage(report), renderMarkdown(report)];
    expect(faultOf(page)).toBeUndefined();
    for (const group of groups) {
      expect(page).toContain(`<h2>made-up, ${group}</h2>`);
      expect(markdown).toContain(`## made-up, ${group}\n`);
    }
    expect(markdown.match(/\| − (grpo-explained|nlac-silent) \| p \|/g)).toHaveLength(2);
    expect(markdown).toContain("− the group's reference: difference of the mean successes");
    writeReport(report, directory);
    const charts = readdirSync(directory).filter((name) => name.endsWith(".svg"));
    expect(charts.sort()).toEqual(["curves-explained.svg", "curves-silent.svg"]);
    const chart = readFileSync(join(directory, "curves-silent.svg"), "utf8");
    expect(faultOf(chart)).toBeUndefined();
    expect(chart).toContain(">grpo-silent<");
    expect(chart).not.toContain("explained");
    // 1,000 and 5,000 steps: on an even axis the shorter curve would be hard to read.
    expect(chart).toContain(">environment steps (logarithmic)<");
    expect(chart).not.toMatch(/NaN|undefined|Infinity/);
  }));

test("runs of different builds are reported and not pooled", () =>
  inDirectory((directory) => {
    const seeds = [0, 1, 2];
    const build = (commit: string) => [{ version: "0.1.0", commit, core: "c0ffee" }];
    const write = (name: string, seed: number, value: number, commit: string) => {
      const path = join(directory, name, String(seed));
      const rows = [{ step: 0, values: { "eval/success": value, environment_steps: 1000 } }];
      writeRun(path, rows, {}, build(commit));
      writeOutcome(path);
    };
    write("nlac", 0, 0.5, "aaa");
    write("nlac", 1, 0.6, "aaa");
    write("nlac", 2, 1, "bbb");
    for (const seed of seeds) write("grpo", seed, 0.1, "aaa");
    const report = reportOn(comparisonOf({ seeds }), directory);
    const [nlac, grpo] = report.methods;
    expect(report.build).toBe("nlac 0.1.0 at aaa, core c0ffee");
    expect([nlac!.counted, grpo!.counted]).toEqual([2, 3]);
    expect(nlac!.mean).toBeCloseTo(0.55, 12);
    expect(grpo!.difference!.means.estimate).toBeCloseTo(-0.45, 12);
    const told =
      "Runs of different builds are not pooled. Counted: runs by nlac 0.1.0 at aaa, core c0ffee. " +
      "Not counted: nlac, seed 2 (nlac 0.1.0 at bbb, core c0ffee).";
    expect(notes(report)).toEqual([told]);
    for (const shown of [renderMarkdown(report), renderPage(report)]) {
      expect(shown).toContain(told);
      expect(shown).toContain("Runs by nlac 0.1.0 at aaa, core c0ffee. Report by nlac ");
    }
    expect(runTable(report).rows.find((cells) => cells[0] === "nlac" && cells[1] === "2")![2]).toBe(
      "finished, other build",
    );
  }));

test("the build that counts is that of the runs that are over, however many others have begun", () =>
  inDirectory((directory) => {
    const begin = (name: string, seed: number, commit: string, steps: number) => {
      const path = join(directory, name, String(seed));
      const rows = [{ step: 0, values: { "eval/success": 0.5, environment_steps: steps } }];
      writeRun(path, rows, {}, [{ version: "0.1.0", commit, core: null }]);
      return path;
    };
    writeOutcome(begin("nlac", 0, "aaa", 1000));
    for (const seed of [0, 1, 2]) begin("grpo", seed, "bbb", 100);
    const { build, methods } = reportOn(comparisonOf(), directory);
    expect(build).toBe("nlac 0.1.0 at aaa");
    expect(methods.map(({ counted }) => counted)).toEqual([1, 0]);
  }));

test("curves are drawn by steps, by generated tokens and by gradient tokens", () =>
  inDirectory((directory) => {
    const comparison = comparisonOf({ notes: ["NLAC reads <more> than the others."] });
    writeRuns(comparison, directory);
    const report = reportOn(comparison, directory);
    const { curves } = report.methods[0]!;
    // 10 iterations: 800 tokens of actions, then 300 of the update; the first success is measured
    // after 800.
    const written = report.runs[0]!.curve.map(({ generatedTokens }) => generatedTokens);
    expect(written.slice(0, 3)).toEqual([800, 1900, 3000]);
    expect(curves.generatedTokens[0]!.at).toBe(800);
    expect(curves.generatedTokens.at(-1)).toMatchObject({ at: 10_700, ...report.methods[0]!.success });
    expect(curves.gradientTokens.at(-1)).toMatchObject({ at: 1800, ...report.methods[0]!.success });
    const page = renderPage(report);
    for (const [axis, name] of [
      ["steps", "environment steps"],
      ["generatedTokens", "generated tokens"],
      ["gradientTokens", "gradient tokens"],
    ] as const) {
      const svg = renderCurves(report, axis);
      expect(svg).toContain(`>${name}${axis === "steps" ? "" : " (logarithmic)"}<`);
      expect(page).toContain(`>${name}${axis === "steps" ? "" : " (logarithmic)"}<`);
      expect(svg).not.toMatch(/NaN|undefined|Infinity/);
      expect(faultOf(svg)).toBeUndefined();
      // Within the plot, and to its right: later is more.
      const line = /class="line s0" d="M([\d.]+) [\d.]+L.*?L([\d.]+) [\d.]+"/.exec(svg)!;
      expect(Number(line[1])).toBeGreaterThanOrEqual(64);
      expect(Number(line[2])).toBeLessThanOrEqual(716);
      expect(Number(line[2])).toBeGreaterThan(Number(line[1]) + 200);
    }
    expect(faultOf(page)).toBeUndefined();
    expect(renderMarkdown(report)).toContain("- NLAC reads <more> than the others.");
    expect(page).toContain("<li>NLAC reads &lt;more&gt; than the others.</li>");
    writeReport(report, directory, "generatedTokens");
    expect(readFileSync(join(directory, "curves.svg"), "utf8")).toContain("generated tokens (logarithmic)");
  }));

test("the marks of an axis are different whole numbers, also of few steps", () => {
  expect(ticks(1)).toEqual([0, 1]);
  expect(ticks(3)).toEqual([0, 1, 2, 3]);
  for (let most = 1; most < 3000; most = Math.ceil(most * 1.1)) {
    const marks = ticks(most);
    expect(marks.every(Number.isInteger), `${most}: ${marks}`).toBe(true);
    expect(new Set(marks).size).toBe(marks.length);
    expect(marks.length).toBeGreaterThan(Math.min(most, 2));
    expect(marks.length).toBeLessThan(9);
    expect(marks.at(-1)).toBeLessThanOrEqual(most);
  }
});

test("evaluations count where every run has them, and only there", () =>
  inDirectory((directory) => {
    const comparison = comparisonOf({ seeds: [0] });
    for (const [i, name] of ["nlac", "grpo"].entries()) {
      const path = join(directory, name, "0");
      writeRun(path, learningRows(0, 0.5, { seed: i, evaluated: true }));
      writeOutcome(path);
    }
    const report = reportOn(comparison, directory);
    expect(report.measure).toBe("evaluated");
    // Not smoothed, and of one run there is no interval.
    expect(report.runs[0]!.success).toBe(report.runs[0]!.curve.at(-1)!.value);
    expect(methodTable(report).rows[0]![2]).toMatch(/^0\.\d\d$/);
    const more = comparisonOf({ seeds: [0, 1] });
    writeRun(join(directory, "nlac", "1"), learningRows(0, 0.5, { seed: 5 }));
    expect(reportOn(more, directory).measure).toBe("collected");
  }));

test("the curves' names end within the image, however long they are", () =>
  inDirectory((directory) => {
    const name = "without-any-rehearsal-at-all";
    const comparison = comparisonOf({ methods: [{ name, recipe: "errands" }] });
    writeRuns(comparison, directory);
    const svg = renderCurves(reportOn(comparison, directory));
    const label = svg.split("\n").find((line) => line.includes(`>${name}<`))!;
    const start = Number(/x="([\d.]+)"/.exec(label)![1]);
    const letters = label.replace(/<[^>]*>/g, "").length;
    // A bold letter of 13 px is about 8 px wide.
    expect(letters).toBeGreaterThan(name.length);
    expect(start + 8 * letters).toBeLessThan(Number(/width="(\d+)"/.exec(svg)![1]));
  }));

test("a run that failed, ended short or is not over is shown as such", () =>
  inDirectory((directory) => {
    const comparison = comparisonOf({ seeds: [0, 1, 2, 3] });
    const failed = { state: "failed", reason: "ERR_NOT_FINITE: ten steps" } as const;
    const write = (name: string, iterations: number) =>
      writeRun(join(directory, name), learningRows(0, 0.9, { seed: 1, iterations }));
    write("nlac/0", 10);
    writeOutcome(join(directory, "nlac/0"));
    write("nlac/1", 5);
    writeOutcome(join(directory, "nlac/1"), failed);
    write("nlac/2", 8);
    writeOutcome(join(directory, "nlac/2"));
    write("nlac/3", 7);
    writeOutcome(join(directory, "nlac/3"), { state: "stopped" });
    write("grpo/0", 0);
    writeOutcome(join(directory, "grpo/0"), failed);
    const report = reportOn(comparison, directory);
    const [nlac, grpo] = report.methods;
    expect(nlac!.counted).toBe(3);
    const last = report.runs.slice(0, 4).map(({ curve }) => curve.at(-1)!.value);
    expect(report.runs.slice(0, 4).map(({ success }) => success)).toEqual([...last.slice(0, 3), null]);
    expect(grpo).toMatchObject({
      counted: 0,
      success: null,
      mean: null,
      improvement: null,
      difference: null,
    });
    expect(grpo!.curves).toEqual({ steps: [], generatedTokens: [], gradientTokens: [] });
    expect(runTable(report).rows.map((cells) => cells[2])).toEqual([
      ...["finished", "failed, short", "finished, short", "stopped", "failed, short"],
    ]);
    expect(notes(report)).toEqual([
      "nlac, seed 1 failed after 500 steps: ERR_NOT_FINITE: ten steps. Its last success counts from there on.",
      "grpo, seed 0 failed after 0 steps: ERR_NOT_FINITE: ten steps. It was never measured, and does not count.",
      "nlac, seed 2 ended after 800 steps: its last success counts from there on.",
      "Not finished, and therefore not counted: 1 stopped (nlac, seed 3), 3 waiting.",
    ]);
    for (const shown of [renderMarkdown(report), renderPage(report)])
      for (const note of notes(report)) expect(shown).toContain(note);
    expect(renderText(methodTable(report))).toMatch(/^grpo +0\/4 +– +–/m);
  }));

test("a finished run that was not measured in time is named", () =>
  inDirectory((directory) => {
    const comparison = comparisonOf({ seeds: [0, 1, 2], environmentSteps: 50 });
    for (const [seed, iterations] of [
      [0, 1],
      [1, 0],
    ]) {
      // The first collection takes 100 steps.
      writeRun(join(directory, `nlac/${seed}`), learningRows(0, 0.9, { seed: 1, iterations }));
      writeOutcome(join(directory, `nlac/${seed}`));
    }
    const report = reportOn(comparison, directory);
    expect(report.methods[0]!.counted).toBe(0);
    expect(notes(report)).toEqual([
      "nlac, seed 0 ended after 100 steps, and was first measured there: it does not count.",
      "nlac, seed 1 ended after 0 steps. It was never measured, and does not count.",
      "Not finished, and therefore not counted: 4 waiting.",
    ]);
  }));

test("nothing has begun: there are tables and axes, and no curve", () =>
  inDirectory((directory) => {
    const report = reportOn(comparisonOf(), directory);
    expect(report.methods.every(({ counted }) => counted === 0)).toBe(true);
    const page = renderPage(report);
    expect(page).not.toMatch(/NaN|undefined|Infinity/);
    expect(faultOf(page)).toBeUndefined();
  }));

test("the written files are well formed and contain the report", () =>
  inDirectory(async (directory) => {
    const comparison = comparisonOf({
      name: `a <b> & "c"`,
      description: "1 < 2 & so on",
      methods: Array.from({ length: 9 }, (_, i) => ({ name: `method-${i}`, recipe: "errands" })),
    });
    writeRuns(comparison, directory);
    const report = reportOn(comparison, directory);
    writeReport(report, directory);
    const read = (name: string) => readFileSync(join(directory, name), "utf8");
    expect(JSON.parse(read("comparison.json"))).toEqual(report);
    for (const image of [read("curves.svg"), read("index.html")]) {
      expect(faultOf(image)).toBeUndefined();
      expect(image).not.toMatch(/NaN|undefined|Infinity/);
      expect(image).toContain("prefers-color-scheme: dark");
      expect(image).toContain('a &lt;b&gt; &amp; "c"');
    }
    const curves = read("curves.svg");
    expect(curves.match(/class="line /g)).toHaveLength(9);
    expect(curves.match(/class="seed /g)).toHaveLength(27);
    expect(curves.match(/class="band /g)).toHaveLength(9);
    expect(curves).toContain("environment steps");
    // More methods than colours: the others are dotted.
    expect(curves.match(/class="line [^>]*stroke-dasharray/g)).toHaveLength(2);
    expect(read("index.html")).not.toMatch(/<script|(src|href)=/);
    for (const { name } of comparison.methods) expect(read("table.md")).toContain(`| ${name} | 3/3 |`);
  }));

test("variants of a method have its colour, and lines of their own", () => {
  const names = ["a", "a-slow", "b", "c", "b-slow", "a-fast", "d", "e", "f", "g", "h", "a-slow-long", "ab"];
  const styles = new Map(lineStyles(names).map((style, i) => [names[i]!, style]));
  const look = ({ colour, dashes }: { colour: number; dashes: string }) => `${colour}: ${dashes}`;
  expect(new Set([...styles.values()].map(look)).size).toBe(names.length);
  for (const name of ["a-slow", "a-fast", "a-slow-long"])
    expect(styles.get(name)).toMatchObject({ colour: styles.get("a")!.colour, isVariant: true });
  expect(styles.get("b-slow")).toMatchObject({ colour: styles.get("b")!.colour, isVariant: true });
  // As many families as colours have a solid line in a colour of their own; "ab" is no variant of "a".
  const solid = ["a", "b", "c", "d", "e", "f", "g"].map((name) => styles.get(name)!);
  expect(solid.map(({ colour }) => colour)).toEqual(colours.light.map((_, i) => i));
  for (const style of solid) expect(style).toMatchObject({ dashes: "", isVariant: false });
  for (const name of ["h", "ab"]) expect(styles.get(name)!.isVariant).toBe(false);
});

test("labels keep their order and do not overlap", () => {
  const heights = [300, 301, 120, 299];
  const moved = spread(heights);
  const sorted = moved.toSorted((a, b) => a - b);
  expect(moved[2]).toBe(120);
  expect([moved[3]!, moved[0]!, moved[1]!]).toEqual(sorted.slice(1));
  for (const [i, height] of sorted.entries())
    if (i > 0) expect(height - sorted[i - 1]!).toBeGreaterThanOrEqual(22);
  // At the lower edge they give way upwards.
  expect(Math.max(...spread([468, 468, 467]))).toBe(468);
});

test("a table that is too wide continues below, with the names of the methods", () => {
  const table = {
    headings: ["method", "success", "tokens", "time"],
    rows: [
      ["nlac", "0.71 [0.64, 0.77]", "553,884", "6m50s"],
      ["grpo", "0.31 [0.20, 0.40]", "1,553,884", "12m00s"],
    ],
  };
  expect(renderText(table).split("\n")).toHaveLength(3);
  const lines = renderText(table, 40).split("\n");
  expect(Math.max(...lines.map(({ length }) => length))).toBeLessThanOrEqual(40);
  expect(lines).toEqual([
    "method            success     tokens",
    "nlac    0.71 [0.64, 0.77]    553,884",
    "grpo    0.31 [0.20, 0.40]  1,553,884",
    "",
    "method    time",
    "nlac     6m50s",
    "grpo    12m00s",
  ]);
  // A column that does not fit at all stands beside the names nevertheless.
  expect(renderText(table, 10).match(/^method/gm)).toHaveLength(3);
});

test("a chart of a partial comparison says how many seeds its lines are means of", () =>
  inDirectory((directory) => {
    const comparison = comparisonOf({ seeds: [0, 1, 2, 3, 4] });
    const text = (finished: number) => {
      const root = join(directory, String(finished));
      writeRuns({ ...comparison, seeds: comparison.seeds.slice(0, finished) }, root);
      return /Lines: interquartile mean of (.*?)\. Bands/.exec(renderCurves(reportOn(comparison, root)))![1];
    };
    expect(text(1)).toBe("1 of 5 seeds");
    expect(text(5)).toBe("5 seeds");
  }));

/** OKLab of a colour as seen with `vision`, a matrix on linear RGB (Machado et al., 2009). */
function seen(colour: string, vision: readonly (readonly number[])[]): number[] {
  const linear = [1, 3, 5].map((i) => {
    const share = Number.parseInt(colour.slice(i, i + 2), 16) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  const times = (matrix: readonly (readonly number[])[], vector: readonly number[]) =>
    matrix.map((row) => row.reduce((sum, value, i) => sum + value * vector[i]!, 0));
  const cones = times(
    [
      [0.4122214708, 0.5363325363, 0.0514459929],
      [0.2119034982, 0.6806995451, 0.1073969566],
      [0.0883024619, 0.2817188376, 0.6299787005],
    ],
    times(vision, linear).map((value) => Math.max(0, value)),
  ).map(Math.cbrt);
  return times(
    [
      [0.2104542553, 0.793617785, -0.0040720468],
      [1.9779984951, -2.428592205, 0.4505937099],
      [0.0259040371, 0.7827717662, -0.808675766],
    ],
    cones,
  );
}

test.each([
  [
    "light",
    "full",
    [
      [1, 0, 0],
      [0, 1, 0],
      [0, 0, 1],
    ],
    0.15,
  ],
  [
    "dark",
    "full",
    [
      [1, 0, 0],
      [0, 1, 0],
      [0, 0, 1],
    ],
    0.15,
  ],
  [
    "light",
    "no red cones",
    [
      [0.152286, 1.052583, -0.204868],
      [0.114503, 0.786281, 0.099216],
      [-0.003882, -0.048116, 1.051998],
    ],
    0.1,
  ],
  [
    "dark",
    "no red cones",
    [
      [0.152286, 1.052583, -0.204868],
      [0.114503, 0.786281, 0.099216],
      [-0.003882, -0.048116, 1.051998],
    ],
    0.1,
  ],
  [
    "light",
    "no green cones",
    [
      [0.367322, 0.860646, -0.227968],
      [0.280085, 0.672501, 0.047413],
      [-0.01182, 0.04294, 0.968881],
    ],
    0.1,
  ],
  [
    "dark",
    "no green cones",
    [
      [0.367322, 0.860646, -0.227968],
      [0.280085, 0.672501, 0.047413],
      [-0.01182, 0.04294, 0.968881],
    ],
    0.1,
  ],
] as const)("no two lines have similar colours: %s theme, %s", (theme, _, vision, least) => {
  const places = colours[theme].map((colour) => seen(colour, vision));
  const distances = places.flatMap((a, i) =>
    places.slice(i + 1).map((b) => Math.hypot(...a.map((value, j) => value - b[j]!))),
  );
  expect(Math.min(...distances)).toBeGreaterThan(least);
});

test("the range of tokens is found over any number of measurements", () => {
  const points = (count: number) =>
    Array.from({ length: count }, (_, i) => ({ steps: i, generatedTokens: i, gradientTokens: 0, value: 0 }));
  const runs = [{ curve: points(200_000) }, { curve: points(10) }] as RunReport[];
  expect(rangeOf(runs, "generatedTokens")).toEqual([1, 199_999]);
  expect(rangeOf(runs, "gradientTokens")).toBeUndefined();
});
