/**
 * The interface of a trainable language model. `Learner` (learner/learner.ts) implements it; tests
 * use a scripted one. Token ids are plain numbers; log probabilities are natural logarithms.
 */

import type { Message, ToolSchema } from "../contract/environment.ts";
import type { AdamWOptions, Divergence, PreferenceLossOptions, StepResult, Support } from "../ops/options.ts";
import type { Tensor } from "../ops/tensor.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { ConversationJson } from "../tokens/conversation-json.ts";
import type { DecodeOptions } from "../tokens/tokenizer.ts";
import type { Grammar } from "./grammar.ts";

export type {
  Divergence,
  PreferenceLoss,
  PreferenceLossOptions,
  StepResult,
  Support,
} from "../ops/options.ts";

/** θ, the trained parameters, or θ̄, their moving average. */
export type WeightSet = "online" | "target";

/** A completion to generate. */
export interface GenerateRequest {
  /** The prompt as token ids. Give either this or `messages`. */
  tokens?: readonly number[];
  /** The prompt as messages, rendered with the chat template and a generation prompt. */
  messages?: readonly Message[];
  tools?: readonly ToolSchema[];
  /** Maximum number of new tokens. Default 256. */
  maxNewTokens?: number;
  /** Default 1; 0 is greedy. */
  temperature?: number;
  /** Sample from the smallest set of tokens with this total probability. Default 1 (off). */
  topP?: number;
  /** Sample from this many most probable tokens. Default 0 (off). */
  topK?: number;
  /** Minimum probability relative to the most probable token. Default 0 (off). */
  minP?: number;
  /**
   * For ids in the prompt or generated before: positive logits are divided by it, negative ones
   * multiplied (Keskar et al., "CTRL", 2019). Applied before the filters. Default 1 (off).
   */
  repetitionPenalty?: number;
  /** Ids that are never generated. */
  forbidden?: readonly number[];
  /**
   * Restricts the completion: only ids that continue a valid text are sampled, and ids that end it
   * only where a valid text may end. Applied before the filters. A completion that `maxNewTokens`
   * or a stop string cuts is a prefix of a valid text. Control tokens, and control characters other
   * than line breaks, are excluded.
   */
  grammar?: Grammar;
  /** Ids that the completion starts with, instead of sampled ones. They must fit the grammar. */
  forced?: readonly number[];
  /** Strings that end the completion; the text is cut before them, the ids are not. */
  stop?: readonly string[];
  /** Ids that end the completion, in addition to the model's end-of-turn ids. */
  stopTokenIds?: readonly number[];
  /** Seed of this request: the completion does not depend on the rest of the batch. */
  seed?: number | bigint;
  /** Default "online". */
  weights?: WeightSet;
  /** Returns the hidden states of the new tokens, for `DistilledText`. Default false. */
  keepHidden?: boolean;
  /** Number of most probable alternatives to return per new token (unfiltered). Default 0. */
  topLogProbs?: number;
}

/** A generated completion. */
export interface Generation {
  /** New ids, including the stop id. */
  tokens: number[];
  /** One per token, from the distribution before penalties, filters and grammar. */
  logProbs: Float32Array;
  /** The decoded text without the stop id or stop string. */
  text: string;
  /** "stuck": the grammar allows no token that is not forbidden. */
  finishReason: "stop" | "length" | "stuck";
  /** Prompt tokens that were read from the KV cache. */
  cachedTokens: number;
  /** With `keepHidden`: [new tokens, hidden], in the learner's dtype and device. Dispose it. */
  hidden?: Tensor;
  /**
   * With `topLogProbs`: the most probable ids at each new token, in descending order, and their log
   * probabilities in nats; both [new tokens × topLogProbs], row-major. The generated token may not
   * be among them.
   */
  topTokens?: Int32Array;
  topLogProbs?: Float32Array;
}

/** Options of `generate`. */
export interface GenerateOptions {
  signal?: AbortSignal;
  /**
   * Called with the request's index and each new token as it is sampled. Generation goes on while a
   * promise that it returns is pending, and `generate` waits for it. What it throws, or rejects
   * with, ends the call.
   */
  onToken?: (request: number, token: number) => void;
  /** False: throws ERR_BUSY if `LearnerOptions.maxQueued` requests are waiting. Default true. */
  wait?: boolean;
}

