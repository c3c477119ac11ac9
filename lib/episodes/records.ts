/**
 * Conversion between episodes and the records of trajectories.jsonl, one per line. Ids and log
 * probabilities are stored once, in the conversation; a turn's own are the generated ids after its
 * state. If the chat history drops the reasoning of a turn, the turn stores all of its ids itself.
 */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { NlacError } from "../base/errors.ts";
import { floatsFromBase64, floatsToBase64 } from "../base/float32-base64.ts";
import type { Action, Message, PrivilegedInformation } from "../contract/environment.ts";
import { lineAt, readPlacedRecords, readRecords } from "../files/records.ts";
import type { LanguageModel } from "../model/language-model.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { ConversationJson } from "../tokens/conversation-json.ts";
import type { Outcome, Trajectory } from "./trajectory.ts";

/** The file of the episodes that a run played. */
export function trajectoriesPath(run: string): string {
  return join(run, "trajectories.jsonl");
}

/** The file of the rewarded episodes of the clients of `nlac serve --train`. */
export function servedEpisodesPath(run: string): string {
  return join(run, "episodes.jsonl");
}

/** The file of the episodes that a run's evaluations played. */
export function evaluationsPath(run: string): string {
  return join(run, "evaluations.jsonl");
}

/** The file of a run's episodes: of `nlac serve --train`, those of its clients. */
export function episodesPath(run: string): string {
  const served = servedEpisodesPath(run);
  return existsSync(served) ? served : trajectoriesPath(run);
}

/** A reward of a served episode, so that a repeated request gets the same answer. */
export interface AcknowledgedReward {
  /** The request's Idempotency-Key. */
  key?: string;
  /** Hash of the request. */
  request: string;
  /** The answer: number of turns, sum of the rewards, and whether the episode ended. */
  turns: number;
  reward: number;
  terminated: boolean;
  truncated: boolean;
}

/** One episode of a record: a line of its JSON Lines file. */
export interface EpisodeRecord {
  id: number;
  task: string;
  seed: number;
  outcome: Outcome;
  reward: number;
  fault?: { code: string; message: string };
  /**
   * The task's messages, which the conversation holds as ids; absent where the trajectory has none.
   */
  opening?: readonly Message[];
  /** See `Trajectory`. */
  privileged?: PrivilegedInformation;
  branch?: { trajectory: number; turn: number };
  /** Held out: nothing trains on it. Of `nlac eval` on test tasks, and of held-out served episodes. */
  split?: "test";
  /**
   * Of served episodes: the episode that this one worked for, and the group of attempts it belongs
   * to.
   */
  parent?: string;
  group?: string;
  /** Of served episodes: when it was recorded, in milliseconds since 1970. */
  time?: number;
  /** Of served episodes: the latest rewards that had a key, and the final one. */
  acknowledged?: readonly AcknowledgedReward[];
  turns: {
    /** Length of s in tokens: s is this prefix of the conversation. */
    state: number;
    text: string;
    /**
     * Everything sampled, if the conversation holds less; log probabilities encoded as in the
     * conversation.
     */
    sampled?: { tokens: number[]; logProbs: string };
    action?: Action;
    malformed?: string;
    observation: Message[];
    reward: number;
    terminated: boolean;
    truncated: boolean;
    info: Record<string, unknown>;
  }[];
  conversation: ConversationJson;
}

/** An episode of an evaluation during training. */
export interface EvaluationRecord extends EpisodeRecord {
  /** Updates before the evaluation. */
  update: number;
}

export function toRecord(trajectory: Trajectory): EpisodeRecord {
  const { id, task, seed, outcome, reward, fault, opening, privileged, branch } = trajectory;
  return {
    id,
    task,
    seed,
    outcome,
    reward,
    ...(fault === undefined ? {} : { fault }),
    ...(opening === undefined ? {} : { opening }),
    ...(privileged === undefined ? {} : { privileged }),
    ...(branch === undefined ? {} : { branch }),
    turns: trajectory.turns.map(({ state, tokens, logProbs, ...turn }) => ({
      ...turn,
      state: state.length,
      ...sampledBeside(trajectory.conversation, state.length, { tokens, logProbs }),
    })),
    conversation: trajectory.conversation.toJSON(),
  };
}

