/** Interquartile means over runs that differ in their seeds only. */

import { useMemo } from "preact/hooks";
import { type Axis, axes, type Comparison } from "../types.ts";
import { isExported, runs, useAnswer, versions } from "./api.ts";
import { Chart, colourOf, isDashed, type Line } from "./chart.tsx";
import { share } from "./format.ts";
import { axisNames } from "./metrics.tsx";
import { Note } from "./parts.tsx";
import { go, linkOf, state, useKeys } from "./state.ts";

const metrics = { "eval/success": "held-out success", "rollout/success": "success while collecting" };

export function Compare() {
  const measured = (runs.value ?? []).some(({ successMetric }) => successMetric === "eval/success");
  const { metric = measured ? "eval/success" : "rollout/success", axis = "steps" } = state.value;
  const version = isExported ? "" : JSON.stringify(versions.value);
  const { data, error } = useAnswer<Comparison>("compare", { metric, axis }, version);
  useKeys();
  const groups = (data?.groups ?? []).filter(({ x }) => x.length > 0);
  const lines = useMemo(
    () =>
      groups.map(({ name, x, mean, low, high }, colour): Line => ({ name, colour, x, y: mean, low, high })),
    [data],
  );
  if (error !== undefined) return <Note>{error}</Note>;
  return (
    <>
      <div class="controls">
        <label>
          metric{" "}
          <select value={metric} onChange={(event) => go({ metric: event.currentTarget.value })}>
            {Object.entries(metrics).map(([name, title]) => (
              <option key={name} value={name}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <label>
          over{" "}
          <select value={axis} onChange={(event) => go({ axis: event.currentTarget.value })}>
            {axes.map((name) => (
              <option key={name} value={name}>
                {axisNames[name as Axis]}
              </option>
            ))}
          </select>
        </label>
      </div>
      {data !== undefined && groups.length === 0 && <Note>No run has measured this.</Note>}
      {groups.length > 0 && (
        <>
          <Chart lines={lines} over={axisNames[axis as Axis]} height={320} />
          <p class="note">
            Interquartile mean of the runs of a group, with its 95 % bootstrap interval. A curve ends where
            the first of its runs does. Runs that differ in their seeds only are one group; the longest run of
            a seed counts.
          </p>
          <div class="wide">
            <table>
              <thead>
                <tr>
                  <th>group</th>
                  <th>last</th>
                  <th>95 % interval</th>
                  <th class="left">runs, with their transcripts</th>
                </tr>
              </thead>
              <tbody>
                {groups.map(({ name, mean, low, high, runs: members }, i) => (
                  <tr key={name}>
                    <td>
                      <i class={isDashed(i) ? "dashed" : ""} style={{ background: colourOf(i) }} /> {name}
                    </td>
                    <td>{share(mean.at(-1) ?? null)}</td>
                    <td>
                      {members.length > 1
                        ? `${share(low.at(-1) ?? null)} to ${share(high.at(-1) ?? null)}`
                        : "one run"}
                    </td>
                    <td class="left">
                      {members.map((id) => (
                        <a key={id} href={linkOf({ view: "episodes", run: id })}>
                          {id}
                        </a>
                      ))}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </>
  );
}
