/**
 * Corrections by people: a better answer for a turn is a demonstration. Each is imitated a set
 * number of times: by SFT, or between the updates of another method.
 *
 *   L(s, a*) = -log π_θ(a* | s)
 */

import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { z } from "zod";
import { RecordWriter, readRecords } from "../files/records.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { keyReused } from "../serve/repeated-rewards.ts";
import { badRequest } from "../serve/request-error.ts";
import { mean } from "../statistics/mean.ts";

export const correctionsConfig = z.strictObject({
  /** How often each correction is imitated. Default 4. */
  epochs: z.int().min(0).default(4),
  /** Corrections per step. Default 4. */
  batchSize: z.int().min(1).default(4),
  /** Learning rate of the steps. Default: the learning rate of the algorithm's policy. */
  learningRate: z.number().min(0).optional(),
  /** Global gradient norm to which larger gradients are scaled down; 0 is off. Default 1. */
  maxGradNorm: z.number().min(0).default(1),
});

export type CorrectionsConfig = z.infer<typeof correctionsConfig>;

/** Limits on what a run stores. */
export interface CorrectionLimits {
  /** Maximum number of corrections. */
  count: number;
  /** Maximum length of all of them, with their prompts, in tokens: they are in memory. */
  tokens: number;
}

/** A correction as it is stored. */
export interface Correction {
  id: string;
  episode: string;
  turn: number;
  /** The prompt and the better answer, as ids; the answer ends with the end of the turn. */
  prompt: number[];
  response: number[];
  text: string;
  /** Milliseconds since 1970. */
  time: number;
  /** Idempotency-Key and hash of the request, if it had a key. */
  key?: string;
  request?: string;
}

export class Corrections {
  readonly #config: CorrectionsConfig & { learningRate: number };
  readonly #limits: CorrectionLimits;
  readonly #writer: RecordWriter;
  #all: Correction[];
  /** Length of all of them, with their prompts. */
  #tokens: number;
  /** How often each was imitated, by id. */
  #counts = new Map<string, number>();

  /**
   * Opens or creates a file. What it has is kept, also beyond the limits. Throws NlacError ERR_RUN
   * for a damaged one or one in use; ERR_IO.
   */
  constructor(path: string, config: CorrectionsConfig & { learningRate: number }, limits: CorrectionLimits) {
    this.#config = config;
    this.#limits = limits;
    this.#writer = RecordWriter.resume(path, { isPrivate: true });
    this.#all = existsSync(path) ? [...readRecords<Correction>(path)] : [];
    this.#tokens = totalLength(this.#all);
  }

  get size(): number {
    return this.#all.length;
  }

  /** How often each correction was imitated, by id, for a checkpoint. */
  get counts(): Record<string, number> {
    return Object.fromEntries(this.#all.map(({ id }) => [id, this.#countOf(id)]));
  }

  /** Restores what `counts` returned. Corrections that came later were not imitated yet. */
  restore(counts: Readonly<Record<string, number>>): void {
    this.#counts = new Map(Object.entries(counts));
  }

  /**
   * Stores a correction and returns it; it is on disk then. A repeated one, with the same key, is
   * not stored again. Throws ERR_IO; a RequestError of status 400 if its key was used for another
   * one, or if it exceeds the limits.
   */
  add(given: Omit<Correction, "id">): Correction {
    const { episode, key } = given;
    const earlier = this.#all.find((one) => key !== undefined && one.key === key && one.episode === episode);
    if (earlier !== undefined && earlier.request !== given.request) throw keyReused("correction");
    this.#writer.requireUnchanged();
    if (earlier !== undefined) return earlier;
    const correction = { id: randomUUID(), ...given };
    const tokens = this.#tokens + lengthOf(correction);
    this.#requireRoom(tokens);
    this.#writer.appendDurably(correction);
    this.#all.push(correction);
    this.#tokens = tokens;
    return correction;
  }

  /** Removes the corrections of an episode, or those before a time. Throws ERR_IO, ERR_ABORTED. */
  async remove(is: (correction: Correction) => boolean): Promise<void> {
    const kept = () => this.#all.filter((correction) => !is(correction));
    if (kept().length === this.#all.length) return;
    await this.#writer.replace(kept);
    this.#all = kept();
    this.#tokens = totalLength(this.#all);
  }

  /** How many were not imitated often enough yet. */
  get waiting(): number {
    return this.#all.filter((correction) => this.#isDue(correction)).length;
  }

  /** Up to `most` that were not imitated often enough: the least imitated, the newest of them first. */
  due(most: number): Correction[] {
    return this.#all
      .filter((correction) => this.#isDue(correction))
      .reverse() // the sort is stable
      .sort((a, b) => this.#countOf(a.id) - this.#countOf(b.id))
      .slice(0, most);
  }

  /** Notes that corrections were imitated once more. */
  count(imitated: readonly Correction[]): void {
    for (const { id } of imitated) this.#counts.set(id, this.#countOf(id) + 1);
  }

  /**
   * One step on the corrections that are due. Call it only while no gradients are pending.
   *
   * @returns metrics, or undefined if every correction was imitated often enough
   */
  async imitate(model: LanguageModel): Promise<Record<string, number> | undefined> {
    const { batchSize, learningRate, maxGradNorm } = this.#config;
    const due = this.due(batchSize);
    if (due.length === 0) return undefined;
    const texts = due.map(({ prompt, response }) => {
      return { prompt, response, weight: 1 / (response.length * due.length) };
    });
    const losses = await model.tokenNll(texts);
    const { gradNorm, skipped } = await model.step({ learningRate, maxGradNorm, moments: "corrections" });
    this.count(due);
    return {
      "corrections/nll": mean(losses.map(mean)),
      "corrections/grad_norm": gradNorm,
      "corrections/skipped": skipped ? 1 : 0,
    };
  }

  close(): void {
    this.#writer.close();
  }

  /** Throws unless one more may be stored, with which there are so many tokens. */
  #requireRoom(tokens: number): void {
    const { count, tokens: mostTokens } = this.#limits;
    if (this.#all.length < count && tokens <= mostTokens) return;
    throw badRequest(
      `A run stores ${count} corrections of ${mostTokens} tokens in total, with their prompts, at most. ` +
        "Delete episodes that have corrections, or let the server delete old ones.",
      null,
      "too_many_corrections",
    );
  }

  #isDue({ id }: Correction): boolean {
    return this.#countOf(id) < this.#config.epochs;
  }

  #countOf(id: string): number {
    return this.#counts.get(id) ?? 0;
  }
}

function lengthOf({ prompt, response }: Pick<Correction, "prompt" | "response">): number {
  return prompt.length + response.length;
}

function totalLength(corrections: readonly Correction[]): number {
  return corrections.reduce((sum, correction) => sum + lengthOf(correction), 0);
}
