/** Opens a learner: this rank's, at the same time as all others do, or the only one. */

import { Learner } from "../learner/learner.ts";
import type { RankConnection } from "../learner/options.ts";
import { Tokenizer } from "../tokens/tokenizer.ts";
import type { Ranks } from "./join.ts";
import { deviceOfRank } from "./place.ts";
import type { LearnerSource } from "./protocol.ts";

/** Throws as `Learner.load`, `create` and `resume`; with `ranks` also ERR_PEER. */
export async function openLearner(source: LearnerSource, ranks?: Ranks): Promise<Learner> {
  const options: LearnerSource["options"] & { ranks?: RankConnection } = { ...source.options };
  if (ranks !== undefined) {
    const { place, native } = ranks;
    options.device = deviceOfRank(options.device ?? "cpu", place);
    options.ranks = { native, rank: place.rank };
  }
  if (source.kind === "resume") return Learner.resume(source.directory, options);
  if (source.kind === "load") return Learner.load(source.model, options);
  const tokenizer = source.tokenizer && new Tokenizer(source.tokenizer);
  return Learner.create(source.config, { ...options, tokenizer });
}
