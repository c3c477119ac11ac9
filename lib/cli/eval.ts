/** `nlac eval`: success on an environment, with intervals. */

import type { Command } from "commander";
import type { Environment } from "../environments/contract.ts";
import { environmentNames, makeEnvironment } from "../environments/registry.ts";
import { NlacError } from "../errors.ts";
import { permutation, streams } from "../random.ts";
import { type Evaluation, evaluate, type Interval } from "../rollout/evaluate.ts";
import { formatFigure, TerminalProgress } from "../run/progress.ts";
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
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Example:
  nlac eval SmolLM2-135M-Instruct --environment twentyQuestions --episodes 64`,
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

function table(title: string, evaluation: Evaluation): string {
  const row = (label: string, { estimate, low, high }: Interval) =>
    `  ${label.padEnd(12)} ${formatFigure(estimate).padStart(8)}   [${formatFigure(low)}, ${formatFigure(high)}]`;
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
