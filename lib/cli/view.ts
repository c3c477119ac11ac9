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
  const description = readDescription(path) as { recipe: { name: string; model: string } };
  const rows = readRecords<MetricsRow>(join(path, "metrics.jsonl"));
  const samples = readRecords<SampleRecord>(join(path, "samples.jsonl"));
  const newest = samples.slice(samples.length - Math.min(flags.samples, samples.length)).reverse();
  if (flags.json) {
    console.log(JSON.stringify({ description, metrics: rows, samples: newest }));
    return;
  }
  console.log(`${description.recipe.name}: ${description.recipe.model}\n`);
  console.log(figures(rows));
  for (const sample of newest) console.log(`\n${sampleText(sample)}`);
}

/** First and last value of every metric, and how often it was measured. */
function figures(rows: readonly MetricsRow[]): string {
  const series = new Map<string, number[]>();
  for (const { values } of rows) {
    for (const [name, value] of Object.entries(values)) {
      if (value !== null) series.set(name, [...(series.get(name) ?? []), value]);
    }
  }
  const lines = [...series]
    .sort(([a], [b]) => a.localeCompare(b))
    .map(([name, values]) => {
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      const cells = [values[0]!, values.at(-1)!, mean]
        .map((value) => formatFigure(value).padStart(10))
        .join("");
      return `  ${name.padEnd(24)}${cells}${String(values.length).padStart(8)}`;
    });
  const header = `  ${"metric".padEnd(24)}${"first".padStart(10)}${"last".padStart(10)}${"mean".padStart(10)}${"rows".padStart(8)}`;
  return [header, ...lines].join("\n");
}

function sampleText({ update, trajectory, turn, texts, facts }: SampleRecord): string {
  const facted = Object.entries(facts).map(
    ([name, value]) => `${name} ${typeof value === "number" ? formatFigure(value) : value}`,
  );
  return [
    `── update ${update}, episode ${trajectory}, turn ${turn + 1}: ${facted.join(", ")}`,
    ...Object.entries(texts).map(([role, text]) => `▸ ${role}\n${text.trimEnd().replaceAll(/^/gm, "    ")}`),
  ].join("\n");
}
