/** `nlac compare`: trains methods × seeds for equal environment steps and reports the results. */

import { existsSync } from "node:fs";
import { join, resolve } from "node:path";
import { type Command, InvalidArgumentError } from "commander";
import { z } from "zod";
import { counted } from "../base/counted.ts";
import { NlacError } from "../base/errors.ts";
import { compactRuns } from "../compare/compact.ts";
import {
  type Comparison,
  loadComparison,
  parseComparison,
  planRuns,
  stepsOf,
} from "../compare/comparison.ts";
import { RunsDisplay } from "../compare/display.ts";
import { makeReport, type Report, reportsOfGroups } from "../compare/report.ts";
import type { Axis } from "../compare/run-figures.ts";
import { type ComparedRun, findRuns, requireSameRecipe, Schedule } from "../compare/schedule.ts";
import { explanations, methodTable, nameOf, notes, renderText } from "../compare/table.ts";
import { writeReport } from "../compare/write.ts";
import { makeDirectory, readJson, requireEmpty } from "../files/disk.ts";
import { threadCount } from "../native/load.ts";
import { lockRun } from "../run/directory.ts";
import { asTyped, say } from "./messages.ts";
import { collect, oneOf, wholeNumber } from "./options.ts";
import { fitted } from "./wrap.ts";

