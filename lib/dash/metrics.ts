/** Metrics as curves over updates, environment steps, generated tokens or time. */

import { getOrAdd } from "../base/get-or-add.ts";
import type { MetricsRow } from "../run/metrics.ts";
import { interquartileMean } from "../statistics/few-runs.ts";
import { bootstrap } from "../statistics/resampling.ts";
import type { Axis, Comparison, Curve, Metrics } from "./types.ts";

/** Most points of a curve: more than a panel has pixels. */
const maxPoints = 1000;
/** Positions at which runs are compared. */
const gridPoints = 60;
/**
 * Bootstrap samples of a comparison: few, because they are drawn again after every change of a run.
 */
const draws = 400;

interface Places {
  rows: readonly MetricsRow[];
  x: Record<Axis, number[]>;
}

/** The position of every row on every axis. */
export function placesOf(rows: readonly MetricsRow[]): Places {
  const x: Places["x"] = { updates: [], steps: [], tokens: [], seconds: [] };
  let steps = 0;
  let tokens = 0;
  let seconds = 0;
  let last = rows[0]?.time ?? 0;
  for (const { step, time, values } of rows) {
    steps = values.environment_steps ?? steps;
    tokens += (values["tokens/generated"] ?? 0) + (values["rollout/tokens"] ?? 0);
    x.updates.push(step);
    x.steps.push(steps);
    x.tokens.push(tokens);
    seconds += Math.max(0, time - last); // a clock that is set back must not reverse the axis
    last = time;
    x.seconds.push(seconds);
  }
  return { rows, x };
}

/** All metrics. Points of long series are means of consecutive rows, placed at the last of them. */
export function metricsOf(rows: readonly MetricsRow[]): Metrics {
  const { x } = placesOf(rows);
  // One pass over the rows, and positions only of the points that are shown: runs may have a million.
  const columns = new Map<string, { rows: number[]; y: number[] }>();
  for (let i = 0; i < rows.length; i++) {
    const { values } = rows[i]!;
    for (const name of Object.keys(values)) {
      const column = getOrAdd(columns, name, () => ({ rows: [], y: [] }));
      const value = values[name];
      if (typeof value !== "number") continue;
      column.rows.push(i);
      column.y.push(value);
    }
  }
  const series: Metrics["series"] = {};
  let bucket = 1;
  for (const name of [...columns.keys()].sort()) {
    const column = columns.get(name)!;
    const size = Math.max(1, Math.ceil(column.y.length / maxPoints));
    bucket = Math.max(bucket, size);
    const { ends, y } = means(column.y, size);
    series[name] = { x: positions((axis) => ends.map((end) => x[axis][column.rows[end]!]!)), y };
  }
  return { series, bucket };
}

export function curveOf({ rows, x }: Places, name: string): Curve {
  const curve: Curve = { x: { updates: [], steps: [], tokens: [], seconds: [] }, y: [] };
  for (const [i, { values }] of rows.entries()) {
    const value = values[name];
    if (typeof value !== "number") continue;
    curve.y.push(value);
    for (const axis of Object.keys(curve.x) as Axis[]) curve.x[axis].push(x[axis][i]!);
  }
  return curve;
}

export function thinned(curve: Curve, size: number): Curve {
  if (size <= 1) return { x: curve.x, y: curve.y.map(short) };
  const { ends, y } = means(curve.y, size);
  return { x: positions((axis) => ends.map((i) => curve.x[axis][i]!)), y };
}

function positions(at: (axis: Axis) => number[]): Curve["x"] {
  return { updates: at("updates"), steps: at("steps"), tokens: at("tokens"), seconds: at("seconds") };
}

/** Means of `size` consecutive values each, and the index of the last of them. */
function means(values: readonly number[], size: number): { ends: number[]; y: number[] } {
  const [ends, y]: [number[], number[]] = [[], []];
  for (let start = 0; start < values.length; start += size) {
    const end = Math.min(start + size, values.length);
    let sum = 0;
    for (let i = start; i < end; i++) sum += values[i]!;
    y.push(short(sum / (end - start)));
    ends.push(end - 1);
  }
  return { ends, y };
}

/** Six digits. */
function short(value: number): number {
  return Number(value.toPrecision(6));
}

/**
 * Interquartile means over the runs of each group, with bootstrap intervals. A group's curve ends
 * where the first of its runs does.
 */
export function compareCurves(
  groups: readonly { name: string; runs: readonly { id: string; curve: Curve }[] }[],
  axis: Axis,
): Comparison {
  return {
    groups: groups.map(({ name, runs }) => {
      const begun = runs.filter(({ curve }) => curve.y.length > 0);
      const ids = begun.map(({ id }) => id);
      if (begun.length === 0) return { name, runs: ids, x: [], mean: [], low: [], high: [] };
      const start = Math.max(...begun.map(({ curve }) => curve.x[axis][0]!));
      const end = Math.min(...begun.map(({ curve }) => curve.x[axis].at(-1)!));
      const count = end > start ? gridPoints : 1;
      const x = Array.from({ length: count }, (_, i) =>
        count === 1 ? start : start + ((end - start) * i) / (count - 1),
      );
      const values = begun.map(({ curve }) => x.map((at) => valueAt(curve, axis, at)));
      const intervals = bootstrap(
        [values],
        ([drawn]) => x.map((_, i) => interquartileMean(drawn!.map((ofRun) => ofRun[i]!))),
        { draws },
      );
      return {
        ...{ name, runs: ids, x },
        mean: intervals.map(({ estimate }) => short(estimate)),
        low: intervals.map(({ low }) => short(low)),
        high: intervals.map(({ high }) => short(high)),
      };
    }),
  };
}

/**
 * Between two points, the value on the line from one to the other; of several points at a place, that
 * of the last.
 */
function valueAt({ x, y }: Curve, axis: Axis, at: number): number {
  const places = x[axis];
  const last = places.findLastIndex((place) => place <= at);
  if (last < 0) return y[0]!;
  if (places[last] === at || last === y.length - 1) return y[last]!;
  const [before, after] = [places[last]!, places[last + 1]!];
  return y[last]! + ((y[last + 1]! - y[last]!) * (at - before)) / (after - before);
}
