/**
 * Plays many episodes at once, starting the next one whenever one ends. Actions are generated in
 * batches, and the environments answer concurrently. A failure ends only its own episode.
 */

import { setMaxListeners } from "node:events";
import { isBudgetSpent, messageOf, NlacError, throwIfAborted } from "../base/errors.ts";
import { derivedSeed, permutation, streams } from "../base/random.ts";
import { checkInteger, checkNumber, checkSeed, shown } from "../base/validation.ts";
import {
  type Environment,
  type Episode,
  isSingleStep,
  type Message,
  type PrivilegedInformation,
  type StepResult,
  type ToolSchema,
} from "../contract/environment.ts";
import { type Patience, withTimeout } from "../contract/timeout.ts";
import type { Outcome, Trajectory, Turn } from "../episodes/trajectory.ts";
import type { Generation, WeightSet } from "../model/language-model.ts";
import { withoutThought } from "../prompts/corrected-thought.ts";
import { actionGrammar, parseAction, policyConversation, unreadableMessage } from "../prompts/policy.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { Batches, type Player } from "./batches.ts";
import { checkedObservation, checkedScore, checkedStep, checkedTaskId } from "./environment-answers.ts";

/**
 * Index of the task of an episode among `tasks`: every task once in random order, then all again in
 * a new order.
 */
export function taskIndex(episode: number, tasks: number, seed: number): number {
  const epoch = Math.floor(episode / tasks);
  return permutation(tasks, derivedSeed(seed, streams.taskOrder, epoch), streams.taskOrder)[episode % tasks]!;
}

/** An episode to play. */
export interface EpisodeRequest<Task> {
  /** Number of the episode; together with `seed` it determines its random choices. */
  id: number;
  task: Task;
  /**
   * Where to continue: an episode, its conversation, and its turns and reward so far. Default: a
   * new episode.
   */
  from?: { episode: Episode; conversation: Conversation; turns: number; reward: number };
}

/** Options of `collectTrajectories`. */
export interface CollectOptions<Task> {
  model: Player;
  environment: Environment<Task>;
  episodes: readonly EpisodeRequest<Task>[];
  /** Seed of the run. */
  seed: number;
  /** Most new tokens per action. */
  maxActionTokens: number;
  /** Longest prompt in tokens; an episode whose state is longer ends with "context-limit". */
  maxPromptTokens: number;
  temperature: number;
  weights?: WeightSet;
  /**
   * Constrains actions of the format "tool" to the form and the tools' schemas (see
   * `GenerateRequest.grammar`). Log probabilities are the unconstrained model's, so they differ
   * from those of the sampling distribution. Default false.
   */
  constrainActions?: boolean;
  /** Consecutive unreadable actions that end an episode. Default 3. */
  maxMalformed?: number;
  /** Random stream of the actions. Default `streams.policy`. */
  stream?: number;
  /** Most episodes at once, at least 1. Default: all. */
  concurrency?: number;
  /**
   * How long an episode waits for the others, in milliseconds, so that their actions are generated
   * in one batch. Default: without limit, so that batches and, on devices where rounding depends on
   * the batch, results are reproducible (docs/decisions/0010). If an LLM service is behind the
   * environment, default 50: its replies take seconds and are not reproducible anyway.
   */
  patience?: number;
  /**
   * Timeout of the environment for starting an episode or answering an action, in milliseconds.
   * Default: the environment's `stepTimeout`.
   */
  stepTimeout?: number;
  signal?: AbortSignal;
  /**
   * Called after every turn and every episode with the number of finished episodes and the number
   * of new tokens.
   */
  onTurn?: (finished: number, tokens: number) => void;
  /**
   * Called with each episode when it ends. A stopped call returns nothing, so this is the only way
   * to get its episodes.
   */
  onEpisode?: (trajectory: Trajectory) => void;
}

/**
 * The options of one episode: the signal fires when the call's signal does, and when the call
 * fails.
 */
type PlayOptions<Task> = CollectOptions<Task> & { signal: AbortSignal };

interface Running<Task> {
  request: EpisodeRequest<Task>;
  /** The task's name. */
  task: string;
  tools: readonly ToolSchema[];
  episode: Episode | undefined;
  opening?: readonly Message[];
  conversation: Conversation;
  turns: Turn[];
  malformedInARow: number;
  /** Reward that belongs to no turn: the cost of being cut short, or the score of a truncation. */
  unplayed: number;
  privileged?: PrivilegedInformation;
  outcome?: Outcome;
  fault?: { code: string; message: string };
}