/** The ids stored in a turn's record; empty if `conversation` holds them after the turn's state. */
export function sampledBeside(
  conversation: Conversation,
  state: number,
  { tokens, logProbs }: { tokens: readonly number[]; logProbs: Float32Array },
): Pick<EpisodeRecord["turns"][number], "sampled"> {
  const held = writtenAfter(conversation.segments, state);
  if (held?.logProbs !== undefined && held.end - held.start === tokens.length) return {};
  return { sampled: { tokens: [...tokens], logProbs: floatsToBase64(logProbs) } };
}

/**
 * The segment of the turn after the first `state` ids that the model generated. Undefined if the
 * history holds nothing of that turn, because it was cut off in reasoning that the template drops.
 */
export function writtenAfter<S extends { source: string; start: number }>(
  segments: readonly S[],
  state: number,
): S | undefined {
  // An observation comes before the next turn.
  const first = segments.find(({ source, start }) => source !== "template" && start >= state);
  return first?.source === "model" ? first : undefined;
}

/**
 * The episodes of a record file in order, one in memory at a time.
 *
 * @param bytes length up to which the file is read. Default: all of it
 * @throws NlacError ERR_RUN for a damaged line, or a record that is not an episode or has a reward
 *   that is not a finite number; ERR_IO
 */
export function* readEpisodeRecords(
  path: string,
  bytes: number = Number.POSITIVE_INFINITY,
): Generator<EpisodeRecord> {
  yield* checkedRecords(path, episodeOf, bytes);
}

/** The records of a file as `check` returns them, which gets the place of each. */
function* checkedRecords<T>(
  path: string,
  check: (value: unknown, where: string) => T,
  bytes: number = Number.POSITIVE_INFINITY,
): Generator<T> {
  let line = 0;
  for (const record of readRecords(path, { bytes })) yield check(record, lineAt(path, ++line));
}

/**
 * As `readEpisodeRecords`, with the places of the episodes, from byte `from` on, where one begins.
 * `chunkBytes`: bytes per read.
 */
export function* readPlacedEpisodes(
  path: string,
  options: { from: number; chunkBytes?: number },
): Generator<{ record: EpisodeRecord; start: number; end: number }> {
  const { from } = options;
  let line = 0;
  for (const { record, ...place } of readPlacedRecords(path, options))
    yield { record: episodeOf(record, lineAt(path, ++line, from)), ...place };
}

/** The episode of a record. Throws ERR_RUN that names `where` as `readEpisodeRecords`. */
export function episodeOf(value: unknown, where: string): EpisodeRecord {
  const record = value as Partial<EpisodeRecord> | null;
  if (!Array.isArray(record?.turns) || record.conversation === undefined)
    throw new NlacError("ERR_RUN", `${where} is not an episode.`);
  // JSON stores NaN and infinity as null, and reads 1e999 as infinity.
  const unusual = [record, ...record.turns].find((part) => !Number.isFinite(part?.reward));
  if (unusual !== undefined) {
    const reward = String(unusual?.reward);
    throw new NlacError("ERR_RUN", `${where}: a reward is ${reward}, not a finite number.`);
  }
  return { ...record, turns: record.turns.map((turn) => withEnding(turn, record.outcome)) } as EpisodeRecord;
}

/** As `episodeOf`, for an episode of an evaluation. */
export function evaluationOf(value: unknown, where: string): EvaluationRecord {
  const record = episodeOf(value, where);
  if (Number.isSafeInteger((record as Partial<EvaluationRecord>).update)) return record as EvaluationRecord;
  throw new NlacError("ERR_RUN", `${where} does not say after how many updates it was played.`);
}

/** The episodes of a run's evaluations in order. Throws as `readEpisodeRecords`. */
export function* readEvaluations(path: string): Generator<EvaluationRecord> {
  yield* checkedRecords(path, evaluationOf);
}

/**
 * Records of earlier versions have `done` on an episode's last turn, however it ended. The outcome
 * tells whether it terminated or was truncated.
 */
function withEnding(
  turn: EpisodeRecord["turns"][number] & { done?: boolean },
  outcome: Outcome | undefined,
): EpisodeRecord["turns"][number] {
  const { done, ...rest } = turn;
  if (done === undefined) return rest;
  const terminated = done && (outcome === "done" || outcome === "malformed");
  return { ...rest, terminated, truncated: done && !terminated };
}

