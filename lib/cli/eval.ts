/** `nlac eval`: success rate on an environment, with confidence intervals. */

import { accessSync, constants, existsSync } from "node:fs";
import { dirname } from "node:path";
import { type Command, InvalidArgumentError } from "commander";
import { type NlacConfig, parseConfig } from "../algorithms/nlac.ts";
import { evaluateReact, reactConfig } from "../algorithms/react.ts";
import { isBudgetSpent, NlacError } from "../base/errors.ts";
import type { Environment, Usage } from "../contract/environment.ts";
import { formatFigure, TerminalProgress } from "../display/progress.ts";
import { environmentNames, environmentPath, openEnvironment } from "../environments/registry.ts";
import { type EpisodeFigures, figuresOf, summarize } from "../episodes/figures.ts";
import { latestEpisodes, readEpisodes, toRecord } from "../episodes/records.ts";
import {
  isFaulty,
  succeeded,
  type Trajectory,
  type Transition,
  transitionsOfAll,
} from "../episodes/trajectory.ts";
import { onDisk } from "../files/disk.ts";
import { lockRecords, RecordWriter } from "../files/records.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import type { Learner } from "../learner/learner.ts";
import type { Support } from "../model/language-model.ts";
import type { Player } from "../playing/batches.ts";
import { noopPlayer } from "../playing/noop-player.ts";
import { servicePlayer } from "../playing/service-player.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { recipeIfRun } from "../recipe/run-recipe.ts";
import { figureTable, type Measured } from "../report/figures.ts";
import { renderEpisodes } from "../report/page.ts";
import { type ChatService, chatService, type Price } from "../services/chat-service.ts";
import type { Interval } from "../statistics/intervals.ts";
import { criticLoss } from "../training/critic-loss.ts";
import { diagnose } from "../training/diagnose.ts";
import { type ModelFlags, openModel } from "./model.ts";
import { jsonObject, numberFrom, oneOf, wholeNumber, withModelOptions } from "./options.ts";
import { stoppable } from "./stop.ts";

interface EvalFlags extends ModelFlags {
  environment?: string;
  options?: Record<string, unknown>;
  split: "train" | "test";
  episodes?: number;
  trials: number;
  concurrency: number;
  temperature: number;
  constrainActions?: boolean;
  maxActionTokens?: number;
  stepTimeout?: number;
  weights: "online" | "target";
  floor?: boolean;
  record?: string;
  resume?: boolean;
  report?: string;
  budgetTokens?: number;
  budgetCost?: number;
  price?: Price;
  critic?: string;
  diagnose?: boolean;
  transitions: number;
  branches: number;
  json?: boolean;
}

/** Prefix of the model's name if it runs at a service. */
const servicePrefix = "service:";
/** Given in place of a model: plays the environment's `idle` actions. */
const doNothing = "do-nothing";

function price(text: string): Price {
  const [prompt, completion, ...more] = text.split(",").map(numberFrom(0));
  if (completion !== undefined && more.length === 0) return { prompt: prompt!, completion };
  throw new InvalidArgumentError("It must be two numbers, for prompts and completions, for example 0.4,1.6.");
}

export function registerEval(program: Command): void {
  withModelOptions(
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
      "for the action format tool: restrict actions to valid calls by the tools' schemas",
    )
    .option(
      "--step-timeout <ms>",
      "timeout for the environment, in milliseconds (default: none)",
      wholeNumber(1),
    )
    .option("--weights <which>", "online or target", oneOf("online", "target"), "online" as const)
    .option("--floor", `also play ${doNothing} on the tasks (default: unless that calls a service)`)
    .option("--no-floor", "do not play it")
    .option("--record <file>", "write every finished episode to a new file, with all texts and token ids")
    .option("--resume", "with --record: continue the file of a stopped evaluation")
    .option("--report <file>", "write a page that shows figures and episodes (.html)")
    .option(
      "--budget-tokens <number>",
      "for a service: send no more requests after this many tokens",
      wholeNumber(1),
    )
    .option("--budget-cost <dollars>", "for a service: the same in US dollars; needs --price", numberFrom(0))
    .option(
      "--price <prompt,completion>",
      "for a service: US dollars per million tokens, as in 0.4,1.6",
      price,
    )
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
      "with --diagnose: episodes to play on from each refined action",
      wholeNumber(0),
      1,
    )
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Tasks are taken in random order (--seed) and distributed evenly over the
episodes. The 95 % intervals are for new tasks of the same kind. More --trials
narrow them only as far as outcomes of the same task differ: greedy actions
(--temperature 0) in a scripted environment always give the same outcome. With
several trials, pass^k is the probability to succeed k times out of k.