/** Stands for the name of a task that the environment could not name. */
const unnamed = "unnamed";
/** Counter space of one episode's turns; with more turns than this, random numbers would repeat. */
const turnsPerEpisode = 4096;
/** Default of `patience` with a service, in milliseconds. */
const servicePatience = 50;
/** How long a stopped call waits for an episode to close, in milliseconds. */
const closingPatience = 1000;

/**
 * Plays `episodes` to their ends and returns them in the order of the requests. On a CPU, an
 * episode does not depend on those that run beside it. On CUDA, they can change the last bits of
 * its probabilities, and so the outcome of near ties.
 *
 * @throws NlacError ERR_ABORTED when the signal fires; ERR_BUDGET when a service's budget is spent,
 *   since all further episodes would fail; ERR_VALUE for a missing or bad option or, with
 *   `constrainActions`, a tool schema that cannot be enforced. Running episodes are closed then,
 *   and no other begins
 */
export async function collectTrajectories<Task>(options: CollectOptions<Task>): Promise<Trajectory[]> {
  checkCollectOptions(options);
  const { model, environment, episodes, concurrency, stepTimeout = environment.stepTimeout } = options;
  const failing = new AbortController();
  const signal = AbortSignal.any(
    options.signal === undefined ? [failing.signal] : [failing.signal, options.signal],
  );
  setMaxListeners(0, signal); // one listener per running episode
  const playing = { ...options, signal, ...(stepTimeout !== undefined && { stepTimeout }) };
  const atOnce = Math.min(concurrency ?? episodes.length, episodes.length);
  const patience = environment.usage === undefined ? Number.POSITIVE_INFINITY : servicePatience;
  const batches = new Batches(model, atOnce, options.patience ?? patience, signal);
  const trajectories: Trajectory[] = [];
  let begun = 0;
  let over = 0;
  let failure: { error: unknown } | undefined;

  const playOneAfterAnother = async (): Promise<void> => {
    try {
      while (begun < episodes.length) {
        throwIfAborted(signal);
        const i = begun++;
        const onTokens = (tokens: number) => options.onTurn?.(over, tokens);
        const trajectory = await play(episodes[i]!, i, batches, playing, onTokens);
        trajectories[i] = trajectory;
        over++;
        options.onEpisode?.(trajectory);
        options.onTurn?.(over, 0);
      }
    } catch (error) {
      failure ??= { error };
      failing.abort();
    } finally {
      batches.leave();
    }
  };
  await Promise.all(Array.from({ length: atOnce }, playOneAfterAnother));

  await Promise.all(episodes.slice(begun).map(({ from }) => closeEpisode(from?.episode, playing)));
  if (failure !== undefined) throw failure.error;
  return trajectories;
}

/** Checks what JavaScript callers can leave out; without it, a limit or the seed would have no effect. */
function checkCollectOptions<Task>(options: CollectOptions<Task>): void {
  const { episodes, concurrency } = options;
  for (const name of ["model", "environment", "episodes"] as const)
    if (typeof options[name] !== "object" || options[name] === null)
      throw new NlacError("ERR_VALUE", `${name} must be an object; it is ${shown(options[name])}.`);
  for (const [i, episode] of episodes.entries()) checkInteger(episode.id, `episodes[${i}].id`, 0);
  checkSeed(options.seed, "seed");
  checkInteger(options.maxActionTokens, "maxActionTokens", 1);
  checkNumber(options.maxPromptTokens, "maxPromptTokens", 1);
  checkNumber(options.temperature, "temperature", 0);
  if (concurrency !== undefined) checkInteger(concurrency, "concurrency", 1);
}

