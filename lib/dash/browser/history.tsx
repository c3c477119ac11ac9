/** Every draw of one transition: how its L1 and its verdicts changed. */

import { useMemo } from "preact/hooks";
import type { Draw } from "../types.ts";
import { useAnswer, versions } from "./api.ts";
import { Chart } from "./chart.tsx";
import { counted, figure } from "./format.ts";
import { Note } from "./parts.tsx";
import { change, go, runId, state, useKeys } from "./state.ts";

export function History() {
  const run = runId.value;
  const { episode = "0", turn = "0" } = state.value;
  const { data, error } = useAnswer<Draw[]>("history", { run, episode, turn }, versions.value[run]);
  useKeys({
    move: (by) => go({ turn: String(Math.max(0, Number(turn) + by)) }),
    shift: (by) => go({ episode: String(Math.max(0, Number(episode) + by)), turn: "0" }),
  });
  const lines = useMemo(
    () => [
      {
        ...{ name: "L1", colour: 1 },
        x: (data ?? []).map(({ update }) => update + 1),
        y: (data ?? []).map(({ l1 }) => l1),
      },
    ],
    [data],
  );
  if (error !== undefined) return <Note>{error}</Note>;
  if (data === undefined) return <Note>Reading the draws …</Note>;
  return (
    <div class="page">
      <h2>
        Episode {episode}, turn {Number(turn) + 1}: {counted(data.length, "draw")}
      </h2>
      <p class="links">
        <a href={change({ view: "episodes", n: episode, episode: "", turn: "" })}>transcript</a>
      </p>
      {data.length > 1 && (
        <section class="panel">
          <h3>L1 by update</h3>
          <Chart lines={lines} over="updates" height={180} />
        </section>
      )}
      {data.length === 0 ? (
        <Note>No update has drawn this transition yet, or the run is of an earlier version.</Note>
      ) : (
        <div class="wide">
          <table>
            <thead>
              <tr>
                <th>update</th>
                <th>L1</th>
                <th>P(i)</th>
                <th>age in episodes</th>
                <th>target</th>
                <th>critique</th>
                <th>refinement</th>
                <th />
              </tr>
            </thead>
            <tbody>
              {data.map((draw, i) => (
                <tr key={i}>
                  <td>{figure(draw.update + 1)}</td>
                  <td>{figure(draw.l1)}</td>
                  <td>{figure(draw.probability)}</td>
                  <td>{figure(draw.age)}</td>
                  <td>{draw.target}</td>
                  <td>{draw.critique}</td>
                  <td>{draw.refinement}</td>
                  <td>
                    {draw.sample !== null && (
                      <a href={change({ view: "critiques", n: String(draw.sample), episode: "", turn: "" })}>
                        the sample
                      </a>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}
