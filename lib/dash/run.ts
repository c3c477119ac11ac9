/**
 * One run directory as the dashboard reads it. It only reads, so that it never disturbs training.
 */

import { existsSync, statSync } from "node:fs";
import { join } from "node:path";
import { type EpisodeFigures, figuresOf } from "../episodes/figures.ts";
import { type EpisodeRecord, episodeOf, evaluationOf, servedEpisodesPath } from "../episodes/records.ts";
import { servedTask } from "../episodes/served-tasks.ts";
import { isFaulty } from "../episodes/trajectory.ts";
import { recordOf } from "../files/records.ts";
import { readDescription } from "../run/description.ts";
import { type MetricsRow, metricsRow } from "../run/metrics.ts";
import {
  type DrawsRecord,
  drawsRecord,
  type ProbeRecord,
  probeRecord,
  type SampleRecord,
  sampleRecordSchema,
} from "../run/samples.ts";
import { longestSilence, type RunStatus, readStatus } from "../run/status.ts";
import { endless } from "../run/training-run.ts";
import { RecordFollower, type Summarize } from "./follow.ts";
import { curveOf, placesOf, thinned } from "./metrics.ts";
import type { RunState, RunSummary, SampleSummary } from "./types.ts";
import { warningsOf } from "./warnings.ts";

/** Points of the small curve of the overview. */
const overviewPoints = 60;
/** Length of the texts in lists. */
const previewLength = 90;

export type EpisodeSummary = Pick<EpisodeFigures, "id" | "outcome" | "reward" | "turns"> & {
  /** The task; undefined if it is unknown, as of most served episodes. */
  task: string | undefined;
  /** The client's name of a served episode. */
  name: string | undefined;
  success: number;
  isBranch: boolean;
  isHeldOut: boolean;
  /** When a served episode ended, in seconds since 1970. */
  ended: number | undefined;
};

/** An episode of an evaluation; the same ids occur in each. */
export type EvaluationSummary = EpisodeSummary & {
  /** Updates before the evaluation. */
  update: number;
};

export type ProbeSummary = Pick<ProbeRecord, "probe" | "trajectory" | "turn" | "update" | "texts"> & {
  l1: number | null;
};

