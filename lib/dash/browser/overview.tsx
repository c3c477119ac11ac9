/** All runs: how far they are, how well they do, and what looks wrong. */

import type { Curve, RunSummary } from "../types.ts";
import { ago, counted, duration, figure, share } from "./format.ts";
import { go, inOrder, linkOf, runId, useKeys } from "./state.ts";

const stateNames: Record<RunSummary["state"], string> = {
  running: "running",
  finished: "finished",
  stopped: "stopped",
  failed: "failed",
  lost: "no sign of life",
  unknown: "state not recorded",
};

export function Overview() {
  const all = inOrder.value;
  useKeys({
    move: (by) => {
      const at = all.findIndex(({ id }) => id === runId.value);
      const next = all[at + by];
      if (next !== undefined) go({ run: next.id });
    },
  });
  return (
    <div class="cards">
      {all.map((run) => (
        <Card key={run.id} run={run} />
      ))}
    </div>
  );
}

function Card({ run }: { run: RunSummary }) {
  const { id, state, iteration, iterations, fraction, left, success, warnings, errors } = run;
  const facts = [run.algorithm, run.environment, run.model].filter(Boolean).join(" · ");
  const isRunning = state === "running";
  const to = (view: string) => linkOf({ view, run: id });
  return (
    <section class={`card ${id === runId.value ? "on" : ""}`}>
      <div class="top">
        <div class="name">
          <h2>
            <a href={to("metrics")}>{id}</a>
          </h2>
          <p class="faint">{facts}</p>
        </div>
        <span class={`state ${state}`}>{stateNames[state]}</span>
      </div>
      <div class="middle">
        <div>
          <div class="big">{share(success)}</div>
          <div class="faint">{run.successMetric === "eval/success" ? "held-out success" : "success"}</div>
        </div>
        <Spark curve={run.curve} />
      </div>
      {fraction !== null && (
        <div
          class="progress"
          role="progressbar"
          aria-valuenow={Math.round(fraction * 100)}
          aria-label="progress"
        >
          <div style={{ width: `${Math.min(100, fraction * 100)}%` }} />
        </div>
      )}
      <p class="facts">
        {iteration > 0 && (
          <span>
            iteration {figure(iteration)}
            {iterations !== null && ` of ${figure(iterations)}`}
          </span>
        )}
        {isRunning && run.total > 0 && (
          <span>
            {run.phase} {figure(run.done)} / {figure(run.total)}
          </span>
        )}
        {left !== null && <span>about {duration(left)} left</span>}
        <span>
          <a href={to("episodes")}>{counted(run.episodes, "episode")}</a>
        </span>
        <span>{counted(run.updates, "update")}</span>
        {run.samples > 0 && (
          <span>
            <a href={to("critiques")}>{counted(run.samples, "sample")}</a>
          </span>
        )}
        {!isRunning && <span>{ago(run.updated)}</span>}
      </p>
      {errors.map((error) => (
        <p key={error} class="warning bad">
          {error}
        </p>
      ))}
      {warnings.map(({ symptom, cause, advice }) => (
        <div key={symptom} class="warning">
          <b>{symptom}</b>
          <p>{cause}</p>
          <p class="faint">Try: {advice}</p>
        </div>
      ))}
    </section>
  );
}

/** Success so far, on a scale from 0 to 1 if it fits. */
function Spark({ curve: { y } }: { curve: Curve }) {
  if (y.length < 2) return null;
  const [width, height] = [160, 40];
  const [low, high] = [Math.min(0, ...y), Math.max(1, ...y)];
  const points = y.map((value, i) => {
    const x = (i / (y.length - 1)) * (width - 4) + 2;
    return `${x.toFixed(1)},${((1 - (value - low) / (high - low)) * (height - 6) + 3).toFixed(1)}`;
  });
  return (
    <svg class="spark" viewBox={`0 0 ${width} ${height}`} width={width} height={height} aria-hidden="true">
      <line x1="0" y1={height - 3} x2={width} y2={height - 3} />
      <polyline points={points.join(" ")} />
      <circle cx={points.at(-1)!.split(",")[0]} cy={points.at(-1)!.split(",")[1]} r="2.5" />
    </svg>
  );
}
