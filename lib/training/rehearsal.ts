/**
 * Rehearsal: in addition to its losses, a model is trained on scripted examples of the backup's and
 * the refiner's requests. Without it, a small model trained hard on one environment can lose the
 * ability to fill these roles, which the method depends on. It is not part of the method.
 */

import { NlacError } from "../base/errors.ts";
import { derivedSeed, permutation, streams, uniform } from "../base/random.ts";
import type { Environment } from "../contract/environment.ts";
import type { LanguageModel, ScoredText } from "../model/language-model.ts";
import { mean } from "../statistics/mean.ts";
import { inGroups } from "./losses.ts";
import { demonstrated, type Shown } from "./warmup.ts";

export interface RehearsalOptions<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  /** Tasks for scripted episodes. */
  tasks: readonly Task[];
  /** Number of examples; 0 rehearses nothing. */
  count: number;
  /** Determines the examples. */
  seed: number;
  signal: AbortSignal;
  /** Which examples of an episode are used. Default: those of the paper's prompts. */
  shown?: Shown;
}

/**
 * Adds the gradient of the mean over examples of the negative log-likelihood per token.
 *
 * @returns that mean in nats, NaN if nothing is rehearsed; and the number of tokens
 * @throws NlacError ERR_CONFIG if the environment demonstrates neither role, ERR_ABORTED
 */
export async function rehearse<Task>(
  options: RehearsalOptions<Task>,
): Promise<{ nll: number; tokens: number }> {
  const texts = await rehearsalTexts(options);
  const weighted = texts.map((text) => ({ ...text, weight: 1 / (text.response.length * texts.length) }));
  const losses = await inGroups(weighted, options.signal, (group) => options.model.tokenNll(group));
  return { nll: mean(losses.map(mean)), tokens: losses.reduce((sum, { length }) => sum + length, 0) };
}

/** Most examples per scripted episode, since examples of one episode are similar. */
const maxPerEpisode = 4;

/** Examples of the backup and the refiner, from as many scripted episodes as needed. */
async function rehearsalTexts<Task>(options: RehearsalOptions<Task>): Promise<ScoredText[]> {
  const { model, environment, tasks, count, seed } = options;
  const texts: ScoredText[] = [];
  for (let i = 0; texts.length < count; i++) {
    const task = tasks[Math.floor(uniform(seed, streams.rehearsal, i) * tasks.length)]!;
    const own = derivedSeed(seed, streams.rehearsal, i);
    const all = await demonstrated(model, environment, task, own, options.shown);
    const usable = all.filter(({ role }) => role === "target" || role === "refinement");
    if (usable.length === 0) {
      throw new NlacError("ERR_CONFIG", `${environment.name} has no demonstrations that can be rehearsed.`);
    }
    const order = permutation(usable.length, own, streams.rehearsal);
    texts.push(...order.slice(0, Math.min(maxPerEpisode, count - texts.length)).map((j) => usable[j]!));
  }
  return texts;
}
