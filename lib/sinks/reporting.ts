/** Opens the sinks of a recipe, and sends them what a run records. */

import { counted } from "../base/counted.ts";
import { isAborted, messageOf, NlacError } from "../base/errors.ts";
import { loadModule } from "../base/load-module.ts";
import { overlay } from "../base/overlay.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { TrainingResult, TrainingRun } from "../run/training-run.ts";
import { CollapseDetector } from "./collapse.ts";
import type { SinkConfig } from "./config.ts";
import { mlflowSink } from "./mlflow.ts";
import { otlpSink } from "./otlp.ts";
import { type QueueLimits, type ReportedRun, type RunEvent, type Sink, SinkQueue } from "./sink.ts";
import { trackioSink } from "./trackio.ts";
import { wandbSink } from "./wandb.ts";
import { webhookSink } from "./webhook.ts";

/**
 * The sinks of `report`. Nothing is sent yet.
 * @throws NlacError ERR_CONFIG for a missing environment variable, or a module that is not a sink
 */
export async function openSinks(report: readonly SinkConfig[]): Promise<Sink[]> {
  return Promise.all(
    report.map(async (config) => {
      switch (config.to) {
        case "mlflow":
          return mlflowSink(config);
        case "wandb":
          return wandbSink(config);
        case "trackio":
          return trackioSink(config);
        case "otlp":
          return otlpSink(config);
        case "webhook":
          return webhookSink(config);
        case "module":
          return sinkOf(await loadModule(config.path), config.path);
      }
    }),
  );
}

const methods = ["start", "metrics", "episodes", "event"] as const;

function sinkOf(exported: unknown, path: string): Sink {
  if (typeof exported === "function")
    return {
      name: path,
      async metrics(rows) {
        for (const row of rows) await exported(row);
      },
    };
  const sink = exported as Partial<Sink> | null;
  const given = methods.filter((method) => sink?.[method] !== undefined);
  if (
    typeof sink !== "object" ||
    sink === null ||
    given.length === 0 ||
    given.some((method) => typeof sink[method] !== "function")
  )
    throw new NlacError(
      "ERR_CONFIG",
      `${path} must export a function of a row of metrics, or an object with some of: ${methods.join(", ")}.`,
    );
  return { ...bound(sink as Sink), name: sink.name ?? path };
}

/** The methods of `sink`, which may be an instance of a class. */
function bound(sink: Sink): Sink {
  const all = [...methods, "prepare"] as const;
  const own = all.flatMap((method) => {
    const found = sink[method] as ((...given: never[]) => unknown) | undefined;
    return found === undefined ? [] : [[method, found.bind(sink)] as const];
  });
  return { name: sink.name, ...Object.fromEntries(own) };
}

/** The sinks of one run. */
export class Reporting {
  readonly #queues: readonly SinkQueue[];
  readonly #collapse = new CollapseDetector();
  #rowCount = 0;

  constructor(sinks: readonly Sink[], run: ReportedRun, limits: Partial<QueueLimits> = {}) {
    this.#queues = sinks.map((sink) => new SinkQueue(sink, run, limits));
  }

  /** `run`, whose rows and episodes are sent too, after they were recorded. */
  of(run: TrainingRun): TrainingRun {
    if (this.#queues.length === 0) return run;
    return overlay(run, {
      metrics: (step: number, values: Record<string, number>) => {
        run.metrics(step, values);
        this.row(step, values, run.rowCount);
      },
      trajectory: (trajectory: Trajectory) => {
        run.trajectory(trajectory);
        this.episode(trajectory);
      },
    });
  }

  /**
   * Sends a row of metrics. `rowCount`: the run's rows so far, with this one. Default: one more
   * than before.
   */
  row(step: number, values: Record<string, number>, rowCount = this.#rowCount + 1): void {
    this.#rowCount = rowCount;
    const finite = Object.fromEntries(Object.entries(values).filter(([, value]) => Number.isFinite(value)));
    const time = Date.now() / 1000;
    for (const queue of this.#queues) queue.metrics({ number: rowCount - 1, step, time, values: finite });
    const collapse = this.#collapse.row(finite);
    if (collapse !== undefined) this.#event("collapsed", collapse);
  }

  /** Sends an episode. */
  episode(trajectory: Trajectory): void {
    const time = Date.now() / 1000;
    for (const queue of this.#queues) queue.episode(trajectory, time);
  }

  #event(kind: RunEvent["kind"], message: string): void {
    for (const queue of this.#queues) queue.event({ kind, time: Date.now() / 1000, message });
  }

  ended({ stopped, episodes, updates }: TrainingResult): void {
    this.#event(
      stopped ? "stopped" : "finished",
      `${counted(episodes, "episode")}, ${counted(updates, "update")}.`,
    );
  }

  /** Call with the error that ended the run. */
  failed(error: unknown): void {
    const { code } = error as { code?: string };
    const kind = isAborted(error) ? "stopped" : "crashed";
    this.#event(kind, [code, messageOf(error)].filter(Boolean).join(": "));
  }

  /**
   * Sends what is left, for some seconds at most; `warn` gets a line per sink that lost something.
   */
  async close(warn: (line: string) => void): Promise<void> {
    const lost = await Promise.all(this.#queues.map((queue) => queue.close()));
    for (const line of lost) if (line !== undefined) warn(line);
  }
}
