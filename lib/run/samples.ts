/** Training samples as records: what samples.jsonl holds, one line a sample. */

import type { LanguageModel } from "../model.ts";
import { observationText } from "../prompts/backup.ts";
import type { Refinement } from "../rollout/refine.ts";
import type { Target } from "../rollout/targets.ts";
import type { Transition } from "../rollout/trajectory.ts";
import type { SampleRecord } from "./training-run.ts";

/**
 * Every text that one sample of an update was made of, by its role, and what is known of it.
 * @param target undefined when none could be written
 * @param l1 nats a token; undefined without a target
 */
export function sampleRecord(
  model: LanguageModel,
  update: number,
  transition: Transition,
  target: Target | undefined,
  refinement: Refinement,
  l1: number | undefined,
): SampleRecord {
  const texts: Record<string, string> = {
    state: model.decode(transition.state.tokens),
    action: model.decode(transition.action),
    observation: observationText(transition.observation),
  };
  if (target?.future !== undefined) texts.future = target.future.text;
  if (target !== undefined) texts.target = target.target.text;
  if (refinement.attempt !== undefined) texts.attempt = refinement.attempt.text;
  for (const [i, critique] of refinement.critiques.entries()) texts[numbered("critique", i)] = critique.text;
  for (const [i, refined] of refinement.refinements.entries())
    texts[numbered("refinement", i)] = refined.text;
  const facts: SampleRecord["facts"] = { reward: transition.reward, done: transition.done };
  if (l1 !== undefined) facts.l1 = l1;
  if (refinement.dropped !== undefined) facts.refinementDropped = refinement.dropped;
  return { update, trajectory: transition.trajectory, turn: transition.turn, texts, facts };
}

/** "critique", "critique 2", … */
function numbered(name: string, i: number): string {
  return i === 0 ? name : `${name} ${i + 1}`;
}
