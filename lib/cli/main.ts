#!/usr/bin/env node
/** The `nlac` command line. Each command is a file with a `register…` function, listed below. */

import { realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { Command, CommanderError, Help, type Option } from "commander";
import { fromFileSystem, NlacError } from "../base/errors.ts";
import { version } from "../base/version.ts";
import { printable } from "../display/printable.ts";
import { watchStandardStreams } from "./standard-streams.ts";
import { fitted } from "./wrap.ts";

type Register = (program: Command) => void;

/** A command as the list of all commands shows it; a test compares with the command itself. */
export interface Listed {
  usage: string;
  description: string;
  register(): Promise<Register>;
}

// Only the requested command is imported, so that `setup` and `doctor` work without libtorch, and
// the list of commands appears at once.
export const commands: Readonly<Record<string, Listed>> = {
  setup: {
    usage: "setup [options]",
    description: "find or install libtorch, and compile the native addon if none loads",
    register: async () => (await import("./setup.ts")).registerSetup,
  },
  doctor: {
    usage: "doctor [options]",
    description: "check this machine: libtorch, addon, CPU, GPU, tools, model",
    register: async () => (await import("./doctor.ts")).registerDoctor,
  },
  data: {
    usage: "data",
    description: "import or create benchmark data",
    register: async () => (await import("./data.ts")).registerData,
  },
  init: {
    usage: "init [directory]",
    description: "make a project: an environment, a recipe that trains in a minute, and a test",
    register: async () => (await import("./init.ts")).registerInit,
  },
  train: {
    usage: "train [options] [recipe]",
    description: "train a model with a recipe",
    register: async () => (await import("./train.ts")).registerTrain,
  },
  eval: {
    usage: "eval [options] <run|model>",
    description: "measure a run or a model on an environment",
    register: async () => (await import("./eval.ts")).registerEval,
  },
  generate: {
    usage: "generate [options] <run|model> <prompt>",
    description: "generate a run's or a model's reply to a prompt",
    register: async () => (await import("./generate.ts")).registerGenerate,
  },
  env: {
    usage: "env",
    description: "check an environment that you wrote",
    register: async () => (await import("./env.ts")).registerEnv,
  },
  play: {
    usage: "play [options] <environment|run|model>",
    description: "play an environment, watch a model play, or answer a model's questions",
    register: async () => (await import("./play.ts")).registerPlay,
  },
  dash: {
    usage: "dash [options] [runs...]",
    description: "show runs in a browser, live while they train: curves, transcripts, critiques",
    register: async () => (await import("./dash.ts")).registerDash,
  },
  view: {
    usage: "view [options] <run|record>",
    description: "show a run's figures and complete training samples, or recorded episodes",
    register: async () => (await import("./view.ts")).registerView,
  },
  serve: {
    usage: "serve [options] <run|model>",
    description: "serve a run's policy or a model to any client of OpenAI's API, and record episodes",
    register: async () => (await import("./serve.ts")).registerServe,
  },
  versions: {
    usage: "versions [options] <run>",
    description: "list the stored versions of a run of nlac serve --train",
    register: async () => (await import("./versions.ts")).registerVersions,
  },
  rollback: {
    usage: "rollback <run> [version]",
    description: "continue a run of nlac serve --train from an earlier version",
    register: async () => (await import("./rollback.ts")).registerRollback,
  },
  bench: {
    usage: "bench [options] <suite>",
    description: "measure the core against other libraries, on the same inputs in the same run",
    register: async () => (await import("./bench.ts")).registerBench,
  },
  compare: {
    usage: "compare [options] <comparison>",
    description: "train each method with each seed for equal environment steps, and plot the results",
    register: async () => (await import("./compare.ts")).registerCompare,
  },
  verify: {
    usage: "verify [options] <run|model|file>",
    description: "check a run, a model or a recording for damaged files",
    register: async () => (await import("./verify.ts")).registerVerify,
  },
  export: {
    usage: "export [options] <run|model> <directory>",
    description: "write a Hugging Face directory that transformers can load",
    register: async () => (await import("./export.ts")).registerExport,
  },
  label: {
    usage: "label [options] <run>",
    description: "print the mean return of every action in a run's episodes, as JSON lines",
    register: async () => (await import("./label.ts")).registerLabel,
  },
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
    .configureHelp({ minWidthToWrap: 20, subcommandTerm, optionDescription })
    .addHelpText("after", "\nExample:\n  nlac setup && nlac train quickstart");
  try {
    const name = commandOf(argv);
    for (const [other, { usage, description, register }] of Object.entries(commands)) {
      if (other === name) (await register())(program);
      else program.command(other).usage(usage).description(description);
    }
    if (argv.length === 0) {
      program.outputHelp();
      return 0;
    }
    // Commander shows the list of commands, as if nothing were wrong.
    if (argv[0] === "help" && /^(?!help$)\w/.test(argv[1] ?? "") && name === undefined)
      return fail("ERR_VALUE", `unknown command '${argv[1]}'; see nlac --help`);
    await program.parseAsync(argv as string[], { from: "user" });
    return Number(process.exitCode ?? 0);
  } catch (thrown) {
    const error = fromFileSystem(thrown);
    if (error instanceof CommanderError) {
      if (error.exitCode === 0) return 0; // --help and --version
      if (error.code === "commander.help") return 1; // a command with subcommands printed its help
      const said = error.message.replace(/^error: /, "").replaceAll("\n", " ");
      const advice = hint(error.code, program, argv);
      return fail("ERR_VALUE", advice === "" ? said : `${said.replace(/\.$/, "")}; ${advice}`);
    }
    if (error instanceof NlacError) return fail(error.code, error.message);
    const text =
      error instanceof Error && process.env.NLAC_DEBUG
        ? (error.stack ?? error.message)
        : `${error} (a bug in nlac: please report it; NLAC_DEBUG=1 prints the stack)`;
    return fail("ERR_INTERNAL", text.replace(/^Error: /, ""));
  }
}

/** The command that is named on a command line, also as in `nlac help train`. */
function commandOf(argv: readonly string[]): string | undefined {
  return argv.find((argument) => Object.hasOwn(commands, argument));
}

/** How help lists a command. */
function subcommandTerm(command: Command): string {
  const listed = command.parent?.parent ? undefined : commands[command.name()];
  return listed?.usage ?? new Help().subcommandTerm(command);
}

/** Help of an option, without the default of one that may be repeated. */
function optionDescription(option: Option): string {
  return new Help().optionDescription(option).replace(" (default: [])", "");
}

/** Where help is, after an error that does not say what would be right. */
function hint(code: string, program: Command, argv: readonly string[]): string {
  if (code === "commander.invalidArgument") return "";
  const name = commandOf(argv);
  const path = ["nlac"];
  // Commands within commands, as in `nlac data import tau-bench`, follow at once.
  let within: Command | undefined = program;
  for (let i = name === undefined ? argv.length : argv.indexOf(name); within !== undefined; i++) {
    within = within.commands.find((command) => command.name() === argv[i]);
    if (within !== undefined) path.push(within.name());
  }
  return `see ${path.join(" ")} --help`;
}

function fail(code: string, message: string): number {
  process.stderr.write(printable(`nlac: ${code}: ${message}\n`, process.stderr));
  return 1;
}

/** Whether this file is the program, also if started through npm's link in node_modules/.bin. */
function isProgram(): boolean {
  const script = process.argv[1];
  return script !== undefined && realpathSync(script) === fileURLToPath(import.meta.url);
}

/** Runs the command line of this process. */
export async function runProgram(): Promise<void> {
  watchStandardStreams();
  process.exitCode = await main(process.argv.slice(2));
}

if (isProgram()) await runProgram();
