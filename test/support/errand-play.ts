/** Episodes of the errand environment, played by a scripted model. */

import { uniform } from "../../lib/base/random.ts";
import type { Environment, Episode } from "../../lib/contract/environment.ts";
import { type CollectOptions, collectTrajectories } from "../../lib/playing/collect.ts";
import { type Errand, errandEnvironment } from "./errand.ts";
import { ScriptedModel } from "./scripted-model.ts";

export const act = (word: string) => `Thought:\nhm\nAction:\n${word}`;

/**
 * Sometimes brings what was asked for, by the request's seed, so that replies identify their
 * episode.
 */
export const reply = (prompt: string, _: unknown, __: number, { seed }: { seed?: number | bigint }) => {
  const lucky = uniform(Number(seed), 0, 0) < 0.5;
  return act(lucky ? (/OBSERVED wants (\w+)/.exec(prompt)?.[1] ?? "soap") : `soap ${seed}`);
};

export const words = ["key", "lamp", "map", "pen", "cup"];

export function play(options: Partial<CollectOptions<Errand>> = {}) {
  return collectTrajectories<Errand>({
    model: new ScriptedModel(reply),
    environment: errandEnvironment(),
    episodes: Array.from({ length: 10 }, (_, id) => ({ id, task: { word: words[id % words.length]! } })),
    seed: 3,
    maxActionTokens: 200,
    maxPromptTokens: 10_000,
    temperature: 1,
    ...options,
  });
}

/** The environment with its episodes replaced. */
export function changed(
  change: (step: Episode["step"], task: Errand, turn: number) => Episode["step"],
  environment = errandEnvironment(),
): Environment<Errand> & { closed: () => number } {
  let closed = 0;
  return {
    ...environment,
    closed: () => closed,
    start: async (task, options) => {
      const episode = await environment.start(task, options);
      let turn = 0;
      return {
        ...episode,
        step: (action) => change(episode.step, task, turn++)(action),
        close: async () => void closed++,
      };
    },
  };
}
