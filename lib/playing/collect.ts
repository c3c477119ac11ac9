/**
 * Plays episodes, many at once; when one ends, the next begins. The policy writes their actions in batches, and the
 * environments answer side by side. What fails, fails its own episode.
 */

import { setMaxListeners } from "node:events";
import { isBudgetSpent, NlacError, throwIfAborted } from "../base/errors.ts";
import { derivedSeed, permutation, streams } from "../base/random.ts";
import { checkInteger } from "../base/validation.ts";
import type { Environment, Episode, Message, StepResult } from "../contract/environment.ts";
import type { Outcome, Trajectory, Turn } from "../episodes/trajectory.ts";
import type { Generation, WeightSet } from "../model/language-model.ts";
import { withoutThought } from "../prompts/corrected-thought.ts";
import { actionGrammar, parseAction, policyConversation, unreadableMessage } from "../prompts/policy.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { Batches, type Player } from "./batches.ts";
import { withTimeout } from "./timeout.ts";

/** The task of an episode, of `tasks`: in a new random order every time all have been seen. */
export function taskIndex(episode: number, tasks: number, seed: number): number {
  const epoch = Math.floor(episode / tasks);
  return permutation(tasks, derivedSeed(seed, streams.taskOrder, epoch), streams.taskOrder)[episode % tasks]!;
}

export interface EpisodeRequest<Task> {
  /** Number of the episode; with `seed` it determines every random choice of it. */
  id: number;
  task: Task;
  /** Where to go on: an episode after so many turns, the conversation and the reward so far. Default: the beginning. */
  from?: { episode: Episode; conversation: Conversation; turns: number; reward: number };
}

export interface CollectOptions<Task> {
  model: Player;
  environment: Environment<Task>;
  episodes: readonly EpisodeRequest<Task>[];
  /** Seed of the run. */
  seed: number;
  /** Most new tokens an action. */
  maxActionTokens: number;
  /** Longest prompt, in tokens; an episode whose state outgrows it ends with "context-limit". */
  maxPromptTokens: number;
  temperature: number;
  weights?: WeightSet;
  /**
   * Holds actions of the format "tool" to their form and to the schemas of the tools (see `GenerateRequest.grammar`). Log
   * probabilities stay the model's own, which are not those that the actions were drawn with. Default false.
   */
  constrainActions?: boolean;
  /** Unreadable actions in a row that end an episode. Default 3. */
  maxMalformed?: number;
  /** Random stream of the actions. Default `streams.policy`. */
  stream?: number;
  /** Most episodes at once, at least 1. Default: all. */
  concurrency?: number;
  /**
   * Milliseconds that an episode whose environment has answered waits for the others, so that their actions are written
   * together. Default: without end, so that batches are the same every time, by which inference rounds on some devices
   * (docs/decisions/0010); 50 where an LLM service is behind the environment, whose answers take seconds and are not the
   * same anyway.
   */
  patience?: number;
  /** Milliseconds that the environment may take to begin an episode or to answer an action. Default: no limit. */
  stepTimeout?: number;
  signal?: AbortSignal;
  /** Called after every turn and every episode with the number of episodes that are over and the new tokens. */
  onTurn?: (finished: number, tokens: number) => void;
  /** Called with each episode as it ends; what was handed over is all that is left of a call that is stopped. */
  onEpisode?: (trajectory: Trajectory) => void;
}

/** As every episode sees them: the signal fires when the call's does, and when the call fails. */
type PlayOptions<Task> = CollectOptions<Task> & { signal: AbortSignal };

interface Running<Task> {
  request: EpisodeRequest<Task>;
  episode: Episode | undefined;
  opening?: readonly Message[];
  conversation: Conversation;
  turns: Turn[];
  malformedInARow: number;
  /** Reward that no turn brought: what it costs to be cut short. */
  unplayed: number;
  outcome?: Outcome;
  fault?: { code: string; message: string };
}

/** Counter space of one episode's turns; more turns than this would repeat random numbers. */
const turnsPerEpisode = 4096;
/** Milliseconds; see `patience`. */
const servicePatience = 50;
/** Milliseconds that a call which is stopped waits for an episode to close. */
const closingPatience = 1000;

