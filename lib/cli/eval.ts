/** `nlac eval`: success on an environment, with intervals. */

import { existsSync } from "node:fs";
import type { Command } from "commander";
import { parseConfig } from "../algorithms/nlac.ts";
import type { Environment } from "../environments/contract.ts";
import { environmentNames, makeEnvironment } from "../environments/registry.ts";
import { NlacError } from "../errors.ts";
import type { Learner } from "../learner.ts";
import { permutation, streams } from "../random.ts";
import { criticLoss } from "../rollout/critic-loss.ts";
import { type Evaluation, evaluate, type Interval } from "../rollout/evaluate.ts";
import type { RolesConfig } from "../rollout/roles.ts";
import { transitionsOf } from "../rollout/trajectory.ts";
import { type EpisodeRecord, fromRecord, toRecord } from "../run/episodes.ts";
import { formatFigure, TerminalProgress } from "../run/progress.ts";
import { RecordWriter, readRecords } from "../run/records.ts";
import { type ModelFlags, openModel } from "./model.ts";
import { jsonObject, numberFrom, wholeNumber, withModelOptions } from "./options.ts";

interface EvalFlags extends ModelFlags {
  environment?: string;
  options?: Record<string, unknown>;
  split: "train" | "test";
  episodes: number;
  concurrency: number;
  temperature: number;
  maxActionTokens?: number;
  weights: "online" | "target";
  record?: string;
  critic?: string;
  transitions: number;
  json?: boolean;
}

export function registerEval(program: Command): void {
  withModelOptions(
    program
      .command("eval")
      .description("measure a run or a model on an environment")
      .argument("<run|model>", "a run directory, a model name, a Hugging Face directory or a .gguf file"),
  )
    .option("--environment <name>", `one of: ${environmentNames.join(", ")} (default: the run's)`)
    .option("--options <json>", "the environment's options (default: the run's)", jsonObject)
    .option("--split <split>", "tasks to play: train or test", "test")
    .option("--episodes <number>", "episodes, one a task in random order", wholeNumber(1), 32)
    .option("--concurrency <number>", "episodes at once", wholeNumber(1), 16)
    .option("--temperature <number>", "of the actions; 0 is greedy", numberFrom(0), 0)
    .option("--max-action-tokens <number>", "longest action (default: the run's, else 128)", wholeNumber(1))
    .option("--weights <which>", "online or target", "online")
    .option("--record <file>", "write the episodes to a new file, with every text and id")
    .option("--critic <file>", "instead of playing: L1 of the critic on episodes that --record wrote")
    .option("--transitions <number>", "with --critic: transitions to take, evenly spread", wholeNumber(1), 64)
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Examples:
  nlac eval SmolLM2-135M-Instruct --environment twentyQuestions --episodes 64
  nlac eval runs/mine --split test --record held-out.jsonl
  nlac eval runs/mine --critic held-out.jsonl`,
    )
    .action(run);
}

async function run(runOrModel: string, flags: EvalFlags): Promise<void> {
  if (flags.split !== "train" && flags.split !== "test") {
    throw new NlacError("ERR_CONFIG", `--split is train or test, not ${flags.split}.`);
  }
  if (flags.weights !== "online" && flags.weights !== "target") {
    throw new NlacError("ERR_CONFIG", `--weights is online or target, not ${flags.weights}.`);
  }
  if (flags.record !== undefined && existsSync(flags.record)) {
    throw new NlacError("ERR_IO", `${flags.record} is there already.`);
  }
  const progress = new TerminalProgress();
  const { learner, recipe } = await openModel(runOrModel, flags);
  try {
    const name = flags.environment ?? recipe?.environment.name;
    if (name === undefined) {
      throw new NlacError(
        "ERR_CONFIG",
        `Name an environment with --environment: ${environmentNames.join(", ")}.`,
      );
    }
    const sameAsRun = name === recipe?.environment.name;
    const environment: Environment = makeEnvironment(
      name,
      flags.options ?? (sameAsRun ? recipe.environment.options : {}),
    );
    if (flags.critic !== undefined) {
      await evaluateCritic(learner, environment, recipe?.config ?? parseConfig(undefined), flags);
      return;
    }
    const all = await environment.tasks(flags.split);
    const order = permutation(all.length, flags.seed ?? 0, streams.evaluation);
    const tasks = Array.from({ length: flags.episodes }, (_, i) => all[order[i % all.length]!]!);
    progress.phase("play", tasks.length);
    const evaluation = await evaluate({
      model: learner,
      environment,
      tasks,
      seed: flags.seed ?? 0,
      concurrency: flags.concurrency,
      maxActionTokens: flags.maxActionTokens ?? recipe?.config.maxActionTokens ?? 128,
      maxPromptTokens: recipe?.config.maxPromptTokens ?? learner.maxPositions,
      temperature: flags.temperature,
      weights: flags.weights,
      onProgress: (finished) => progress.advance(finished),
    });
    progress.end();
    await environment.close();
    if (flags.record !== undefined) {
      const writer = new RecordWriter(flags.record);
      for (const trajectory of evaluation.trajectories) writer.append(toRecord(trajectory));
      writer.sync();
      writer.close();
    }
    if (flags.json) {
      const { trajectories: _, ...figures } = evaluation;
      console.log(JSON.stringify({ environment: name, split: flags.split, ...figures }));
    } else {
      console.log(table(`${name}, ${flags.split}, ${tasks.length} episodes`, evaluation));
    }
  } finally {
    await learner.dispose();
  }
}

function row(label: string, { estimate, low, high }: Interval): string {
  return `  ${label.padEnd(12)} ${formatFigure(estimate).padStart(8)}   [${formatFigure(low)}, ${formatFigure(high)}]`;
}

async function evaluateCritic(
  learner: Learner,
  environment: Environment,
  config: RolesConfig,
  flags: EvalFlags,
): Promise<void> {
  const all = readRecords<EpisodeRecord>(flags.critic!).flatMap((record) =>
    transitionsOf(fromRecord(record, learner)),
  );
  if (all.length === 0) throw new NlacError("ERR_EMPTY", `${flags.critic} holds no transition.`);
  const count = Math.min(flags.transitions, all.length);
  const transitions = Array.from({ length: count }, (_, i) => all[Math.floor((i * all.length) / count)]!);
  const loss = await criticLoss(learner, environment, transitions, { ...config, seed: flags.seed ?? 0 });
  if (flags.json) {
    console.log(JSON.stringify(loss));
    return;
  }
  console.log(
    [
      `critic on ${loss.transitions} transitions, ${loss.dropped} left out`,
      `  ${"".padEnd(12)} ${"nats/token".padStart(8)} 95 % interval`,
      row("L1", loss.l1),
      row("NLL", loss.nll),
      ...Object.entries(loss.roles).map(([name, value]) => `  ${name.padEnd(16)} ${formatFigure(value)}`),
    ].join("\n"),
  );
}

function table(title: string, evaluation: Evaluation): string {
  return [
    title,
    `  ${"".padEnd(12)} ${"estimate".padStart(8)}   95 % interval`,
    row("success", evaluation.success),
    row("reward", evaluation.reward),
    row("turns", evaluation.turns),
    `  ${"readable".padEnd(12)} ${formatFigure(evaluation.parseRate).padStart(8)}   of all actions`,
    `  ended by: ${Object.entries(evaluation.outcomes)
      .map(([outcome, count]) => `${outcome} ${count}`)
      .join(", ")}`,
  ].join("\n");
}
