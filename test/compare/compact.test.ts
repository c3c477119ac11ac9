import { readFileSync, statSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { compactRuns } from "../../lib/compare/compact.ts";
import { parseComparison } from "../../lib/compare/comparison.ts";
import { makeReport } from "../../lib/compare/report.ts";
import { readFigures } from "../../lib/compare/run-figures.ts";
import { findRuns } from "../../lib/compare/schedule.ts";
import { comparisonOf, type Row, writeOutcome, writeRun } from "../support/comparison.ts";
import { inDirectory } from "../support/tiny.ts";

const played = (step: number, steps: number, success: number) => ({
  step,
  values: { "rollout/success": success, "rollout/tokens": 70, environment_steps: steps },
});
const update = (step: number) => ({
  step,
  values: { "loss/l1": 0.5, "tokens/l1": 10, "tokens/generated": 40 + step, "tokens/gradient": 7 },
});

test("a copy has the figures of the run at every budget, and is smaller", () =>
  inDirectory((directory) => {
    const comparison = comparisonOf({ seeds: [0, 1] });
    const method = comparison.methods[0]!.name;
    const from = join(directory, "runs");
    const path = join(from, method, "0");
    const rows: Row[] = [{ step: 0, values: { "eval/success": 0 } }, played(0, 100, 0.25)];
    for (let step = 1; step <= 60; step++) {
      rows.push(update(step));
      if (step % 20 === 10) rows.push({ step, values: { "eval/success": step / 100 } });
      if (step % 20 === 0) rows.push(played(step, 100 + 5 * step, step / 100));
    }
    rows.push(update(61));
    writeRun(path, rows);
    writeOutcome(path);
    // Not finished.
    writeRun(join(from, method, "1"), rows);
    writeOutcome(join(from, method, "1"), { state: "stopped" });

    const planned = comparison.seeds.map((seed) => ({ method, seed }));
    const to = join(directory, "copy");
    expect(compactRuns(comparison, findRuns(planned, from), to)).toEqual({ copied: 1, faults: [] });
    expect(findRuns(planned, to).map(({ state }) => state)).toEqual(["finished", "waiting"]);
    const copy = join(to, method, "0");
    const figures = readFigures(path, 1e6);
    expect(figures).toMatchObject({ updates: 61, gradientTokens: 61 * 7, environmentSteps: 400 });
    for (const budget of [1, 100, 150, 200, 300, 1e6])
      expect(readFigures(copy, budget)).toEqual(readFigures(path, budget));
    const size = (run: string) => statSync(join(run, "metrics.jsonl")).size;
    expect(size(copy)).toBeLessThan(size(path) / 2);
    const { comparison: kept } = JSON.parse(readFileSync(join(to, "comparison.json"), "utf8"));
    expect(parseComparison(kept, to)).toEqual(comparison);
    expect(() => compactRuns(comparison, [], to)).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
  }));

test("failed runs are copied, so that the copy's report is not better than the original's", () =>
  inDirectory((directory) => {
    const comparison = comparisonOf({ seeds: [0, 1, 2] });
    const method = comparison.methods[0]!.name;
    const from = join(directory, "runs");
    const measured = (success: number): Row => ({
      step: 1,
      values: { "eval/success": success, environment_steps: 500 },
    });
    writeRun(join(from, method, "0"), [measured(0.9)]);
    writeOutcome(join(from, method, "0"));
    // It was killed while it wrote a row.
    const failed = join(from, method, "1");
    writeRun(failed, [measured(0.1), measured(0.2)]);
    writeOutcome(failed, { state: "failed", reason: "out of memory" });
    truncateSync(join(failed, "metrics.jsonl"), statSync(join(failed, "metrics.jsonl")).size - 5);
    // It failed before it wrote any file.
    writeOutcome(join(from, method, "2"), { state: "failed", reason: "no such model" });

    const planned = comparison.seeds.map((seed) => ({ method, seed }));
    const to = join(directory, "copy");
    expect(compactRuns(comparison, findRuns(planned, from), to)).toEqual({ copied: 3, faults: [] });
    const figures = (path: string) => {
      const { methods, runs } = makeReport(comparison, findRuns(planned, path));
      return { method: methods[0], runs };
    };
    expect(figures(to)).toEqual(figures(from));
    expect(figures(to).method).toMatchObject({ counted: 2, mean: 0.5 });
    expect(figures(to).runs[2]).toMatchObject({ state: "failed", reason: "no such model", success: null });
  }));

test("runs whose costs were not recorded as totals are left out and named", () =>
  inDirectory((directory) => {
    const comparison = comparisonOf({ seeds: [0] });
    const method = comparison.methods[0]!.name;
    const older: Row["values"][] = [{ "tokens/l1": 10 }, { "rollout/action_tokens": 5 }];
    for (const [i, values] of older.entries()) {
      const from = join(directory, `runs-${i}`);
      const path = join(from, method, "0");
      writeRun(path, [{ step: 1, values }]);
      writeOutcome(path);
      const runs = findRuns([{ method, seed: 0 }], from);
      const { copied, faults } = compactRuns(comparison, runs, join(directory, `copy-${i}`));
      expect([copied, faults]).toEqual([0, [expect.stringContaining("metrics.jsonl has no totals")]]);
    }
  }));
