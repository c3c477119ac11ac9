/** Figures per token of a sample's completions, for the records. */

import { halvesToBase64 } from "../files/half-floats.ts";
import type { DistilledText, GenerateOptions, LanguageModel, WeightSet } from "../model/language-model.ts";
import type { TokenRecord } from "../run/samples.ts";

/** The text of each token. A character of several tokens is the text of its last one. */
export function piecesOf(model: Pick<LanguageModel, "decode">, ids: readonly number[]): string[] {
  const pieces: string[] = [];
  for (let start = 0; start < ids.length; ) {
    let end = start + 1;
    // UTF-8 has at most four bytes per character, and a byte is at most one token.
    while (end < ids.length && end - start < 4 && isPart(model.decode(ids.slice(start, end)))) end++;
    const whole = model.decode(ids.slice(start, end));
    // Bytes that are no character stay one piece each.
    if (isPart(whole)) end = start + 1;
    for (let i = start; i < end - 1; i++) pieces.push("");
    pieces.push(isPart(whole) ? model.decode([ids[start]!]) : whole);
    start = end;
  }
  return pieces;
}

/** Whether a text ends within a character. */
function isPart(text: string): boolean {
  return text.endsWith("\ufffd");
}

/** Log probabilities of a completion under θ and θ̄, if known, with its L1. */
export function targetTokens(
  model: Pick<LanguageModel, "decode">,
  ids: readonly number[],
  l1: Float32Array,
  { online, target }: { online?: Float32Array | undefined; target?: Float32Array | undefined },
): TokenRecord {
  return {
    ids: [...ids],
    pieces: piecesOf(model, ids),
    l1: halvesToBase64(l1),
    ...(online && { online: halvesToBase64(online) }),
    ...(target && { target: halvesToBase64(target) }),
  };
}

/** Most probable tokens to record at each token. */
const bestCount = 8;

/** The most probable tokens of θ and θ̄ at each token of `texts`, from forced generations. */
export async function bestTokens(
  model: LanguageModel,
  texts: readonly DistilledText[],
  options: GenerateOptions,
): Promise<(TokenRecord["best"] | undefined)[]> {
  const under = (weights: WeightSet) =>
    model.generate(
      texts.map(({ student, teacher, response }) => ({
        tokens: weights === "online" ? student : teacher,
        forced: response,
        maxNewTokens: response.length,
        topLogProbs: bestCount,
        weights,
      })),
      options,
    );
  const [online, target] = [await under("online"), await under("target")];
  return texts.map(({ response }, i) => {
    const both = [online[i]!, target[i]!];
    // An id that ends the turn in the middle of a response ends the generation too.
    if (both.some(({ topTokens }) => topTokens?.length !== response.length * bestCount)) return undefined;
    const [ofOnline, ofTarget] = both.map(({ topTokens, topLogProbs }) => ({
      ids: [...topTokens!],
      logProbs: halvesToBase64(topLogProbs!),
    }));
    const ids = new Set([...ofOnline!.ids, ...ofTarget!.ids]);
    const words = Object.fromEntries([...ids].map((id) => [String(id), model.decode([id])]));
    return { count: bestCount, words, online: ofOnline!, target: ofTarget! };
  });
}
