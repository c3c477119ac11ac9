/** Panels of all metrics, of one run or several, in step. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { type Axis, axes, type Curve, type Metrics, type RunSummary } from "../types.ts";
import { ask, beforeNext, runs, versions } from "./api.ts";
import { Chart, colourOf, type Line, type Zoom } from "./chart.tsx";
import { figure } from "./format.ts";
import { Note } from "./parts.tsx";
import { go, runId, state, useKeys } from "./state.ts";

export const axisNames: Record<Axis, string> = {
  updates: "updates",
  steps: "environment steps",
  tokens: "generated tokens",
  seconds: "seconds",
};

/** Groups of metrics that come first, in this order; the others follow by name. */
const firstGroups = ["eval", "rollout", "loss", "yes", "refinements", "parse", "entropy", "replay"];

/** Most runs in one panel: the number of colours. */
const maxRuns = 8;

export function MetricPanels() {
  const chosen = chosenRuns();
  const all = useMetrics(chosen);
  const { smooth = "0", filter = "", axis = "updates" } = state.value;
  const [cursor, setCursor] = useState<number | null>(null);
  const zoom = zoomOf(state.value.zoom);
  const pattern = useMemo(() => patternOf(filter), [filter]);
  useKeys();
  const shown = chosen.flatMap((id) => all[id] ?? []);
  const names = useMemo(() => {
    const found = new Set(shown.flatMap(({ series }) => Object.keys(series)));
    return [...found].filter((name) => pattern?.test(name) ?? true).sort(inOrder);
  }, [all, chosen.join("\n"), pattern]);
  const buckets = Math.max(1, ...shown.map(({ bucket }) => bucket));
  return (
    <>
      <div class="controls">
        <input
          type="search"
          placeholder="Filter: regular expression"
          aria-label="filter"
          value={filter}
          class={pattern === null ? "bad" : ""}
          onInput={(event) => go({ filter: event.currentTarget.value })}
        />
        <label>
          over{" "}
          <select value={axis} onChange={(event) => go({ axis: event.currentTarget.value, zoom: "" })}>
            {axes.map((name) => (
              <option key={name} value={name}>
                {axisNames[name]}
              </option>
            ))}
          </select>
        </label>
        <label>
          smoothing{" "}
          <input
            type="range"
            min="0"
            max="0.99"
            step="0.01"
            value={smooth}
            onInput={(event) =>
              go({ smooth: event.currentTarget.value === "0" ? "" : event.currentTarget.value })
            }
          />
        </label>
        {zoom && (
          <button type="button" onClick={() => setZoom(undefined)}>
            show all {axisNames[axis as Axis]}
          </button>
        )}
      </div>
      <Overlay chosen={chosen} />
      {buckets > 1 && <Note>Each point is the mean of up to {buckets} rows.</Note>}
      <div class="panels">
        {names.map((name) => (
          <Panel
            key={name}
            {...{ name, all, chosen, cursor, zoom }}
            axis={axis as Axis}
            smooth={Number(smooth)}
            onCursor={setCursor}
          />
        ))}
      </div>
      {names.length === 0 && (
        <Note>{filter === "" ? "There are no metrics yet." : "No metric matches."}</Note>
      )}
      {chosen.length > 1 && <Differences chosen={chosen} />}
    </>
  );
}

function Panel(props: {
  name: string;
  all: Record<string, Metrics>;
  chosen: readonly string[];
  axis: Axis;
  smooth: number;
  cursor: number | null;
  zoom: Zoom | undefined;
  onCursor: (x: number | null) => void;
}) {
  const { name, all, chosen, axis, smooth, cursor, zoom, onCursor } = props;
  const lines = useMemo(
    () =>
      chosen.flatMap((id, colour): Line[] => {
        const curve = all[id]?.series[name];
        return curve === undefined
          ? []
          : [{ name: id, colour, x: curve.x[axis], y: smoothed(curve, smooth) }];
      }),
    [chosen.join("\n"), all, axis, smooth, name],
  );
  const read = lines.map(({ x, y }) => valueNear(x, y, cursor ?? zoom?.[1] ?? null));
  return (
    <section class="panel">
      <h3>
        {name}
        <span>
          {read.map((value, i) => (
            <b key={lines[i]!.name} style={{ color: colourOf(lines[i]!.colour) }}>
              {figure(value)}
            </b>
          ))}
        </span>
      </h3>
      <Chart lines={lines} over={axisNames[axis]} group="metrics" {...{ onCursor, zoom }} onZoom={setZoom} />
    </section>
  );
}

/** The part of the x axis in the link, as in "10,250". */
function zoomOf(text = ""): Zoom | undefined {
  const [low = Number.NaN, high = Number.NaN] = text.split(",").map(Number);
  return low < high ? [low, high] : undefined;
}

function setZoom(zoom: Zoom | undefined): void {
  go({ zoom: zoom === undefined ? "" : zoom.join() });
}

