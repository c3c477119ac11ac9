/**
 * Runs a suite. Every trial has its own process, and trials of all implementations alternate, so
 * that they see the same machine load. A failed trial is reported in its row; the others continue.
 */

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { finished, type Readable } from "node:stream";
import { failureOfChild, moduleArguments, threadVariables } from "../base/child-process.ts";
import { NlacError } from "../base/errors.ts";
import { cacheRoot, packageRoot } from "../native/paths.ts";
import { describeSource, type Source } from "../run/build.ts";
import { formatFigure, isExceeded } from "./format.ts";
import { describeMachine, type Machine } from "./machine.ts";
import { type Statistics, statistics } from "./statistics.ts";
import type { Case, Figure, Job, Outcome, Row, Suite, Work } from "./suite.ts";

export interface BenchOptions {
  suite: Suite;
  device: string;
  threads: number;
  /** Also measure the other libraries and the limits. */
  peers: boolean;
  quick: boolean;
  /** Processes per row. */
  trials: number;
  /** Only cases whose id contains this. */
  only?: string | undefined;
  /** The Python interpreter. Default: that of the environment made by scripts/peers.sh. */
  python?: string | undefined;
  /** Peers whose name contains one of these are not measured; their rows say so. */
  skip?: readonly string[] | undefined;
  /** Called once, with the report before its first case. */
  onStart?(report: Report): void;
  /** Called before each trial. */
  onTrial?(label: string, done: number, total: number): void;
  /** Called with each finished case, and the report up to it. */
  onCase?(result: CaseResult, report: Report): void;
}

export interface RowResult extends Pick<Row, "name" | "role" | "implementation"> {
  /** Why there are no figures; all others are then null. */
  missing: string | null;
  /** Milliseconds per call, over the samples of all trials. */
  time: Statistics | null;
  /** Median of each trial, milliseconds. */
  trialMedians: number[];
  /** Rate in the case's unit, from the median. */
  rate: number | null;
  /** The limit's median divided by this one. */
  ofLimit: number | null;
  /** This median divided by nlac's: above 1, nlac is faster. */
  speedup: number | null;
  /** Peak bytes in addition to the inputs: median of the trials. */
  bytes: number | null;
  /** Peak bytes in addition to inputs and results. */
  scratchBytes: number | null;
  check: number | null;
  /**
   * Whether `check` agrees with nlac's within the tolerance; null if there is nothing to compare.
   */
  agrees: boolean | null;
  /** The maximum of each figure over the trials. */
  figures: Figure[];
  versions: Record<string, string>;
}

export interface CaseResult extends Pick<Case, "id" | "title" | "parameters"> {
  unit: Work["unit"];
  rows: RowResult[];
}

export interface Report {
  suite: string;
  date: string;
  device: string;
  threads: number;
  trials: number;
  quick: boolean;
  machine: Machine;
  source: Source;
  cases: CaseResult[];
}

/** Timeout of a trial, in minutes. */
const trialMinutes = 15;

/**
 * @throws NlacError ERR_CONFIG if the other libraries are requested but not installed, ERR_VALUE if
 *   `only` matches no case, and errors of loading the addon
 */
export async function runSuite(options: BenchOptions): Promise<Report> {
  const { suite, device, threads, quick, trials, only, skip = [] } = options;
  const python = options.peers ? (options.python ?? peersPython()) : undefined;
  const all = suite.cases({ device, quick });
  const cases = all.filter(({ id }) => only === undefined || id.includes(only));
  if (cases.length === 0) {
    const ids = all.map(({ id }) => id).join(", ");
    throw new NlacError("ERR_VALUE", `No case of ${suite.name} has "${only}" in its name; there are ${ids}.`);
  }
  const report: Report = {
    ...{ suite: suite.name, date: new Date().toISOString(), device, threads, trials, quick },
    ...{ machine: await describeMachine(device), source: describeSource(), cases: [] },
  };
  options.onStart?.(report);
  const measured = (row: Row) => row.role === "ours" || python !== undefined;
  const total = cases.reduce((sum, { rows }) => sum + rows.filter(measured).length * trials, 0);
  let done = 0;
  for (const benchCase of cases) {
    const rows = benchCase.rows.filter(measured);
    const outcomes = rows.map(({ role, name }): TrialEnd[] =>
      role === "peer" && skip.some((text) => name.includes(text)) ? [{ missing: "skipped: --skip" }] : [],
    );
    for (let trial = 0; trial < trials; trial++) {
      for (const [i, row] of rows.entries()) {
        options.onTrial?.(`${benchCase.id}: ${row.name}`, done++, total);
        if (outcomes[i]!.some((outcome) => "missing" in outcome)) continue;
        const { implementation } = row;
        const { parameters, timing } = benchCase;
        const job = { suite: suite.name, implementation, parameters, device, threads, ...timing };
        outcomes[i]!.push(await runTrial(job, row.script, python));
      }
    }
    const result = summarize(
      benchCase,
      rows.map((row, i) => [row, outcomes[i]!] as const),
    );
    report.cases.push(result);
    options.onCase?.(result, report);
  }
  return report;
}

/** The Python interpreter of the environment made by scripts/peers.sh. Throws ERR_CONFIG. */
function peersPython(): string {
  const python = join(cacheRoot(), "peers", "bin", "python");
  if (existsSync(python)) return python;
  throw new NlacError(
    "ERR_CONFIG",
    `The peers are not installed (no ${python}). Run \`${join(packageRoot(), "scripts", "peers.sh")} bench\`, or name a Python that has them with --python.`,
  );
}

export type TrialEnd = Extract<Outcome, { samples: number[] }> | { missing: string };

