/** `nlac eval`: success on an environment, with intervals. */

import type { Command } from "commander";
import { type NlacConfig, parseConfig } from "../algorithms/nlac.ts";
import { evaluateReact } from "../algorithms/react.ts";
import type { Environment } from "../environments/contract.ts";
import { environmentNames, makeEnvironment } from "../environments/registry.ts";
import { chatService } from "../environments/service.ts";
import { NlacError } from "../errors.ts";
import type { Learner } from "../learner.ts";
import type { Support } from "../model.ts";
import type { Recipe } from "../recipe.ts";
import { criticLoss } from "../rollout/critic-loss.ts";
import type { Evaluation, Interval } from "../rollout/evaluate.ts";
import { servicePlayer } from "../rollout/service-player.ts";
import { type Transition, transitionsOfAll } from "../rollout/trajectory.ts";
import { readEpisodes, toRecord } from "../run/episodes.ts";
import { formatFigure, TerminalProgress } from "../run/progress.ts";
import { RecordWriter } from "../run/records.ts";
import { type ModelFlags, openModel } from "./model.ts";
import { jsonObject, numberFrom, oneOf, wholeNumber, withModelOptions } from "./options.ts";

interface EvalFlags extends ModelFlags {
  environment?: string;
  options?: Record<string, unknown>;
  split: "train" | "test";
  episodes?: number;
  trials: number;
  concurrency: number;
  temperature: number;
  maxActionTokens?: number;
  weights: "online" | "target";
  record?: string;
  critic?: string;
  transitions: number;
  json?: boolean;
}

/** Before the name of a model that a service has. */
const servicePrefix = "service:";

export function registerEval(program: Command): void {
  withModelOptions(
    program
      .command("eval")
      .description("measure a run or a model on an environment")
      .argument(
        "<run|model>",
        `a run directory, a model name, a Hugging Face directory, a .gguf file, or ${servicePrefix}<its model's name>`,
      ),
  )
    .option("--environment <name>", `one of: ${environmentNames.join(", ")} (default: the run's)`)
    .option("--options <json>", "the environment's options (default: the run's)", jsonObject)
    .option("--split <split>", "tasks to play: train or test", oneOf("train", "test"), "test" as const)
    .option(
      "--episodes <number>",
      "episodes in all (default: --trials of each of 32 tasks, or of all where there are fewer)",
      wholeNumber(1),
    )
    .option("--trials <number>", "most episodes a task, each with a seed of its own", wholeNumber(1), 1)
    .option("--concurrency <number>", "episodes at once", wholeNumber(1), 16)
    .option("--temperature <number>", "of the actions; 0 is greedy", numberFrom(0), 0)
    .option("--max-action-tokens <number>", "longest action (default: the run's, else 128)", wholeNumber(1))
    .option("--weights <which>", "online or target", oneOf("online", "target"), "online" as const)
    .option("--record <file>", "write the episodes to a new file, with every text and id")
    .option("--critic <file>", "instead of playing: L1 of the critic, as training takes it, on such episodes")
    .option("--transitions <number>", "with --critic: transitions to take, evenly spread", wholeNumber(1), 64)
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Tasks are taken in random order, by --seed, and spread evenly over the episodes. The intervals are at 95 % for new
tasks of the same kind: repeats of a task (--trials) narrow them by what they tell, which is little where they all end
alike, as greedy actions (--temperature 0) against a scripted environment do.

A service is one behind OpenAI's API or one compatible with it: $OPENAI_BASE_URL says where, $OPENAI_API_KEY is its key.

Examples:
  nlac eval SmolLM2-135M-Instruct --environment twentyQuestions --episodes 64
  nlac eval runs/mine --episodes 128 --trials 4 --temperature 1
  nlac eval runs/mine --split test --record held-out.jsonl
  nlac eval runs/mine --critic held-out.jsonl
  OPENAI_BASE_URL=http://localhost:8000/v1 nlac eval service:Qwen2.5-7B-Instruct --environment twentyQuestions`,
    )
    .action(run);
}

async function run(runOrModel: string, flags: EvalFlags): Promise<void> {
  if (flags.record !== undefined && flags.critic !== undefined)
    throw new NlacError("ERR_VALUE", "--record and --critic exclude each other.");
  // Opened before anything is played: a path that cannot be written costs no episode.
  const record = flags.record === undefined ? undefined : newRecord(flags.record);
  try {
    await measure(runOrModel, flags, record);
  } finally {
    record?.close();
  }
}

/** An empty file may be there: one that an interrupted evaluation left. */
function newRecord(path: string): RecordWriter {
  const writer = new RecordWriter(path);
  if (writer.sync() === 0) return writer;
  writer.close();
  throw new NlacError("ERR_IO", `${path} is there already.`);
}

