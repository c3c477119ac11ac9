/**
 * Plays episodes: every turn, the policy writes the actions of all running episodes in one batch, then the
 * environments answer concurrently. What fails, fails its own episode.
 */

import type { Environment, Episode, StepResult } from "../environments/contract.ts";
import { NlacError, throwIfAborted } from "../errors.ts";
import type { GenerateOptions, GenerateRequest, Generation, LanguageModel, Which } from "../model.ts";
import { withoutThought } from "../prompts/corrected-thought.ts";
import { parseAction, policyMessages, unreadableMessage } from "../prompts/policy.ts";
import { derivedSeed, permutation, streams } from "../random.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { Outcome, Trajectory, Turn } from "./trajectory.ts";

/** The task of an episode, of `tasks`: in a new random order every time all have been seen. */
export function taskIndex(episode: number, tasks: number, seed: number): number {
  const epoch = Math.floor(episode / tasks);
  return permutation(tasks, derivedSeed(seed, streams.taskOrder, epoch), streams.taskOrder)[episode % tasks]!;
}

export interface EpisodeRequest<Task> {
  /** Number of the episode; with `seed` it determines every random choice of it. */
  id: number;
  task: Task;
  /** Where to go on: an episode after so many turns, and the conversation so far. Default: the task's beginning. */
  from?: { episode: Episode; conversation: Conversation; turns: number };
}

/** What plays: a language model, or something whose reply may fail; the failure then stands in the reply's place. */
export interface Player extends Pick<LanguageModel, "conversation" | "maxPositions"> {
  generate(
    requests: readonly GenerateRequest[],
    options?: GenerateOptions,
  ): Promise<(Generation | NlacError)[]>;
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
  weights?: Which;
  /** Unreadable actions in a row that end an episode. Default 3. */
  malformedLimit?: number;
  /** Random stream of the actions. Default `streams.policy`. */
  stream?: number;
  signal?: AbortSignal;
  /** Called after every turn of the batch with the number of episodes that are over and the new tokens. */
  onTurn?: (finished: number, tokens: number) => void;
}

interface Running<Task> {
  request: EpisodeRequest<Task>;
  episode: Episode | undefined;
  conversation: Conversation;
  turns: Turn[];
  malformedInARow: number;
  outcome?: Outcome;
  fault?: { code: string; message: string };
}

/** Counter space of one episode's turns; more turns than this would repeat random numbers. */
const turnsPerEpisode = 4096;

/** Plays `episodes` to their ends. Order of the result: that of the requests. Throws ERR_ABORTED. */
export async function collectTrajectories<Task>(options: CollectOptions<Task>): Promise<Trajectory[]> {
  const { model, environment } = options;
  const all = await Promise.all(options.episodes.map((request) => open(request, options)));
  try {
    for (let turn = 0; turn < environment.maxTurns; turn++) {
      const running = all.filter((run) => run.outcome === undefined);
      if (running.length === 0) break;
      throwIfAborted(options.signal);

      const writing: { run: Running<Task>; request: GenerateRequest }[] = [];
      for (const run of running) {
        const prompt = run.conversation.prompt();
        if (prompt.length > Math.min(options.maxPromptTokens, model.maxPositions - 1)) {
          finish(run, "context-limit");
          continue;
        }
        const counter = run.request.id * turnsPerEpisode + turn;
        writing.push({
          run,
          request: {
            tokens: prompt,
            maxNewTokens: Math.min(options.maxActionTokens, model.maxPositions - prompt.length),
            temperature: options.temperature,
            seed: derivedSeed(options.seed, options.stream ?? streams.policy, counter),
            weights: options.weights ?? "online",
          },
        });
      }
      const generations = await model.generate(
        writing.map(({ request }) => request),
        { signal: options.signal },
      );
      await Promise.all(writing.map(({ run }, i) => act(run, generations[i]!, options)));
      options.onTurn?.(
        all.filter((run) => run.outcome !== undefined).length,
        generations.reduce((sum, made) => sum + (made instanceof NlacError ? 0 : made.tokens.length), 0),
      );
    }
  } finally {
    await Promise.all(all.map((run) => run.episode?.close().catch(() => undefined)));
  }
  return all.map((run) => ({
    id: run.request.id,
    task: environment.taskId(run.request.task),
    seed: episodeSeed(options.seed, run.request.id),
    turns: run.turns,
    conversation: run.conversation,
    reward: run.turns.reduce((sum, turn) => sum + turn.reward, 0),
    outcome: run.outcome ?? "turn-limit",
    ...(run.fault === undefined ? {} : { fault: run.fault }),
  }));
}

