/**
 * Records of NLAC's updates: which transitions were drawn, and some samples with their figures per
 * token. Most figures are by-products of the update. Figures that need further computation are
 * recorded every `detailEvery` updates only. Recording does not change the training.
 */

import { derivedSeed, permutation, streams } from "../base/random.ts";
import type { Transition } from "../episodes/trajectory.ts";
import { halvesToBase64 } from "../files/half-floats.ts";
import type { KlDetail, LanguageModel, Support } from "../model/language-model.ts";
import type { ReplaySample } from "../replay/buffer.ts";
import type { Refinement } from "../roles/refinements.ts";
import type { RolesConfig } from "../roles/role-writer.ts";
import type { Target } from "../roles/targets.ts";
import type { DrawsRecord, SampleRecord } from "../run/samples.ts";
import type { TrainingRun } from "../run/training-run.ts";
import { mean } from "../statistics/mean.ts";
import { supportOf } from "./losses.ts";
import { sampleRecord } from "./sample-records.ts";
import { bestCount, bestTokens, piecesOf, targetTokens } from "./token-records.ts";

/** What an update drew and generated; every list has one entry per draw. */
export interface UpdateParts {
  update: number;
  transitions: readonly Transition[];
  targets: readonly Target[];
  refinements: readonly Refinement[];
  /** L1 per token in nats; undefined without a target. */
  losses: readonly (Float32Array | undefined)[];
  /** From the same logits, for the losses that were computed with a `detail`. */
  details: readonly (KlDetail | undefined)[];
}

/** A sample that waits for its L2. */
export interface PendingSample {
  record: SampleRecord;
  /** Index of its text among those of the policy's step. */
  kept?: number | undefined;
}

/**
 * The records of an update between its two steps. As JSON, because a checkpoint may lie there too.
 */
export interface PendingRecords {
  draws: DrawsRecord;
  samples: PendingSample[];
}

interface Recording<Run> {
  model: LanguageModel;
  config: RolesConfig;
  run: Run;
}

function isDetailed({ detailEvery }: Pick<TrainingRun, "detailEvery">, update: number): boolean {
  return detailEvery > 0 && update % detailEvery === 0;
}

/**
 * Options of L1 with the `detail` that the update's records need. Log probabilities cost almost
 * nothing, unless the loss does not use θ̄; the most probable tokens are for detailed updates.
 */
export function criticOptions(
  run: Pick<TrainingRun, "samplesPerUpdate" | "tokenBytes" | "detailEvery">,
  config: { reasoning: boolean; support: Support },
  update: number,
): { support: Support; detail: number | undefined } {
  const support = supportOf(config);
  if (run.samplesPerUpdate === 0 || run.tokenBytes === 0) return { support, detail: undefined };
  const detail = isDetailed(run, update) ? bestCount : support === "sampled" ? undefined : 0;
  return { support, detail };
}

/**
 * The records of an update, which `writeRecords` completes after its last step: an update that is
 * stopped before is repeated, and must not be recorded twice. Call it before a step on the losses:
 * it computes with the θ that they were computed with.
 *
 * @param episodes number of the run's episodes so far, from which ages are computed
 */
export async function prepareRecords(
  recording: Recording<TrainingRun>,
  parts: UpdateParts,
  draw: ReplaySample,
  episodes: number,
): Promise<PendingRecords> {
  const { run, config } = recording;
  const { update, transitions, targets, refinements, losses } = parts;
  const l1 = losses.map((loss) => loss && mean(loss));
  const draws = {
    update,
    trajectory: transitions.map(({ trajectory }) => trajectory),
    turn: transitions.map(({ turn }) => turn),
    l1: l1.map((value) => (Number.isFinite(value) ? short(value!) : null)),
    probability: draw.probabilities.map(short),
    age: transitions.map(({ trajectory }) => episodes - 1 - trajectory),
    target: targets.map(({ parsed, dropped }) => verdict(parsed?.yes, dropped)),
    critique: refinements.map(({ judgements }) => verdict(judgements.at(-1)?.yes)),
    refinement: refinements.map(changeOf),
  };
  const picked = pickSamples(l1, run.samplesPerUpdate, derivedSeed(config.seed, streams.recording, update));
  const detailed = isDetailed(run, update);
  const records = await explain(recording, parts, picked, detailed, detailed ? picked.slice(0, 1) : []);
  const kept = refinements.flatMap(({ text }, i) => (text === undefined ? [] : [i]));
  const samples = records.map((record, k): PendingSample => {
    const i = picked[k]!;
    record.facts.probability = short(draw.probabilities[i]!);
    record.facts.age = episodes - 1 - transitions[i]!.trajectory;
    const at = kept.indexOf(i);
    return at < 0 ? { record } : { record, kept: at };
  });
  return { draws, samples };
}

/**
 * Records an update with the losses of its refinements. Checkpoints of earlier versions have no
 * `records`.
 */
