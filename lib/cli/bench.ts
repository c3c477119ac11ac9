/** `nlac bench`: measures the core against other libraries, each trial in its own process. */

import { join } from "node:path";
import type { Command } from "commander";
import { NlacError } from "../base/errors.ts";
import { renderSvg } from "../bench/chart.ts";
import { nameOf } from "../bench/machine.ts";
import { exceeded, type Report, runSuite } from "../bench/run.ts";
import { suiteNamed, suites } from "../bench/suite-list.ts";
import { renderCase, renderHeading, type Style } from "../bench/table.ts";
import { stderrReporter } from "../display/reporter.ts";
import { makeDirectory } from "../files/disk.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { threadCount, variantOf } from "../native/load.ts";
import { packageRoot } from "../native/paths.ts";
import { isCheckout } from "../run/build.ts";
import { wholeNumber } from "./options.ts";
import { wrap } from "./wrap.ts";

interface BenchFlags {
  device: string;
  peers?: boolean;
  python?: string;
  skip?: string[];
  threads?: number;
  trials?: number;
  only?: string;
  quick?: boolean;
  json?: boolean;
  out?: string;
}

export function registerBench(program: Command): void {
  program
    .command("bench")
    .description("measure the core against other libraries, on the same inputs in the same run")
    .argument("<suite>", suites.map(({ name }) => name).join(", "))
    .option("--device <device>", "cpu, cuda or cuda:N", "cpu")
    .option("--peers", "also measure the other libraries and the machine's limits (see scripts/peers.sh)")
    .option("--python <path>", "with --peers: the Python interpreter in which they are installed")
    .option("--skip <text...>", "with --peers: leave out libraries whose row contains one of these texts")
    .option("--threads <number>", "threads for every library (default: the cores)", wholeNumber(1))
    .option("--trials <number>", "processes per row (default: 3; soak and --quick: 1)", wholeNumber(1))
    .option("--only <text>", "only cases whose name contains this text")
    .option("--quick", "small shapes and few calls: checks that it works, measures nothing")
    .option("--json", "print the report as JSON instead of tables")
    .option("--out <directory>", "directory for the report (JSON and SVG)")
    .addHelpText(
      "after",
      `
Suites:
${suites.map(({ name, summary }) => wrap(`  ${name.padEnd(10)} ${summary}`, 80, 13)).join("\n")}

The report is written to bench/results/ in a checkout, otherwise to the current
directory. With --quick it is written only if you give --out. bench/README.md
explains how to read it.

Examples:
  nlac bench sampler
  nlac bench losses --peers --only kl
  nlac bench ema --device cuda --peers --python python3 --out results`,
    )
    .action(run);
}

async function run(name: string, flags: BenchFlags): Promise<void> {
  const suite = suiteNamed(name);
  const { device, peers = false, quick = false, only } = flags;
  variantOf(device);
  const reporter = stderrReporter();
  // Colour only on a terminal, and not if NO_COLOR is set (no-color.org).
  const style: Style = {
    columns: Math.min(process.stdout.columns ?? 100, 100),
    colour: (process.stdout.isTTY ?? false) && !process.env.NO_COLOR,
  };
  const show = (text: string) => {
    reporter.progress("", 1, 1, "steps"); // a full bar is removed
    if (!flags.json) console.log(`${text}\n`);
  };
  const directory = flags.out ?? (quick ? undefined : defaultDirectory());
  // Before the first case, which can take minutes.
  if (directory !== undefined) makeDirectory(directory);
  let files: string[] = [];
  const report = await runSuite({
    ...{ suite, device, peers, quick, only },
    ...{ python: flags.python, skip: flags.skip },
    threads: flags.threads ?? threadCount(),
    trials: flags.trials ?? (quick ? 1 : (suite.trials ?? 3)),
    onTrial: (label, done, total) => reporter.progress(label, done, total, "steps"),
    onStart: (report) => show(renderHeading(report)),
    // The report is written after every case, because a suite can take an hour.
    onCase: (result, report) => {
      show(renderCase(result, style));
      if (directory !== undefined) files = write(report, directory, only);
    },
  });
  if (files.length > 0) reporter.line(`Written: ${files.join(", ")}`);
  if (flags.json) console.log(JSON.stringify(report, null, 2));
  const ours = report.cases.flatMap(({ rows }) => rows).filter(({ role }) => role === "ours");
  const failed = ours.find(({ missing }) => missing !== null);
  if (failed) throw new NlacError("ERR_INTERNAL", `nlac's own row has no figures: it ${failed.missing}`);
  const beyond = exceeded(report);
  if (beyond.length > 0) throw new NlacError("ERR_INTERNAL", `Limit exceeded: ${beyond.join("; ")}.`);
}

function defaultDirectory(): string {
  return isCheckout() ? join(packageRoot(), "bench", "results") : process.cwd();
}

/**
 * The file name contains what was measured, so that reports of other cases, instruction sets or
 * numbers of threads are not overwritten.
 */
function write(report: Report, directory: string, only = ""): string[] {
  const { date, suite, device, threads, source, machine } = report;
  const plain = (text: string) => text.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-");
  const parts = [
    date.slice(0, 10),
    suite,
    plain(only),
    device.replace(":", ""),
    plain(nameOf(machine)),
    threads === machine.cores ? "" : `threads-${threads}`,
    source.commit?.replace("+", "-changed"),
  ];
  const base = join(directory, parts.filter((part) => part).join("-"));
  const contents = {
    [`${base}.json`]: `${JSON.stringify(report, null, 2)}\n`,
    [`${base}.svg`]: renderSvg(report),
  };
  for (const [path, content] of Object.entries(contents)) writeAtomically(path, content);
  return Object.keys(contents);
}
