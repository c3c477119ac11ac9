/** `nlac verify`: checks the files of a run, a model or a recording for damage. */

import { existsSync, statSync } from "node:fs";
import type { Command } from "commander";
import { printable } from "../display/printable.ts";
import { readEpisodeRecords } from "../episodes/records.ts";
import { resolveModel } from "../hub/resolve-model.ts";
import { modelFaults } from "../learner/verify.ts";
import { recipeIfAny, refuseMissingRun } from "../recipe/run-recipe.ts";
import { isRun } from "../run/description.ts";
import { type Verified, verifyRun } from "../run/verify.ts";
import { isRecording, playRecording } from "../services/recording.ts";

export function registerVerify(program: Command): void {
  program
    .command("verify")
    .description("check a run, a model or a recording for damaged files")
    .argument(
      "<run|model|file>",
      "a run directory, a model (name, directory or .gguf file), or recorded episodes",
    )
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Examples:
  nlac verify runs/mine
  nlac verify my-model
  nlac verify episodes.jsonl

For a run, all checkpoints, metrics, episodes and samples are checked. Stop the
run first, because checkpoints are written and deleted while it trains. For a
model without checksums.json (nlac export writes one), only the structure is
checked. The exit code is 1 if anything is damaged.`,
    )
    .action(verify);
}

async function verify(name: string, flags: { json?: boolean }): Promise<void> {
  const parts: Verified[] = [];
  for await (const part of partsOf(name)) {
    parts.push(part);
    if (!flags.json)
      console.log(printable([lineOf(part), ...part.faults.map((fault) => `  ${fault}`)].join("\n")));
  }
  const damaged = parts.filter(({ faults }) => faults.length > 0).length;
  if (flags.json) console.log(JSON.stringify({ whole: damaged === 0, parts }, null, 2));
  else
    console.log(damaged === 0 ? "Nothing is damaged." : `${damaged} of ${parts.length} parts are damaged.`);
  if (damaged > 0) process.exitCode = 1;
}

function lineOf({ path, faults }: Verified): string {
  return `${faults.length === 0 ? "whole  " : "DAMAGED"} ${path}`;
}

async function* partsOf(name: string): AsyncGenerator<Verified> {
  if (isRun(name)) {
    for await (const part of verifyRun(name)) {
      // If a readable run.json has a recipe, it must be valid.
      if (part.path.endsWith("run.json") && part.faults.length === 0)
        yield verified(part.path, () => void recipeIfAny(name));
      else yield part;
    }
    return;
  }
  if (existsSync(name) && statSync(name).isFile() && !name.endsWith(".gguf")) {
    yield verified(name, () => {
      if (isRecording(name)) playRecording(name);
      else for (const _ of readEpisodeRecords(name));
    });
    return;
  }
  refuseMissingRun(name);
  const path = await resolveModel(name, { offline: true });
  const faults: string[] = [];
  for await (const fault of modelFaults(path)) if (!faults.includes(fault)) faults.push(fault);
  yield { path, faults };
}

function verified(path: string, check: () => unknown): Verified {
  try {
    check();
    return { path, faults: [] };
  } catch (error) {
    return { path, faults: [(error as Error).message] };
  }
}
