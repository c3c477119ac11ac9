/** `nlac env check`: whether an environment keeps to the contract, without a model. */

import type { Command } from "commander";
import { checkEnvironment } from "../environments/check.ts";
import { environmentNames, openEnvironment } from "../environments/registry.ts";
import { jsonObject, wholeNumber } from "./options.ts";

interface CheckFlags {
  options?: Record<string, unknown>;
  tasks: number;
  seed: number;
  timeout: number;
  json?: boolean;
}

export function registerEnv(program: Command): void {
  program
    .command("env")
    .description("environments of one's own")
    .command("check")
    .description("play an environment without a model, and report what breaks the contract")
    .argument("<environment>", `a file that exports one, or one of: ${environmentNames.join(", ")}`)
    .option("--options <json>", "the environment's options", jsonObject)
    .option("--tasks <number>", "tasks of each split to play", wholeNumber(1), 3)
    .option("--seed <number>", "seed of the episodes and of what is done in them", wholeNumber(0), 0)
    .option("--timeout <ms>", "longest wait for the environment", wholeNumber(1), 30_000)
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
A scripted agent calls every tool with arguments made from its schema, right and
wrong, calls tools that there are not, and says something. One line is printed
for each breach, and the exit code is 1 where there is any.

Examples:
  nlac env check ./my-environment.ts
  nlac env check twentyQuestions --options '{"turns": 10}' --tasks 8`,
    )
    .action(check);
}

async function check(name: string, flags: CheckFlags): Promise<void> {
  const environment = await openEnvironment(name, flags.options);
  const { tasks, seed, timeout } = flags;
  const problems = await checkEnvironment(environment, undefined, { tasks, seed, timeout });
  if (flags.json) console.log(JSON.stringify({ environment: environment.name, problems }));
  else if (problems.length === 0) console.log(`${environment.name}: nothing breaks the contract.`);
  else for (const problem of problems) console.log(`${environment.name}: ${problem}`);
  if (problems.length > 0) process.exitCode = 1;
}