/** Plays one episode; `place` is its position within a batch. */
async function play<Task>(
  request: EpisodeRequest<Task>,
  place: number,
  batches: Batches,
  options: PlayOptions<Task>,
  onTokens: (tokens: number) => void,
): Promise<Trajectory> {
  const { model, environment, seed } = options;
  const run = await open(request, options);
  try {
    for (let turn = 0; turn < environment.maxTurns && run.outcome === undefined; turn++) {
      throwIfAborted(options.signal);
      const prompt = run.conversation.prompt();
      if (prompt.length > Math.min(options.maxPromptTokens, model.maxPositions - 1)) {
        cutShort(run, "context-limit", environment);
        break;
      }
      const grammar = options.constrainActions && actionGrammar(run.tools, environment.actionFormat);
      const generation = await batches.generate(place, {
        tokens: prompt,
        maxNewTokens: Math.min(options.maxActionTokens, model.maxPositions - prompt.length),
        temperature: options.temperature,
        seed: derivedSeed(seed, options.stream ?? streams.policy, request.id * turnsPerEpisode + turn),
        weights: options.weights ?? "online",
        ...(grammar && { grammar }),
      });
      await act(run, generation, options);
      onTokens(generation instanceof NlacError ? 0 : generation.tokens.length);
    }
    lookBack(run);
  } finally {
    await closeEpisode(run.episode, options);
  }
  return {
    id: request.id,
    task: run.task,
    seed: episodeSeed(seed, request.id),
    ...(run.opening === undefined ? {} : { opening: run.opening }),
    turns: run.turns,
    conversation: run.conversation,
    reward: run.turns.reduce((sum, turn) => sum + turn.reward, run.unplayed),
    outcome: run.outcome ?? "turn-limit",
    ...(run.fault === undefined ? {} : { fault: run.fault }),
    ...(run.privileged === undefined ? {} : { privileged: run.privileged }),
  };
}

/** Reads what the agent was not told. */
function lookBack<Task>(run: Running<Task>): void {
  try {
    const privileged = run.episode?.privileged?.();
    if (privileged !== undefined) run.privileged = privileged;
  } catch (error) {
    fail(run, error);
  }
}

function episodeSeed(seed: number, id: number): number {
  return derivedSeed(seed, streams.episode, id);
}

async function open<Task>(request: EpisodeRequest<Task>, options: PlayOptions<Task>): Promise<Running<Task>> {
  const { model, environment, signal } = options;
  const run: Omit<Running<Task>, "conversation"> = {
    request,
    task: unnamed,
    tools: [],
    episode: undefined,
    turns: [],
    malformedInARow: 0,
    unplayed: 0,
  };
  if (request.from !== undefined) {
    const { episode, conversation } = request.from;
    const { tools = [] } = episode.observation;
    const task = checkedTaskId(environment, request.task);
    return { ...run, task, tools, episode, conversation: conversation.fork() };
  }
  let starting: Promise<Episode> | undefined;
  try {
    run.task = checkedTaskId(environment, request.task);
    const episode = await withTimeout(() => {
      starting = environment.start(request.task, { seed: episodeSeed(options.seed, request.id), signal });
      return starting;
    }, options);
    const observation = checkedObservation(episode.observation);
    const conversation = policyConversation(model, observation, environment.actionFormat);
    const { messages: opening, tools = [] } = observation;
    return { ...run, tools, episode, opening, conversation };
  } catch (error) {
    // The episode may start after a timeout or stop; it is then closed.
    void Promise.resolve(starting)
      .then((episode) => episode?.close())
      .catch(() => undefined);
    throwIfAborted(signal);
    // For example a model that does not support this action format: every episode would fail.
    if (isBudgetSpent(error) || (error instanceof NlacError && error.code === "ERR_CONFIG")) throw error;
    const failed = { ...run, conversation: model.conversation([{ role: "user", content: "" }]) };
    fail(failed, error);
    return failed;
  }
}

/**
 * Closes an episode. Errors after the episode has ended are ignored, and one that hangs does not
 * keep a call from stopping.
 */
export async function closeEpisode(episode: Episode | undefined, options: Patience): Promise<void> {
  if (episode === undefined) return;
  const { stepTimeout = closingPatience, signal } = options;
  const patience = signal?.aborted ? { stepTimeout: Math.min(stepTimeout, closingPatience) } : options;
  await withTimeout(() => episode.close(), patience).catch(() => undefined);
}