export function writeRecords(
  training: { model: Pick<LanguageModel, "decode">; run: TrainingRun },
  records: PendingRecords | undefined,
  texts: readonly { response: readonly number[] }[],
  losses: readonly Float32Array[],
): void {
  if (records === undefined) return;
  training.run.draws(records.draws);
  recordSamples(training, records.samples, texts, losses);
}

/**
 * The samples to record: half of them those of highest L1, the highest first, and the others at
 * random.
 */
export function pickSamples(l1: readonly (number | undefined)[], count: number, seed: number): number[] {
  const ordered = l1
    .map((value, i) => ({ i, value: Number.isFinite(value) ? value! : Number.NEGATIVE_INFINITY }))
    .sort((a, b) => b.value - a.value || a.i - b.i)
    .map(({ i }) => i);
  const highest = ordered.slice(0, Math.ceil(count / 2));
  const others = permutation(l1.length, seed, streams.recording).filter((i) => !highest.includes(i));
  return [...highest, ...others.slice(0, count - highest.length)];
}

/**
 * Samples number `picked` with their figures per token.
 *
 * @param detailed adds the critic on the stored action
 * @param best samples to add the most probable tokens to; their details have them
 */
export async function explain(
  { model, config, run }: Recording<Pick<TrainingRun, "signal" | "tokenBytes">>,
  { update, transitions, targets, refinements, losses, details }: UpdateParts,
  picked: readonly number[],
  detailed: boolean,
  best: readonly number[] = [],
): Promise<SampleRecord[]> {
  const { signal } = run;
  const taught = picked.filter((i) => targets[i]!.text !== undefined && losses[i] !== undefined);
  const studentOf = (i: number) => targets[i]!.text!.student;
  const critics =
    detailed && taught.length > 0
      ? await model.generate(
          taught.map((i, k) => ({
            tokens: studentOf(i),
            maxNewTokens: Math.min(config.maxCriticTokens, model.maxPositions - studentOf(i).length),
            temperature: config.criticTemperature,
            seed: derivedSeed(derivedSeed(config.seed, streams.recording, update), streams.recording, k),
          })),
          { signal },
        )
      : [];
  let bytes = run.tokenBytes;
  return picked.map((i) => {
    const loss = losses[i];
    const target = targets[i]!;
    const l1 = loss && mean(loss);
    const record = sampleRecord(update, transitions[i]!, target, refinements[i]!, l1);
    if (target.text === undefined || loss === undefined) return record;
    const k = taught.indexOf(i);
    if (critics[k] !== undefined) record.texts.critic = critics[k].text;
    const { response } = target.text;
    // A corrected thought makes the response another text than the generation.
    const isGenerated = String(target.target?.tokens) === String(response);
    const known = isGenerated ? { target: target.target!.logProbs } : {};
    const detail = details[i];
    const tokens = targetTokens(model, response, { l1: loss, ...(detail ? { detail } : known) });
    if (detail !== undefined && best.includes(i)) tokens.best = bestTokens(model, detail);
    const size = JSON.stringify(tokens).length;
    if (size <= bytes) {
      record.tokens = { target: tokens };
      bytes -= size;
    }
    return record;
  });
}

/** Adds L2, and the refinement's figures per token, to samples, and records them. */
export function recordSamples(
  { model, run }: { model: Pick<LanguageModel, "decode">; run: Pick<TrainingRun, "tokenBytes" | "sample"> },
  samples: readonly PendingSample[],
  texts: readonly { response: readonly number[] }[],
  losses: readonly Float32Array[],
): void {
  const used = samples.map(({ record }) => (record.tokens ? JSON.stringify(record.tokens).length : 0));
  let bytes = run.tokenBytes - used.reduce((sum, size) => sum + size, 0);
  for (const { record, kept } of samples) {
    if (kept === undefined || losses[kept] === undefined) {
      run.sample(record);
      continue;
    }
    const ids = [...texts[kept]!.response];
    const refinement = { ids, pieces: piecesOf(model, ids), nll: halvesToBase64(losses[kept]) };
    const size = JSON.stringify(refinement).length;
    const fits = size <= bytes;
    if (fits) bytes -= size;
    run.sample({
      ...record,
      facts: { ...record.facts, l2: mean(losses[kept]) },
      ...(fits && { tokens: { ...record.tokens, refinement } }),
    });
  }
}

function verdict(yes: boolean | undefined, dropped?: string): string {
  if (yes !== undefined) return yes ? "yes" : "no";
  return dropped ?? "unreadable";
}

function changeOf({ action, attempt, attempted, dropped }: Refinement): string {
  if (dropped !== undefined) return dropped;
  if (attempt === undefined) return "kept";
  return attempted === undefined || action?.text !== attempted.text ? "changed" : "same";
}

/** Six digits: enough to read, and half the bytes. */
function short(value: number): number {
  return Number(value.toPrecision(6));
}
