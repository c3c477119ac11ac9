/** Training samples as records, one per line of samples.jsonl. */

import type { Trajectory, Transition } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import type { Refinement } from "../roles/refinements.ts";
import type { Target } from "../roles/targets.ts";
import type { SampleRecord } from "../run/samples.ts";
import type { EpisodeText } from "./episode-texts.ts";

/**
 * Every completion that went into one sample of an update, by role, with its metrics. The episode's
 * record has state, action and observation.
 * @param l1 in nats per token; undefined without a target
 */
export function sampleRecord(
  update: number,
  transition: Transition,
  target: Target,
  refinement: Refinement,
  l1: number | undefined,
): SampleRecord {
  const { trajectory, turn, reward, terminated, truncated } = transition;
  const texts: SampleRecord["texts"] = {};
  const facts: SampleRecord["facts"] = { reward, terminated, truncated };
  const parsed: NonNullable<SampleRecord["parsed"]> = {};
  if (target.future !== undefined) texts.future = target.future.text;
  if (target.target !== undefined) texts.target = target.target.text;
  if (refinement.attempt !== undefined) texts.attempt = refinement.attempt.text;
  for (const [i, critique] of refinement.critiques.entries()) texts[numbered("critique", i)] = critique.text;
  for (const [i, refined] of refinement.refinements.entries())
    texts[numbered("refinement", i)] = refined.text;
  if (l1 !== undefined) facts.l1 = l1;
  if (target.dropped !== undefined) facts.targetDropped = target.dropped;
  if (refinement.reason !== undefined) facts.refinementDropped = refinement.reason;
  if (target.parsed !== undefined) parsed.target = target.parsed;
  if (refinement.attempt !== undefined) parsed.attempt = { ok: refinement.attempted !== undefined };
  for (const [i, { yes }] of refinement.judgements.entries())
    parsed[numbered("critique", i)] = yes === undefined ? { ok: false } : { ok: true, yes };
  if (refinement.action !== undefined) parsed.refinement = { ok: true };
  else if (refinement.dropped === "unreadable") parsed.refinement = { ok: false };
  if (refinement.action !== undefined && refinement.attempted !== undefined)
    facts.changed = refinement.action.text !== refinement.attempted.text;
  return { update, trajectory, turn, texts, facts, parsed };
}

/** An action that an update trained on, with its metrics; not always the action that was played. */
export function actionSample(
  model: Pick<LanguageModel, "decode">,
  update: number,
  { trajectory, turn, action, reward, terminated, truncated }: Transition,
  facts: SampleRecord["facts"],
): SampleRecord {
  const texts = { action: model.decode(action) };
  return { update, trajectory, turn, texts, facts: { reward, terminated, truncated, ...facts } };
}

/**
 * A whole episode that an update trained on, including control tokens, with its metrics. If the
 * chat history drops reasoning, it has a text per turn; what precedes each is in the episode's
 * record.
 */
export function episodeSample(
  model: Pick<LanguageModel, "decode">,
  update: number,
  { id, reward }: Pick<Trajectory, "id" | "reward">,
  episode: readonly EpisodeText[],
  facts: SampleRecord["facts"],
): SampleRecord {
  const texts: SampleRecord["texts"] = {};
  for (const [i, { response }] of episode.entries()) texts[numbered("episode", i)] = model.decode(response);
  return { update, trajectory: id, texts, facts: { reward, ...facts } };
}

/** "critique", "critique 2", … */
function numbered(name: string, i: number): string {
  return i === 0 ? name : `${name} ${i + 1}`;
}
