/** A report as rows of text: for the terminal, for Markdown, and for what draws tables. */

import { formatBytes } from "../native/report.ts";
import type { Interval } from "../rollout/intervals.ts";
import { formatSeconds } from "../run/progress.ts";
import { coverage } from "../statistics.ts";
import { endedShort, type MethodReport, type Report, type RunReport, smoothing } from "./report.ts";

export interface Table {
  headings: string[];
  /** Cells of each row; the first names it. */
  rows: string[][];
}

const none = "–";

/** The methods' figures at the comparison's number of steps. */
export function methodTable({ comparison, methods }: Report): Table {
  const columns: [heading: string, cell: (method: MethodReport) => string][] = [
    ["method", ({ name }) => name],
    ["runs", ({ counted }) => `${counted}/${comparison.seeds.length}`],
    ["success, IQM", ({ success, counted }) => formatInterval(success, counted)],
    ["mean", ({ mean }) => formatShare(mean)],
    ["median", ({ median }) => formatShare(median)],
    [`P(> ${comparison.reference})`, ({ improvement, counted }) => formatInterval(improvement, counted)],
    ["updates", ({ updates }) => formatCount(updates)],
    ["gradient tokens", ({ gradientTokens }) => formatCount(gradientTokens)],
    ["written tokens", ({ generatedTokens }) => formatCount(generatedTokens)],
    ["time", ({ seconds }) => (seconds === null ? none : formatSeconds(seconds))],
    ["memory", ({ peakBytes }) => (peakBytes === null ? none : formatBytes(peakBytes))],
  ];
  return {
    headings: columns.map(([heading]) => heading),
    rows: methods.map((method) => columns.map(([, cell]) => cell(method))),
  };
}

/** Every run: where it stands, and what it came to. */
export function runTable({ comparison, runs }: Report): Table {
  return {
    headings: ["method", "seed", "state", "steps", "success", "updates", "time"],
    rows: comparison.methods.flatMap(({ name }) =>
      runs
        .filter(({ method }) => method === name)
        .map((run) => [
          run.method,
          String(run.seed),
          endedShort(run, comparison) ? `${run.state}, short` : run.state,
          formatCount(run.environmentSteps),
          formatShare(run.success),
          formatCount(run.updates),
          run.seconds === null ? none : formatSeconds(run.seconds),
        ]),
    ),
  };
}

/** How the figures are to be read. */
export function explanations({ comparison, measure }: Report): string[] {
  const steps = formatCount(comparison.environmentSteps);
  const measured =
    measure === "evaluated"
      ? "Success: the share of episodes that succeed when the policy is evaluated during training (eval/success)"
      : `Success: the share of training episodes that are solved as they are collected (rollout/success), averaged over the last ${100 * smoothing} % of the steps`;
  return [
    `${measured}; at ${steps} environment steps.`,
    `IQM: interquartile mean over seeds; in brackets its ${100 * coverage} % interval, from a bootstrap over seeds.`,
    ...(comparison.methods.length > 1
      ? [
          `P(> ${comparison.reference}): the probability that a run of the method ends above one of ${comparison.reference}.`,
        ]
      : []),
    "Tokens, updates, time and peak memory of the process are means of the runs that count.",
  ];
}

/** What is to be known of single runs: those that broke off, ended early, or are not over. */
export function notes({ comparison, runs }: Report): string[] {
  const failed = runs.filter(({ state }) => state === "failed");
  const short = runs.filter((run) => run.state === "finished" && endedShort(run, comparison));
  const open = runs.filter(({ state }) => state === "waiting" || state === "running" || state === "stopped");
  const steps = ({ environmentSteps }: RunReport) => `${formatCount(environmentSteps)} steps`;
  return [
    ...failed.map(
      (run) =>
        `${nameOf(run)} failed after ${steps(run)}: ${sentence(run.reason ?? "no reason was given")} ` +
        (run.success === null
          ? "It never came to a measurement, and does not count."
          : "Its last success counts from there on."),
    ),
    ...short.map((run) => `${nameOf(run)} ended after ${steps(run)}: its last success counts from there on.`),
    ...(open.length === 0
      ? []
      : [
          `Not over, and therefore not counted: ${open.map((run) => `${nameOf(run)} (${run.state})`).join(", ")}.`,
        ]),
  ];
}

function sentence(text: string): string {
  return text.endsWith(".") ? text : `${text}.`;
}

export function nameOf({ method, seed }: { method: string; seed: number }): string {
  return `${method}, seed ${seed}`;
}

/** Columns side by side: the first to the left, the others to the right. */
export function renderText({ headings, rows }: Table): string {
  const lines = [headings, ...rows];
  const widths = headings.map((_, i) => Math.max(...lines.map((cells) => cells[i]!.length)));
  return lines
    .map((cells) =>
      cells
        .map((cell, i) => (i === 0 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!)))
        .join("  ")
        .trimEnd(),
    )
    .join("\n");
}

export function renderMarkdown(report: Report): string {
  const { comparison, date, source } = report;
  const commit = source.commit === null ? "" : ` at ${source.commit}`;
  return [
    `# ${comparison.name}`,
    "",
    ...(comparison.description === "" ? [] : [comparison.description, ""]),
    markdownTable(methodTable(report)),
    "",
    ...explanations(report).map((line) => `- ${line}`),
    ...notes(report).map((line) => `- ${line}`),
    "",
    markdownTable(runTable(report)),
    "",
    `nlac ${source.version}${commit}, ${date.slice(0, 10)}.`,
    "",
  ].join("\n");
}

function markdownTable({ headings, rows }: Table): string {
  const line = (cells: readonly string[]) =>
    `| ${cells.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`;
  return [line(headings), line(headings.map((_, i) => (i === 0 ? "---" : "---:"))), ...rows.map(line)].join(
    "\n",
  );
}

/** 0.834 → "0.83". */
export function formatShare(value: number | null): string {
  return value === null ? none : value.toFixed(2);
}

/** One run tells nothing of how far another would be from it. */
function formatInterval(interval: Interval | null, runs: number): string {
  if (interval === null) return none;
  if (runs < 2) return formatShare(interval.estimate);
  return `${formatShare(interval.estimate)} [${formatShare(interval.low)}, ${formatShare(interval.high)}]`;
}

/** 12345.6 → "12,346", 1234567 → "1.23 M". */
export function formatCount(value: number | null): string {
  if (value === null) return none;
  if (value >= 1e9) return `${(value / 1e9).toFixed(2)} G`;
  return value >= 1e6 ? `${(value / 1e6).toFixed(2)} M` : Math.round(value).toLocaleString("en-US");
}