async function measure(
  runOrModel: string,
  flags: EvalFlags,
  record: RecordWriter | undefined,
): Promise<void> {
  const service = runOrModel.startsWith(servicePrefix);
  if (service && flags.critic !== undefined)
    throw new NlacError(
      "ERR_VALUE",
      "--critic needs a model whose probabilities can be read, not a service.",
    );
  const { learner, recipe } = service ? {} : await openModel(runOrModel, flags);
  const player = learner ?? servicePlayer(chatService({ model: runOrModel.slice(servicePrefix.length) }));
  let environment: Environment | undefined;
  try {
    const name = flags.environment ?? recipe?.environment.name;
    if (name === undefined) {
      throw new NlacError(
        "ERR_CONFIG",
        `Name an environment with --environment: ${environmentNames.join(", ")}.`,
      );
    }
    const sameAsRun = name === recipe?.environment.name;
    environment = makeEnvironment(name, flags.options ?? (sameAsRun ? recipe.environment.options : {}));
    if (flags.critic !== undefined && learner !== undefined) {
      await evaluateCritic(learner, environment, flags.critic, criticConfig(recipe), flags);
      return;
    }
    const { split, episodes, trials, concurrency, temperature, seed, weights } = flags;
    const { maxPromptTokens } = recipe?.config ?? {};
    const maxActionTokens = flags.maxActionTokens ?? recipe?.config.maxActionTokens;
    const progress = new TerminalProgress();
    const evaluation = await evaluateReact({
      model: player,
      environment,
      config: { split, episodes, trials, concurrency, temperature, seed, maxPromptTokens, maxActionTokens },
      weights,
      onProgress: (finished, total, tokens) => {
        if (tokens === 0) progress.phase("play", total);
        progress.advance(finished);
      },
    }).finally(() => progress.end());
    for (const trajectory of evaluation.trajectories) record?.append(toRecord(trajectory));
    record?.sync();
    if (flags.json) {
      const { trajectories: _, ...figures } = evaluation;
      console.log(JSON.stringify({ environment: name, split: flags.split, ...figures }));
    } else {
      console.log(table(`${name}, ${flags.split}`, evaluation));
    }
  } finally {
    await environment?.close();
    await learner?.dispose();
  }
}

function row(label: string, { estimate, low, high }: Interval): string {
  return `  ${label.padEnd(12)} ${formatFigure(estimate).padStart(8)}   [${formatFigure(low)}, ${formatFigure(high)}]`;
}

/** How a run's training takes L1, or the paper's way for a model that is no run's. */
function criticConfig(recipe: Recipe | undefined): NlacConfig {
  if (recipe === undefined) return parseConfig(undefined);
  if (recipe.algorithm === "nlac") return recipe.config;
  throw new NlacError(
    "ERR_VALUE",
    `--critic needs a run that trained one; this is a run of ${recipe.algorithm}.`,
  );
}

async function evaluateCritic(
  learner: Learner,
  environment: Environment,
  file: string,
  config: NlacConfig,
  flags: EvalFlags,
): Promise<void> {
  const transitions = spread(() => transitionsOfAll(readEpisodes(file, learner)), flags.transitions);
  if (transitions.length === 0) throw new NlacError("ERR_EMPTY", `${file} holds no transition.`);
  const loss = await criticLoss(learner, environment, transitions, { ...config, seed: flags.seed });
  if (flags.json) {
    console.log(JSON.stringify(loss));
    return;
  }
  console.log(
    [
      `critic on ${loss.transitions} transitions of ${loss.episodes} episodes, ${loss.dropped} left out`,
      `L1 is ${describe(loss.support)}`,
      `  ${"".padEnd(12)} ${"nats/token".padStart(8)} 95 % interval`,
      row("L1", loss.l1),
      row("NLL", loss.nll),
      ...Object.entries(loss.roles).map(([name, value]) => `  ${name.padEnd(16)} ${formatFigure(value)}`),
    ].join("\n"),
  );
}

/** At most `most` of `transitions`, evenly spread. They are gone through twice, so that no others are kept. */
function spread(transitions: () => Iterable<Transition>, most: number): Transition[] {
  let all = 0;
  for (const _ of transitions()) all++;
  const count = Math.min(most, all);
  const chosen = new Set(Array.from({ length: count }, (_, i) => Math.floor((i * all) / count)));
  const kept: Transition[] = [];
  let i = 0;
  for (const transition of transitions()) if (chosen.has(i++)) kept.push(transition);
  return kept;
}

function describe(support: Support): string {
  if (support === "sampled") return "the cross entropy of the sampled tokens";
  return support === "full"
    ? "the KL over the whole vocabulary"
    : `the KL over the teacher's best ${support.topK} tokens and the rest as one`;
}

function table(source: string, evaluation: Evaluation): string {
  return [
    `${source}: ${evaluation.episodes} episodes over ${evaluation.tasks} tasks`,
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
