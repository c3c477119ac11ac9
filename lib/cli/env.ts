/** `nlac env check`: tests without a model whether an environment meets the contract. */

import { setImmediate } from "node:timers/promises";
import type { Command } from "commander";
import { messageOf } from "../base/errors.ts";
import { printable } from "../display/printable.ts";
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
    .description("check an environment that you wrote")
    .command("check")
    .description("play an environment without a model, and report violations of the contract")
    .argument("<environment>", `a file that exports one, or one of: ${environmentNames.join(", ")}`)
    .option("--options <json>", "the environment's options", jsonObject)
    .option("--tasks <number>", "tasks to play in each split", wholeNumber(1), 3)
    .option("--seed <number>", "seed of the episodes and of the scripted agent", wholeNumber(0), 0)
    .option(
      "--timeout <ms>",
      "timeout for a reply of the environment, in milliseconds",
      wholeNumber(1),
      30_000,
    )
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
A scripted agent calls every tool with valid and invalid arguments generated
from its schema, calls tools that do not exist, and sends text. The command
prints one line per violation, and exits with code 1 if there is one.

Examples:
  nlac env check ./my-environment.ts
  nlac env check twentyQuestions --options '{"turns": 10}' --tasks 8`,
    )
    .action(check);
}

async function check(name: string, flags: CheckFlags): Promise<void> {
  const environment = await openEnvironment(name, flags.options);
  const { tasks, seed, timeout } = flags;
  const uncaught = new Set<string>();
  const onUncaught = (error: unknown) =>
    uncaught.add(
      `an error that nothing caught, often that of a promise that is not awaited: ${messageOf(error)}`,
    );
  process.on("uncaughtException", onUncaught); // rejections too
  const found = await checkEnvironment(environment, undefined, { tasks, seed, timeout });
  await setImmediate(); // Node reports a rejection after all promises that can go on have done so
  process.off("uncaughtException", onUncaught);
  const problems = [...found, ...uncaught];
  if (flags.json) console.log(JSON.stringify({ environment: environment.name, problems }));
  else if (problems.length === 0) console.log(`${environment.name}: no violations of the contract.`);
  else for (const problem of problems) console.log(printable(`${environment.name}: ${problem}`));
  if (problems.length > 0) process.exitCode = 1;
}
