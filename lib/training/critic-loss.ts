/**
 * L1 on transitions that nothing is trained on: how well the critic expects what the target, which saw the
 * outcome, writes. Targets are written by the model's own θ̄, so two models are compared each by its own.
 */

import type { Environment } from "../contract/environment.ts";
import type { Transition } from "../episodes/trajectory.ts";
import type { LanguageModel, Support } from "../model/language-model.ts";
import { type RolesConfig, RoleWriter } from "../roles/role-writer.ts";
import { writeTargets } from "../roles/targets.ts";
import { grouped, type Interval, meanInterval } from "../statistics/intervals.ts";
import { mean } from "../statistics/mean.ts";
import { supportOf } from "./losses.ts";

export interface CriticLoss {
  /** Mean over transitions of L1 a token as training takes it, nats, with its 95 % interval. */
  l1: Interval;
  /** Where it was taken: "sampled" is the cross entropy of the target's own tokens, else it is a KL. */
  support: Support;
  /** Mean of the negative log-likelihood of the target under θ, nats a token. */
  nll: Interval;
  transitions: number;
  /** Episodes that they are of. The intervals take those of one episode for what they tell together. */
  episodes: number;
  /** Targets that could not be written, for want of context. */
  dropped: number;
  /** Parse rates, shares of Yes and token counts, as in training's metrics. */
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
    roles: writer.metrics(),
  };
}
