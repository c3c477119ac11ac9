/** `nlac view`: shows the figures and training samples of a run, or recorded episodes. */

import { statSync } from "node:fs";
import type { Command } from "commander";
import { dropOldest } from "../base/drop-oldest.ts";
import { NlacError } from "../base/errors.ts";
import { printable } from "../display/printable.ts";
import { formatFigure } from "../display/progress.ts";
import { type EpisodeFigures, figuresOf, summarize } from "../episodes/figures.ts";
import {
  type EpisodeRecord,
  episodesPath,
  readEpisodeRecords,
  trajectoriesPath,
} from "../episodes/records.ts";
import { servedTask } from "../episodes/served-tasks.ts";
import { onDisk } from "../files/disk.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { refuseMissingRun } from "../recipe/run-recipe.ts";
import { figureTable, type Measured } from "../report/figures.ts";
import { renderEpisodes } from "../report/page.ts";
import { readDescription } from "../run/description.ts";
import { type MetricsRow, readMetrics } from "../run/metrics.ts";
import { readSamples, type SampleRecord, withContext } from "../run/samples.ts";
import { grouped } from "../statistics/intervals.ts";
import { sayReport } from "./messages.ts";
import { wholeNumber } from "./options.ts";

interface ViewFlags {
  samples: number;
  report?: string;
  episodes: number;
  json?: boolean;
}

export function registerView(program: Command): void {
  program
    .command("view")
    .description("show a run's figures and complete training samples, or recorded episodes")
    .argument(
      "<run|record>",
      "a run directory, a file written by nlac eval --record, or a run's evaluations.jsonl",
    )
    .option("--samples <number>", "training samples to print, the newest first", wholeNumber(0), 3)
    .option("--report <file>", "write an HTML page of the run's or the recorded episodes (.html)")
    .option(
      "--episodes <number>",
      "with --report: maximum episodes on the page, the newest first",
      wholeNumber(1),
      1000,
    )
    .option("--json", "print the figures, and for a run its samples, as JSON")
    .addHelpText(
      "after",
      `
Examples:
  nlac view runs/quickstart-20260101-120000 --samples 1
  nlac view runs/quickstart-20260101-120000 --report episodes.html
  nlac view held-out.jsonl --report held-out.html
  nlac view runs/quickstart-20260101-120000/evaluations.jsonl

Of evaluations.jsonl, the figures and the page are those of the last evaluation.`,
    )
    .action(view);
}

function view(path: string, flags: ViewFlags): void {
  refuseMissingRun(path);
  const isRun = onDisk(path, () => statSync(path)).isDirectory();
  if (isRun && flags.report === undefined) viewRun(path, flags);
  else viewEpisodes(path, isRun, flags);
}

function viewEpisodes(path: string, isRun: boolean, flags: ViewFlags): void {
  const file = isRun ? episodesPath(path) : path;
  const isServed = isRun && file !== trajectoriesPath(path);
  const figures = new Map<number, EpisodeFigures>();
  const branches = new Set<number>();
  const heldOut = new Set<number>();
  const newest = new Map<number, EpisodeRecord>();
  for (const record of readEpisodeRecords(file)) {
    // If an episode was played again, after an error or in a later evaluation, the later record counts.
    const task = (isServed && servedTask(record)) || record.task;
    figures.set(record.id, { ...figuresOf(record), task });
    if (record.branch !== undefined) branches.add(record.id);
    if (record.split === "test") heldOut.add(record.id);
    newest.delete(record.id);
    newest.set(record.id, record);
    dropOldest(newest, flags.episodes);
  }
  if (figures.size === 0) throw new NlacError("ERR_EMPTY", `${file} contains no episodes.`);
  const all = [...figures.values()];
  let measured: Measured;
  if (!isRun) {
    measured = measuredRecord(path, all);
  } else if (!isServed) {
    const played = all.filter(({ id }) => !branches.has(id));
    measured = measuredRun(path, played);
  } else {
    measured = measuredServed(path, all, heldOut);
  }
  if (flags.report !== undefined) {
    const episodes = [...newest.values()].sort((a, b) => a.id - b.id);
    writeAtomically(flags.report, renderEpisodes({ ...measured, player: path, isServed }, episodes));
    sayReport(flags.report);
  }
  console.log(flags.json ? JSON.stringify(measured.figures) : printable(figureTable(measured)));
}

function measuredRecord(path: string, episodes: readonly EpisodeFigures[]): Measured {
  const ofTasks = grouped(
    episodes.map(({ id }) => id),
    episodes.map(({ task }) => task),
  );
  const trials = ofTasks.reduce((max, { length }) => Math.max(max, length), 1);
  return { title: path, figures: summarize(episodes, trials) };
}

/** Of all episodes of clients, which belong to no iteration; held-out ones apart, if not all are. */
function measuredServed(
  path: string,
  episodes: readonly EpisodeFigures[],
  heldOut: ReadonlySet<number>,
): Measured {
  const [apart, others] = [true, false].map((is) => episodes.filter(({ id }) => heldOut.has(id) === is));
  const measured = { title: title(readDescription(path)) || path };
  if (apart!.length === 0 || others!.length === 0) return { ...measured, figures: summarize(episodes) };
  return { ...measured, figures: summarize(others!), heldOut: summarize(apart!) };
}

