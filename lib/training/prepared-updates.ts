/**
 * What NLAC's updates draw and generate before their losses. Completions of several updates can be
 * generated together, so they are part of a checkpoint.
 */

import { z } from "zod";
import { derivedSeed, streams } from "../base/random.ts";
import type { Action, Environment } from "../contract/environment.ts";
import type { Generation, LanguageModel } from "../model/language-model.ts";
import type { ReplayBuffer, ReplaySample } from "../replay/buffer.ts";
import { dropCauses } from "../roles/drops.ts";
import { type Refinement, refine } from "../roles/refinements.ts";
import { type RolesConfig, RoleWriter } from "../roles/role-writer.ts";
import { type Target, writeTargets } from "../roles/targets.ts";
import { savedNumber, type TrainingRun } from "../run/training-run.ts";
import { withShuffledOutcomes } from "./shuffle-outcomes.ts";

const ids = z.array(z.int());
const dropped = z.enum(dropCauses).optional();

const generation = z.strictObject({
  tokens: ids,
  logProbs: z.array(savedNumber).transform((values) => Float32Array.from(values)),
  text: z.string(),
  finishReason: z.enum(["stop", "length", "stuck"]),
  cachedTokens: z.int().min(0),
}) satisfies z.ZodType<Generation>;

const target = z.strictObject({
  text: z.strictObject({ student: ids, teacher: ids, response: ids }).optional(),
  future: generation.optional(),
  target: generation.optional(),
  parsed: z
    .strictObject({ ok: z.boolean(), yes: z.boolean().optional(), reason: z.string().optional() })
    .optional(),
  dropped,
});

const action = z.strictObject({
  text: z.string(),
  thought: z.string().optional(),
  tool: z.strictObject({ name: z.string(), arguments: z.record(z.string(), z.unknown()) }).optional(),
}) satisfies z.ZodType<Action>;

const refinement = z.strictObject({
  text: z.strictObject({ prompt: ids, response: ids }).optional(),
  action: action.optional(),
  attempt: generation.optional(),
  attempted: action.optional(),
  critiques: z.array(generation),
  judgements: z.array(z.strictObject({ yes: z.boolean().optional(), futures: z.array(z.string()) })),
  refinements: z.array(generation),
  dropped,
  reason: z.string().optional(),
});

/** The completions of one update; both lists have one entry per transition that it drew. */
export interface PreparedUpdate {
  targets: Target[];
  refinements: Refinement[];
  /**
   * Of all completions that were generated together; empty except in the first of their updates.
   */
  metrics: Record<string, number>;
}

/** Parses what `plainUpdates` returned. */
export const preparedUpdates: z.ZodType<PreparedUpdate[]> = z.array(
  z.strictObject({
    targets: z.array(target),
    refinements: z.array(refinement),
    metrics: z.record(z.string(), savedNumber),
  }),
);

/** Returns `updates` as plain JSON, for a checkpoint. */
export function plainUpdates(updates: readonly PreparedUpdate[]): unknown {
  return JSON.parse(
    JSON.stringify(updates, (_, value) => (value instanceof Float32Array ? Array.from(value) : value)),
  );
}

/**
 * Generates targets under θ̄ and refinements under θ for the updates that drew `draws`, all with the
 * present weights. `first` is the number of the first update: with the seed it determines every
 * completion.
 */
export async function prepareUpdates(
  {
    model,
    environment,
    replay,
    config,
    run,
  }: {
    model: LanguageModel;
    environment: Pick<Environment, "actionFormat" | "singleStep" | "rewardRange">;
    replay: Pick<ReplayBuffer, "get">;
    config: RolesConfig & { shuffleOutcomes: boolean };
    run: Pick<TrainingRun, "signal">;
  },
  draws: readonly ReplaySample[],
  first: number,
): Promise<PreparedUpdate[]> {
  const started = performance.now();
  const batches = draws.map(({ indices }) => replay.get(indices));
  const outcomes = batches.map((batch, i) => {
    if (!config.shuffleOutcomes) return batch;
    return withShuffledOutcomes(batch, derivedSeed(config.seed, streams.shuffle, first + i));
  });
  const writer = new RoleWriter(model, environment, config, first, run.signal);
  const targets = await writeTargets(writer, outcomes.flat());
  const targeted = performance.now();
  const refinements = await refine(writer, batches.flat());
  const metrics = {
    ...writer.metrics(),
    "time/targets": (targeted - started) / 1000,
    "time/refinements": (performance.now() - targeted) / 1000,
  };
  let end = 0;
  return batches.map(({ length }, i) => {
    const begin = end;
    end += length;
    return {
      targets: targets.slice(begin, end),
      refinements: refinements.slice(begin, end),
      metrics: i === 0 ? metrics : {},
    };
  });
}
