/**
 * The trainable language model as algorithms see it. `Learner` (learner/learner.ts) is the real one; tests use a
 * scripted one. Token ids are plain numbers; log probabilities are natural logarithms.
 */

import type { Message, ToolSchema } from "../contract/environment.ts";
import type { AdamWOptions, Divergence, StepResult, Support } from "../ops/options.ts";
import type { Tensor } from "../ops/tensor.ts";
import type { Conversation, ConversationJson } from "../tokens/conversation.ts";
import type { Grammar } from "./grammar.ts";

export type { Divergence, StepResult, Support } from "../ops/options.ts";

/** θ, the trained parameters, or θ̄, their moving average. */
export type WeightSet = "online" | "target";

export interface GenerateRequest {
  /** The prompt as ids. Either this or `messages`. */
  tokens?: readonly number[];
  /** The prompt as messages, rendered with the chat template and a generation prompt. */
  messages?: readonly Message[];
  tools?: readonly ToolSchema[];
  /** Most new tokens. Default 256. */
  maxNewTokens?: number;
  /** Default 1; 0 is greedy. */
  temperature?: number;
  /** Smallest set of tokens with this probability. Default 1 (off). */
  topP?: number;
  /** Most probable tokens kept. Default 0 (off). */
  topK?: number;
  /** Least probability relative to the most probable token. Default 0 (off). */
  minP?: number;
  /**
   * Of ids in the prompt or written before: a positive logit is divided by it, a negative one multiplied (Keskar et
   * al., "CTRL", 2019). Comes before the filters. Default 1 (off).
   */
  repetitionPenalty?: number;
  /** Ids that are never written. */
  forbidden?: readonly number[];
  /**
   * What the text must be. Ids that could not go on with it are not drawn; those that end the text are drawn where it may end,
   * and nowhere else. Comes before the filters. A text that `maxNewTokens` or a stop string ends is a beginning of what it
   * must be. Control tokens are no part of
   * it, nor control characters but line breaks.
   */
  grammar?: Grammar;
  /** Ids that the text begins with, in place of what would be drawn; they count as new, and have to fit the grammar. */
  forced?: readonly number[];
  /** Strings that end the text; the text is cut before them, the ids are kept. */
  stop?: readonly string[];
  /** Ids that end the text, besides the model's own end-of-turn ids. */
  stopTokenIds?: readonly number[];
  /** The request's own random stream; the same seed gives the same text whatever else is in the batch. */
  seed?: number | bigint;
  /** Default "online". */
  weights?: WeightSet;
  /** Keeps the hidden states that the text's tokens are drawn from, for `DistilledText`. Default false. */
  keepHidden?: boolean;
  /** Most probable tokens kept of each new one, with their log probabilities, under the untouched distribution. Default 0. */
  topLogProbs?: number;
}

export interface Generation {
  /** New ids, the stop id included. */
  tokens: number[];
  /** One a token, under the model's untouched distribution. */
  logProbs: Float32Array;
  /** The decoded text without the stop id or stop string. */
  text: string;
  /** "stuck": no token could go on with the grammar, of those that are not forbidden. */
  finishReason: "stop" | "length" | "stuck";
  /** Prompt tokens whose keys and values were found in the cache. */
  cachedTokens: number;
  /** With `keepHidden`: [new tokens, hidden], in the learner's dtype and on its device. `dispose` it after use. */
  hidden?: Tensor;
  /**
   * With `topLogProbs`: the ids that were most probable at each new token, most probable first, and their log
   * probabilities in nats; both [new tokens × topLogProbs], row-major. The token that was written need not be among them.
   */
  topTokens?: Int32Array;
  topLogProbs?: Float32Array;
}

export interface GenerateOptions {
  signal?: AbortSignal;
  /** Called with the request's index and each new token as it is sampled. */
  onToken?: (request: number, token: number) => void;
  /** False: ERR_BUSY in place of waiting behind more requests than `LearnerOptions.maxQueued`. Default true. */
  wait?: boolean;
}