/**
 * The figures of a run's last iteration, as `nlac train` shows them. The policy changes between
 * iterations: an average over all episodes would describe none of its versions.
 *
 * @param episodes without branches, whose actions others proposed
 */
function measuredRun(path: string, episodes: readonly EpisodeFigures[]): Measured {
  const description = readDescription(path);
  const { config } = (description.recipe ?? {}) as {
    config?: { episodesPerIteration?: unknown; recorded?: unknown[] };
  };
  const ids = episodes.map(({ id }) => id);
  const [first, last] = ids.reduce(([low, high], id) => [Math.min(low, id), Math.max(high, id)], [
    Number.POSITIVE_INFINITY,
    Number.NEGATIVE_INFINITY,
  ] as [number, number]);
  const size = config?.episodesPerIteration ?? lastIteration(path);
  // Without iterations, all episodes were recorded by one other policy.
  const count = typeof size === "number" && size > 0 ? size : ids.length;
  const start = Math.max(first, last + 1 - count);
  // Episodes recorded before the run come first; they are not by its policy.
  const own = (config?.recorded?.length ?? 0) === 0;
  const before = episodes.filter(({ id }) => own && id < Math.min(start, first + count));
  return {
    title: title(description) || path,
    figures: summarize(episodes.filter(({ id }) => id >= start)),
    ofRun: { first: start, last, ...(before.length > 0 && { before: summarize(before).success }) },
  };
}

/**
 * Number of episodes that the last iteration played, by the metrics: for HOPE it depends on the
 * number of tasks. Undefined if no row counts episodes.
 */
function lastIteration(path: string): number | undefined {
  let [before, count]: (number | undefined)[] = [0, undefined];
  for (const { values } of readMetrics(path))
    if (typeof values.episodes === "number") [before, count] = [count ?? 0, values.episodes];
  return count === undefined ? undefined : count - before!;
}

function viewRun(path: string, flags: ViewFlags): void {
  const description = readDescription(path);
  const metrics = readMetrics(path);
  const samples = withContext(path, newest(readSamples(path), flags.samples));
  if (flags.json) {
    console.log(JSON.stringify({ description, metrics: [...metrics], samples }));
    return;
  }
  console.log(printable(`${title(description) || path}\n`));
  console.log(printable(figures(metrics)));
  for (const sample of samples) console.log(printable(`\n${sampleText(sample)}`));
}

/** The last `count` of `records`, in reverse order. */
function newest<T>(records: Iterable<T>, count: number): T[] {
  const kept: T[] = [];
  for (const record of records) {
    kept.push(record);
    if (kept.length > count) kept.shift();
  }
  return kept.reverse();
}

/** The recipe's name and model, if run.json has them. */
function title({ recipe }: Record<string, unknown>): string {
  const { name, model } = (recipe ?? {}) as Record<string, unknown>;
  return [name, model].filter((part) => typeof part === "string").join(": ");
}

/** First value, last value, mean and count of every metric. */
function figures(rows: Iterable<MetricsRow>): string {
  const series = new Map<string, { first: number; last: number; sum: number; count: number }>();
  for (const { values } of rows) {
    for (const [name, value] of Object.entries(values)) {
      if (value === null) continue;
      const figure = series.get(name) ?? { first: value, last: value, sum: 0, count: 0 };
      series.set(name, { ...figure, last: value, sum: figure.sum + value, count: figure.count + 1 });
    }
  }
  const width = Math.max(22, ...[...series.keys()].map(({ length }) => length)) + 2;
  const lines = [...series]
    .sort(([a], [b]) => a.localeCompare(b))
    .map(([name, { first, last, sum, count }]) => {
      const cells = [first, last, sum / count].map((value) => formatFigure(value).padStart(10)).join("");
      return `  ${name.padEnd(width)}${cells}${String(count).padStart(8)}`;
    });
  const header = `  ${"metric".padEnd(width)}${"first".padStart(10)}${"last".padStart(10)}${"mean".padStart(10)}${"rows".padStart(8)}`;
  return [header, ...lines].join("\n");
}

/** The critic judges two different actions: each text says which. */
const titles: Record<string, string> = {
  target: "target (for the action)",
  critic: "critic (of the action)",
  critique: "critique (of the attempt)",
};

function sampleText({ update, trajectory, turn, texts, facts }: SampleRecord): string {
  const facted = Object.entries(facts).map(
    ([name, value]) => `${name} ${typeof value === "number" ? formatFigure(value) : value}`,
  );
  return [
    `── update ${update + 1}, episode ${trajectory}${turn === undefined ? "" : `, turn ${turn + 1}`}: ${facted.join(", ")}`,
    ...Object.entries(texts).map(
      ([role, text]) => `▸ ${titles[role] ?? role}\n${text.trimEnd().replaceAll(/^/gm, "    ")}`,
    ),
  ].join("\n");
}