/**
 * Runs one trial. Its result arrives on file descriptor 3, because libraries print on the others.
 */
async function runTrial(job: Job, script: string | undefined, python: string | undefined): Promise<TrialEnd> {
  const [program, args] =
    script === undefined
      ? [process.execPath, ["--expose-gc", ...moduleArguments("./trial", import.meta.url)]]
      : [
          script.endsWith(".py") ? python! : process.execPath,
          [join(packageRoot(), "bench", "peers", script)],
        ];
  const child = spawn(program, [...args, JSON.stringify(job)], {
    env: { ...process.env, ...threadVariables(job.threads) },
    stdio: ["ignore", "ignore", "pipe", "pipe"],
  });
  const said = textOf(child.stdio[2] as Readable);
  const handed = textOf(child.stdio[3] as Readable);
  let late: string | undefined;
  const clock = setTimeout(() => {
    late = `ran over ${trialMinutes} minutes`;
    child.kill("SIGKILL");
  }, trialMinutes * 60_000);
  const ended = await failureOfChild(child);
  clearTimeout(clock);
  if (late !== undefined) return { missing: `failed: ${late}` };
  if (ended !== undefined) return { missing: `failed: ${lastLine(await said) ?? ended}` };
  const outcome = outcomeOf(await handed);
  if (outcome === undefined) return { missing: "failed: ended without a result" };
  if ("unavailable" in outcome) throw new NlacError(outcome.unavailable.code, outcome.unavailable.message);
  return "skipped" in outcome ? { missing: `skipped: ${outcome.skipped}` } : outcome;
}

/** What a trial has written; undefined if that is no result. */
function outcomeOf(text: string): Outcome | undefined {
  try {
    return JSON.parse(text) as Outcome;
  } catch {
    return undefined;
  }
}

/** Reads everything, even if the other end breaks off. */
function textOf(stream: Readable): Promise<string> {
  stream.setEncoding("utf8");
  let text = "";
  stream.on("data", (chunk: string) => {
    text += chunk;
  });
  return new Promise((resolve) => finished(stream, () => resolve(text)));
}

/** The last line with an error: an exception's own line, without notes after it. */
function lastLine(text: string): string | undefined {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  return (
    lines.findLast((line) => /^[\w.]*(Error|Exception|Interrupt)\b/.test(line)) ?? lines.at(-1)
  )?.trim();
}

/** Figures of a case from the results of its trials. */
export function summarize(
  { id, title, parameters, work, tolerance }: Case,
  trials: readonly (readonly [Row, readonly TrialEnd[]])[],
): CaseResult {
  const rows = trials.map(([row, ends]) => summarizeRow(row, ends, work));
  const ours = rows.find(({ role }) => role === "ours");
  const limit = rows.find(({ role }) => role === "limit");
  for (const row of rows) {
    if (row.time === null) continue;
    if (limit?.time) row.ofLimit = limit.time.median / row.time.median;
    if (row.role === "peer" && ours?.time) row.speedup = row.time.median / ours.time.median;
    if (row !== ours && row.check !== null && ours !== undefined && ours.check !== null) {
      row.agrees = Math.abs(row.check - ours.check) <= tolerance * Math.abs(ours.check);
    }
  }
  return { id, title, parameters: withoutLists(parameters), unit: work.unit, rows };
}

/** Omits lists of shapes, which have hundreds of entries; the title names the model. */
function withoutLists(parameters: Case["parameters"]): Case["parameters"] {
  return Object.fromEntries(Object.entries(parameters).filter(([, value]) => !Array.isArray(value)));
}

const perSecond = { "TFLOP/s": 1e12, "GB/s": 1e9, "M/s": 1e6, "tokens/s": 1, "requests/s": 1 };

function summarizeRow(row: Row, ends: readonly TrialEnd[], work: Work): RowResult {
  const { name, role, implementation } = row;
  const empty: RowResult = {
    ...{ name, role, implementation, missing: null, time: null, trialMedians: [], rate: null, ofLimit: null },
    ...{
      speedup: null,
      bytes: null,
      scratchBytes: null,
      check: null,
      agrees: null,
      figures: [],
      versions: {},
    },
  };
  const measured: Extract<Outcome, { samples: number[] }>[] = [];
  for (const end of ends) {
    if ("missing" in end) return { ...empty, missing: end.missing };
    measured.push(end);
  }
  const time = statistics(measured.flatMap(({ samples }) => samples));
  const peaks = measured.flatMap(({ bytes }) => (bytes === null || row.resultBytes === null ? [] : [bytes]));
  const bytes = peaks.length > 0 ? statistics(peaks).median : null;
  return {
    ...{ ...empty, time, bytes },
    trialMedians: measured.map(({ samples }) => statistics(samples).median),
    rate: work.amount / (time.median / 1000) / perSecond[work.unit],
    scratchBytes: bytes === null ? null : Math.max(0, bytes - row.resultBytes!),
    check: measured[0]!.check,
    figures: largest(measured.map(({ figures }) => figures ?? [])),
    versions: measured[0]!.versions,
  };
}

function largest([first, ...others]: readonly (readonly Figure[])[]): Figure[] {
  return (first ?? []).map((figure, i) => ({
    ...figure,
    value: Math.max(figure.value, ...others.map((figures) => figures[i]!.value)),
  }));
}

/** Descriptions of the report's figures that exceed their limit. */
export function exceeded({ cases }: Report): string[] {
  return cases.flatMap(({ id, rows }) =>
    rows.flatMap(({ figures }) =>
      figures.filter(isExceeded).map((figure) => `${id}: ${formatFigure(figure)}`),
    ),
  );
}