/**
 * The episodes of an evaluation by number. If an episode occurs twice, it was replayed after a
 * fault and the later one counts. Throws as `readEpisodeRecords`.
 */
export function latestEpisodes(path: string): EpisodeRecord[] {
  const latest = new Map<number, EpisodeRecord>();
  for (const record of readEpisodeRecords(path)) latest.set(record.id, record);
  return [...latest.values()].sort((a, b) => a.id - b.id);
}

/** The episodes of a file as trajectories of `model`. Throws as `readEpisodeRecords`. */
export function* readEpisodes(path: string, model: LanguageModel): Generator<Trajectory> {
  for (const record of readEpisodeRecords(path)) yield fromRecord(record, model);
}

/**
 * The records of a file to train on: those of the split "test" are left out.
 * @throws NlacError ERR_RUN as `readEpisodeRecords`, and for a file that has no others; ERR_IO
 */
export function* trainableRecords(path: string): Generator<EpisodeRecord> {
  let [kept, heldOut] = [0, 0];
  for (const record of readEpisodeRecords(path)) {
    if (record.split === "test") heldOut++;
    else {
      kept++;
      yield record;
    }
  }
  if (heldOut > 0 && kept === 0)
    throw new NlacError(
      "ERR_RUN",
      `${path}: all ${heldOut} episodes are on test tasks, on which nothing trains. Record training tasks: ` +
        "nlac eval --split train --record FILE.",
    );
}

/**
 * An episode of a file with a new number. A branch names the new number of the episode that it
 * repeats; without that episode before it in its file it counts as an episode of its own.
 * @param numbers new numbers of the file's earlier episodes by their own, to which its own is added
 */
export function renumbered(trajectory: Trajectory, id: number, numbers: Map<number, number>): Trajectory {
  const { branch, ...episode } = trajectory;
  if (branch === undefined) numbers.set(trajectory.id, id);
  const repeated = branch && numbers.get(branch.trajectory);
  return { ...episode, id, ...(repeated !== undefined && { branch: { ...branch!, trajectory: repeated } }) };
}

/**
 * The trainable episodes of several files in order, as `model` sampled them in earlier runs, numbered
 * from 0 as by `renumbered`.
 * @throws NlacError ERR_RUN as `trainableRecords`, and for ids of another tokenizer than `model`'s;
 *   ERR_IO
 */
export function* readSampled(paths: readonly string[], model: LanguageModel): Generator<Trajectory> {
  let id = 0;
  for (const path of paths) {
    const numbers = new Map<number, number>();
    for (const record of trainableRecords(path)) {
      const trajectory = fromRecord(record, model);
      if (trajectory.turns.some(({ text, tokens }) => !isRestOf(text, model.decode(tokens)))) {
        throw new NlacError(
          "ERR_RUN",
          `${path}: episode ${trajectory.id} was recorded with another tokenizer.`,
        );
      }
      yield renumbered(trajectory, id++, numbers);
    }
  }
}

/**
 * Whether `text` is `decoded` without its control tokens and without anything after a stop string.
 */
export function isRestOf(text: string, decoded: string): boolean {
  let found = 0;
  for (let i = 0; i < decoded.length && found < text.length; i++) if (decoded[i] === text[found]) found++;
  return found === text.length;
}

export function fromRecord(record: EpisodeRecord, model: LanguageModel): Trajectory {
  const conversation = model.restoreConversation(record.conversation);
  const { tokens } = conversation;
  return {
    ...record,
    turns: record.turns.map(({ state, sampled, ...turn }) => {
      if (sampled !== undefined) {
        const logProbs = floatsFromBase64(sampled.logProbs);
        return { ...turn, state: conversation.prefix(state), tokens: sampled.tokens, logProbs };
      }
      const written = writtenAfter(conversation.segments, state);
      if (written?.logProbs === undefined) {
        throw new NlacError("ERR_RUN", `Episode ${record.id} has a turn that the model did not generate.`);
      }
      return {
        ...turn,
        state: conversation.prefix(state),
        tokens: tokens.slice(written.start, written.end),
        logProbs: written.logProbs,
      };
    }),
    conversation,
  };
}