/**
 * A response scored after a prompt. `weight` multiplies the losses of all its tokens, or, [response tokens], of each; a
 * token of weight 0 takes part in nothing and reads 0, whatever is computed. An episode is one such text: what the
 * environment said in it weighs 0. Default 1.
 */
export interface ScoredText {
  prompt: readonly number[];
  response: readonly number[];
  weight?: number | ArrayLike<number>;
}

/** A response scored by θ after `student` and by θ̄ after `teacher`. */
export interface DistilledText {
  student: readonly number[];
  teacher: readonly number[];
  response: readonly number[];
  weight?: number;
  /**
   * The `hidden` of the generation that wrote `response` under θ̄ after `teacher`: θ̄ then does not read them again. It
   * must be that θ̄'s still. Not looked at where the support is "sampled".
   */
  teacherHidden?: Tensor;
}

export interface TokenKlOptions {
  /** Of both softmaxes. Default 1. */
  temperature?: number;
  /** Default "full". */
  support?: Support;
  /** Default "forwardKl". */
  divergence?: Divergence;
  /** Default true; false computes losses only. */
  withGradient?: boolean;
}

export interface StepOptions extends AdamWOptions {
  /** Names the set of AdamW moments to use. Default "". */
  moments?: string;
  /**
   * Moves θ̄ as `updateTarget(targetRate)` right after the step would, a skipped one too, in the step's own pass over
   * the parameters. Default: θ̄ stays.
   */
  targetRate?: number | undefined;
}

export interface LanguageModel {
  encode(text: string): number[];
  decode(ids: readonly number[]): string;
  /** Opens a conversation with the model's chat template. */
  conversation(messages: readonly Message[], options?: { tools?: readonly ToolSchema[] }): Conversation;
  /** A conversation that `toJSON` wrote. */
  restoreConversation(json: ConversationJson): Conversation;
  /** The id that ends a turn; a supervised text ends with it. */
  readonly endOfTurn: number;
  /** All ids that end a turn: a text of `generate` that ends with none of them was cut off. */
  readonly endOfTurnIds: readonly number[];
  /** Longest context, in tokens. */
  readonly maxPositions: number;

  generate(requests: readonly GenerateRequest[], options?: GenerateOptions): Promise<Generation[]>;
  logProbs(texts: readonly ScoredText[], options?: { weights?: WeightSet }): Promise<Float32Array[]>;
  /** Forward and backward; gradients of Σ weight·loss add up until `step`. Returns unweighted losses per token. */
  tokenNll(texts: readonly ScoredText[], options?: { withGradient?: boolean }): Promise<Float32Array[]>;
  /** KL(p_θ̄(·|teacher, y<t) ‖ p_θ(·|student, y<t)) per token; the gradient reaches θ only. */
  tokenKl(texts: readonly DistilledText[], options?: TokenKlOptions): Promise<Float32Array[]>;
  step(options: StepOptions): Promise<StepResult>;
  /** Forgets gradients that were added up and not stepped on. */
  discardGradients(): Promise<void>;
  /**
   * Forgets the caches of finished texts, as a change of the weights does: what is generated next then does not depend on
   * what was generated before, not even where inference rounds by what it reads at once (docs/decisions/0010).
   */
  dropCaches(): Promise<void>;
  /** Forgets a set of AdamW moments that is not needed any more. */
  discardMoments(moments: string): Promise<void>;
  /** θ̄ ← τ θ + (1 - τ) θ̄. */
  updateTarget(targetRate: number): Promise<void>;
  /** ‖θ̄ - θ‖ / ‖θ‖, of what is trained. */
  targetDistance(): Promise<number>;
  save(directory: string): Promise<void>;
}

/** A text with what a policy gradient needs to know of each token; every list is [response tokens]. */
export interface SurrogateText extends ScoredText {
  /** Log probabilities of the response under the policy that wrote it, from `logProbs`. */
  oldLogProbs: ArrayLike<number>;
  advantages: ArrayLike<number>;
  /** Needed where `klCoefficient` is not 0. */
  referenceLogProbs?: ArrayLike<number>;
  /** Needed where `value` is given: what the value head is to predict, and what it predicted before. */
  returns?: ArrayLike<number>;
  oldValues?: ArrayLike<number>;
}

