/**
 * A model that learns errands from random weights in minutes: a Llama of half a million parameters,
 * whose vocabulary has one token for each word of this world and each request of nlac. It plays the
 * same roles under the same prompts and parsers as a large model, in conversations of a few hundred
 * tokens.
 */

import {
  futureRequest,
  observedTargetRequest,
  targetRequest,
  terminalTargetRequest,
} from "../../prompts/backup.ts";
import { criticRequest } from "../../prompts/critic.ts";
import { actionText, policyMessages } from "../../prompts/policy.ts";
import { refinerRequest } from "../../prompts/refiner.ts";
import { successorRequest } from "../../prompts/successor.ts";
import { phraseTokenizer } from "../../tokens/phrases.ts";
import { Tokenizer, type TokenizerParts } from "../../tokens/tokenizer.ts";
import { kinds, phrases, rules, things } from "./words.ts";

/** Input for `Learner.create`, and a possible `model` of a recipe. */
export function errandsModel(): { config: Record<string, unknown>; tokenizer: TokenizerParts } {
  const tokenizer = phraseTokenizer([...requests(), ...replies(), ...kinds, ...things, ...digits]);
  const { vocabSize, eosTokenIds } = new Tokenizer(tokenizer);
  return {
    config: {
      architectures: ["LlamaForCausalLM"],
      model_type: "llama",
      vocab_size: vocabSize,
      hidden_size: 128,
      intermediate_size: 256,
      num_hidden_layers: 3,
      num_attention_heads: 4,
      num_key_value_heads: 4,
      max_position_embeddings: 256,
      rms_norm_eps: 1e-5,
      rope_theta: 10000,
      hidden_act: "silu",
      tie_word_embeddings: false,
      eos_token_id: eosTokenIds[0],
    },
    tokenizer,
  };
}

const digits = Array.from({ length: 10 }, (_, i) => String(i));

/** A string that occurs in no request; marks where to cut one. */
const cut = "\u0000";

/** nlac's requests, cut into the parts around the desk's answers. */
function requests(): string[] {
  const answer = [{ role: "user" as const, content: cut }];
  const [system] = policyMessages({ messages: [{ role: "system", content: rules }] }, "text");
  return [
    system!.content,
    criticRequest(false),
    refinerRequest("text"),
    successorRequest(),
    targetRequest(true),
    targetRequest(false),
    futureRequest(answer),
    observedTargetRequest(answer, true),
    ...[0, 1].flatMap((reward) =>
      [true, false].map((verdict) => terminalTargetRequest(answer, reward, verdict)),
    ),
  ].flatMap((request) => request.split(cut));
}

/** What the desk and the model say, except single words. */
function replies(): string[] {
  const { first, not, the, after, ...said } = phrases;
  const verdict = "\nOptimality:\n";
  return [
    ...Object.values(said),
    ...actionText({ text: "", thought: [the, after, phrases.stop].join(cut) }, "text").split(cut),
    "Future:\n",
    `${verdict}Yes`,
    `${verdict}No. ${first}`,
    `${verdict}No. ${not}`,
  ];
}
