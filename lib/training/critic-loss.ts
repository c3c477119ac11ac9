/**
 * L1 on transitions that were not trained on: how well the critic predicts the target, whose prompt
 * contains the outcome. The model's own θ̄ generates the targets, so each of two compared models is
 * measured by its own targets.
 */

import type { Environment } from "../contract/environment.ts";
import type { Transition } from "../episodes/trajectory.ts";
import type { LanguageModel, Support } from "../model/language-model.ts";
import { type RolesConfig, RoleWriter } from "../roles/role-writer.ts";
import { targetMetrics, writeTargets } from "../roles/targets.ts";
import { grouped, type Interval, meanInterval } from "../statistics/intervals.ts";
import { mean } from "../statistics/mean.ts";
import { supportOf } from "./losses.ts";

export interface CriticLoss {
  /** L1 per token as in training, in nats: mean over transitions with its 95 % interval. */
  l1: Interval;
  /** "sampled": L1 is the cross entropy of the target's own tokens. Otherwise it is a KL. */
  support: Support;
  /** Negative log-likelihood of the target under θ, in nats per token: mean and interval. */
  nll: Interval;
  transitions: number;
  /** Number of episodes. The intervals treat transitions of one episode as a cluster. */
  episodes: number;
  /** Number of transitions without a target to train on. */
  dropped: number;
  /** Parse rates, shares of Yes, token counts and causes of drops, as in the training metrics. */
  roles: Record<string, number>;
}

export async function criticLoss(
  model: LanguageModel,
  environment: Pick<Environment, "actionFormat" | "singleStep" | "rewardRange">,
  transitions: readonly Transition[],
  config: RolesConfig & { support: Support },
  signal: AbortSignal = new AbortController().signal,
): Promise<CriticLoss> {
  const writer = new RoleWriter(model, environment, config, 0, signal);
  const targets = await writeTargets(writer, transitions);
  const usable = targets.flatMap((target, i) =>
    target.text === undefined ? [] : [{ text: target.text, episode: transitions[i]!.trajectory }],
  );
  const texts = usable.map(({ text }) => text);
  const support = supportOf(config);
  const kls = await model.tokenKl(texts, { support, withGradient: false });
  const nlls = await model.tokenNll(
    texts.map(({ student, response }) => ({ prompt: student, response })),
    { withGradient: false },
  );
  const byEpisode = (losses: Float32Array[]) =>
    grouped(
      losses.map(mean),
      usable.map(({ episode }) => episode),
    );
  return {
    l1: meanInterval(byEpisode(kls)),
    support,
    nll: meanInterval(byEpisode(nlls)),
    transitions: texts.length,
    episodes: new Set(usable.map(({ episode }) => episode)).size,
    dropped: targets.length - texts.length,
    roles: { ...writer.metrics(), ...targetMetrics(targets) },
  };
}