/**
 * A response scored after a prompt. `weight` multiplies the losses of all its tokens, or, as
 * [response tokens], of each. Tokens of weight 0 have no loss and return 0. An episode is one such
 * text, in which the environment's tokens have weight 0. Default 1.
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
   * The `hidden` of the generation of `response` by θ̄ after `teacher`, so that θ̄ need not compute
   * it again. θ̄ must not have changed since. Ignored with the support "sampled".
   */
  teacherHidden?: Tensor;
}

/** Options of `tokenKl`. */
export interface TokenKlOptions {
  /** Temperature of both softmaxes. Default 1. */
  temperature?: number;
  /** Default "full". */
  support?: Support;
  /** Default "forwardKl". */
  divergence?: Divergence;
  /** Default true; false computes losses only. */
  withGradient?: boolean;
}

/** Options of `tokenKl` with the details of each token. */
export interface DetailedKlOptions extends TokenKlOptions {
  /** Number of the most probable tokens to return, from 0 to the vocabulary's size. */
  detail: number;
}

/** One model's probabilities of a response's tokens, at the loss's temperature. */
export interface KlSide {
  /** Log probabilities of the response's tokens in nats, [response tokens]. */
  logProbs: Float32Array;
  /**
   * The most probable ids, in descending order, and their log probabilities; both
   * [response tokens × detail], row-major.
   */
  top: Int32Array;
  topLogProbs: Float32Array;
}

/**
 * Losses of a text, and the probabilities that they were computed from. All are 0 where the weight
 * is 0.
 */
export interface KlDetail {
  /** Unweighted, in nats, [response tokens]. */
  losses: Float32Array;
  /** θ after `student`. */
  online: KlSide;
  /** θ̄ after `teacher`. */
  target: KlSide;
}

/** Options of an optimizer step. */
export interface StepOptions extends AdamWOptions {
  /** Names the set of AdamW moments to use. Default "". */
  moments?: string;
  /**
   * Applies `updateTarget(targetRate)` in the same pass over the parameters, even if the step is
   * skipped. Default: θ̄ is unchanged.
   */
  targetRate?: number | undefined;
}

/** Generates the actions of episodes in a learner's place, for example on inference servers. */
export interface ActionGenerator {
  /** Each request is sent at once: the generator batches requests itself. */
  readonly unbatched?: boolean;
  /**
   * Whether it is a fixed policy, which training does not change. Evaluations then play the
   * learner.
   */
  readonly fixed?: boolean;
  generate(
    requests: readonly GenerateRequest[],
    options?: { signal?: AbortSignal | undefined },
  ): Promise<Generation[]>;
}

/** The model that a method trains. */
export interface LanguageModel {
  encode(text: string): number[];
  decode(ids: readonly number[], options?: Pick<DecodeOptions, "continues">): string;
  /** Opens a conversation with the model's chat template. */
  conversation(messages: readonly Message[], options?: { tools?: readonly ToolSchema[] }): Conversation;
  /** Restores a conversation from `toJSON`. */
  restoreConversation(json: ConversationJson): Conversation;
  /** The id that ends a turn, and every supervised text. */
  readonly endOfTurn: number;
  /** All ids that end a turn. A completion that ends with none of them was cut off. */
  readonly endOfTurnIds: readonly number[];
  /** Longest context, in tokens. */
  readonly maxPositions: number;
  /** What plays episodes in this model's place. Default: the model itself. */
  readonly rollouts?: ActionGenerator;