function episodeSeed(seed: number, id: number): number {
  return derivedSeed(seed, streams.episode, id);
}

async function open<Task>(
  request: EpisodeRequest<Task>,
  options: CollectOptions<Task>,
): Promise<Running<Task>> {
  const { model, environment } = options;
  const run: Omit<Running<Task>, "conversation"> = {
    request,
    episode: undefined,
    turns: [],
    malformedInARow: 0,
  };
  if (request.from !== undefined) {
    const { episode, conversation } = request.from;
    return { ...run, episode, conversation: conversation.fork() };
  }
  let episode: Episode | undefined;
  try {
    episode = await environment.start(request.task, {
      seed: episodeSeed(options.seed, request.id),
      ...(options.signal === undefined ? {} : { signal: options.signal }),
    });
    const messages = policyMessages(episode.observation, environment.actionFormat);
    const conversation = model.conversation(messages, { tools: episode.observation.tools });
    return { ...run, episode, conversation };
  } catch (error) {
    await episode?.close().catch(() => undefined);
    throwIfAborted(options.signal);
    const failed = { ...run, conversation: model.conversation([{ role: "user", content: "" }]) };
    fail(failed, error);
    return failed;
  }
}

async function act<Task>(
  run: Running<Task>,
  generation: Generation | NlacError,
  options: CollectOptions<Task>,
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
    done: false,
    info: {},
  };
  run.turns.push(turn);

  // A thinking model's thought is not part of what the environment reads.
  const parsed = parseAction(withoutThought(generation.text), environment.actionFormat);
  if (parsed.ok) {
    turn.action = parsed.action;
    run.malformedInARow = 0;
    let result: StepResult;
    try {
      result = await run.episode!.step(parsed.action);
    } catch (error) {
      throwIfAborted(options.signal);
      fail(run, error);
      return;
    }
    if (!Number.isFinite(result.reward) || !Array.isArray(result.observation)) {
      fail(run, new NlacError("ERR_ENVIRONMENT", "A step must give a finite reward and a list of messages."));
      return;
    }
    turn.observation = result.observation;
    turn.reward = result.reward;
    turn.done = result.done;
    turn.info = result.info;
    if (result.done) finish(run, "done");
  } else {
    turn.malformed = parsed.reason;
    turn.observation = [unreadableMessage(parsed.reason, environment.actionFormat)];
    run.malformedInARow++;
    if (run.malformedInARow >= (options.malformedLimit ?? 3)) finish(run, "malformed");
  }
  const played = (run.request.from?.turns ?? 0) + run.turns.length;
  if (run.outcome === undefined && played === environment.maxTurns) finish(run, "turn-limit");
  try {
    run.conversation.append(...turn.observation);
  } catch (error) {
    // The template refuses the environment's messages: that is this episode's fault, not the run's.
    fail(run, error);
  }
}

/** Ends an episode; its last turn becomes terminal. */
function finish(run: { turns: Turn[]; outcome?: Outcome }, outcome: Outcome): void {
  run.outcome = outcome;
  const last = run.turns.at(-1);
  if (last !== undefined) last.done = true;
}

function fail(
  run: { turns: Turn[]; outcome?: Outcome; fault?: { code: string; message: string } },
  error: unknown,
): void {
  const code = error instanceof NlacError ? error.code : "ERR_ENVIRONMENT";
  run.fault = { code, message: error instanceof Error ? error.message : String(error) };
  finish(run, code === "ERR_SERVICE" ? "service-fault" : "environment-fault");
}
