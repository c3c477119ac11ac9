/** `nlac eval`: success rate on an environment, with confidence intervals. */

import { type Command, InvalidArgumentError } from "commander";
import { NlacError } from "../base/errors.ts";
import { closeEnvironment } from "../contract/checks.ts";
import { environmentNames, environmentPath, openEnvironment } from "../environments/registry.ts";
import type { RecordWriter } from "../files/records.ts";
import { requireWritable } from "../files/write-atomically.ts";
import type { Learner } from "../learner/learner.ts";
import { bestOfPlayer } from "../playing/best-of-player.ts";
import { noopPlayer } from "../playing/noop-player.ts";
import { servicePlayer } from "../playing/service-player.ts";
import { recipeIfRun } from "../recipe/run-recipe.ts";
import { chatService, type Price } from "../services/chat-service.ts";
import { criticConfig, evaluateCritic } from "./evaluate-critic.ts";
import { type Agent, doNothing, type EvalFlags, evaluatePlayer } from "./evaluate-player.ts";
import { openJudge, openModel } from "./model.ts";
import {
  asFlag,
  isGiven,
  jsonObject,
  numberFrom,
  oneOf,
  wholeNumber,
  withGenerationOptions,
} from "./options.ts";
import { openRecord } from "./record.ts";

/** Prefix of the model's name if it runs at a service. */
const servicePrefix = "service:";

function price(text: string): Price {
  const [prompt, completion, ...more] = text.split(",").map(numberFrom(0));
  if (completion !== undefined && more.length === 0) return { prompt: prompt!, completion };
  throw new InvalidArgumentError("It must be two numbers, for prompts and completions, for example 0.4,1.6.");
}

