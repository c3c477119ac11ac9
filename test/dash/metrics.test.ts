import { describe, expect, it } from "vitest";
import { uniform } from "../../lib/base/random.ts";
import { compareCurves, curveOf, metricsOf, placesOf, thinned } from "../../lib/dash/metrics.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";

const rows: MetricsRow[] = [
  { step: 0, time: 100, values: { environment_steps: 8, "rollout/tokens": 50 } },
  { step: 1, time: 103, values: { "loss/l1": 2, "tokens/generated": 10 } },
  { step: 2, time: 104, values: { "loss/l1": 1, "tokens/generated": 20 } },
  { step: 2, time: 110, values: { environment_steps: 16, "rollout/tokens": 5 } },
];

describe("placesOf", () => {
  it("places every row on all axes; steps and tokens are totals so far", () => {
    expect(placesOf(rows).x).toEqual({
      updates: [0, 1, 2, 2],
      steps: [8, 8, 8, 16],
      tokens: [50, 60, 80, 85],
      seconds: [0, 3, 4, 10],
    });
  });
});

describe("placesOf, after the clock was set back", () => {
  it("keeps the order of the rows", () => {
    const jumped = rows.map((row, i) => (i < 2 ? row : { ...row, time: row.time - 86_400 }));
    expect(placesOf(jumped).x.seconds).toEqual([0, 3, 3, 9]);
  });
});

describe("curveOf", () => {
  it("has the rows that have the metric", () => {
    const { x, y } = curveOf(placesOf(rows), "loss/l1");
    expect([x.updates, x.tokens, y]).toEqual([
      [1, 2],
      [60, 80],
      [2, 1],
    ]);
    expect(curveOf(placesOf(rows), "nothing").y).toEqual([]);
  });
});

describe("metricsOf", () => {
  it("averages long series, and says over how many rows", () => {
    const many = Array.from({ length: 2500 }, (_, i) => ({
      step: i,
      time: i,
      values: { a: i, ...(i % 2 ? {} : { b: 1 }) },
    }));
    const { series, bucket } = metricsOf(many);
    expect(bucket).toBe(3);
    expect(series.a!.y).toHaveLength(834);
    expect(series.a!.y.slice(0, 2)).toEqual([1, 4]);
    expect(series.a!.x.updates.slice(0, 2)).toEqual([2, 5]);
    expect(series.a!.y.at(-1)).toBe(2499);
    expect(series.b!.y.every((value) => value === 1)).toBe(true);
  });

  it("has the curve of each metric, as thinned alone", () => {
    const names = ["a", "b", "c", "environment_steps", "tokens/generated"];
    const sparse = Array.from({ length: 4321 }, (_, i): MetricsRow => {
      const given = names.filter((_, k) => uniform(1, k, i) < 0.9 - 0.15 * k);
      const value = (k: number) =>
        uniform(2, k, i) < 0.05 ? null : Math.floor(1e9 * uniform(3, k, i)) / 1e6;
      return {
        step: i >> 1,
        time: 3 * i,
        values: Object.fromEntries(given.map((name, k) => [name, value(k)])),
      };
    });
    sparse[7]!.values.never = null;
    const { series, bucket } = metricsOf(sparse);
    expect(Object.keys(series)).toEqual([...names, "never"].sort());
    const curves = [...names, "never"].map((name) => [name, curveOf(placesOf(sparse), name)] as const);
    for (const [name, curve] of curves)
      expect(series[name]).toEqual(thinned(curve, Math.ceil(curve.y.length / 1000)));
    expect(bucket).toBe(Math.max(...curves.map(([, { y }]) => Math.ceil(y.length / 1000))));
  });

  it("gives six digits", () => {
    expect(thinned({ x: { updates: [0], steps: [0], tokens: [0], seconds: [0] }, y: [1 / 3] }, 1).y).toEqual([
      0.333333,
    ]);
  });
});

describe("compareCurves", () => {
  const run = (id: string, updates: number[], y: number[]) => ({
    id,
    curve: { x: { updates, steps: updates, tokens: updates, seconds: updates }, y },
  });

  it("interpolates the runs of a group, where all of them have values", () => {
    const runs = [run("a", [0, 10], [0, 1]), run("b", [2, 12], [0, 1]), run("c", [], [])];
    const [group] = compareCurves([{ name: "g", runs }], "updates").groups;
    expect(group!.runs).toEqual(["a", "b"]);
    expect([group!.x[0], group!.x.at(-1)]).toEqual([2, 10]);
    expect(group!.mean[0]).toBeCloseTo((0.2 + 0) / 2, 5);
    expect(group!.mean.at(-1)).toBeCloseTo((1 + 0.8) / 2, 5);
    for (const [i, mean] of group!.mean.entries()) {
      expect(group!.low[i]).toBeLessThanOrEqual(mean);
      expect(group!.high[i]).toBeGreaterThanOrEqual(mean);
    }
  });

  it("has the last of several values at a place, as of a run on recorded episodes at 0 steps", () => {
    const offline = [0.1, 0.4, 0.7].map((success, step) => ({
      ...{ step, time: step, values: { "eval/success": success } },
    }));
    const curve = curveOf(placesOf(offline), "eval/success");
    const [group] = compareCurves([{ name: "sft", runs: [{ id: "a", curve }] }], "steps").groups;
    expect([group!.x, group!.mean]).toEqual([[0], [0.7]]);
  });

  it("gives an empty curve for a group without values", () => {
    expect(compareCurves([{ name: "g", runs: [run("c", [], [])] }], "steps").groups).toEqual([
      { name: "g", runs: [], x: [], mean: [], low: [], high: [] },
    ]);
  });
});