async function act<Task>(
  run: Running<Task>,
  generation: Generation | NlacError,
  options: PlayOptions<Task>,
): Promise<void> {
  const { environment } = options;
  if (generation instanceof NlacError) {
    fail(run, generation);
    return;
  }
  const state = run.conversation.fork();
  run.conversation.appendGeneration(generation);
  const turn: Turn = {
    state,
    tokens: generation.tokens,
    logProbs: generation.logProbs,
    text: generation.text,
    observation: [],
    reward: 0,
    terminated: false,
    truncated: false,
    info: {},
  };
  run.turns.push(turn);

  // The environment reads the text after the reasoning. Truncated reasoning is not an action.
  const said = state.withoutReasoning(generation).length === 0 ? "" : withoutThought(generation.text);
  const parsed = parseAction(said, environment.actionFormat, state.tools);
  if (parsed.ok) {
    turn.action = parsed.action;
    run.malformedInARow = 0;
    let result: StepResult;
    try {
      result = checkedStep(await withTimeout(() => run.episode!.step(parsed.action), options));
    } catch (error) {
      throwIfAborted(options.signal);
      if (isBudgetSpent(error)) throw error;
      fail(run, error);
      return;
    }
    turn.observation = result.observation;
    turn.reward = result.reward;
    turn.info = result.info;
    if (result.terminated) finish(run, "done", true);
    else if (result.truncated) {
      finish(run, turnsPlayed(run) === environment.maxTurns ? "turn-limit" : "truncated", false);
      run.unplayed += result.score ?? 0;
    }
  } else {
    turn.malformed = parsed.reason;
    turn.observation = [unreadableMessage(parsed.reason, environment.actionFormat)];
    run.malformedInARow++;
    if (run.malformedInARow >= (options.maxMalformed ?? 3)) cutShort(run, "malformed", environment);
  }
  if (run.outcome === undefined && turnsPlayed(run) === environment.maxTurns) {
    let score: number;
    try {
      score = await withTimeout(() => checkedScore(run.episode!), options);
    } catch (error) {
      throwIfAborted(options.signal);
      if (isBudgetSpent(error)) throw error;
      fail(run, error);
      return;
    }
    cutShort(run, "turn-limit", environment, score);
  }
  try {
    run.conversation.append(...turn.observation);
  } catch (error) {
    // If the template rejects the environment's messages, only this episode fails, not the run.
    fail(run, error);
  }
}

function turnsPlayed<Task>({ request, turns }: Pick<Running<Task>, "request" | "turns">): number {
  return (request.from?.turns ?? 0) + turns.length;
}

/**
 * Cost of an episode that its environment did not end, after rewards of `total`. If rewards can be
 * negative, such an episode counts with the lowest possible reward: outgrowing the context or
 * generating unreadable actions must not be cheaper than losing. The cost is always part of the
 * episode's reward, by which episodes are compared (evaluation, GRPO's groups, RFT's successes). It
 * is part of a turn's reward only if the episode terminated, by unreadable actions or by a rule. At
 * a truncation it is not: the future, including its cost, is bootstrapped there. An episode that
 * the environment itself ended or truncated has no extra cost.
 */
export function costOfLeaving(
  { rewardRange: [low] = [0, 1] }: Pick<Environment, "rewardRange">,
  total: number,
): number {
  return low < 0 ? Math.min(0, low - total) : 0;
}

/** Whether an episode that has used its turns is terminated, not truncated. */
export function turnLimitTerminates(
  environment: Pick<Environment, "actionFormat" | "singleStep" | "turnLimitEnds">,
): boolean {
  return environment.turnLimitEnds ?? isSingleStep(environment);
}

/**
 * Ends an episode that its environment did not end.
 * @param score what the environment says the episode is worth, besides its rewards
 */
function cutShort<Task>(
  run: Pick<Running<Task>, "request" | "turns" | "unplayed" | "outcome">,
  outcome: "turn-limit" | "context-limit" | "malformed",
  environment: Environment<Task>,
  score = 0,
): void {
  // Unreadable actions are the agent's own doing: bootstrapping from there would give them the
  // value of a future.
  const terminated =
    outcome === "malformed" || (outcome === "turn-limit" && turnLimitTerminates(environment));
  finish(run, outcome, terminated);
  const total = run.turns.reduce((sum, { reward }) => sum + reward, run.request.from?.reward ?? 0);
  const added = score + costOfLeaving(environment, total + score);
  const last = run.turns.at(-1);
  if (last !== undefined && terminated) last.reward += added;
  else run.unplayed += added;
}

/** Ends an episode; its last turn records how. */
function finish(run: { turns: Turn[]; outcome?: Outcome }, outcome: Outcome, terminated: boolean): void {
  run.outcome = outcome;
  const last = run.turns.at(-1);
  if (last === undefined) return;
  last.terminated = terminated;
  last.truncated = !terminated;
}

function fail(
  run: { turns: Turn[]; outcome?: Outcome; fault?: { code: string; message: string } },
  error: unknown,
): void {
  const code = error instanceof NlacError ? error.code : "ERR_ENVIRONMENT";
  run.fault = { code, message: messageOf(error) };
  finish(run, code === "ERR_SERVICE" ? "service-fault" : "environment-fault", false);
}
