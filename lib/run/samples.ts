/**
 * Records of what an update trained on. `samples.jsonl` has some complete samples, `draws.jsonl`
 * every transition that was drawn, `probes.jsonl` a few fixed transitions, explained
 * repeatedly.
 */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { type EpisodeRecord, episodesPath, readEpisodeRecords } from "../episodes/records.ts";
import { readRecordsOf } from "../files/records.ts";

const whole = z.int().min(0);

/**
 * Per token of a completion that a loss was computed on. Lists of figures are base64 of float16.
 */
const tokenRecord = z.strictObject({
  ids: z.array(whole),
  /** The text of each token. A character of several tokens is the text of its last one. */
  pieces: z.array(z.string()),
  /** L1 of a target's tokens, in nats. */
  l1: z.string().optional(),
  /** Log probability of a target's tokens under θ, and under θ̄, which saw the outcome. */
  online: z.string().optional(),
  target: z.string().optional(),
  /** Negative log-likelihood of a refinement's tokens under θ, before the policy's step. */
  nll: z.string().optional(),
  /** The most probable tokens of both: [tokens × count], row-major. `words` has their texts. */
  best: z
    .strictObject({
      count: z.int().min(1),
      words: z.record(z.string(), z.string()),
      online: z.strictObject({ ids: z.array(whole), logProbs: z.string() }),
      target: z.strictObject({ ids: z.array(whole), logProbs: z.string() }),
    })
    .optional(),
});

/** A completion with figures for each token. */
export type TokenRecord = z.infer<typeof tokenRecord>;

/** Whether a completion could be parsed, and its verdict. */
const parseResult = z.strictObject({
  ok: z.boolean(),
  yes: z.boolean().optional(),
  reason: z.string().optional(),
});

export const sampleRecordSchema = z.strictObject({
  /** Number of updates before the one that it was drawn by, whose row of metrics has step + 1. */
  update: whole,
  /** Number of the episode, and of the turn from 0; no turn if the sample is a whole episode. */
  trajectory: z.int(),
  turn: whole.optional(),
  /**
   * Completions by role: future, target, critic (of the stored action), attempt, critique (of the
   * attempt), refinement, episode (with control tokens), chosen, rejected; the second and later
   * ones are numbered. State, action and observation are those of the episode unless they are here:
   * an action other than the played one, or records of earlier versions.
   */
  texts: z.record(z.string(), z.string()),
  /** Figures of the sample: L1, L2, reward, probability of the draw, causes of drops. */
  facts: z.record(z.string(), z.union([z.number(), z.string(), z.boolean()]).nullable()),
  /** By role. */
  parsed: z.record(z.string(), parseResult).optional(),
  /** By role: target, refinement. Absent beyond `tokenBytes`. */
  tokens: z.record(z.string(), tokenRecord).optional(),
});

/** One complete training sample. */
export type SampleRecord = z.infer<typeof sampleRecordSchema>;

/** The transitions of an update; every list has one entry per draw. */
export const drawsRecord = z.strictObject({
  update: whole,
  trajectory: z.array(z.int()),
  turn: z.array(whole),
  /** Nats per token; null without a target. */
  l1: z.array(z.number().nullable()),
  /** P(i) of the draw. */
  probability: z.array(z.number()),
  /** Number of episodes played since the transition's. */
  age: z.array(z.int()),
  /** Verdict of the target and of the last critique: yes, no, or why there is none. */
  target: z.array(z.string()),
  critique: z.array(z.string()),
  /**
   * Compared with the attempt: changed, or same; of a stored action, with which it is not compared:
   * kept. Otherwise why it was dropped.
   */
  refinement: z.array(z.string()),
});

/** The transitions that one update drew. */
export type DrawsRecord = z.infer<typeof drawsRecord>;

/** A fixed transition, explained by the model as it was after `update` updates. */
export const probeRecord = sampleRecordSchema.extend({ probe: whole });

/** A probe: the critic on a fixed transition. */
export type ProbeRecord = z.infer<typeof probeRecord>;

/**
 * The samples of a run in order, also of earlier versions; a copy of a comparison's run has none.
 * Throws ERR_RUN, ERR_IO.
 */
export function* readSamples(run: string): Generator<SampleRecord> {
  const file = join(run, "samples.jsonl");
  if (existsSync(file)) yield* readRecordsOf(file, sampleRecordSchema);
}

/** The messages of a state: the task's, and all turns before number `turn`. */
export function stateMessages(
  { opening = [], turns }: Pick<EpisodeRecord, "opening" | "turns">,
  turn: number,
): { role: string; content: string }[] {
  const before = turns
    .slice(0, turn)
    .flatMap(({ text, observation }) => [{ role: "assistant", content: text }, ...observation]);
  return [...opening, ...before].map(({ role, content }) => ({ role, content }));
}

/**
 * State, action and observation of a turn as texts; without a turn, the state before the first one.
 */
export function contextOf(episode: EpisodeRecord, turn?: number): Record<string, string> {
  const messages = stateMessages(episode, turn ?? 0);
  const state = messages.map(({ role, content }) => `${role}: ${content}`).join("\n");
  if (turn === undefined) return { state };
  const { text = "", observation = [] } = episode.turns[turn] ?? {};
  return { state, action: text, observation: observation.map(({ content }) => content).join("\n") };
}

/**
 * `samples` with the texts of state, action and observation, which the run's episodes have. Reads
 * all episodes once. Throws ERR_RUN, ERR_IO.
 */
export function withContext(run: string, samples: readonly SampleRecord[]): SampleRecord[] {
  const wanted = new Set(
    samples.flatMap(({ texts, trajectory }) => (texts.state === undefined ? [trajectory] : [])),
  );
  const episodes = new Map<number, EpisodeRecord>();
  if (wanted.size > 0)
    for (const record of readEpisodeRecords(episodesPath(run)))
      if (wanted.has(record.id)) episodes.set(record.id, record);
  return samples.map((sample) => {
    const episode = episodes.get(sample.trajectory);
    if (episode === undefined || sample.texts.state !== undefined) return sample;
    return { ...sample, texts: { ...contextOf(episode, sample.turn), ...sample.texts } };
  });
}
