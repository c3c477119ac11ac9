/**
 * Rewrites thoughts of reasoning models (appendix A) that refer to information which is not in the
 * prompt they are trained on, so that they infer it.
 */

import { NlacError } from "../base/errors.ts";
import type { Generation, LanguageModel } from "../model/language-model.ts";
import { parseCorrectedThought, splitThought } from "../prompts/corrected-thought.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { thinkClose, thinkOpen } from "../tokens/reasoning.ts";
import type { DropCause } from "./drops.ts";
import { type RoleWriter, user } from "./role-writer.ts";

/** The ids of a completion with its thought rewritten, or why there are none. */
export type Corrected =
  | { tokens: number[]; dropped?: undefined }
  | { tokens?: undefined; dropped: DropCause };

/**
 * For reasoning models: requests a rewrite of every thought and replaces the original.
 *
 * @throws NlacError ERR_CONFIG if thoughts are not between <think> tags, as those of gpt-oss and Gemma 4
 */
export async function correctThoughts(
  writer: RoleWriter,
  role: "target" | "refinement",
  chains: readonly (Conversation | undefined)[],
  texts: readonly (Generation | undefined)[],
  request: string,
): Promise<(Corrected | undefined)[]> {
  const weights = role === "target" ? "target" : "online";
  const asking = chains.map((chain, i) => {
    const text = texts[i];
    if (text === undefined || splitThought(text.text) === undefined) return undefined;
    // The request refers to the thought, which the chat template drops from the history.
    return chain?.fork().replaceLastGeneration(text, { reasoning: "kept" }).append(user(request));
  });
  const corrections = await writer.write("correction", weights, asking);
  return texts.map((text, i): Corrected | undefined => {
    if (text === undefined) return undefined;
    if (splitThought(text.text) === undefined) {
      // Without a thought there is nothing to correct.
      return writer.endsInThought(text) ? { dropped: "cut_off" } : { tokens: text.tokens };
    }
    const correction = corrections[i];
    if (correction === undefined) return { dropped: "context" };
    const parsed = writer.read("correction", correction, parseCorrectedThought);
    if (parsed.ok) return { tokens: replaceThought(writer.model, text.tokens, parsed.thought) };
    return { dropped: correction.finishReason === "length" ? "cut_off" : "correction" };
  });
}

/**
 * Replaces the ids between the tags; those of the tags and of the answer stay as generated, and so does
 * the white space around the thought. If the generation prompt ends with "<think>" and a line break, a
 * further line break would be one that the model never generates.
 */
function replaceThought(model: LanguageModel, tokens: readonly number[], thought: string): number[] {
  const contains = (from: number, to: number, tag: string) =>
    model.decode(tokens.slice(from, to)).includes(tag);
  let open = 0;
  if (contains(0, tokens.length, thinkOpen)) while (!contains(0, open, thinkOpen)) open++;
  let close = tokens.length;
  if (!contains(0, close, thinkClose))
    throw new NlacError(
      "ERR_CONFIG",
      "The model does not write its reasoning between <think> tags, and NLAC's `reasoning` cannot rewrite it; omit it.",
    );
  while (!contains(close, tokens.length, thinkClose)) close--;
  const original = model.decode(tokens.slice(open, close), { continues: true });
  const [, before, after] = /^(\s*)\S(?:.*\S)?(\s*)$/s.exec(original) ?? ["", "\n", "\n"];
  return [...tokens.slice(0, open), ...model.encode(before + thought + after), ...tokens.slice(close)];
}
