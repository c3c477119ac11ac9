/** Tables of a report, and their rendering as plain text and Markdown. */

import { alignColumns } from "../display/columns.ts";
import { formatSeconds } from "../display/progress.ts";
import { formatBytes } from "../display/reporter.ts";
import type { Interval } from "../statistics/intervals.ts";
import { coverage, type PermutationTest } from "../statistics/resampling.ts";
import { groupsOf, stepsOf } from "./comparison.ts";
import {
  endedShort,
  type MethodReport,
  type Report,
  type RunReport,
  reportsOfGroups,
  smoothing,
} from "./report.ts";
import type { Axis } from "./run-figures.ts";

export interface Table {
  headings: string[];
  /** Cells of each row; the first is its label. */
  rows: string[][];
}

const none = "–";

/** Labels of the axes. */
export const axisNames: Readonly<Record<Axis, string>> = {
  steps: "environment steps",
  generatedTokens: "generated tokens",
  gradientTokens: "gradient tokens",
};

type Column = [heading: string, cell: (method: MethodReport) => string];

/** The methods' figures after the comparison's steps. */
export function methodTable({ comparison, methods }: Report): Table {
  const budgets = new Set(methods.map(({ name }) => stepsOf(comparison, name)));
  const steps: Column = ["steps", ({ name }) => formatCount(stepsOf(comparison, name))];
  const differences: Column[] = [
    [
      `− ${comparison.reference}`,
      ({ difference }) => (difference === null ? none : formatDifference(difference.means)),
    ],
    ["p", ({ difference }) => (difference === null ? none : formatP(difference.test))],
    [
      comparison.paired ? `seeds above ${comparison.reference}` : `P(> ${comparison.reference})`,
      ({ improvement, counted }) => formatInterval(improvement, counted),
    ],
  ];
  const columns: Column[] = [
    ["method", ({ name }) => name],
    ["runs", ({ counted }) => `${counted}/${comparison.seeds.length}`],
    ...(budgets.size > 1 ? [steps] : []),
    ["success, IQM", ({ success, counted }) => formatInterval(success, counted)],
    ["mean", ({ mean }) => formatShare(mean)],
    ["median", ({ median }) => formatShare(median)],
    ...(methods.length > 1 ? differences : []),
    ["updates", ({ updates }) => formatCount(updates)],
    ["gradient tokens", ({ gradientTokens }) => formatCount(gradientTokens)],
    ["generated tokens", ({ generatedTokens }) => formatCount(generatedTokens)],
    ["time", ({ seconds }) => (seconds === null ? none : formatSeconds(seconds))],
    ["memory", ({ peakBytes }) => (peakBytes === null ? none : formatBytes(peakBytes))],
  ];
  return {
    headings: columns.map(([heading]) => heading),
    rows: methods.map((method) => columns.map(([, cell]) => cell(method))),
  };
}

/** Every run that has begun: its state and its results. */
export function runTable({ comparison, runs }: Report): Table {
  return {
    headings: ["method", "seed", "state", "steps", "success", "updates", "time"],
    rows: comparison.methods.flatMap(({ name }) =>
      runs
        .filter(({ method, state }) => method === name && state !== "waiting")
        .map((run) => [
          run.method,
          String(run.seed),
          [
            run.state,
            ...(run.fault === null ? [] : ["unreadable"]),
            ...(endedShort(run, comparison) ? ["short"] : []),
            ...(run.otherBuild ? ["other build"] : []),
          ].join(", "),
          formatCount(run.environmentSteps),
          formatShare(run.success),
          formatCount(run.updates),
          run.seconds === null ? none : formatSeconds(run.seconds),
        ]),
    ),
  };
}

/** How to read the figures of all groups. */
export function explanations({ comparison, measure, methods }: Report): string[] {
  const budgets = new Set(methods.map(({ name }) => stepsOf(comparison, name)));
  const at =
    budgets.size > 1
      ? "after the method's own environment steps"
      : `at ${formatCount([...budgets][0] ?? comparison.environmentSteps)} environment steps`;
  const { paired } = comparison;
  const groups = groupsOf(comparison);
  const reference = groups.length === 1 ? comparison.reference : "the group's reference";
  const tests = methods.flatMap(({ difference }) => difference?.test ?? []);
  const least = Math.min(...tests.map(({ permutations }) => 2 / permutations));
  const drawn = tests.some(({ exact }) => !exact);
  const measured =
    measure === "evaluated"
      ? "Success: the share of episodes that succeed when the policy is evaluated during training (eval/success)"
      : `Success: the share of training episodes that are solved as they are collected (rollout/success), averaged over the last ${100 * smoothing} % of the steps`;
  return [
    `${measured}; ${at}.`,
    `IQM: interquartile mean over seeds; in brackets its ${100 * coverage} % interval, from a bootstrap over seeds.`,
    ...(comparison.methods.length > 1
      ? [
          `− ${reference}: difference of the mean successes, with its ${100 * coverage} % interval from the same bootstrap.`,
          `p: two-sided permutation test of that difference, ${paired ? "within pairs of a seed" : "over all assignments of the runs to both methods"}, not corrected for the number of ${groups.length === 1 ? "methods" : "methods and groups"}` +
            `${tests.length === 0 || drawn ? "" : `; with so few runs none can be below ${formatSmall(least)}`}${drawn ? "; ± is the standard error of p, where permutations were drawn" : ""}.`,
          paired
            ? `seeds above ${reference}: the share of seeds with which the method ends above ${reference}, with its Wilson interval; ties count half.`
            : `P(> ${reference}): the probability that a run of the method ends above one of ${reference}, with its interval from the same bootstrap; ties count half.`,
        ]
      : []),
    "Tokens, updates, time and peak memory of the process are means of the runs that count.",
    ...comparison.notes,
  ];
}