export interface SurrogateOptions {
  /** Of the softmax, as the response was sampled. Default 1. */
  temperature?: number;
  /** The ratio counts from 1 - clipLow to 1 + clipHigh. Default 0.2 each (PPO). */
  clipLow?: number;
  clipHigh?: number;
  /** Weight of GRPO's estimate of the KL to the reference. Default 0. */
  klCoefficient?: number;
  /** Weight of the entropy that is subtracted. Default 0. */
  entropyCoefficient?: number;
  /**
   * Trains the value head v too: adds coefficient · ½ max((v - R)², (v' - R)²), v' being v held within `clip` of the
   * old value; a clip of 0, the default, is none. Needs a learner with a value head.
   */
  value?: { coefficient: number; clip?: number };
  /** Default true; false computes losses only. */
  withGradient?: boolean;
}

/** Of one text; every list is [response tokens], 0 where the weight is 0. */
export interface SurrogateResult {
  /** The surrogate with its KL and entropy terms, nats; unweighted. */
  losses: Float32Array;
  logProbs: Float32Array;
  entropies: Float32Array;
  /** Probability now over probability then. */
  ratios: Float32Array;
  /** 1 where the upper bound held the surrogate, -1 where the lower did. */
  clipped: Int32Array;
  /** With `value`: the value head's predictions and losses, unweighted and without the coefficient. */
  values?: Float32Array;
  valueLosses?: Float32Array;
}

/** What policy gradients ask of a model besides. */
export interface PolicyGradientModel extends LanguageModel {
  /**
   * Keeps θ as it now is as the reference, in place of an earlier one. `save` writes it and `resume` restores it, so
   * a resumed run must not call this again.
   */
  keepReference(): Promise<void>;
  /** As of `LanguageModel`; "reference" is θ as `keepReference` found it. `temperature`: of the softmax. */
  logProbs(
    texts: readonly ScoredText[],
    options?: { weights?: WeightSet | "reference"; temperature?: number },
  ): Promise<Float32Array[]>;
  /** The value of the state before each token of the response. Needs a learner with a value head. */
  values(texts: readonly ScoredText[]): Promise<Float32Array[]>;
  /** The clipped surrogate of PPO; gradients of Σ weight·loss add up until `step`. */
  tokenSurrogate(texts: readonly SurrogateText[], options?: SurrogateOptions): Promise<SurrogateResult[]>;
}

/** An episode as token-level Q-learning reads it: the tokens whose weight is not 0 are its actions, in order. */
export interface SoftQText extends ScoredText {
  /** What is received after each token, [response tokens]; read at actions only. The last action is terminal. */
  rewards: ArrayLike<number>;
}

export interface SoftQOptions {
  /** Entropy temperature α of the soft values. */
  temperature: number;
  /** γ, a token's. Default 1. */
  discount?: number;
  /** Weight of the twin heads' squared Bellman errors. */
  qCoefficient: number;
  /** Weight of the KL from the policy to the maximum-entropy policy softmax(min Q / α). */
  policyCoefficient: number;
  /** Default true. */
  withGradient?: boolean;
}

/** Of one text; every list is [response tokens], 0 where the weight is 0. */
export interface SoftQResult {
  /** ½ (Q1 - y)² + ½ (Q2 - y)², unweighted. */
  qLosses: Float32Array;
  /** KL(policy ‖ maximum-entropy policy of Q), nats; unweighted. */
  policyLosses: Float32Array;
  /** Of the token written: the smaller Q of the two heads, and the soft Bellman target y. */
  q: Float32Array;
  targets: Float32Array;
  /** Of the policy, nats. */
  entropies: Float32Array;
}

/** What soft actor-critic on tokens asks of a model besides. Needs a learner with Q heads. */
export interface SoftQModel extends LanguageModel {
  /** The gradients of Σ weight·loss add up until `step`. */
  softQ(texts: readonly SoftQText[], options: SoftQOptions): Promise<SoftQResult[]>;
  /** The maximum-entropy policy of Q, under θ and θ̄, becomes θ's policy as it is now. */
  resetQHeads(): Promise<void>;
}
