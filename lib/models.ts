/**
 * `nlac/models`: the interface between a method and its language model, what passes through it, and
 * what a model consists of: tokenizer, chat template, conversations. Also models that run on
 * several devices or servers. `Learner` itself is exported by `nlac`.
 */

// The declarations of what has dispose() name Disposable, which a project's own target may lack.
/// <reference lib="esnext.disposable" preserve="true" />

export type { RankConnection } from "./learner/options.ts";
export type { Grammar } from "./model/grammar.ts";
export type {
  ActionGenerator,
  DetailedKlOptions,
  DistilledText,
  Divergence,
  GenerateOptions,
  GenerateRequest,
  Generation,
  JudgedText,
  KlDetail,
  KlSide,
  LanguageModel,
  PolicyGradientModel,
  PreferenceLoss,
  PreferenceLossOptions,
  PreferenceModel,
  PreferenceOptions,
  PreferencePair,
  PreferenceResult,
  RewardModel,
  RewardText,
  ScoredText,
  SoftQModel,
  SoftQOptions,
  SoftQResult,
  SoftQText,
  StepOptions,
  StepResult,
  Support,
  SurrogateOptions,
  SurrogateResult,
  SurrogateText,
  TokenKlOptions,
  WeightSet,
} from "./model/language-model.ts";
export { DistributedLearner } from "./ranks/distributed-learner.ts";
export { joinRanks, type Ranks } from "./ranks/join.ts";
export { type RankPlace, rankPlace } from "./ranks/place.ts";
export type { LearnerSource } from "./ranks/protocol.ts";
export { serveRank } from "./ranks/serve-rank.ts";
export type { RolloutsConfig } from "./rollouts/config.ts";
export { openRollouts, type Rollouts, type RolloutsOptions } from "./rollouts/open-rollouts.ts";
export type { TextPiece } from "./tokens/added-tokens.ts";
export type { CallForm, EachArgument } from "./tokens/call-form.ts";
export type { ContinuationContext } from "./tokens/continuation.ts";
export {
  type AppendOptions,
  Conversation,
  type SampledTurn,
} from "./tokens/conversation.ts";
export type { ConversationJson, Segment } from "./tokens/conversation-json.ts";
export type { StreamDecoder } from "./tokens/decoder.ts";
export type { AddedToken, NamedToken, TokenizerConfig, TokenizerJson } from "./tokens/format.ts";
export type { CalledFunction } from "./tokens/messages.ts";
export type { ReasoningForm } from "./tokens/reasoning.ts";
export {
  type CallText,
  ChatTemplate,
  type ChatTemplateOptions,
} from "./tokens/template.ts";
export type { RenderOptions } from "./tokens/template-renderer.ts";
export {
  type DecodeOptions,
  type EncodeOptions,
  Tokenizer,
  type TokenizerParts,
} from "./tokens/tokenizer.ts";
