#!/usr/bin/env node
// Runs attack campaigns against the built package and prints totals.
//   node scripts/torture.mjs [name…] [--runs N] [--seed S] [--only NUMBER] [--list] [--help]
// Each scripts/torture/<name>.mjs is a campaign:
//   export const about: one line
//   export async function run({ runs, seed, first, report }): makes the runs first …
//     first + runs - 1. Run number n depends on seed and n only.
//   report({ runs, counts, worst, failure }) adds to the totals; every field is optional. `runs`
//     and `counts` (by name) are added up. `worst` (by name: seconds, megabytes, …) keeps the
//     largest. `failure` is { number, message }.
// SIGINT or SIGTERM ends a campaign after its current run; the totals are then printed too. Exits
// with 1 if a run failed.
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const root = fileURLToPath(new URL("..", import.meta.url));
const folder = join(root, "scripts/torture");
const terminal = process.stderr.isTTY;

/** Names of the campaigns, sorted. */
export function campaignNames() {
  return readdirSync(folder)
    .flatMap((file) => (file.endsWith(".mjs") ? [file.slice(0, -4)] : []))
    .sort();
}

/** Totals of a campaign, and the `report` that adds to them. */
export function totals(name, onReport = () => {}) {
  const total = { name, runs: 0, counts: {}, worst: {}, failures: [], seconds: 0 };
  const report = ({ runs = 0, counts = {}, worst = {}, failure }) => {
    total.runs += runs;
    for (const [key, value] of Object.entries(counts)) total.counts[key] = (total.counts[key] ?? 0) + value;
    for (const [key, value] of Object.entries(worst))
      total.worst[key] = Math.max(total.worst[key] ?? Number.NEGATIVE_INFINITY, value);
    if (failure !== undefined) total.failures.push(failure);
    onReport(total, failure);
  };
  return { total, report };
}

/** Runs one campaign and returns its totals. An error that it throws is a failure. */
export async function runCampaign(name, { runs, seed, first = 0, onReport }) {
  const { total, report } = totals(name, onReport);
  const { run } = await import(pathToFileURL(join(folder, `${name}.mjs`)).href);
  const began = performance.now();
  const stopped = new Error("stopped");
  let stopping = false;
  const stop = () => {
    stopping = true;
  };
  for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, stop);
  const reportOrStop = (part) => {
    report(part);
    if (stopping) throw stopped; // through the campaign, which cleans up
  };
  try {
    await run({ runs, seed, first, report: reportOrStop });
  } catch (error) {
    if (error !== stopped)
      report({ failure: { number: first + total.runs, message: error?.stack ?? String(error) } });
  }
  for (const signal of ["SIGINT", "SIGTERM"]) process.off(signal, stop);
  total.stopped = stopping;
  total.seconds = (performance.now() - began) / 1000;
  const megabytes = process.resourceUsage().maxRSS / 1024;
  if (total.worst.megabytes === undefined) total.worst.megabytes = megabytes;
  return total;
}

/** When progress was last written, if stderr is not a terminal. */
let toldAt = performance.now();

/**
 * Shows the totals, outside a terminal once a minute, and prints the first failures of a campaign at
 * once.
 */
function progress({ name, runs, failures }, failure, seed) {
  if (failure !== undefined && failures.length <= 20) {
    if (terminal) process.stderr.write("\r\u001b[K");
    console.log(
      `${name} failed in run ${failure.number}. ` +
        `Repeat: npm run torture -- ${name} --seed ${seed} --only ${failure.number}\n` +
        `  ${String(failure.message).replaceAll("\n", "\n  ")}`,
    );
  }
  const failed = failures.length > 0 ? `, ${failures.length} failed` : "";
  if (terminal) process.stderr.write(`\r${name}: ${runs} runs${failed}\u001b[K`);
  else if (performance.now() - toldAt > 60_000) {
    toldAt = performance.now();
    process.stderr.write(`${name}: ${runs} runs${failed}\n`);
  }
}

const figure = (value) => (Number.isInteger(value) ? String(value) : value.toPrecision(3));
const list = (values) =>
  Object.entries(values)
    .map(([key, value]) => `${figure(value)} ${key}`)
    .join(", ");

/** A Markdown table with one row per campaign. */
export function table(results, { commit, date }) {
  const rows = results.map(({ name, runs, failures, counts, worst, seconds }) =>
    [name, runs, failures.length, list(counts), list(worst), `${figure(seconds)} s`, commit, date].join(
      " | ",
    ),
  );
  return [
    "| campaign | runs | failed | outcomes | worst | time | commit | date |",
    "| --- | ---: | ---: | --- | --- | ---: | --- | --- |",
    ...rows.map((row) => `| ${row} |`),
  ].join("\n");
}

const help = `Runs attack campaigns against the built package and prints totals.

Usage: npm run torture -- [NAME…] [OPTIONS]

  NAME…            campaigns, by default all
  --runs N         runs of each, 20 by default
  --seed S         the runs depend on it, 0 by default
  --only NUMBER    makes this run only
  --list           lists the campaigns
  --help           shows this text

Campaigns:
`;

/** The command line. Prints the error and returns undefined for one that is not valid. */
function commandLine() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: {
        runs: { type: "string", default: "20" },
        seed: { type: "string", default: "0" },
        only: { type: "string" },
        list: { type: "boolean", default: false },
        help: { type: "boolean", short: "h", default: false },
      },
    });
  } catch (error) {
    console.error(`${error.message.split(/\. |\n/, 1)[0]}. See --help.`);
    process.exitCode = 2;
    return undefined;
  }
}

async function main() {
  const parsed = commandLine();
  if (parsed === undefined) return;
  const { values, positionals } = parsed;
  const known = campaignNames();
  if (values.list || values.help) {
    if (values.help) process.stdout.write(help);
    for (const name of known) {
      const { about } = await import(pathToFileURL(join(folder, `${name}.mjs`)).href);
      console.log(`${values.help ? "  " : ""}${name.padEnd(16)}${about}`);
    }
    return;
  }
  const unknown = positionals.find((name) => !known.includes(name));
  const numbers = [values.runs, values.seed, values.only ?? "0"].map(Number);
  if (unknown !== undefined || !numbers.every((value) => Number.isSafeInteger(value) && value >= 0)) {
    console.error(
      unknown === undefined
        ? "--runs, --seed and --only take whole numbers."
        : `There is no campaign "${unknown}". Choose from ${known.join(", ")}.`,
    );
    process.exitCode = 2;
    return;
  }
  const [runs, seed, first] = numbers;
  const options = values.only === undefined ? { runs, seed } : { runs: 1, seed, first };

  const results = [];
  for (const name of positionals.length > 0 ? positionals : known) {
    const onReport = (total, failure) => progress(total, failure, seed);
    results.push(await runCampaign(name, { ...options, onReport }));
    if (terminal) process.stderr.write("\n");
    if (results.at(-1).stopped) break;
  }
  const git = spawnSync("git", ["rev-parse", "--short", "HEAD"], { cwd: root, encoding: "utf8" });
  const commit = git.status === 0 && existsSync(join(root, ".git")) ? git.stdout.trim() : "";
  console.log(table(results, { commit, date: new Date().toISOString().slice(0, 10) }));
  process.exitCode = results.some(({ failures }) => failures.length > 0) ? 1 : 0;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