export class DashRun {
  readonly id: string;
  readonly path: string;
  readonly metrics: RecordFollower<MetricsRow>;
  episodes: RecordFollower<EpisodeSummary>;
  readonly evaluations: RecordFollower<EvaluationSummary>;
  #served = false;
  readonly samples: RecordFollower<SampleSummary>;
  /** Of each update, the `placeKey` of every draw: the records of a long run have gigabytes. */
  readonly draws: RecordFollower<Int32Array>;
  readonly probes: RecordFollower<ProbeSummary>;
  #description: Record<string, unknown> = {};
  /** Identifies the run.json that `#description` was read from: a run may be started anew. */
  #described = "";
  #status: RunStatus | undefined;
  /** The latest heartbeat, and `performance.now()` when it was seen first. */
  #beat: { heartbeat: number | undefined; seen: number; isFirst: boolean } = {
    heartbeat: undefined,
    seen: 0,
    isFirst: true,
  };
  #fault: string | undefined;
  #summarized: { version: string; summary: RunSummary } | undefined;
  /** Why files could not be read at the last attempt. */
  readonly #unread = new Map<RecordFollower<unknown>, string>();
  /** Index in `episodes` of the latest record of each episode. */
  readonly #places = new Map<number, number>();
  #placed = { generation: 0, count: 0 };

  constructor(id: string, path: string) {
    this.id = id;
    this.path = path;
    const follow = <T>(name: string, summarize: Summarize<T>) =>
      new RecordFollower(join(path, `${name}.jsonl`), summarize);
    this.metrics = follow("metrics", (row, where) => recordOf(metricsRow, row, where));
    this.episodes = follow("trajectories", episodeSummary);
    this.evaluations = follow("evaluations", evaluationSummary);
    this.samples = follow("samples", sampleSummary);
    this.draws = follow("draws", drawnPlaces);
    this.probes = follow("probes", probeSummary);
  }

  /** Reads what is new in all files. What cannot be read is in the summary's errors. */
  async poll(): Promise<void> {
    this.#readDescription();
    this.#findServed();
    for (const follower of this.#followers) {
      try {
        await follower.poll();
        this.#unread.delete(follower);
      } catch (error) {
        // One file that cannot be read must not hide the others.
        this.#unread.set(follower, (error as Error).message);
      }
    }
  }

  /** A run of `nlac serve --train` has the episodes of its clients in a separate file. */
  #findServed(): void {
    const path = servedEpisodesPath(this.path);
    if (this.#served || !existsSync(path)) return;
    this.#served = true;
    this.episodes = new RecordFollower(path, servedSummary);
  }

  /** Whether its episodes are those of the clients of `nlac serve --train`. */
  get isServed(): boolean {
    return this.#served;
  }

  /** The small ones first. */
  get #followers(): RecordFollower<unknown>[] {
    return [this.metrics, this.draws, this.probes, this.samples, this.evaluations, this.episodes];
  }

  get #faults(): string[] {
    const damaged = this.#followers.flatMap(({ fault }) => fault ?? []);
    return [...(this.#fault === undefined ? [] : [this.#fault]), ...this.#unread.values(), ...damaged];
  }

  /** A text that changes whenever anything that is shown changes. */
  version(): string {
    const { state, heartbeat = 0 } = this.#status ?? {};
    const files = this.#followers.map(({ generation, items }) => `${generation}.${items.length}`);
    return [this.state(), state ?? "", heartbeat, ...files, ...this.#faults].join(" ");
  }

  get recipe(): Record<string, unknown> {
    return (this.#description.recipe ?? {}) as Record<string, unknown>;
  }

  /** Index in `episodes` of episode number `id`; undefined if it is not recorded. */
  placeOf(id: number): number | undefined {
    const { generation, items } = this.episodes;
    if (this.#placed.generation !== generation) {
      this.#places.clear();
      this.#placed = { generation, count: 0 };
    }
    while (this.#placed.count < items.length) {
      this.#places.set(items[this.#placed.count]!.id, this.#placed.count);
      this.#placed.count++;
    }
    return this.#places.get(id);
  }

  async episode(id: number): Promise<EpisodeRecord | undefined> {
    const place = this.placeOf(id);
    return place === undefined ? undefined : ((await this.episodes.record(place)) as EpisodeRecord);
  }

  /** Episode number `id` of the evaluation after `update` updates. */
  async evaluation(id: number, update: number): Promise<EpisodeRecord | undefined> {
    const place = this.evaluations.items.findLastIndex((item) => item.id === id && item.update === update);
    return place < 0 ? undefined : ((await this.evaluations.record(place)) as EpisodeRecord);
  }

  async sample(number: number): Promise<SampleRecord> {
    return (await this.samples.record(number)) as SampleRecord;
  }

  /** Every draw of a turn of episode number `id`, with its place in its record. */
  async drawsOf(id: number, turn: number): Promise<{ record: DrawsRecord; i: number }[]> {
    const trajectory = this.#trainedAs(id);
    if (trajectory === undefined) return [];
    const key = placeKey(trajectory, turn);
    const found: { record: DrawsRecord; i: number }[] = [];
    for (const [number, places] of this.draws.items.entries()) {
      if (!places.includes(key)) continue;
      const record = (await this.draws.record(number)) as DrawsRecord;
      // Two transitions may have the same key.
      for (const [i, drawn] of record.trajectory.entries())
        if (drawn === trajectory && record.turn[i] === turn) found.push({ record, i });
    }
    return found;
  }

  async probe(number: number): Promise<ProbeRecord> {
    return (await this.probes.record(number)) as ProbeRecord;
  }

  /** Whether an episode succeeded; null if unknown. */
  succeeded(id: number): boolean | null {
    const place = this.placeOf(id);
    const success = place === undefined ? -1 : this.episodes.items[place]!.success;
    return success < 0 ? null : success === 1;
  }

  /** The number of an episode in draws. A served run's do not count held-out episodes. */
  #trainedAs(id: number): number | undefined {
    if (!this.#served) return id;
    const place = this.placeOf(id);
    if (place === undefined || this.episodes.items[place]!.isHeldOut) return undefined;
    return this.episodes.items.slice(0, place).filter(({ isHeldOut }) => !isHeldOut).length;
  }

  /** Updates before each episode ended, in the order of `episodes`. */
  updatesBefore(): number[] {
    if (this.#served) return this.#updatesBeforeEnds();
    // Each collection logs one row, with the number of episodes after it.
    const collected = this.metrics.items.flatMap(({ step, values }) =>
      typeof values.episodes === "number" ? [{ step, episodes: values.episodes }] : [],
    );
    // Episodes recorded before the run come first and are not counted in the rows.
    const { config } = this.recipe as { config?: { recorded?: unknown[] } };
    const total = this.episodes.items.filter(({ isBranch }) => !isBranch).length;
    const hasRecorded = (config?.recorded?.length ?? 0) > 0;
    const before = hasRecorded ? Math.max(0, total - (collected.at(-1)?.episodes ?? total)) : 0;
    let row = 0;
    let number = -before - 1;
    return this.episodes.items.map(({ isBranch }) => {
      // Branches are not counted either; they follow the episodes of their iteration.
      if (!isBranch) number++;
      while (row < collected.length - 1 && collected[row]!.episodes <= number) row++;
      return number < 0 ? 0 : (collected[row]?.step ?? 0);
    });
  }

  /** A served run is trained while its episodes are played, and some iterations after they end. */
  #updatesBeforeEnds(): number[] {
    const rows = this.metrics.items;
    let row = 0;
    return this.episodes.items.map(({ ended = 0 }) => {
      while (row < rows.length && rows[row]!.time <= ended) row++;
      return rows[row - 1]?.step ?? 0;
    });
  }

  state(): RunState {
    if (this.#status === undefined) return "unknown";
    const { state, heartbeat } = this.#status;
    const watched = (performance.now() - this.#beat.seen) / 1000;
    // Clocks jump, and those of two machines differ: once a heartbeat has changed, only changes count.
    const silent = this.#beat.isFirst ? Math.max(watched, Date.now() / 1000 - heartbeat) : watched;
    return state === "running" && silent > longestSilence ? "lost" : state;
  }

  /** The same object until the version changes. */
  summary(): RunSummary {
    const version = this.version();
    if (this.#summarized?.version !== version) this.#summarized = { version, summary: this.#summarize() };
    return this.#summarized.summary;
  }

  #summarize(): RunSummary {
    const { recipe } = this;
    const config = (recipe.config ?? {}) as Record<string, unknown>;
    const rows = this.metrics.items;
    const places = placesOf(rows);
    const evaluated = curveOf(places, "eval/success");
    const successMetric = evaluated.y.length > 0 ? "eval/success" : "rollout/success";
    const success = evaluated.y.length > 0 ? evaluated : curveOf(places, successMetric);
    const status = this.#status;
    const state = this.state();
    const isEndless = config.iterations === endless;
    // Iterations are no limit that a run reaches if environment steps end it.
    const isCounted = typeof config.iterations === "number" && !isEndless && !config.environmentSteps;
    const fraction = state === "finished" ? 1 : (status?.fraction ?? null);
    const left = state === "running" && !isEndless ? (status?.left ?? null) : null;
    const error = status?.error && `${status.error.code}: ${status.error.message}`;
    return {
      id: this.id,
      recipe: textOf(recipe.name) || this.id,
      algorithm: textOf(recipe.algorithm),
      model: typeof recipe.model === "object" ? "new model" : textOf(recipe.model),
      environment: textOf((recipe.environment as { name?: unknown } | undefined)?.name),
      seed: typeof config.seed === "number" ? config.seed : null,
      state,
      started: secondsOf(this.#description.started) ?? rows[0]?.time ?? null,
      updated: Math.max(status?.heartbeat ?? 0, rows.at(-1)?.time ?? 0) || null,
      ...{ phase: status?.phase ?? "", done: status?.done ?? 0, total: status?.total ?? 0 },
      ...{ fraction: isEndless ? null : fraction, left },
      iteration: rows.filter(({ values }) => values.episodes !== undefined).length,
      iterations: isCounted ? (config.iterations as number) : null,
      updates: rows.at(-1)?.step ?? 0,
      episodes: this.episodes.items.length,
      samples: this.samples.items.length,
      probes: this.probes.items.length,
      success: success.y.at(-1) ?? null,
      successMetric,
      curve: thinned(success, Math.ceil(success.y.length / overviewPoints)),
      warnings: warningsOf((metric) => curveOf(places, metric).y),
      errors: [...(error === undefined ? [] : [error]), ...this.#faults],
    };
  }

  #readDescription(): void {
    try {
      this.#status = readStatus(this.path);
      const { heartbeat } = this.#status ?? {};
      if (heartbeat !== this.#beat.heartbeat)
        this.#beat = { heartbeat, seen: performance.now(), isFirst: this.#beat.heartbeat === undefined };
      const file = statSync(join(this.path, "run.json"), { throwIfNoEntry: false });
      const found = `${file?.ino} ${file?.mtimeMs}`;
      if (found !== this.#described) {
        this.#description = readDescription(this.path);
        this.#summarized = undefined;
      }
      this.#described = found;
      this.#fault = undefined;
    } catch (error) {
      this.#fault = (error as Error).message;
    }
  }
}

function episodeSummary(value: unknown, where: string): EpisodeSummary {
  return summaryOf(episodeOf(value, where));
}

function summaryOf(record: EpisodeRecord): EpisodeSummary {
  const { id, task, outcome, reward, turns, success } = figuresOf(record);
  return {
    ...{ id, task, name: undefined, outcome, reward, turns, isBranch: record.branch !== undefined },
    isHeldOut: record.split === "test",
    ended: record.time === undefined ? undefined : record.time / 1000,
    success: isFaulty(record) ? -1 : Number(success),
  };
}

function evaluationSummary(value: unknown, where: string): EvaluationSummary {
  const record = evaluationOf(value, where);
  return { ...summaryOf(record), update: record.update };
}

function servedSummary(value: unknown, where: string): EpisodeSummary {
  const record = episodeOf(value, where);
  return { ...summaryOf(record), task: servedTask(record), name: record.task };
}

function drawnPlaces(value: unknown, where: string): Int32Array {
  const { trajectory, turn } = recordOf(drawsRecord, value, where);
  return Int32Array.from(trajectory, (id, i) => placeKey(id, turn[i]!));
}

/** A number for a transition, almost always another one than for other transitions. */
function placeKey(trajectory: number, turn: number): number {
  return (Math.imul(trajectory, 1024) + turn) | 0;
}

function sampleSummary(record: unknown, where: string, number: number): SampleSummary {
  const sample = recordOf(sampleRecordSchema, record, where);
  const { update, trajectory, turn = null, texts, facts, parsed = {}, tokens } = sample;
  const figure = (name: string) => (typeof facts[name] === "number" ? (facts[name] as number) : null);
  const shown = texts.target ?? texts.episode ?? texts.chosen ?? texts.attempt ?? texts.action ?? "";
  const critiques = Object.keys(parsed).filter((role) => role.startsWith("critique"));
  return {
    ...{ number, update, trajectory, turn, l1: figure("l1"), l2: figure("l2") },
    preview: shown.replace(/\s+/g, " ").trim().slice(0, previewLength),
    target: parsed.target?.yes ?? null,
    critique: parsed[critiques.at(-1) ?? ""]?.yes ?? null,
    changed: typeof facts.changed === "boolean" ? facts.changed : null,
    dropped: [facts.targetDropped, facts.refinementDropped].filter(Boolean).join("; "),
    unreadable: Object.values(parsed).some(({ ok }) => !ok),
    success: null,
    detailed: tokens?.target?.best !== undefined,
  };
}

function probeSummary(record: unknown, where: string): ProbeSummary {
  const { probe, trajectory, turn, update, texts, facts } = recordOf(probeRecord, record, where);
  return { probe, trajectory, turn, update, texts, l1: typeof facts.l1 === "number" ? facts.l1 : null };
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function secondsOf(date: unknown): number | undefined {
  const milliseconds = typeof date === "string" ? Date.parse(date) : Number.NaN;
  return Number.isNaN(milliseconds) ? undefined : milliseconds / 1000;
}