interface CompareFlags {
  set: string[];
  out?: string;
  resume?: boolean;
  copyTo?: string;
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
    .description("train each method with each seed for equal environment steps, and plot the results")
    .argument(
      "<comparison>",
      "name (such as errands) or file of a comparison, or the directory of a started one",
    )
    .option(
      "--set <field=value>",
      "change a field of the comparison (the value is JSON or text); may be repeated",
      collect,
      [],
    )
    .option("--out <directory>", "directory for runs and report (default: runs/compare-<comparison>)")
    .option(
      "--copy-to <directory>",
      "do not train; copy the finished and the failed runs, without texts and weights",
    )
    .option("--resume", "continue: skip finished runs, resume stopped ones, retry failed ones")
    .option("--report", "do not train; report on the runs as they are")
    .option("--only <methods>", "train these methods only: nlac,rft", listed)
    .option("--seeds <numbers>", "train these seeds only: 0,1", seeds)
    .option("--jobs <number>", "number of runs at a time; they share the threads", wholeNumber(1), 1)
    .option(
      "--axis <axis>",
      "x axis of the SVG files: environment-steps, generated-tokens or gradient-tokens; index.html has all three",
      oneOf("environment-steps", "generated-tokens", "gradient-tokens"),
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
  nlac compare runs/three-seeds --report --axis generated-tokens

The directory contains index.html, the curves as SVG, tables as Markdown, all
numbers in comparison.json, and every run in METHOD/SEED. The report files are
updated whenever a run ends. Ctrl-C stops the runs at their next safe point.`,
    )
    .action(compare);
}

const axisOf = {
  "environment-steps": "steps",
  "generated-tokens": "generatedTokens",
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
  if (flags.report || flags.copyTo !== undefined) {
    const planned = comparison.methods.flatMap((method) =>
      comparison.seeds.map((seed) => ({ method: method.name, seed })),
    );
    const runs = findRuns(planned, directory);
    if (flags.copyTo === undefined) show(makeReport(comparison, runs), directory, flags);
    else copy(comparison, runs, flags.copyTo);
    return;
  }
  const runs = await train(comparison, directory, flags);
  const report = makeReport(comparison, runs);
  show(report, directory, flags);
  const unfinished = runs.filter(({ state }) => state === "stopped" || state === "waiting");
  if (unfinished.length > 0) {
    // If all selected runs are finished, the command continues with the others.
    const selection = unfinished.some((run) => isSelected(run, flags)) ? selectionOf(flags) : "";
    say(`Continue: npx nlac compare ${asTyped(directory)} --resume${selection}`);
  }
  const failed = runs.filter(({ state }) => state === "failed");
  if (failed.length === 0) {
    const unreadable = report.runs.find(({ state, fault }) => state === "finished" && fault !== null);
    if (unreadable === undefined) return;
    const advice = "Restore the file, or delete the run's directory and continue with --resume.";
    throw new NlacError("ERR_RUN", `${nameOf(unreadable)} does not count: ${unreadable.fault} ${advice}`);
  }
  throw new NlacError(
    "ERR_RUN",
    `${failed.length} of ${runs.length} runs failed: ${failed.map(nameOf).join("; ")}. See the log: ${failed[0]!.path}.log`,
  );
}

/** Throws ERR_RUN for runs that cannot be copied, after copying the others; ERR_IO. */
function copy(comparison: Comparison, runs: readonly ComparedRun[], to: string): void {
  const { copied, faults } = compactRuns(comparison, runs, to);
  say(`${counted(copied, "run")} copied to ${to}`);
  if (faults.length === 0) return;
  throw new NlacError("ERR_RUN", `${counted(faults.length, "run")} not copied: ${faults.join(" ")}`);
}

/** Returns the comparison and its directory, which may not exist yet. */
async function open(
  name: string,
  flags: CompareFlags,
): Promise<{ comparison: Comparison; directory: string }> {
  const begun = existsSync(join(name, "comparison.json"));
  if (begun && (flags.set.length > 0 || flags.out !== undefined)) {
    throw new NlacError(
      "ERR_CONFIG",
      "A started comparison keeps its settings: leave out --set and --out, or give the comparison's name.",
    );
  }
  if ((flags.report || flags.copyTo !== undefined) && flags.set.length > 0)
    throw new NlacError(
      "ERR_CONFIG",
      "--report and --copy-to show runs as they were started: leave out --set.",
    );
  const given = begun ? recorded(name) : await loadComparison(name, flags.set);
  const directory = resolve(begun ? name : (flags.out ?? `runs/compare-${given.name}`));
  if (!existsSync(join(directory, "comparison.json"))) {
    const nothing = `${directory} contains no comparison (there is no comparison.json)`;
    if (flags.report) throw new NlacError("ERR_RUN", `${nothing} to report on.`);
    if (flags.copyTo !== undefined) throw new NlacError("ERR_RUN", `${nothing} to copy.`);
    if (flags.resume) throw new NlacError("ERR_RUN", `${nothing} to resume. Start it without --resume.`);
  }
  if (!flags.resume && !flags.report && flags.copyTo === undefined)
    requireEmpty(
      directory,
      "ERR_RUN",
      "Continue with --resume, report with --report, or choose another --out.",
    );
  // The settings that the runs were started with may differ from those of the name.
  const isShown = flags.report || flags.copyTo !== undefined;
  return { comparison: isShown ? recorded(directory) : given, directory };
}

/** The comparison that `directory` was started with. Throws ERR_RUN. */
function recorded(directory: string): Comparison {
  const path = join(directory, "comparison.json");
  return parseComparison(readJson(path, z.object({ comparison: z.unknown() }), "ERR_RUN").comparison, path);
}

type Selection = Pick<CompareFlags, "only" | "seeds">;

function isSelected({ method, seed }: ComparedRun, { only, seeds }: Selection): boolean {
  return (only?.includes(method) ?? true) && (seeds?.includes(seed) ?? true);
}

/** The options that select the same runs. */
function selectionOf({ only, seeds }: Selection): string {
  return `${only ? ` --only ${asTyped(only.join(","))}` : ""}${seeds ? ` --seeds ${seeds.join(",")}` : ""}`;
}

/** Trains the selected runs that are not finished. Returns all runs of the comparison. */
async function train(comparison: Comparison, directory: string, flags: CompareFlags): Promise<ComparedRun[]> {
  const { only, seeds } = flags;
  requireKnown(
    "method",
    only,
    comparison.methods.map(({ name }) => name),
  );
  requireKnown("seed", seeds, comparison.seeds);
  const planned = await planRuns(comparison);
  makeDirectory(directory);
  const lock = lockRun(directory);
  try {
    const runs = findRuns(planned, directory);
    for (const run of runs) requireSameRecipe(run);
    writeReport(makeReport(comparison, runs), directory, axisOf[flags.axis]);
    const chosen = runs.filter((run) => isSelected(run, flags));
    const display = new RunsDisplay(chosen, (method) => stepsOf(comparison, method));
    const schedule = new Schedule({
      jobs: flags.jobs,
      threads: threadCount(),
      onChange: (run) => {
        display.changed(run);
        if (run.state !== "running") writeReport(makeReport(comparison, runs), directory, axisOf[flags.axis]);
      },
      onWait: (run, holder) =>
        display.note(`${nameOf(run)} is in use by ${holder}: waiting until that process ends …`),
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
    lock.release();
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
    const groups = reportsOfGroups(report);
    for (const group of groups) {
      if (groups.length > 1) console.log(`${group.comparison.name}\n`);
      console.log(`${renderText(methodTable(group), process.stdout.columns)}\n`);
    }
    const lines = [...explanations(report), ...notes(report)];
    console.log(`${fitted(lines.join("\n"))}\n`);
  }
  say(`Report:   ${join(directory, "index.html")}`);
  say(`Inspect:  npx nlac dash ${asTyped(directory)}`);
}
