/** `nlac view`: reads a run back: its figures, and training samples with every text. */

import { join } from "node:path";
import type { Command } from "commander";
import { type MetricsRow, readDescription } from "../run/directory.ts";
import { formatFigure } from "../run/progress.ts";
import { readRecords } from "../run/records.ts";
import type { SampleRecord } from "../run/training-run.ts";
import { wholeNumber } from "./options.ts";

export function registerView(program: Command): void {
  program
    .command("view")
    .description("read a run: its figures and training samples with all their texts")
    .argument("<run>", "a run directory")
    .option("--samples <number>", "training samples to print, the newest first", wholeNumber(0), 3)
    .option("--json", "print figures and samples as JSON")
    .addHelpText(
      "after",
      `
Example:
  nlac view runs/quickstart-20260101-120000 --samples 1`,
    )
    .action(view);
}

function view(path: string, flags: { samples: number; json?: boolean }): void {
  const description = readDescription(path);
  const metrics = readRecords<MetricsRow>(join(path, "metrics.jsonl"));
  const samples = newest(readRecords<SampleRecord>(join(path, "samples.jsonl")), flags.samples);
  if (flags.json) {
    console.log(JSON.stringify({ description, metrics: [...metrics], samples }));
    return;
  }
  console.log(`${title(description) || path}\n`);
  console.log(figures(metrics));
  for (const sample of samples) console.log(`\n${sampleText(sample)}`);
}

/** The last `count` of `records`, the last one first. */
function newest<T>(records: Iterable<T>, count: number): T[] {
  const kept: T[] = [];
  for (const record of records) {
    kept.push(record);
    if (kept.length > count) kept.shift();
  }
  return kept.reverse();
}

/** The recipe's name and model, as far as run.json has them. */
function title({ recipe }: Record<string, unknown>): string {
  const { name, model } = (recipe ?? {}) as Record<string, unknown>;
  return [name, model].filter((part) => typeof part === "string").join(": ");
}

/** First and last value of every metric, its mean, and how often it was measured. */
function figures(rows: Iterable<MetricsRow>): string {
  const series = new Map<string, { first: number; last: number; sum: number; count: number }>();
  for (const { values } of rows) {
    for (const [name, value] of Object.entries(values)) {
      if (value === null) continue;
      const figure = series.get(name) ?? { first: value, last: value, sum: 0, count: 0 };
      series.set(name, { ...figure, last: value, sum: figure.sum + value, count: figure.count + 1 });
    }
  }
  const lines = [...series]
    .sort(([a], [b]) => a.localeCompare(b))
    .map(([name, { first, last, sum, count }]) => {
      const cells = [first, last, sum / count].map((value) => formatFigure(value).padStart(10)).join("");
      return `  ${name.padEnd(24)}${cells}${String(count).padStart(8)}`;
    });
  const header = `  ${"metric".padEnd(24)}${"first".padStart(10)}${"last".padStart(10)}${"mean".padStart(10)}${"rows".padStart(8)}`;
  return [header, ...lines].join("\n");
}

function sampleText({ update, trajectory, turn, texts, facts }: SampleRecord): string {
  const facted = Object.entries(facts).map(
    ([name, value]) => `${name} ${typeof value === "number" ? formatFigure(value) : value}`,
  );
  return [
    `── update ${update}, episode ${trajectory}${turn === undefined ? "" : `, turn ${turn + 1}`}: ${facted.join(", ")}`,
    ...Object.entries(texts).map(([role, text]) => `▸ ${role}\n${text.trimEnd().replaceAll(/^/gm, "    ")}`),
  ].join("\n");
}
