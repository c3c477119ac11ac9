/** `nlac eval`: success on an environment, with intervals. */

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
import { RecordWriter } from "../files/records.ts";
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

/** Before the name of a model that a service has. */
const servicePrefix = "service:";
/** In the place of a model: the agent that plays the environment's `idle`. */
const doNothing = "do-nothing";

function price(text: string): Price {
  const [prompt, completion, ...more] = text.split(",").map(numberFrom(0));
  if (completion !== undefined && more.length === 0) return { prompt: prompt!, completion };
  throw new InvalidArgumentError("It must be two numbers, for prompts and for replies, for example 0.4,1.6.");
}

export function registerEval(program: Command): void {
  withModelOptions(
    program
      .command("eval")
      .description("measure a run or a model on an environment")
      .argument(
        "<run|model>",
        "a run directory, a model name, a Hugging Face directory, a .gguf file, " +
          `${servicePrefix}<its model's name>, or ${doNothing}`,
      ),
  )
    .option(
      "--environment <name>",
      `a file of one's own, or one of: ${environmentNames.join(", ")} (default: the run's)`,
    )
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
    .option("--constrain-actions", "hold actions of the format tool to their form and their tools' schemas")
    .option("--step-timeout <ms>", "longest wait for the environment (default: no limit)", wholeNumber(1))
    .option("--weights <which>", "online or target", oneOf("online", "target"), "online" as const)
    .option("--floor", `also play ${doNothing} on the tasks (default: where that asks no service)`)
    .option("--no-floor", "do not")
    .option("--record <file>", "write the episodes to a new file as they end, with every text and id")
    .option("--resume", "with --record: go on with a file that a stopped evaluation left")
    .option("--report <file>", "write a page that shows figures and episodes (.html)")
    .option(
      "--budget-tokens <number>",
      "of a service: tokens after which nothing more is asked",
      wholeNumber(1),
    )
    .option("--budget-cost <dollars>", "of a service: the same in US dollars; needs --price", numberFrom(0))
    .option("--price <prompt,reply>", "of a service: US dollars for a million tokens, as in 0.4,1.6", price)
    .option("--critic <file>", "instead of playing: L1 of the critic, as training takes it, on such episodes")
    .option("--diagnose", "also measure what critic and refiner are worth, on the episodes played")
    .option(
      "--transitions <number>",
      "most transitions that --critic (evenly spread) or --diagnose (drawn) looks at",
      wholeNumber(1),
      64,
    )
    .option(
      "--branches <number>",
      "with --diagnose: episodes played on with each refined action",
      wholeNumber(0),
      1,
    )
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Tasks are taken in random order, by --seed, and spread evenly over the episodes.
The intervals are at 95 % for new tasks of the same kind: repeats of a task
(--trials) narrow them by what they tell, which is little where they all end
alike, as greedy actions (--temperature 0) against a scripted environment do.
With repeats, pass^k is the chance to succeed k times out of k.

A service is one behind OpenAI's API or one compatible with it: $OPENAI_BASE_URL
says where, $OPENAI_API_KEY is its key. It has at most --concurrency requests at
once. A budget that is spent ends the evaluation as Ctrl-C does; requests that
are under way may go beyond it.

Ctrl-C ends the evaluation, and what is over counts. With --record, the same
command and --resume go on from there; episodes that a fault ended are then
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
    diagnose: ["resume"], // the episodes played before are read as figures alone
  } as const;
  for (const given of ["critic", "diagnose"] as const) {
    for (const option of flags[given] === undefined ? [] : excluded[given])
      if (flags[option] !== undefined)
        throw new NlacError("ERR_VALUE", `--${option} and --${given} exclude each other.`);
  }
  if (flags.diagnose && flags.weights === "target")
    throw new NlacError(
      "ERR_VALUE",
      "--diagnose is of θ, which critic and refiner write with: --weights online.",
    );
  if (flags.resume && flags.record === undefined)
    throw new NlacError("ERR_VALUE", "--resume needs the --record that the evaluation was begun with.");
  // Before anything is played: a path that cannot be written costs no episode.
  const { report } = flags;
  if (report !== undefined) onDisk(report, () => accessSync(dirname(report), constants.W_OK));
  const record = flags.record === undefined ? undefined : openRecord(flags.record, flags.resume === true);
  try {
    await measure(runOrModel, flags, record);
  } finally {
    record?.close();
  }
}