/** Remarks on single runs: unreadable, failed, ended early, still running, or of another build. */
export function notes({ comparison, runs, build }: Report): string[] {
  const unreadable = runs.filter(({ fault }) => fault !== null);
  const others = runs.filter(({ otherBuild }) => otherBuild);
  const readable = runs.filter(({ fault }) => fault === null);
  const failed = readable.filter(({ state }) => state === "failed");
  const short = readable.filter((run) => run.state === "finished" && endedShort(run, comparison));
  const late = readable.filter(
    (run) => run.state === "finished" && run.success === null && !endedShort(run, comparison),
  );
  const open = runs.filter(({ state }) => state === "waiting" || state === "running" || state === "stopped");
  const steps = ({ environmentSteps }: RunReport) => `${formatCount(environmentSteps)} steps`;
  return [
    ...unreadable.map((run) => `${nameOf(run)} does not count: ${sentence(run.fault!)}`),
    ...(others.length === 0
      ? []
      : [
          `Runs of different builds are not pooled. Counted: runs by ${build ?? unknownBuild}. Not counted: ` +
            `${others.map((run) => `${nameOf(run)} (${run.build ?? unknownBuild})`).join(", ")}.`,
        ]),
    ...failed.map(
      (run) =>
        `${nameOf(run)} failed after ${steps(run)}: ${sentence(run.reason ?? "no reason was given")} ` +
        (run.success === null
          ? "It was never measured, and does not count."
          : "Its last success counts from there on."),
    ),
    ...late.map(
      (run) => `${nameOf(run)} ended after ${steps(run)}, and was first measured there: it does not count.`,
    ),
    ...short.map((run) =>
      run.success === null
        ? `${nameOf(run)} ended after ${steps(run)}. It was never measured, and does not count.`
        : `${nameOf(run)} ended after ${steps(run)}: its last success counts from there on.`,
    ),
    ...(open.length === 0 ? [] : [`Not finished, and therefore not counted: ${openRuns(open)}.`]),
  ];
}

/** "3 running (a, seed 0; b, seed 0; c, seed 0), 26 waiting": waiting runs are only counted. */
function openRuns(open: readonly RunReport[]): string {
  return (["running", "stopped", "waiting"] as const)
    .flatMap((state) => {
      const runs = open.filter((run) => run.state === state);
      if (runs.length === 0) return [];
      const names = state === "waiting" && runs.length > 1 ? "" : ` (${runs.map(nameOf).join("; ")})`;
      return [`${runs.length} ${state}${names}`];
    })
    .join(", ");
}

const unknownBuild = "an unrecorded build";

/** The builds that trained the runs and made the report. */
export function provenance({ runs, build, source, date }: Report): string {
  const trained = runs.some(({ curve }) => curve.length > 0) ? `Runs by ${build ?? unknownBuild}. ` : "";
  const commit = source.commit === null ? "" : ` at ${source.commit}`;
  return `${trained}Report by nlac ${source.version}${commit}, ${date.slice(0, 10)}.`;
}

function sentence(text: string): string {
  return text.endsWith(".") ? text : `${text}.`;
}

export function nameOf({ method, seed }: { method: string; seed: number }): string {
  return `${method}, seed ${seed}`;
}

/**
 * Aligned columns: the first to the left, the others to the right. Columns beyond `width` follow as
 * further tables below, each with the first column.
 */
export function renderText(table: Table, width = Number.POSITIVE_INFINITY): string {
  const lines = [table.headings, ...table.rows];
  const widths = table.headings.map((_, i) => Math.max(...lines.map((cells) => cells[i]!.length)));
  const blocks: number[][] = [[0]];
  let used = widths[0]!;
  for (let i = 1; i < widths.length; i++) {
    if (blocks.at(-1)!.length > 1 && used + 2 + widths[i]! > width) {
      blocks.push([0]);
      used = widths[0]!;
    }
    blocks.at(-1)!.push(i);
    used += 2 + widths[i]!;
  }
  return blocks
    .map((columns) => alignColumns(lines.map((cells) => columns.map((i) => cells[i]!))))
    .join("\n\n");
}

export function renderMarkdown(report: Report): string {
  const { comparison } = report;
  const groups = reportsOfGroups(report);
  return [
    `# ${comparison.name}`,
    "",
    ...(comparison.description === "" ? [] : [comparison.description, ""]),
    ...groups.flatMap((group) => [
      ...(groups.length === 1 ? [] : [`## ${group.comparison.name}`, ""]),
      markdownTable(methodTable(group)),
      "",
    ]),
    ...explanations(report).map((line) => `- ${line}`),
    ...notes(report).map((line) => `- ${line}`),
    "",
    markdownTable(runTable(report)),
    "",
    provenance(report),
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

/** -0.0984 → "−0.10". */
function formatSigned(value: number): string {
  const text = Math.abs(value).toFixed(2);
  return text === "0.00" ? text : `${value < 0 ? "−" : "+"}${text}`;
}

function formatDifference({ estimate, low, high }: Interval): string {
  return `${formatSigned(estimate)} [${formatSigned(low)}, ${formatSigned(high)}]`;
}

/**
 * 0.0079 → "0.008", 0.0488 → "0.049", 0.25397 → "0.25"; with its standard error if permutations were
 * sampled. With one digit, 0.0488 and 0.0547 would look the same.
 */
function formatP({ p, exact, standardError }: PermutationTest): string {
  return exact ? formatSmall(p) : `${formatSmall(p)} ± ${formatSmall(standardError)}`;
}

function formatSmall(p: number): string {
  return p >= 0.1 ? p.toFixed(2) : String(Number(p.toPrecision(p >= 0.01 ? 2 : 1)));
}

/** Without the interval for a single run, which has no spread. */
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
