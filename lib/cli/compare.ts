/** `nlac compare`: trains methods × seeds at equal environment steps, and shows what they came to. */

import { existsSync, mkdirSync, rmSync } from "node:fs";
import { join, resolve } from "node:path";
import { type Command, InvalidArgumentError } from "commander";
import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import {
  type Comparison,
  loadComparison,
  parseComparison,
  planRuns,
  stepsOf,
} from "../compare/comparison.ts";
import { RunsDisplay } from "../compare/display.ts";
import { makeReport, type Report } from "../compare/report.ts";
import type { Axis } from "../compare/run-figures.ts";
import { type ComparedRun, findRuns, requireSameRecipe, Schedule } from "../compare/schedule.ts";
import { explanations, methodTable, nameOf, notes, renderText } from "../compare/table.ts";
import { writeReport } from "../compare/write.ts";
import { onDisk, readJson, requireEmpty } from "../files/disk.ts";
import { threadCount } from "../native/load.ts";
import { lock } from "../run/directory.ts";
import { collect, oneOf, wholeNumber } from "./options.ts";

interface CompareFlags {
  set: string[];
  out?: string;
  resume?: boolean;
  report?: boolean;
  only?: string[];
  seeds?: number[];
  jobs: number;
  axis: keyof typeof axisOf;
  json?: boolean;
}

export function registerCompare(program: Command): void {
  program
    .command("compare")
    .description("train methods × seeds at equal environment steps, and draw what they came to")
    .argument("<comparison>", "a comparison's name (errands) or file, or the directory of one that was begun")
    .option("--set <field=value>", "change a field of the comparison; may be repeated", collect, [])
    .option("--out <directory>", "where the runs and the report go (default: runs/compare-<comparison>)")
    .option("--resume", "go on: finished runs are kept, stopped ones continue, failed ones are tried again")
    .option("--report", "train nothing; report on the runs as they are")
    .option("--only <methods>", "train these methods only: nlac,rft", listed)
    .option("--seeds <numbers>", "train these seeds only: 0,1", seeds)
    .option("--jobs <number>", "runs at once, which share the threads", wholeNumber(1), 1)
    .option(
      "--axis <axis>",
      "curves.svg by environment-steps, written-tokens or gradient-tokens; index.html has all three",
      oneOf("environment-steps", "written-tokens", "gradient-tokens"),
      "environment-steps",
    )
    .option("--json", "print the report as JSON")
    .addHelpText(
      "after",
      `
Examples:
  nlac compare errands
  nlac compare errands --jobs 2 --set seeds=[0,1,2] --out runs/three-seeds
  nlac compare runs/three-seeds --resume
  nlac compare runs/three-seeds --report --axis written-tokens

The directory gets index.html, curves as SVG, tables as Markdown,
comparison.json with every number, and below METHOD/SEED the run itself. They
are written anew whenever a run ends. Ctrl-C stops the runs at their next safe
point.`,
    )
    .action(compare);
}

const axisOf = {
  "environment-steps": "steps",
  "written-tokens": "generatedTokens",
  "gradient-tokens": "gradientTokens",
} as const satisfies Record<string, Axis>;

function listed(text: string): string[] {
  return text.split(",").map((part) => part.trim());
}

function seeds(text: string): number[] {
  const numbers = listed(text).map(Number);
  if (listed(text).includes("") || !numbers.every((number) => Number.isSafeInteger(number) && number >= 0))
    throw new InvalidArgumentError("It must be whole numbers, for example 0,1,2.");
  return numbers;
}

async function compare(name: string, flags: CompareFlags): Promise<void> {
  const { comparison, directory } = await open(name, flags);
  if (flags.report) {
    const runs = comparison.methods.flatMap((method) =>
      comparison.seeds.map((seed) => ({ method: method.name, seed })),
    );
    show(makeReport(comparison, findRuns(runs, directory)), directory, flags);
    return;
  }
  const runs = await train(comparison, directory, flags);
  show(makeReport(comparison, runs), directory, flags);
  if (runs.some(({ state }) => state === "stopped" || state === "waiting"))
    say(`Go on:    nlac compare ${directory} --resume`);
  const failed = runs.filter(({ state }) => state === "failed");
  if (failed.length === 0) return;
  throw new NlacError(
    "ERR_RUN",
    `${failed.length} of ${runs.length} runs failed: ${failed.map(nameOf).join("; ")}. What they said: ${failed[0]!.path}.log`,
  );
}

