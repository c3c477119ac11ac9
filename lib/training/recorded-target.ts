/**
 * A recorded target under the weights that a model has now: the figures per token that were not
 * recorded when it was trained on.
 */

import type { Environment } from "../contract/environment.ts";
import type { Transition } from "../episodes/trajectory.ts";
import type { Generation, LanguageModel, Support, WeightSet } from "../model/language-model.ts";
import { type Role, type RolesConfig, RoleWriter } from "../roles/role-writer.ts";
import { writeTargets } from "../roles/targets.ts";
import type { SampleRecord, TokenRecord } from "../run/samples.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { supportOf } from "./losses.ts";
import { bestCount, bestTokens, targetTokens } from "./token-records.ts";

/** Appends recorded completions in place of generated ones. */
class RecordedWriter extends RoleWriter {
  readonly #recorded: Partial<Record<Role, Generation>>;

  constructor(writer: ConstructorParameters<typeof RoleWriter>, recorded: Partial<Record<Role, Generation>>) {
    super(...writer);
    this.#recorded = recorded;
  }

  override async write(
    role: Role,
    _weights: WeightSet,
    conversations: readonly (Conversation | undefined)[],
  ): Promise<(Generation | undefined)[]> {
    const generation = this.#recorded[role];
    return conversations.map((conversation) => {
      if (conversation === undefined || generation === undefined) return undefined;
      conversation.appendGeneration(generation);
      return generation;
    });
  }
}

/**
 * L1, log probabilities and the most probable tokens of the sample's target under `model`.
 *
 * @param transition the sample's transition
 * @returns undefined if the sample has no target with recorded ids, or its prompt is not known any
 *   more
 */
export async function explainRecordedTarget(
  model: LanguageModel,
  environment: Pick<Environment, "actionFormat" | "singleStep" | "rewardRange">,
  config: RolesConfig & { support: Support; shuffleOutcomes: boolean },
  transition: Transition,
  { texts, tokens }: Pick<SampleRecord, "texts" | "tokens">,
): Promise<TokenRecord | undefined> {
  const ids = tokens?.target?.ids;
  // With shuffled outcomes, the target's prompt has the outcome of a transition that is not recorded.
  if (ids === undefined || texts.target === undefined || config.shuffleOutcomes) return undefined;
  const future = texts.future;
  const recorded = {
    next: completion([], ""), // its reply is part of no prompt
    target: completion(ids, texts.target),
    ...(future === undefined ? {} : { future: completion(model.encode(future), future) }),
  };
  // A corrected thought is part of the recorded ids already.
  const roles = { ...config, reasoning: false, targets: "all" as const };
  const signal = new AbortController().signal;
  const writer = new RecordedWriter([model, environment, roles, 0, signal], recorded);
  const [target] = await writeTargets(writer, [transition]);
  if (target?.text === undefined) return undefined;
  const support = supportOf(config);
  const [detail] = await model.tokenKl([target.text], { support, withGradient: false, detail: bestCount });
  return {
    ...targetTokens(model, ids, { l1: detail!.losses, detail: detail! }),
    best: bestTokens(model, detail!),
  };
}

function completion(tokens: readonly number[], text: string): Generation {
  const logProbs = new Float32Array(tokens.length);
  return { tokens: [...tokens], logProbs, text, finishReason: "stop", cachedTokens: 0 };
}