/**
 * Plays `episodes` to their ends. Order of the result: that of the requests. Which episodes run beside it changes
 * nothing about an episode on a CPU; on CUDA it can change the last bits of its probabilities, and with them how a near
 * tie falls.
 *
 * @throws NlacError ERR_ABORTED when the signal fires, ERR_BUDGET when a service's budget is spent: all further episodes would
 *   end so; ERR_VALUE for a `concurrency` below 1, and with `constrainActions` for a tool whose schema actions cannot be held
 *   to. The running episodes are closed, and no other begins
 */
export async function collectTrajectories<Task>(options: CollectOptions<Task>): Promise<Trajectory[]> {
  const { model, environment, episodes, concurrency } = options;
  if (concurrency !== undefined) checkInteger(concurrency, "concurrency", 1);
  const failing = new AbortController();
  const signal = AbortSignal.any(
    options.signal === undefined ? [failing.signal] : [failing.signal, options.signal],
  );
  setMaxListeners(0, signal); // as many listen as episodes run
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
        const trajectory = await play(episodes[i]!, i, batches, { ...options, signal }, onTokens);
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

  await Promise.all(episodes.slice(begun).map(({ from }) => close(from?.episode, { ...options, signal })));
  if (failure !== undefined) throw failure.error;
  return trajectories;
}

/** One episode, whose texts stand in a batch at `place`. */
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
      const { tools = [] } = run.episode!.observation;
      const grammar = options.constrainActions && actionGrammar(tools, environment.actionFormat);
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
  } finally {
    await close(run.episode, options);
  }
  return {
    id: request.id,
    task: environment.taskId(request.task),
    seed: episodeSeed(seed, request.id),
    ...(run.opening === undefined ? {} : { opening: run.opening }),
    turns: run.turns,
    conversation: run.conversation,
    reward: run.turns.reduce((sum, turn) => sum + turn.reward, run.unplayed),
    outcome: run.outcome ?? "turn-limit",
    ...(run.fault === undefined ? {} : { fault: run.fault }),
  };
}

function episodeSeed(seed: number, id: number): number {
  return derivedSeed(seed, streams.episode, id);
}

async function open<Task>(request: EpisodeRequest<Task>, options: PlayOptions<Task>): Promise<Running<Task>> {
  const { model, environment, signal } = options;
  const run: Omit<Running<Task>, "conversation"> = {
    request,
    episode: undefined,
    turns: [],
    malformedInARow: 0,
    unplayed: 0,
  };
  if (request.from !== undefined) {
    const { episode, conversation } = request.from;
    return { ...run, episode, conversation: conversation.fork() };
  }
  let starting: Promise<Episode> | undefined;
  try {
    const episode = await withTimeout(() => {
      starting = environment.start(request.task, { seed: episodeSeed(options.seed, request.id), signal });
      return starting;
    }, options);
    checkMessages(episode.observation?.messages);
    const conversation = policyConversation(model, episode.observation, environment.actionFormat);
    return { ...run, episode, opening: episode.observation.messages, conversation };
  } catch (error) {
    // Also one that is there only when nobody waits for it any more.
    void starting?.then((episode) => episode.close()).catch(() => undefined);
    throwIfAborted(signal);
    // A model that cannot play in this action format, say: every episode would end so.
    if (isBudgetSpent(error) || (error instanceof NlacError && error.code === "ERR_CONFIG")) throw error;
    const failed = { ...run, conversation: model.conversation([{ role: "user", content: "" }]) };
    fail(failed, error);
    return failed;
  }
}

