/**
 * The requests that the page makes, by path and query. The server answers them; an exported page
 * contains the answers.
 */

import { NlacError } from "../base/errors.ts";
import { getOrAdd } from "../base/get-or-add.ts";
import type { EpisodeRecord } from "../episodes/records.ts";
import type { RecordFollower } from "./follow.ts";
import { compareCurves, curveOf, metricsOf, placesOf } from "./metrics.ts";
import type { DashRun, EpisodeSummary } from "./run.ts";
import type { DashRuns } from "./runs.ts";
import {
  type Axis,
  axes,
  type Comparison,
  type Draw,
  type EpisodeList,
  type EpisodeView,
  type ProbeList,
  type SampleSummary,
  type SampleView,
  type Versions,
} from "./types.ts";
import { episodeView, sampleView } from "./views.ts";

/** Milliseconds that a search of transcripts may take. */
const searchMs = 2000;
/** Most episodes and samples in one list, the newest. The page says what is left out. */
const maxListed = 100_000;

type Query = Readonly<Record<string, string | undefined>>;
type Answer = (runs: DashRuns, query: Query) => unknown;

const answers: Record<string, Answer> = {
  runs: (runs) => runs.all.map((run) => run.summary()),
  config: (runs, query) => runOf(runs, query).recipe,
  metrics: (runs, query) => metricsOf(runOf(runs, query).metrics.items),
  compare: (runs, query) => compare(runs, query),
  episodes: (runs, query) => episodes(runOf(runs, query), maxListed),
  episode: (runs, query) => episode(runOf(runs, query), numberOf(query, "n")),
  evaluations: (runs, query) => evaluations(runOf(runs, query), maxListed),
  evaluation: (runs, query) =>
    evaluation(runOf(runs, query), numberOf(query, "n"), numberOf(query, "update")),
  search: (runs, { q = "", ...query }) => {
    const run = runOf(runs, query);
    return search(query.of === "evaluations" ? run.evaluations : run.episodes, q);
  },
  samples: (runs, query) => samples(runOf(runs, query)),
  sample: (runs, query) => sample(runOf(runs, query), numberOf(query, "n")),
  history: (runs, query) => history(runOf(runs, query), numberOf(query, "episode"), numberOf(query, "turn")),
  probes: (runs, query) => probes(runOf(runs, query)),
  probe: (runs, query) => probe(runOf(runs, query), numberOf(query, "n")),
};

/** Throws ERR_RUN for a run or record that does not exist, ERR_CONFIG for another bad request. */
export async function answer(runs: DashRuns, path: string, query: Query): Promise<unknown> {
  if (!Object.hasOwn(answers, path)) throw new NlacError("ERR_CONFIG", `There is no ${path}.`);
  return answers[path]!(runs, query);
}

/** Versions of all runs: the page asks again for what has changed. */
export function versions(runs: DashRuns): Versions {
  return Object.fromEntries(runs.all.map((run) => [run.id, run.version()]));
}

function runOf(runs: DashRuns, { run }: Query): DashRun {
  return runs.get(run ?? "");
}

export function numberOf(query: Query, name: string): number {
  const text = query[name] ?? "";
  const value = Number(text);
  if (text === "" || !Number.isSafeInteger(value) || value < 0)
    throw new NlacError("ERR_CONFIG", `${name} must be a whole number.`);
  return value;
}

export function episodes(run: DashRun, limit: number): EpisodeList {
  return listOf(run.episodes.items, run.updatesBefore(), run.isServed, limit);
}

export function evaluations(run: DashRun, limit: number): EpisodeList {
  const { items } = run.evaluations;
  const updates = items.map(({ update }) => update);
  return listOf(items, updates, false, limit);
}

/** The newest `limit` episodes of `all`. */
function listOf(
  all: readonly EpisodeSummary[],
  updates: readonly number[],
  hasNames: boolean,
  limit: number,
): EpisodeList {
  const [tasks, outcomes] = [new Map<string, number>(), new Map<string, number>()];
  const place = (names: Map<string, number>, name: string) => {
    if (!names.has(name)) names.set(name, names.size);
    return names.get(name)!;
  };
  const from = Math.max(0, all.length - limit);
  const shown = all.slice(from);
  const columns = {
    id: shown.map(({ id }) => id),
    task: shown.map(({ task }) => (task === undefined ? -1 : place(tasks, task))),
    ...(hasNames && { names: shown.map(({ name }) => name ?? "") }),
    outcome: shown.map(({ outcome }) => place(outcomes, outcome)),
    turns: shown.map(({ turns }) => turns),
    reward: shown.map(({ reward }) => reward),
    success: shown.map(({ success }) => success),
    heldOut: shown.map(({ isHeldOut }) => Number(isHeldOut)),
    update: updates.slice(from),
  };
  return { ...columns, tasks: [...tasks.keys()], outcomes: [...outcomes.keys()], from };
}

