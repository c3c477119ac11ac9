/**
 * A player that generates several actions and takes the one with the highest reward: a reward model
 * chooses at test time (HOPE, appendix C.3).
 */

import { NlacError } from "../base/errors.ts";
import { derivedSeed, streams } from "../base/random.ts";
import { checkInteger } from "../base/validation.ts";
import type { RewardModel } from "../model/language-model.ts";
import type { Player } from "./batches.ts";

/**
 * Returns `player` with `samples` actions per turn, of which `judge` chooses. Both must have the
 * same tokenizer. The first of equal rewards is taken.
 * @throws NlacError ERR_VALUE for fewer than one sample
 */
export function bestOfPlayer(player: Player, judge: Pick<RewardModel, "rewards">, samples: number): Player {
  checkInteger(samples, "samples", 1);
  return {
    maxPositions: player.maxPositions,
    ...(player.unbatched === undefined ? {} : { unbatched: player.unbatched }),
    conversation: (messages, options) => player.conversation(messages, options),
    async generate(requests, options) {
      const generations = await player.generate(
        requests.flatMap((request) =>
          Array.from({ length: samples }, (_, i) => ({
            ...request,
            ...(request.seed === undefined
              ? {}
              : { seed: derivedSeed(Number(request.seed), streams.proposal, i) }),
          })),
        ),
        options,
      );
      const usable = generations.map((generation, i) =>
        generation instanceof NlacError || generation.tokens.length === 0
          ? undefined
          : { prompt: requests[Math.floor(i / samples)]!.tokens!, response: generation.tokens },
      );
      const rewards = await judge.rewards(usable.filter((text) => text !== undefined));
      let judged = 0;
      const scores = usable.map((text) => (text === undefined ? -1 : rewards[judged++]!));
      return requests.map((_, r) => {
        let best = r * samples;
        for (let i = best + 1; i < (r + 1) * samples; i++) if (scores[i]! > scores[best]!) best = i;
        return generations[best]!;
      });
    },
  };
}