/** The comparison, and the directory that it has or is to have. */
async function open(
  name: string,
  flags: CompareFlags,
): Promise<{ comparison: Comparison; directory: string }> {
  const begun = existsSync(join(name, "comparison.json"));
  if (begun && (flags.set.length > 0 || flags.out !== undefined)) {
    throw new NlacError(
      "ERR_CONFIG",
      "A comparison that was begun goes on as it was: leave out --set and --out, or name the comparison.",
    );
  }
  const comparison = begun ? recorded(name) : await loadComparison(name, flags.set);
  const directory = resolve(begun ? name : (flags.out ?? `runs/compare-${comparison.name}`));
  if (!existsSync(join(directory, "comparison.json"))) {
    const nothing = `${directory} holds no comparison (comparison.json is not there)`;
    if (flags.report) throw new NlacError("ERR_RUN", `${nothing} to report on.`);
    if (flags.resume) throw new NlacError("ERR_RUN", `${nothing} to go on with. Begin it without --resume.`);
  }
  if (!flags.resume && !flags.report)
    requireEmpty(directory, "ERR_RUN", "Go on with --resume, report with --report, or choose another --out.");
  return { comparison, directory };
}

/** The comparison that `directory` was begun with. Throws ERR_RUN. */
function recorded(directory: string): Comparison {
  const path = join(directory, "comparison.json");
  return parseComparison(readJson(path, z.object({ comparison: z.unknown() }), "ERR_RUN").comparison, path);
}

/** Trains what is asked for and not finished. Returns all runs of the comparison. */
async function train(comparison: Comparison, directory: string, flags: CompareFlags): Promise<ComparedRun[]> {
  const { only, seeds } = flags;
  requireKnown(
    "method",
    only,
    comparison.methods.map(({ name }) => name),
  );
  requireKnown("seed", seeds, comparison.seeds);
  const planned = await planRuns(comparison);
  onDisk(directory, () => mkdirSync(directory, { recursive: true }));
  lock(directory);
  try {
    const runs = findRuns(planned, directory);
    for (const run of runs) requireSameRecipe(run);
    writeReport(makeReport(comparison, runs), directory, axisOf[flags.axis]);
    const chosen = runs.filter(
      ({ method, seed }) => (only?.includes(method) ?? true) && (seeds?.includes(seed) ?? true),
    );
    const display = new RunsDisplay(chosen, (method) => stepsOf(comparison, method));
    const schedule = new Schedule({
      jobs: flags.jobs,
      threads: threadCount(),
      onChange: (run) => {
        display.changed(run);
        if (run.state !== "running") writeReport(makeReport(comparison, runs), directory, axisOf[flags.axis]);
      },
    });
    const stop = (signal: NodeJS.Signals) => {
      display.note(`${signal}: stopping the runs at their next safe point (again to quit at once) …`);
      schedule.stop();
    };
    process.on("SIGINT", stop);
    process.on("SIGTERM", stop);
    try {
      display.note(`comparison directory: ${directory}`);
      await schedule.train(chosen);
    } finally {
      display.end();
      process.off("SIGINT", stop);
      process.off("SIGTERM", stop);
    }
    return runs;
  } finally {
    rmSync(join(directory, "lock"), { force: true });
  }
}

function requireKnown<T>(kind: string, asked: readonly T[] | undefined, known: readonly T[]): void {
  const unknown = asked?.find((name) => !known.includes(name));
  if (unknown === undefined) return;
  throw new NlacError(
    "ERR_VALUE",
    `The comparison has no ${kind} ${unknown}; there are ${known.join(", ")}.`,
  );
}

function show(report: Report, directory: string, { json, axis }: CompareFlags): void {
  writeReport(report, directory, axisOf[axis]);
  if (json) console.log(JSON.stringify(report));
  else {
    const lines = [...explanations(report), ...notes(report)];
    console.log([renderText(methodTable(report)), "", ...lines, ""].join("\n"));
  }
  say(`Read it:  ${join(directory, "index.html")}`);
}

/** To stderr, so that stdout stays for results. */
function say(text: string): void {
  process.stderr.write(`${text}\n`);
}
