/** `nlac data`: imports or creates benchmark data that nlac does not ship. */

import type { Command } from "commander";
import { importTauBench } from "../environments/tau-bench/import.ts";
import { registerSynthesize } from "./synthesize.ts";

export function registerData(program: Command): void {
  const data = program.command("data").description("import or create benchmark data");
  data
    .command("import")
    .description("import data from a benchmark's repository")
    .command("tau-bench")
    .description("create the tau-bench data from a checkout of its repository, without executing its code")
    .argument("<checkout>", "a clone of https://github.com/sierra-research/tau-bench")
    .argument("<directory>", "a new or empty directory")
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Examples:
  git clone https://github.com/sierra-research/tau-bench checkout
  nlac data import tau-bench checkout data/tau-bench
  NLAC_DATA=data nlac play tauBench`,
    )
    .action(runTauBench);
  registerSynthesize(data);
}

function runTauBench(checkout: string, directory: string, flags: { json?: boolean }): void {
  const imported = importTauBench(checkout, directory);
  if (flags.json) {
    console.log(JSON.stringify({ directory, tasks: imported }));
    return;
  }
  for (const [domain, splits] of Object.entries(imported)) {
    const counts = Object.entries(splits).map(([split, count]) => `${count} ${split}`);
    console.log(`${directory}/${domain}: ${counts.join(", ")} tasks`);
  }
}