  generate(requests: readonly GenerateRequest[], options?: GenerateOptions): Promise<Generation[]>;
  logProbs(texts: readonly ScoredText[], options?: { weights?: WeightSet }): Promise<Float32Array[]>;
  /** Accumulates gradients of Σ weight·loss until `step`. Returns unweighted losses per token. */
  tokenNll(texts: readonly ScoredText[], options?: { withGradient?: boolean }): Promise<Float32Array[]>;
  /**
   * KL(p_θ̄(·|teacher, y<t) ‖ p_θ(·|student, y<t)) per token; gradients of θ only. With `detail`
   * also both models' log probabilities; losses and gradients have the same bits.
   */
  tokenKl(texts: readonly DistilledText[], options: DetailedKlOptions): Promise<KlDetail[]>;
  tokenKl(texts: readonly DistilledText[], options?: TokenKlOptions): Promise<Float32Array[]>;
  step(options: StepOptions): Promise<StepResult>;
  /** Discards accumulated gradients. */
  discardGradients(): Promise<void>;
  /**
   * Drops the KV caches, as a change of the weights does. Results then do not depend on earlier
   * requests, even if rounding depends on the batch (docs/decisions/0010).
   */
  dropCaches(): Promise<void>;
  /** Discards a set of AdamW moments. */
  discardMoments(moments: string): Promise<void>;
  /** θ̄ ← τ θ + (1 - τ) θ̄. */
  updateTarget(targetRate: number): Promise<void>;
  /** ‖θ̄ - θ‖ / ‖θ‖ over the trained parameters. */
  targetDistance(): Promise<number>;
  save(directory: string): Promise<void>;
}

/** A text with the inputs of a policy gradient; every list is [response tokens]. */
export interface SurrogateText extends ScoredText {
  /** Log probabilities of the response under the policy that generated it, from `logProbs`. */
  oldLogProbs: ArrayLike<number>;
  advantages: ArrayLike<number>;
  /** Required if `klCoefficient` is not 0. */
  referenceLogProbs?: ArrayLike<number>;
  /** Required with `value`: targets of the value head, and its earlier predictions. */
  returns?: ArrayLike<number>;
  oldValues?: ArrayLike<number>;
}

/** Options of `tokenSurrogate`. */
export interface SurrogateOptions {
  /** Temperature of the softmax, as in sampling. Default 1. */
  temperature?: number;
  /** The ratio is clipped to [1 - clipLow, 1 + clipHigh]. Default 0.2 each (PPO). */
  clipLow?: number;
  clipHigh?: number;
  /** Weight of GRPO's estimate of the KL to the reference. Default 0. */
  klCoefficient?: number;
  /** Weight of the entropy bonus. Default 0. */
  entropyCoefficient?: number;
  /**
   * Also trains the value head v: adds coefficient · ½ max((v - R)², (v' - R)²), where v' is v
   * clipped to within `clip` of the old value; 0 (default) means no clipping. Needs a value head.
   * With `detached` its gradient trains the head only, not the layers below it. Default false.
   */
  value?: { coefficient: number; clip?: number; detached?: boolean };
  /** Default true; false computes losses only. */
  withGradient?: boolean;
}

/** Results of one text; every list is [response tokens], 0 where the weight is 0. */
export interface SurrogateResult {
  /** The surrogate with its KL and entropy terms, unweighted, in nats. */
  losses: Float32Array;
  logProbs: Float32Array;
  entropies: Float32Array;
  /** Probability ratio of the current to the old policy. */
  ratios: Float32Array;
  /** 1 where the upper bound was active, -1 where the lower was. */
  clipped: Int32Array;
  /** With `value`: the value head's predictions, and its losses without weight and coefficient. */
  values?: Float32Array;
  valueLosses?: Float32Array;
}

/** Additional methods for policy gradients. */
export interface PolicyGradientModel extends LanguageModel {
  /**
   * Stores the current θ as the reference, replacing an earlier one. `save` and `resume` include
   * it, so do not call this again in a resumed run.
   */
  keepReference(): Promise<void>;
  /** θ ← the reference. Drops pending gradients; moments stay. */
  restoreReference(): Promise<void>;
  /**
   * As in `LanguageModel`, and 0 where the text's weight is 0. "reference": θ as stored by
   * `keepReference`.
   */
  logProbs(
    texts: readonly ScoredText[],
    options?: { weights?: WeightSet | "reference"; temperature?: number },
  ): Promise<Float32Array[]>;
  /**
   * The value of the state before each token of the response, 0 where the text's weight is 0. Needs
   * a value head.
   */
  values(texts: readonly ScoredText[]): Promise<Float32Array[]>;
  /** The clipped surrogate of PPO. Accumulates gradients of Σ weight·loss until `step`. */
  tokenSurrogate(texts: readonly SurrogateText[], options?: SurrogateOptions): Promise<SurrogateResult[]>;
}