/** A new one may be there already if it is empty: an evaluation that was stopped before its first episode left it. */
function openRecord(path: string, resume: boolean): RecordWriter {
  if (resume && !existsSync(path))
    throw new NlacError("ERR_IO", `${path} is not there to go on with. Begin it without --resume.`);
  const writer = resume ? RecordWriter.resume(path) : new RecordWriter(path);
  if (resume || writer.sync() === 0) return writer;
  writer.close();
  throw new NlacError("ERR_IO", `${path} is there already. Go on with it by --resume, or name another file.`);
}

/** Who plays, and what has to be given back. */
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
      `--budget-tokens, --budget-cost and --price are for ${servicePrefix}MODEL.`,
    );
  if (runOrModel === doNothing) return { player: noopPlayer };
  if (isService) {
    const service = chatService({
      model: runOrModel.slice(servicePrefix.length),
      concurrency: flags.concurrency, // an episode asks once at a time
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
      throw new NlacError("ERR_VALUE", `--${option} needs a model that is loaded here.`);
  const recipe = recipeIfRun(runOrModel);
  const name = flags.environment ? environmentPath(flags.environment) : recipe?.environment.name;
  if (name === undefined) {
    throw new NlacError(
      "ERR_CONFIG",
      `Name an environment with --environment: ${environmentNames.join(", ")}.`,
    );
  }
  const sameAsRun = name === recipe?.environment.name;
  // Before the model: one that must be fetched takes minutes.
  const environment = await openEnvironment(
    name,
    flags.options ?? (sameAsRun ? recipe.environment.options : {}),
  );
  let learner: Learner | undefined;
  try {
    if (flags.constrainActions && (!isLoadedHere(runOrModel) || environment.actionFormat !== "tool"))
      throw new NlacError(
        "ERR_VALUE",
        "--constrain-actions needs a model that is loaded here, and an environment whose actions have the format " +
          `tool; those of ${environment.name} have the format ${environment.actionFormat}.`,
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
  await stoppable(note, "with the episodes that are over", async (signal) => {
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
      // A limit in the agent's tokens is none in the ids of this player, which are bytes.
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
    const go = record === undefined || flags.diagnose ? "" : "; the same command with --resume goes on";
    const why = spent === undefined ? "" : ` (${spent})`;
    process.stderr.write(`nlac: stopped after ${all.length} episodes${stage}${why}${go}\n`);
    process.exitCode = spent === undefined ? 130 : 1;
  }
}

/** What shows how far a phase is; what a learner writes is counted too. */
function showing(phase: string, progress: TerminalProgress, counting: boolean) {
  let written: number | undefined;
  return (finished: number, total: number, tokens: number): void => {
    if (written === undefined) progress.phase(phase, total);
    progress.advance(finished, counting ? tokens - (written ?? 0) : 0);
    written = tokens;
  };
}

/** The episodes of a record that need not be played again. */
function playedBefore(file: string): EpisodeFigures[] {
  return latestEpisodes(file)
    .map(figuresOf)
    .filter((episode) => !isFaulty(episode));
}

/** The names are those of a training's metrics, which docs/algorithms/nlac.md explains. */
function diagnosisTable(figures: Record<string, number>): string {
  const lines = Object.entries(figures).map(
    ([name, value]) => `  ${name.padEnd(32)} ${formatFigure(value).padStart(8)}`,
  );
  return ["critic and refiner", ...lines].join("\n");
}

function row(label: string, { estimate, low, high }: Interval): string {
  return `  ${label.padEnd(12)} ${formatFigure(estimate).padStart(8)}   [${formatFigure(low)}, ${formatFigure(high)}]`;
}

/** How a run trained its critic, or the paper's way for a model that is no run's. */
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
