/**
 * L1 on transitions that nothing is trained on: how well the critic expects what the target, which saw the
 * outcome, writes. Targets are written by the model's own θ̄, so two models are compared each by its own.
 */

import type { Environment } from "../environments/contract.ts";
import type { LanguageModel } from "../model.ts";
import { type Interval, meanInterval } from "./evaluate.ts";
import { Roles, type RolesConfig } from "./roles.ts";
import { writeTargets } from "./targets.ts";
import type { Transition } from "./trajectory.ts";

export interface CriticLoss {
  /** Mean over transitions of the KL a token, nats, with its 95 % interval. */
  l1: Interval;
  /** The same for the negative log-likelihood of the target under θ. */
  nll: Interval;
  transitions: number;
  /** Targets that could not be written, for want of context. */
  dropped: number;
  /** Parse rates, shares of Yes and token counts, as in training's metrics. */
  roles: Record<string, number>;
}

export async function criticLoss(
  model: LanguageModel,
  environment: Pick<Environment, "actionFormat" | "maxTurns">,
  transitions: readonly Transition[],
  config: RolesConfig,
  signal: AbortSignal = new AbortController().signal,
): Promise<CriticLoss> {
  const roles = new Roles(model, environment, config, 0, signal);
  const targets = await writeTargets(roles, transitions);
  const texts = targets.flatMap((target) => (target === undefined ? [] : [target.text]));
  const mean = (losses: Float32Array) => losses.reduce((sum, loss) => sum + loss, 0) / losses.length;
  const kls = await model.tokenKl(texts, { withGradient: false });
  const nlls = await model.tokenNll(
    texts.map(({ student, response }) => ({ prompt: student, response })),
    { withGradient: false },
  );
  return {
    l1: meanInterval(kls.map(mean)),
    nll: meanInterval(nlls.map(mean)),
    transitions: texts.length,
    dropped: targets.length - texts.length,
    roles: roles.metrics(),
  };
}