async function episode(run: DashRun, id: number): Promise<EpisodeView> {
  const record = await run.episode(id);
  if (record === undefined) throw new NlacError("ERR_RUN", `${run.id} has no episode ${id}.`);
  return episodeView(record, run.updatesBefore()[run.placeOf(id)!]!, run.isServed);
}

async function evaluation(run: DashRun, id: number, update: number): Promise<EpisodeView> {
  const record = await run.evaluation(id, update);
  if (record === undefined)
    throw new NlacError("ERR_RUN", `${run.id} has no evaluation episode ${id} after ${update} updates.`);
  return episodeView(record, update, false);
}

/** Places of the episodes that contain `text`, and how many of the newest were searched. */
async function search(
  follower: RecordFollower<EpisodeSummary>,
  text: string,
): Promise<{ places: number[]; searched: number }> {
  const started = performance.now();
  const wanted = text.toLowerCase();
  const places: number[] = [];
  let searched = 0;
  for (let i = follower.items.length - 1; i >= 0; i--) {
    if (performance.now() - started > searchMs) break;
    const record = (await follower.record(i)) as EpisodeRecord;
    const { task, opening = [], turns } = record;
    const texts = [
      task,
      ...opening.map(({ content }) => content),
      ...turns.flatMap((turn) => [turn.text, ...turn.observation.map(({ content }) => content)]),
    ];
    if (texts.some((part) => part.toLowerCase().includes(wanted))) places.push(i);
    searched++;
  }
  return { places, searched };
}

export function samples(run: DashRun): SampleSummary[] {
  return run.samples.items
    .slice(-maxListed)
    .map((summary) => ({ ...summary, success: run.succeeded(summary.trajectory) }));
}

async function sample(run: DashRun, number: number): Promise<SampleView> {
  const record = await run.sample(number);
  return sampleView(record, await run.episode(record.trajectory), run.succeeded(record.trajectory));
}

async function probe(run: DashRun, number: number): Promise<SampleView> {
  const record = await run.probe(number);
  return sampleView(record, await run.episode(record.trajectory), run.succeeded(record.trajectory));
}

/** Every draw of a transition. */
export async function history(run: DashRun, trajectory: number, turn: number): Promise<Draw[]> {
  const recorded = new Map(
    run.samples.items.flatMap((item) =>
      item.trajectory === trajectory && item.turn === turn ? [[item.update, item.number]] : [],
    ),
  );
  const drawn = await run.drawsOf(trajectory, turn);
  return drawn.map(({ record, i }) => ({
    update: record.update,
    ...{ l1: record.l1[i] ?? null, probability: record.probability[i]!, age: record.age[i]! },
    ...{ target: record.target[i]!, critique: record.critique[i]! },
    refinement: record.refinement[i]!,
    sample: recorded.get(record.update) ?? null,
  }));
}

function probes(run: DashRun): ProbeList {
  const list: ProbeList["probes"] = [];
  for (const [number, { probe, trajectory, turn = 0, update, l1, texts }] of run.probes.items.entries()) {
    list[probe] ??= { trajectory, turn, explained: [] };
    list[probe].explained.push({ number, update, l1, texts });
  }
  return { probes: list };
}

/**
 * Groups runs that differ in their seeds only. Of runs with the same seed, such as a copy, the one
 * with the most updates counts: the others are no further samples.
 */
function compare(runs: DashRuns, { metric = "eval/success", axis = "updates", ids }: Query): Comparison {
  if (!axes.includes(axis as Axis))
    throw new NlacError("ERR_CONFIG", `axis must be one of ${axes.join(", ")}.`);
  const chosen = ids === undefined ? undefined : new Set(ids.split("\n"));
  const groups = new Map<string, { name: string; runs: Map<unknown, DashRun> }>();
  for (const run of runs.all) {
    if (chosen !== undefined && !chosen.has(run.id)) continue;
    const { name, config, ...rest } = run.recipe as { name?: string; config?: Record<string, unknown> };
    const key = JSON.stringify([name, { ...config, seed: 0 }, rest]);
    const { runs: members } = getOrAdd(groups, key, () => ({ name: name ?? run.id, runs: new Map() }));
    const seed = config?.seed ?? run.id;
    const same = members.get(seed);
    if (same === undefined || updatesOf(run) > updatesOf(same)) members.set(seed, run);
  }
  // Groups of one name are told apart by the id of their first run.
  const names = [...groups.values()].map(({ name }) => name);
  return compareCurves(
    [...groups.values()].map(({ name, runs: bySeed }) => {
      const members = [...bySeed.values()];
      return {
        name: names.filter((other) => other === name).length > 1 ? `${name} (${members[0]!.id})` : name,
        runs: members.map((run) => ({ id: run.id, curve: curveOf(placesOf(run.metrics.items), metric) })),
      };
    }),
    axis as Axis,
  );
}

function updatesOf({ metrics }: DashRun): number {
  return metrics.items.at(-1)?.step ?? 0;
}