/** What an episode that is over cannot do any more is no fault of it. One that hangs does not keep a call from stopping. */
async function close<Task>(episode: Episode | undefined, options: PlayOptions<Task>): Promise<void> {
  if (episode === undefined) return;
  const { stepTimeout = closingPatience, signal } = options;
  const patience = signal.aborted ? { stepTimeout: Math.min(stepTimeout, closingPatience) } : options;
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

  // The environment reads what follows the reasoning. Reasoning that was cut off is no action.
  const said = state.withoutReasoning(generation).length === 0 ? "" : withoutThought(generation.text);
  const parsed = parseAction(said, environment.actionFormat);
  if (parsed.ok) {
    turn.action = parsed.action;
    run.malformedInARow = 0;
    let result: StepResult;
    try {
      result = checked(await withTimeout(() => run.episode!.step(parsed.action), options));
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
    else if (result.truncated)
      finish(run, turnsPlayed(run) === environment.maxTurns ? "turn-limit" : "truncated", false);
  } else {
    turn.malformed = parsed.reason;
    turn.observation = [unreadableMessage(parsed.reason, environment.actionFormat)];
    run.malformedInARow++;
    if (run.malformedInARow >= (options.maxMalformed ?? 3)) cutShort(run, "malformed", environment);
  }
  if (run.outcome === undefined && turnsPlayed(run) === environment.maxTurns)
    cutShort(run, "turn-limit", environment);
  try {
    run.conversation.append(...turn.observation);
  } catch (error) {
    // The template refuses the environment's messages: that is this episode's fault, not the run's.
    fail(run, error);
  }
}

/** An environment may be anybody's; what is recorded of it must be fit for that. Throws ERR_ENVIRONMENT. */
function checked(result: StepResult): StepResult {
  if (!Number.isFinite(result?.reward))
    throw new NlacError("ERR_ENVIRONMENT", "A step must give a finite reward and a list of messages.");
  if (typeof result.terminated !== "boolean" || typeof result.truncated !== "boolean")
    throw new NlacError(
      "ERR_ENVIRONMENT",
      "A step must say by two booleans how the episode stands: terminated (the task has ended) and truncated (a limit cut it).",
    );
  checkMessages(result.observation);
  const info = result.info ?? {};
  JSON.stringify(info);
  return { ...result, info };
}

const roles: readonly unknown[] = ["system", "user", "assistant", "tool"] satisfies Message["role"][];

/** Throws ERR_ENVIRONMENT, naming the first that is no message. */
function checkMessages(messages: unknown): void {
  if (!Array.isArray(messages))
    throw new NlacError("ERR_ENVIRONMENT", "An observation must be a list of messages.");
  for (const [i, message] of messages.entries()) {
    if (roles.includes(message?.role) && typeof message.content === "string") continue;
    throw new NlacError(
      "ERR_ENVIRONMENT",
      `Message ${i + 1} of an observation must have a role and a text as its content, not ${JSON.stringify(message)}.`,
    );
  }
}

function turnsPlayed<Task>({ request, turns }: Pick<Running<Task>, "request" | "turns">): number {
  return (request.from?.turns ?? 0) + turns.length;
}

/**
 * What an episode that its environment did not end, after rewards of `total`, still costs. Where
 * turns can cost, it counts with the low end of its rewards: to outgrow the context, or to write
 * what nobody can read, must never be cheaper than to lose. The episode's reward has it always, for
 * by that episodes are compared (evaluation, GRPO's groups, RFT's successes). A turn's reward has
 * it only where the episode terminated, by unreadable actions or by a rule. At a truncation it is
 * no reward of any turn: the future is bootstrapped there, and its cost with it. What the
 * environment itself ended or cut costs what it says.
 */
export function costOfLeaving(
  { rewardRange: [low] = [0, 1] }: Pick<Environment, "rewardRange">,
  total: number,
): number {
  return low < 0 ? Math.min(0, low - total) : 0;
}

/** Ends an episode that its environment did not end. */
function cutShort<Task>(
  run: Pick<Running<Task>, "request" | "turns" | "unplayed" | "outcome">,
  outcome: "turn-limit" | "context-limit" | "malformed",
  environment: Environment<Task>,
): void {
  const { actionFormat, singleStep = actionFormat === "solution", turnLimitEnds = singleStep } = environment;
  // Three unreadable actions are the agent's own doing: to bootstrap from there would make them
  // worth a future.
  const terminated = outcome === "malformed" || (outcome === "turn-limit" && turnLimitEnds);
  finish(run, outcome, terminated);
  const total = run.turns.reduce((sum, { reward }) => sum + reward, run.request.from?.reward ?? 0);
  const cost = costOfLeaving(environment, total);
  const last = run.turns.at(-1);
  if (last !== undefined && terminated) last.reward += cost;
  else run.unplayed += cost;
}

/** Ends an episode; its last turn says how. */
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
  run.fault = { code, message: error instanceof Error ? error.message : String(error) };
  finish(run, code === "ERR_SERVICE" ? "service-fault" : "environment-fault", false);
}
