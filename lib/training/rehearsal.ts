/**
 * Rehearsal: beside what it is trained on, a model goes on answering made-up examples of the backup's and the
 * refiner's requests. A small model that is trained hard on one world otherwise forgets how to read an answer or to
 * follow a critique, and the method has nothing to work with any more. It is no part of the method.
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
  /** Tasks that an environment may demonstrate on. */
  tasks: readonly Task[];
  /** Texts; 0 rehearses nothing. */
  count: number;
  /** Determines the texts. */
  seed: number;
  signal: AbortSignal;
  /** Which texts of an episode are shown. Default: what the paper's prompts ask for. */
  shown?: Shown;
}

/**
 * Adds the gradient of the texts' mean negative log-likelihood, each text's being the mean over its tokens.
 *
 * @returns that mean, nats, NaN when nothing is rehearsed; and the tokens it is of
 * @throws NlacError ERR_CONFIG when the environment demonstrates nothing of it, ERR_ABORTED
 */
export async function rehearse<Task>(
  options: RehearsalOptions<Task>,
): Promise<{ nll: number; tokens: number }> {
  const texts = await rehearsalTexts(options);
  const weighted = texts.map((text) => ({ ...text, weight: 1 / (text.response.length * texts.length) }));
  const losses = await inGroups(weighted, options.signal, (group) => options.model.tokenNll(group));
  return { nll: mean(losses.map(mean)), tokens: losses.reduce((sum, { length }) => sum + length, 0) };
}

/** Most texts that one scripted episode gives: those of one episode are much alike. */
const maxPerEpisode = 4;

/** Texts of the backup and the refiner, from as many scripted episodes as it takes. */
async function rehearsalTexts<Task>(options: RehearsalOptions<Task>): Promise<ScoredText[]> {
  const { model, environment, tasks, count, seed } = options;
  const texts: ScoredText[] = [];
  for (let i = 0; texts.length < count; i++) {
    const task = tasks[Math.floor(uniform(seed, streams.rehearsal, i) * tasks.length)]!;
    const own = derivedSeed(seed, streams.rehearsal, i);
    const all = await demonstrated(model, environment, task, own, options.shown);
    const usable = all.filter(({ role }) => role === "target" || role === "refinement");
    if (usable.length === 0) {
      throw new NlacError("ERR_CONFIG", `${environment.name} demonstrates nothing that can be rehearsed.`);
    }
    const order = permutation(usable.length, own, streams.rehearsal);
    texts.push(...order.slice(0, Math.min(maxPerEpisode, count - texts.length)).map((j) => usable[j]!));
  }
  return texts;
}