A service is OpenAI's API or a compatible one: $OPENAI_BASE_URL is its address,
$OPENAI_API_KEY its key. It gets at most --concurrency requests at a time. When
the budget is spent, the evaluation ends as with Ctrl-C; requests in progress
may exceed it.

Ctrl-C ends the evaluation, and finished episodes count. With --record, run the
same command with --resume to continue; episodes that ended in an error are
played again.

Examples:
  nlac eval SmolLM2-135M-Instruct --environment twentyQuestions --episodes 64
  nlac eval runs/mine --trials 4 --temperature 1 --report mine.html
  nlac eval runs/mine --split test --record held-out.jsonl
  nlac eval runs/mine --critic held-out.jsonl
  nlac eval runs/mine --diagnose --temperature 1
  nlac eval ${doNothing} --environment errands
  OPENAI_BASE_URL=http://localhost:8000/v1 \\
    nlac eval service:Qwen2.5-7B-Instruct --environment twentyQuestions
  nlac eval service:gpt-4.1 --environment tauBench --record tau.jsonl \\
    --concurrency 8 --price 2,8 --budget-cost 5`,
    )
    .action(run);
}

async function run(runOrModel: string, flags: EvalFlags): Promise<void> {
  const excluded = {
    critic: ["record", "report", "resume", "diagnose"],
    diagnose: ["resume"], // earlier episodes are read only as figures, without their texts
  } as const;
  for (const given of ["critic", "diagnose"] as const) {
    for (const option of flags[given] === undefined ? [] : excluded[given])
      if (flags[option] !== undefined)
        throw new NlacError("ERR_VALUE", `--${option} and --${given} exclude each other.`);
  }
  if (flags.diagnose && flags.weights === "target")
    throw new NlacError(
      "ERR_VALUE",
      "--diagnose measures θ, which generates critiques and refinements: use --weights online.",
    );
  if (flags.resume && flags.record === undefined)
    throw new NlacError("ERR_VALUE", "--resume needs the --record of the stopped evaluation.");
  // Check the output paths before any episode is played.
  const { report } = flags;
  if (report !== undefined) onDisk(report, () => accessSync(dirname(report), constants.W_OK));
  const record = flags.record === undefined ? undefined : openRecord(flags.record, flags.resume === true);
  try {
    await measure(runOrModel, flags, record);
  } finally {
    record?.close();
  }
}

/**
 * Opens the record. A new one may exist if it is empty: an evaluation that was stopped before its
 * first episode leaves an empty file.
 */
function openRecord(path: string, resume: boolean): RecordWriter {
  if (resume && !existsSync(path))
    throw new NlacError("ERR_IO", `${path} does not exist. Start without --resume.`);
  const writer = resume ? RecordWriter.resume(path) : new RecordWriter(path, undefined, lockRecords(path));
  if (resume || writer.sync() === 0) return writer;
  writer.close();
  throw new NlacError("ERR_IO", `${path} already exists. Continue it with --resume, or name another file.`);
}

/** The player, and what must be disposed of with it. */
interface Agent {
  player: (environment: Environment) => Player;
  learner?: Learner;
  recipe?: Recipe;
  service?: ChatService;
}

function isLoadedHere(runOrModel: string): boolean {
  return runOrModel !== doNothing && !runOrModel.startsWith(servicePrefix);
}

async function openAgent(runOrModel: string, flags: EvalFlags): Promise<Agent> {
  const isService = runOrModel.startsWith(servicePrefix);
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
  return { player: () => opened.learner, ...opened };
}

async function measure(
  runOrModel: string,
  flags: EvalFlags,
  record: RecordWriter | undefined,
): Promise<void> {
  for (const option of ["critic", "diagnose"] as const)
    if (flags[option] !== undefined && !isLoadedHere(runOrModel))
      throw new NlacError("ERR_VALUE", `--${option} needs a model that runs in this process.`);
  const recipe = recipeIfRun(runOrModel);
  const name = flags.environment ? environmentPath(flags.environment) : recipe?.environment.name;
  if (name === undefined) {
    throw new NlacError(
      "ERR_CONFIG",
      `Name an environment with --environment: ${environmentNames.join(", ")}.`,
    );
  }
  const sameAsRun = name === recipe?.environment.name;
  // Before the model, which may take minutes to download.
  const environment = await openEnvironment(
    name,
    flags.options ?? (sameAsRun ? recipe.environment.options : {}),
  );
  let learner: Learner | undefined;
  try {
    if (flags.constrainActions && (!isLoadedHere(runOrModel) || environment.actionFormat !== "tool"))
      throw new NlacError(
        "ERR_VALUE",
        "--constrain-actions needs a model that runs in this process, and an environment with the action format " +
          `tool; ${environment.name} has the action format ${environment.actionFormat}.`,
      );
    const agent = await openAgent(runOrModel, flags);
    learner = agent.learner;
    if (flags.critic !== undefined && learner !== undefined)
      await evaluateCritic(learner, environment, flags.critic, criticConfig(recipe, "--critic"), flags);
    else await evaluatePlay(runOrModel, agent, environment, flags, record);
  } finally {
    await environment.close();
    await learner?.dispose();
  }
}

async function evaluatePlay(
  player: string,
  agent: Agent,
  environment: Environment,
  flags: EvalFlags,
  record: RecordWriter | undefined,
): Promise<void> {
  const { split, episodes, trials, concurrency, temperature, constrainActions, stepTimeout, seed, weights } =
    flags;
  const of = agent.recipe?.config;
  const maxActionTokens = flags.maxActionTokens ?? of?.maxActionTokens;
  const config = {
    ...{ split, episodes, trials, concurrency, temperature, constrainActions, stepTimeout, seed },
    ...{ maxActionTokens, maxPromptTokens: of?.maxPromptTokens },
  };
  const diagnosed = flags.diagnose ? { ...criticConfig(agent.recipe, "--diagnose"), seed } : undefined;
  const model = agent.player(environment);
  const withFloor = flags.floor ?? (environment.idle !== undefined && environment.usage === undefined);
  const idle = withFloor && player !== doNothing ? noopPlayer(environment) : undefined;
  const played = flags.resume ? playedBefore(flags.record!) : [];
  const finished: Trajectory[] = [];
  let stopped = true;
  let stage = "";
  let spent: string | undefined;
  let people: Usage | undefined;
  let floor: Interval | undefined;
  let diagnosis: Record<string, number> | undefined;

  const progress = new TerminalProgress();
  const note = (line: string) => progress.note(line);
  await stoppable(note, "with the finished episodes", async (signal) => {
    await evaluateReact({
      ...{ model, environment, config, weights, signal, played },
      onProgress: showing("play", progress, agent.learner !== undefined),
      onEpisode: (trajectory) => {
        finished.push(trajectory);
        record?.append(toRecord(trajectory));
        const judged = finished.filter((episode) => !isFaulty(episode));
        progress.show({ success: judged.filter(succeeded).length / judged.length });
      },
    }).finally(() => {
      people = environment.usage?.();
    });
    if (idle !== undefined) {
      const onProgress = showing("floor", progress, false);
      // The limit counts the agent's tokens; this player's tokens are bytes.
      const unlimited = { ...config, maxPromptTokens: undefined };
      const { success } = await evaluateReact({
        ...{ model: idle, environment, signal, onProgress },
        config: unlimited,
      });
      floor = success;
    }
    if (diagnosed !== undefined) {
      stage = ", in the diagnosis";
      progress.phase("diagnose", 1);
      const { transitions, branches } = flags;
      diagnosis = await diagnose({
        ...{ model: agent.learner!, environment, tasks: await environment.tasks(split), number: 0 },
        trajectories: finished.sort((a, b) => a.id - b.id),
        playing: {
          concurrency,
          ...(constrainActions === undefined ? {} : { constrainActions }),
          ...(stepTimeout === undefined ? {} : { stepTimeout }),
        },
        config: {
          ...diagnosed,
          actionTemperature: temperature,
          maxActionTokens: reactConfig.parse(config).maxActionTokens,
          diagnostics: { every: 1, transitions, branches },
        },
        run: { signal },
      });
    }
    stopped = false;
  })
    .catch((error: unknown) => {
      if (!(error instanceof NlacError && (error.code === "ERR_ABORTED" || isBudgetSpent(error))))
        throw error;
      if (isBudgetSpent(error)) spent = `${error.code}: ${error.message}`;
    })
    .finally(() => progress.end());
  record?.sync();

  const all = [...played, ...finished.map(figuresOf)].sort((a, b) => a.id - b.id);
  const measured: Measured = {
    title: `${environment.name}, ${split}`,
    figures: summarize(all, trials),
    ...(floor === undefined ? {} : { floor }),
    ...(people === undefined ? {} : { people }),
    ...(agent.service === undefined ? {} : { agent: agent.service.usage() }),
  };
  const { figures, title: _, ...more } = measured;
  const json = { environment: environment.name, split, ...figures, ...more, diagnosis, stopped };
  console.log(flags.json ? JSON.stringify(json) : figureTable(measured));
  if (diagnosis !== undefined && !flags.json) console.log(`\n${diagnosisTable(diagnosis)}`);
  if (flags.report !== undefined) {
    const records = flags.record === undefined ? finished.map(toRecord) : latestEpisodes(flags.record);
    writeAtomically(flags.report, renderEpisodes({ ...measured, player }, records));
  }
  const [fault, ...others] = finished.flatMap(({ fault }) => fault ?? []);
  if (fault !== undefined) {
    const count = others.length === 0 ? "an episode" : `${others.length + 1} episodes, the first of them`;
    process.stderr.write(`nlac: broken: ${count} by ${fault.code}: ${fault.message}\n`);
    if (all.every(isFaulty)) process.exitCode = 1;
  }
  if (stopped) {
    const go = record === undefined || flags.diagnose ? "" : "; continue with the same command and --resume";
    const why = spent === undefined ? "" : ` (${spent})`;
    process.stderr.write(`nlac: stopped after ${all.length} episodes${stage}${why}${go}\n`);
    process.exitCode = spent === undefined ? 130 : 1;
  }
}

/** Returns a callback that shows the progress of a phase, with token counts if `counting`. */
function showing(phase: string, progress: TerminalProgress, counting: boolean) {
  let written: number | undefined;
  return (finished: number, total: number, tokens: number): void => {
    if (written === undefined) progress.phase(phase, total);
    progress.advance(finished, counting ? tokens - (written ?? 0) : 0);
    written = tokens;
  };
}

/** Figures of the recorded episodes that need not be played again. */
function playedBefore(file: string): EpisodeFigures[] {
  return latestEpisodes(file)
    .map(figuresOf)
    .filter((episode) => !isFaulty(episode));
}

/** The names are those of the training metrics (docs/algorithms/nlac.md). */
function diagnosisTable(figures: Record<string, number>): string {
  const lines = Object.entries(figures).map(
    ([name, value]) => `  ${name.padEnd(32)} ${formatFigure(value).padStart(8)}`,
  );
  return ["critic and refiner", ...lines].join("\n");
}

function row(label: string, { estimate, low, high }: Interval): string {
  return `  ${label.padEnd(12)} ${formatFigure(estimate).padStart(8)}   [${formatFigure(low)}, ${formatFigure(high)}]`;
}

/** The config that the run trained its critic with, or the paper's for other models. */
function criticConfig(recipe: Recipe | undefined, option: string): NlacConfig {
  if (recipe === undefined) return parseConfig(undefined);
  if (recipe.algorithm === "nlac") return recipe.config;
  throw new NlacError(
    "ERR_VALUE",
    `${option} needs a run that trained a critic; this is a run of ${recipe.algorithm}.`,
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
  if (transitions.length === 0) throw new NlacError("ERR_EMPTY", `${file} contains no transitions.`);
  const loss = await criticLoss(learner, environment, transitions, { ...config, seed: flags.seed });
  if (flags.json) {
    console.log(JSON.stringify(loss));
    return;
  }
  console.log(
    [
      `critic on ${loss.transitions} transitions of ${loss.episodes} episodes, ${loss.dropped} skipped`,
      `L1 is ${describe(loss.support)}`,
      `  ${"".padEnd(12)} ${"nats/token".padStart(8)} 95 % interval`,
      row("L1", loss.l1),
      row("NLL", loss.nll),
      ...Object.entries(loss.roles).map(([name, value]) => `  ${name.padEnd(16)} ${formatFigure(value)}`),
    ].join("\n"),
  );
}

/** At most `most` evenly spaced transitions. Reads them twice, to hold only those in memory. */
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
    : `the KL over the teacher's top ${support.topK} tokens and the remaining probability mass`;
}
