/** Measures a critic on recorded episodes: `nlac eval --critic`. */

import { type NlacConfig, parseConfig } from "../algorithms/nlac.ts";
import { counted } from "../base/counted.ts";
import { NlacError } from "../base/errors.ts";
import type { Environment } from "../contract/environment.ts";
import { formatFigure } from "../display/progress.ts";
import { readEpisodes } from "../episodes/records.ts";
import { type Transition, transitionsOfAll } from "../episodes/trajectory.ts";
import type { Learner } from "../learner/learner.ts";
import type { Support } from "../model/language-model.ts";
import type { Recipe } from "../recipe/recipe.ts";
import type { Interval } from "../statistics/intervals.ts";
import { criticLoss } from "../training/critic-loss.ts";

/** The config that the run trained its critic with, or the paper's for other models. */
export function criticConfig(recipe: Recipe | undefined, option: string): NlacConfig {
  if (recipe === undefined) return parseConfig(undefined);
  if (recipe.algorithm === "nlac") return recipe.config;
  throw new NlacError(
    "ERR_VALUE",
    `${option} needs a run that trained a critic; this is a run of ${recipe.algorithm}.`,
  );
}

function row(label: string, { estimate, low, high }: Interval): string {
  return `  ${label.padEnd(12)} ${formatFigure(estimate).padStart(8)}   [${formatFigure(low)}, ${formatFigure(high)}]`;
}

/** Prints the critic's losses on at most `transitions` evenly spaced transitions of `file`. */
export async function evaluateCritic(
  learner: Learner,
  environment: Environment,
  file: string,
  config: NlacConfig,
  flags: { transitions: number; seed: number; json?: boolean },
): Promise<void> {
  const transitions = await spread(() => transitionsOfAll(readEpisodes(file, learner)), flags.transitions);
  if (transitions.length === 0) throw new NlacError("ERR_EMPTY", `${file} contains no transitions.`);
  const loss = await criticLoss(learner, environment, transitions, { ...config, seed: flags.seed });
  if (flags.json) {
    console.log(JSON.stringify(loss));
    return;
  }
  console.log(
    [
      `critic on ${counted(loss.transitions, "transition")} of ${counted(loss.episodes, "episode")}, ${loss.dropped} skipped`,
      `L1 is ${describe(loss.support)}`,
      `  ${"".padEnd(12)} ${"nats/token".padStart(8)} 95 % interval`,
      row("L1", loss.l1),
      row("NLL", loss.nll),
      ...Object.entries(loss.roles).map(([name, value]) => `  ${name.padEnd(16)} ${formatFigure(value)}`),
    ].join("\n"),
  );
}

/** At most `most` evenly spaced transitions. Reads them twice, to hold only those in memory. */
async function spread(transitions: () => AsyncIterable<Transition>, most: number): Promise<Transition[]> {
  let all = 0;
  for await (const _ of transitions()) all++;
  const count = Math.min(most, all);
  const chosen = new Set(Array.from({ length: count }, (_, i) => Math.floor((i * all) / count)));
  const kept: Transition[] = [];
  let i = 0;
  for await (const transition of transitions()) if (chosen.has(i++)) kept.push(transition);
  return kept;
}

function describe(support: Support): string {
  if (support === "sampled") return "the cross entropy of the sampled tokens";
  return support === "full"
    ? "the KL over the whole vocabulary"
    : `the KL over the teacher's top ${support.topK} tokens and the remaining probability mass`;
}
