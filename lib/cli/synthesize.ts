/** `nlac data synthesize`: generates tasks for an environment that has too few. */

import { accessSync, constants, existsSync } from "node:fs";
import { join } from "node:path";
import { type Command, InvalidArgumentError } from "commander";
import { counted } from "../base/counted.ts";
import { NlacError } from "../base/errors.ts";
import { stderrReporter } from "../display/reporter.ts";
import {
  type RetailSynthesis,
  type SynthesizeRetailOptions,
  synthesizeRetail,
  type TauBenchTaskRecord,
} from "../environments/tau-bench/synthesize.ts";
import { readTasks } from "../environments/tau-bench/tasks.ts";
import { makeDirectory, onDisk } from "../files/disk.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import type { ServiceSource } from "../services/open-service.ts";
import { collect, jsonObject, wholeNumber } from "./options.ts";

interface SynthesizeFlags {
  data?: string;
  out: string;
  train?: number;
  test?: number;
  seed?: number;
  questions?: number;
  holdOut: string[];
  rewrite?: Record<string, unknown>;
  json?: boolean;
}

const benchmark = "tau-bench-retail";

/** Adds the command to `data`. */
export function registerSynthesize(data: Command): void {
  data
    .command("synthesize")
    .description("generate checked training and test tasks from an environment's data")
    .argument("<tasks>", benchmark)
    .requiredOption("--out <directory>", "directory for tasks_train.json and tasks_test.json")
    .option("--data <directory>", "tau-bench's data (default: $NLAC_DATA/tau-bench)")
    .option("--train <number>", "number of training tasks (default: 2500)", wholeNumber(0))
    .option("--test <number>", "number of test tasks, with other customers (default: 500)", wholeNumber(0))
    .option("--seed <number>", "the same seed gives the same tasks (default: 0)", wholeNumber(0))
    .option("--questions <share>", "share of tasks that also ask a question (default: 0.2)", share)
    .option(
      "--hold-out <file>",
      "tasks whose customers are excluded from the training tasks; may be repeated",
      collect,
      [],
    )
    .option("--rewrite <json>", "a service that rephrases the instructions", jsonObject)
    .option("--json", "print the figures as JSON")
    .addHelpText(
      "after",
      `
Examples:
  nlac data synthesize ${benchmark} --out retail-tasks \\
    --hold-out "$NLAC_DATA/tau-bench/retail/tasks_test.json"
  nlac data synthesize ${benchmark} --out retail-tasks \\
    --rewrite '{"model": "gpt-4.1", "record": "rewritten.jsonl"}'

Use the tasks through the options of the environment tauBench:
{ "domain": "retail", "train": "…/tasks_train.json", "test": … } with absolute
paths. docs/environments/tau-bench-users.md says how they are made and checked.`,
    )
    .action(run);
}

function share(text: string): number {
  const value = Number(text);
  if (text.trim() !== "" && value >= 0 && value <= 1) return value;
  throw new InvalidArgumentError("It must be a number from 0 to 1.");
}

async function run(tasks: string, flags: SynthesizeFlags): Promise<void> {
  if (tasks !== benchmark) {
    throw new NlacError("ERR_VALUE", `Tasks can be generated for ${benchmark} only, not for "${tasks}".`);
  }
  const files = { train: join(flags.out, "tasks_train.json"), test: join(flags.out, "tasks_test.json") };
  for (const file of Object.values(files)) {
    if (existsSync(file))
      throw new NlacError("ERR_VALUE", `${file} already exists; give --out another directory.`);
  }
  // Check the output directory first: the service that rephrases the instructions costs money.
  makeDirectory(flags.out);
  onDisk(flags.out, () => accessSync(flags.out, constants.W_OK));
  const { data, train, test, seed, questions } = flags;
  const heldOut = flags.holdOut.flatMap((file) => readTasks(file, "held-out").map(({ userId }) => userId));
  const reporter = stderrReporter();
  const options: SynthesizeRetailOptions = { data, train, test, seed, questions, heldOut };
  if (flags.rewrite !== undefined) {
    options.rewrite = flags.rewrite as unknown as ServiceSource;
    options.onProgress = (done, of) => reporter.progress("rewritten", done, of, "steps");
  }
  const start = performance.now();
  const synthesis = await synthesizeRetail(options);
  const seconds = (performance.now() - start) / 1000;
  for (const split of ["train", "test"] as const) {
    writeAtomically(files[split], `${JSON.stringify(synthesis[split], undefined, 1)}\n`);
  }
  const figures = { seconds, ...figuresOf(synthesis), files };
  console.log(flags.json ? JSON.stringify(figures) : table(figures));
}

interface Figures {
  seconds: number;
  drawn: number;
  rejected: Record<string, number>;
  rewritten: number;
  splits: Record<"train" | "test", SplitFigures>;
  files: Record<"train" | "test", string>;
}

interface SplitFigures {
  tasks: number;
  customers: number;
  /** Tasks that ask a question. */
  questions: number;
  /** Tasks by number of changes, and changes by tool. */
  changes: Record<string, number>;
  tools: Record<string, number>;
}

function figuresOf({ train, test, ...rest }: RetailSynthesis): Omit<Figures, "seconds" | "files"> {
  return { ...rest, splits: { train: splitFigures(train), test: splitFigures(test) } };
}

function splitFigures(tasks: readonly TauBenchTaskRecord[]): SplitFigures {
  return {
    tasks: tasks.length,
    customers: new Set(tasks.map(({ user_id }) => user_id)).size,
    questions: tasks.filter(({ outputs }) => outputs.length > 0).length,
    changes: counts(tasks.map(({ actions }) => String(actions.length))),
    tools: counts(tasks.flatMap(({ actions }) => actions.map(({ name }) => name))),
  };
}

/** Occurrences of each text, the most frequent first. */
function counts(texts: readonly string[]): Record<string, number> {
  const found = new Map<string, number>();
  for (const text of texts) found.set(text, (found.get(text) ?? 0) + 1);
  return Object.fromEntries([...found].sort(([, a], [, b]) => b - a));
}

function table({ seconds, drawn, rejected, rewritten, splits, files }: Figures): string {
  const made = splits.train.tasks + splits.test.tasks;
  const shown = (entries: Record<string, number>) =>
    Object.entries(entries)
      .map(([name, count]) => `${name} ${count}`)
      .join(", ");
  return [
    `${counted(made, "task")} in ${seconds.toFixed(1)} s, from ${counted(drawn, "candidate")}; rejected: ${shown(rejected)}`,
    ...(rewritten === 0 ? [] : [`${counted(rewritten, "instruction")} rephrased by the service`]),
    ...(["train", "test"] as const).flatMap((split) => {
      const { tasks, customers, questions, changes, tools } = splits[split];
      return [
        `${split}: ${counted(tasks, "task")} of ${counted(customers, "customer")}, ${questions} with a question → ${files[split]}`,
        `  tasks by changes: ${shown(changes)}`,
        `  changes by tool: ${shown(tools)}`,
      ];
    }),
  ].join("\n");
}
