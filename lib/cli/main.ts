#!/usr/bin/env node
/** The `nlac` command line. Each command is a file with a `register…` function, listed below. */

import { realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { Command, CommanderError } from "commander";
import { fromFileSystem, NlacError } from "../base/errors.ts";
import { version } from "../base/version.ts";
import { fitted } from "./wrap.ts";

type Register = (program: Command) => void;

// Only the requested command is imported, so that `setup` and `doctor` work without libtorch.
const commands: Record<string, () => Promise<Register>> = {
  setup: async () => (await import("./setup.ts")).registerSetup,
  doctor: async () => (await import("./doctor.ts")).registerDoctor,
  data: async () => (await import("./data.ts")).registerData,
  init: async () => (await import("./init.ts")).registerInit,
  train: async () => (await import("./train.ts")).registerTrain,
  eval: async () => (await import("./eval.ts")).registerEval,
  generate: async () => (await import("./generate.ts")).registerGenerate,
  env: async () => (await import("./env.ts")).registerEnv,
  play: async () => (await import("./play.ts")).registerPlay,
  dash: async () => (await import("./dash.ts")).registerDash,
  view: async () => (await import("./view.ts")).registerView,
  serve: async () => (await import("./serve.ts")).registerServe,
  versions: async () => (await import("./versions.ts")).registerVersions,
  rollback: async () => (await import("./rollback.ts")).registerRollback,
  bench: async () => (await import("./bench.ts")).registerBench,
  compare: async () => (await import("./compare.ts")).registerCompare,
  verify: async () => (await import("./verify.ts")).registerVerify,
  export: async () => (await import("./export.ts")).registerExport,
  label: async () => (await import("./label.ts")).registerLabel,
};

/** Runs one command line (without node and script); returns the exit code. */
export async function main(argv: readonly string[]): Promise<number> {
  const program = new Command("nlac")
    .description("Train LLM agents with Natural Language Actor-Critic.")
    .version(version)
    .exitOverride()
    // Commander does not wrap the text after the options (examples and notes).
    .configureOutput({ outputError: () => {}, writeOut: (text) => process.stdout.write(fitted(text)) })
    // Wrap descriptions at 80 columns, even next to the longest option names.
    .configureHelp({ minWidthToWrap: 20 })
    .addHelpText("after", "\nExample:\n  nlac setup && nlac train quickstart");
  try {
    const named = commands[argv[0] ?? ""];
    for (const load of named ? [named] : Object.values(commands)) (await load())(program);
    if (argv.length === 0) {
      program.outputHelp();
      return 0;
    }
    await program.parseAsync(argv as string[], { from: "user" });
    return Number(process.exitCode ?? 0);
  } catch (thrown) {
    const error = fromFileSystem(thrown);
    if (error instanceof CommanderError) {
      if (error.exitCode === 0) return 0; // --help and --version
      if (error.code === "commander.help") return 1; // a command with subcommands printed its help
      return fail("ERR_VALUE", error.message.replace(/^error: /, ""));
    }
    if (error instanceof NlacError) return fail(error.code, error.message);
    const text =
      error instanceof Error && process.env.NLAC_DEBUG ? (error.stack ?? error.message) : String(error);
    return fail("ERR_INTERNAL", text.replace(/^Error: /, ""));
  }
}

function fail(code: string, message: string): number {
  process.stderr.write(`nlac: ${code}: ${message}\n`);
  return 1;
}

/** Whether this file is the program, also if started through npm's link in node_modules/.bin. */
function isProgram(): boolean {
  const script = process.argv[1];
  return script !== undefined && realpathSync(script) === fileURLToPath(import.meta.url);
}

/** Runs the command line of this process. */
export async function runProgram(): Promise<void> {
  // A reader that closes early (`nlac view | head`) is not an error.
  process.stdout.on("error", (error: NodeJS.ErrnoException) => process.exit(error.code === "EPIPE" ? 0 : 1));
  process.exitCode = await main(process.argv.slice(2));
}

if (isProgram()) await runProgram();