/** The value at or before `at`; the last one without it. */
function valueNear(x: readonly number[], y: readonly (number | null)[], at: number | null): number | null {
  if (at === null) return y.at(-1) ?? null;
  let found = -1;
  for (let i = 0; i < x.length && x[i]! <= at; i++) found = i;
  return found < 0 ? null : y[found]!;
}

/** An exponential moving average, corrected for its start. */
function smoothed({ y }: Curve, weight: number): number[] {
  if (weight === 0) return y;
  let [sum, scale] = [0, 0];
  return y.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    scale = weight * scale + (1 - weight);
    return sum / scale;
  });
}

/** Null for an invalid expression. */
function patternOf(text: string): RegExp | undefined | null {
  try {
    return text === "" ? undefined : new RegExp(text, "i");
  } catch {
    return null;
  }
}

function inOrder(a: string, b: string): number {
  const rank = (name: string) => {
    const at = firstGroups.indexOf(name.split("/")[0]!);
    return at < 0 ? firstGroups.length : at;
  };
  // Of a group, success comes first.
  const isLess = (name: string) => Number(!name.endsWith("/success"));
  return rank(a) - rank(b) || isLess(a) - isLess(b) || (a < b ? -1 : 1);
}

/** Ids of the runs in the panels: the one in the link, and the added ones. */
function chosenRuns(): string[] {
  const known = new Set((runs.value ?? []).map(({ id }) => id));
  const over = (state.value.with ?? "").split("\n").filter((id) => known.has(id) && id !== runId.value);
  return [runId.value, ...over].slice(0, maxRuns);
}

function useMetrics(ids: readonly string[]): Record<string, Metrics> {
  const [all, setAll] = useState<Record<string, Metrics>>({});
  const key = ids.map((id) => `${id} ${versions.value[id]}`).join("\n");
  useEffect(() => {
    for (const id of ids)
      beforeNext(ask<Metrics>("metrics", { run: id })).then(
        (metrics) => setAll((before) => ({ ...before, [id]: metrics })),
        () => {},
      );
  }, [key]);
  return all;
}

function Overlay({ chosen }: { chosen: readonly string[] }) {
  const all = runs.value ?? [];
  const others = all.filter(({ id }) => !chosen.includes(id));
  const [first, ...over] = chosen;
  const setOver = (ids: readonly string[]) => go({ run: first!, with: ids.join("\n") });
  return (
    <div class="controls overlay">
      {chosen.map((id, i) => (
        <span key={id} class="legend">
          <i style={{ background: colourOf(i) }} />
          {i === 0 ? (
            <select aria-label="run" value={id} onChange={(event) => go({ run: event.currentTarget.value })}>
              {all.map((run) => (
                <option key={run.id} value={run.id}>
                  {run.id}
                </option>
              ))}
            </select>
          ) : (
            <>
              {id}
              <button
                type="button"
                aria-label={`remove ${id}`}
                onClick={() => setOver(over.filter((o) => o !== id))}
              >
                ×
              </button>
            </>
          )}
        </span>
      ))}
      {others.length > 0 && chosen.length < maxRuns && (
        <select
          aria-label="add a run"
          value=""
          onChange={(event) => setOver([...over, event.currentTarget.value])}
        >
          <option value="">add a run …</option>
          {others.map(({ id }: RunSummary) => (
            <option key={id} value={id}>
              {id}
            </option>
          ))}
        </select>
      )}
    </div>
  );
}

/** Fields in which the configurations of the chosen runs differ. */
function Differences({ chosen }: { chosen: readonly string[] }) {
  const [configs, setConfigs] = useState<Record<string, Record<string, string>>>({});
  useEffect(() => {
    for (const id of chosen)
      ask("config", { run: id }).then(
        (config) => setConfigs((before) => ({ ...before, [id]: flat(config) })),
        () => {},
      );
  }, [chosen.join("\n")]);
  const known = chosen.filter((id) => configs[id] !== undefined);
  const fields = [...new Set(known.flatMap((id) => Object.keys(configs[id]!)))].filter(
    (field) => field !== "description" && new Set(known.map((id) => configs[id]![field])).size > 1,
  );
  return (
    <section class="differences">
      <h2>Differences of the configurations</h2>
      {fields.length === 0 ? (
        <Note>There are none.</Note>
      ) : (
        <div class="wide">
          <table>
            <thead>
              <tr>
                <th>field</th>
                {known.map((id) => (
                  <th key={id}>
                    <i style={{ background: colourOf(chosen.indexOf(id)) }} /> {id}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {fields.sort().map((field) => (
                <tr key={field}>
                  <td>{field}</td>
                  {known.map((id) => (
                    <td key={id}>{configs[id]![field] ?? "–"}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

/** Paths of a configuration and their values. */
function flat(value: unknown, path = ""): Record<string, string> {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    return { [path]: JSON.stringify(value) };
  return Object.assign(
    {},
    ...Object.entries(value).map(([name, inner]) => flat(inner, path === "" ? name : `${path}.${name}`)),
  );
}