/**
 * A preferred response and a rejected one. A response's log probability is the sum over its tokens
 * of non-zero weight; here each token's weight is 0 or 1.
 */
export interface PreferencePair {
  chosen: ScoredText;
  rejected: ScoredText;
  /** Log probabilities of the responses under the reference policy, nats: sums, as above. */
  referenceChosen: number;
  referenceRejected: number;
  /** Multiplies the pair's loss. Default 1. */
  weight?: number;
}

/** Options of `tokenPreference`. */
export interface PreferenceOptions extends PreferenceLossOptions {
  /** Default true; false computes losses only. */
  withGradient?: boolean;
}

/** Results of one pair. */
export interface PreferenceResult {
  /** Unweighted. */
  loss: number;
  /** Log probabilities of the responses under θ, nats. */
  chosenLogProb: number;
  rejectedLogProb: number;
  /** DPO's implicit rewards: β·(log probability - reference). */
  chosenReward: number;
  rejectedReward: number;
}

/** Additional methods for learning from preferences. */
export interface PreferenceModel extends PolicyGradientModel {
  /** Accumulates gradients of Σ weight·loss over pairs until `step`. */
  tokenPreference(pairs: readonly PreferencePair[], options: PreferenceOptions): Promise<PreferenceResult[]>;
}

/** A response whose reward is predicted from the hidden state at its last token. */
export interface RewardText {
  prompt: readonly number[];
  response: readonly number[];
}

/** A response with a soft label: the probability, from 0 to 1, that it is good. */
export interface JudgedText extends RewardText {
  label: number;
  /** Multiplies the text's loss. Default 1. */
  weight?: number;
}

/**
 * Additional methods for a reward model. Needs a value head: its weight times the hidden state is
 * the reward's logit v. Its bias is not used, because sequence classifiers of transformers have
 * none.
 */
export interface RewardModel
  extends LanguageModel,
    Pick<PolicyGradientModel, "keepReference" | "restoreReference"> {
  /** [texts]: σ(v), a probability. */
  rewards(texts: readonly RewardText[]): Promise<Float32Array>;
  /**
   * Binary cross entropy -label·log σ(v) - (1 - label)·log(1 - σ(v)) of each text (HOPE, equation
   * 1), [texts], nats, unweighted. Accumulates gradients of Σ weight·loss until `step`.
   */
  rewardLoss(texts: readonly JudgedText[], options?: { withGradient?: boolean }): Promise<Float32Array>;
}

/** An episode for token-level Q-learning: its actions are the tokens of non-zero weight. */
export interface SoftQText extends ScoredText {
  /** Reward after each token, [response tokens]; read at actions only. The last one is terminal. */
  rewards: ArrayLike<number>;
}

/** Options of `softQ`. */
export interface SoftQOptions {
  /** Entropy temperature α of the soft values. */
  temperature: number;
  /** Discount γ per token. Default 1. */
  discount?: number;
  /** Weight of the twin heads' squared Bellman errors. */
  qCoefficient: number;
  /** Weight of the KL from the policy to the maximum-entropy policy softmax(min Q / α). */
  policyCoefficient: number;
  /** Default true. */
  withGradient?: boolean;
  /** The Bellman errors train the heads only, not the layers below them. Default false. */
  detached?: boolean;
}

/** Results of one text; every list is [response tokens], 0 where the weight is 0. */
export interface SoftQResult {
  /** ½ (Q1 - y)² + ½ (Q2 - y)², unweighted. */
  qLosses: Float32Array;
  /** KL(policy ‖ maximum-entropy policy of Q), nats; unweighted. */
  policyLosses: Float32Array;
  /** For the generated token: the smaller Q of the two heads, and the soft Bellman target y. */
  q: Float32Array;
  targets: Float32Array;
  /** Entropy of the policy, nats. */
  entropies: Float32Array;
}

/** Additional methods for soft actor-critic on tokens. Needs Q heads. */
export interface SoftQModel extends LanguageModel {
  /** Accumulates gradients of Σ weight·loss until `step`. */
  softQ(texts: readonly SoftQText[], options: SoftQOptions): Promise<SoftQResult[]>;
  /** Resets the heads so that the maximum-entropy policy of Q, under θ and θ̄, is θ's policy. */
  resetQHeads(): Promise<void>;
}