export function registerEval(program: Command): void {
  withGenerationOptions(
    program
      .command("eval")
      .description("measure a run or a model on an environment")
      .argument(
        "<run|model>",
        "a run directory, a model name, a Hugging Face directory, a .gguf file, " +
          `${servicePrefix}MODEL for a model at a service, or ${doNothing}`,
      ),
  )
    .option(
      "--environment <name>",
      `a file of your own, or one of: ${environmentNames.join(", ")} (default: the run's)`,
    )
    .option("--options <json>", "the environment's options (default: the run's)", jsonObject)
    .option("--split <split>", "tasks to play: train or test", oneOf("train", "test"), "test" as const)
    .option(
      "--episodes <number>",
      "total episodes (default: --trials for each of 32 tasks, or of all tasks if there are fewer)",
      wholeNumber(1),
    )
    .option("--trials <number>", "maximum episodes per task, each with its own seed", wholeNumber(1), 1)
    .option("--concurrency <number>", "episodes at a time", wholeNumber(1), 16)
    .option("--temperature <number>", "for actions; 0 is greedy", numberFrom(0), 0)
    .option(
      "--max-action-tokens <number>",
      "maximum length of an action (default: the run's, else 128)",
      wholeNumber(1),
    )
    .option(
      "--constrain-actions",
      "for the action format tool: allow only calls that match the tools' schemas",
    )
    .option(
      "--step-timeout <ms>",
      "timeout for a reply of the environment, in milliseconds (default: the run's, else none)",
      wholeNumber(1),
    )
    .option(
      "--weights <which>",
      "weights that play: online, or target (the EMA)",
      oneOf("online", "target"),
      "online" as const,
    )
    .option("--floor", `also play ${doNothing} on the tasks (default: if that calls no service)`)
    .option("--no-floor", `do not play ${doNothing}`)
    .option("--record <file>", "write every finished episode to a new file, with all texts and token ids")
    .option("--resume", "with --record: continue the file of a stopped evaluation")
    .option("--report <file>", "write a page that shows figures and episodes (.html)")
    .option(
      "--budget-tokens <number>",
      "for a service: send no more requests after this many tokens",
      wholeNumber(1),
    )
    .option(
      "--budget-cost <dollars>",
      "for a service: send no more requests after this cost in US dollars; needs --price",
      numberFrom(0),
    )
    .option(
      "--price <prompt,completion>",
      "for a service: US dollars per million tokens, as in 0.4,1.6",
      price,
    )
    .option("--reward-model <run>", "choose each action with the reward model of this HOPE run")
    .option("--best-of <number>", "with --reward-model: actions to choose from (default: 15)", wholeNumber(1))
    .option("--critic <file>", "do not play: compute the critic's training loss L1 on recorded episodes")
    .option("--diagnose", "also measure how much critic and refiner help, on the episodes played")
    .option(
      "--transitions <number>",
      "maximum transitions for --critic (evenly spaced) or --diagnose (sampled)",
      wholeNumber(1),
      64,
    )
    .option(
      "--branches <number>",
      "with --diagnose: episodes to continue from each refined action",
      wholeNumber(0),
      1,
    )
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Tasks are played in random order (--seed), each about equally often. The 95 %
intervals are for new tasks of the same kind. More --trials make them narrower
only if outcomes of the same task differ: greedy actions (--temperature 0) in a
scripted environment always give the same outcome. With several trials, pass^k
is the probability of succeeding in all of k trials on a task.

A service is OpenAI's API or a compatible one: $OPENAI_BASE_URL is its address,
$OPENAI_API_KEY its key. It gets at most --concurrency requests at a time. When
the budget is spent, the evaluation ends as with Ctrl-C; requests in progress
may exceed the budget.

Ctrl-C ends the evaluation, and finished episodes count. With --record, run the
same command with --resume to continue; episodes that ended in an error are
played again.

Examples:
  nlac eval SmolLM2-135M-Instruct --environment twentyQuestions --episodes 64
  nlac eval runs/mine --trials 4 --temperature 1 --report mine.html
  nlac eval runs/mine --split test --record held-out.jsonl
  nlac eval runs/mine --critic held-out.jsonl
  nlac eval runs/mine --diagnose --temperature 1
  nlac eval runs/mine --best-of 15 --reward-model runs/mine --temperature 0.7
  nlac eval ${doNothing} --environment errands
  OPENAI_BASE_URL=http://localhost:8000/v1 \\
    nlac eval service:Qwen2.5-7B-Instruct --environment twentyQuestions
  nlac eval service:gpt-4.1 --environment tauBench --record tau.jsonl \\
    --concurrency 8 --price 2,8 --budget-cost 5`,
    )
    .action(run);
}

/** Options that play, which --critic does not do. */
const ofPlaying = [
  ...(["split", "episodes", "trials", "concurrency", "temperature", "maxActionTokens"] as const),
  ...(["constrainActions", "stepTimeout", "weights", "floor", "record", "resume", "report"] as const),
  ...(["rewardModel", "bestOf", "diagnose", "branches"] as const),
];

/** Refuses options that would have no effect, so that nobody believes they had one. */
function requireEffects(runOrModel: string, flags: EvalFlags, command: Command): void {
  const given = (option: string) => isGiven(command, option);
  // --diagnose: earlier episodes are read only as figures, without their texts.
  for (const [option, others] of [["critic", ofPlaying] as const, ["diagnose", ["resume"]] as const])
    for (const other of given(option) ? others : [])
      if (given(other))
        throw new NlacError("ERR_VALUE", `${asFlag(other)} and ${asFlag(option)} exclude each other.`);
  if (given("branches") && !flags.diagnose) throw new NlacError("ERR_VALUE", "--branches needs --diagnose.");
  if (given("transitions") && !flags.diagnose && flags.critic === undefined)
    throw new NlacError("ERR_VALUE", "--transitions needs --critic or --diagnose.");
  for (const option of ["critic", "diagnose", "weights", "device", "dtype", "int8Generation"])
    if (given(option) && !isLoadedHere(runOrModel))
      throw new NlacError("ERR_VALUE", `${asFlag(option)} needs a model that runs in this process.`);
}

async function run(runOrModel: string, flags: EvalFlags, command: Command): Promise<void> {
  requireEffects(runOrModel, flags, command);
  if (flags.diagnose && flags.weights === "target")
    throw new NlacError(
      "ERR_VALUE",
      "--diagnose measures θ, which generates critiques and refinements: use --weights online.",
    );
  if (flags.resume && flags.record === undefined)
    throw new NlacError("ERR_VALUE", "--resume needs the --record of the stopped evaluation.");
  // Check the output paths before any episode is played.
  if (flags.report !== undefined) requireWritable(flags.report);
  const record = flags.record === undefined ? undefined : openRecord(flags.record, flags.resume === true);
  try {
    await measure(runOrModel, flags, record);
  } finally {
    record?.close();
  }
}

function isLoadedHere(runOrModel: string): boolean {
  return runOrModel !== doNothing && !runOrModel.startsWith(servicePrefix);
}

async function openAgent(runOrModel: string, flags: EvalFlags): Promise<Agent> {
  const isService = runOrModel.startsWith(servicePrefix);
  if (flags.rewardModel === undefined && flags.bestOf !== undefined)
    throw new NlacError("ERR_VALUE", "--best-of needs --reward-model.");
  if (flags.rewardModel !== undefined && !isLoadedHere(runOrModel))
    throw new NlacError("ERR_VALUE", "--reward-model needs a model that runs in this process.");
  if (flags.rewardModel !== undefined && flags.temperature === 0)
    throw new NlacError(
      "ERR_VALUE",
      "--reward-model chooses among samples, which are all the same at --temperature 0. HOPE samples at 0.7.",
    );
  const { price, budgetTokens: tokens, budgetCost: cost } = flags;
  const limited = tokens !== undefined || cost !== undefined;
  if (!isService && (limited || price !== undefined))
    throw new NlacError(
      "ERR_VALUE",
      `--budget-tokens, --budget-cost and --price are only for ${servicePrefix}MODEL.`,
    );
  if (runOrModel === doNothing) return { player: noopPlayer };
  if (isService) {
    const service = chatService({
      model: runOrModel.slice(servicePrefix.length),
      concurrency: flags.concurrency, // an episode sends one request at a time
      ...(price === undefined ? {} : { price }),
      ...(limited ? { budget: { tokens, cost } } : {}),
    });
    return { player: () => servicePlayer(service), service };
  }
  const opened = await openModel(runOrModel, flags);
  if (flags.rewardModel === undefined) return { player: () => opened.learner, ...opened };
  const judge = await openJudge(flags.rewardModel, flags, opened.learner);
  return { player: () => bestOfPlayer(opened.learner, judge, flags.bestOf ?? 15), ...opened, judge };
}

async function measure(
  runOrModel: string,
  flags: EvalFlags,
  record: RecordWriter | undefined,
): Promise<void> {
  const recipe = recipeIfRun(runOrModel);
  const name = flags.environment ? environmentPath(flags.environment) : recipe?.environment.name;
  if (name === undefined) {
    throw new NlacError(
      "ERR_CONFIG",
      `${runOrModel} has no environment of its own: name one with --environment: ${environmentNames.join(", ")}, ` +
        "or a file of yours, such as ./mine.ts.",
    );
  }
  const sameAsRun = name === recipe?.environment.name;
  // Opened before the model, which may take minutes to download.
  const environment = await openEnvironment(
    name,
    flags.options ?? (sameAsRun ? recipe.environment.options : {}),
    sameAsRun ? recipe.environment.stepTimeout : undefined,
  );
  let learner: Learner | undefined;
  let judge: Learner | undefined;
  try {
    if (flags.constrainActions && (!isLoadedHere(runOrModel) || environment.actionFormat !== "tool"))
      throw new NlacError(
        "ERR_VALUE",
        "--constrain-actions needs a model that runs in this process, and an environment with the action format " +
          `tool; ${environment.name} has the action format ${environment.actionFormat}.`,
      );
    const agent = await openAgent(runOrModel, flags);
    learner = agent.learner;
    judge = agent.judge;
    if (flags.critic !== undefined && learner !== undefined)
      await evaluateCritic(learner, environment, flags.critic, criticConfig(recipe, "--critic"), flags);
    else await evaluatePlayer(runOrModel, agent, environment, flags, record);
  } finally {
    await closeEnvironment(environment);
    await learner?.dispose();
    await judge?.dispose();
  }
}
