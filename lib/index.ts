/**
 * `nlac`: training, models, recipes, evaluation, serving. The other entry points are
 * `nlac/environments`, `nlac/ops` and `nlac/compare`. A name that none of them exports may change
 * without notice.
 */

// The declarations of what has dispose() name Disposable, which a project's own target may lack.
/// <reference lib="esnext.disposable" preserve="true" />

export {
  type ServeAndTrainOptions,
  serveAndTrain,
  type TrainingServer,
} from "./agents/serve-and-train.ts";
export { listVersions, rollBackVersion, type Version } from "./agents/versions.ts";
export {
  type ArcherConfig,
  type ArcherConfigInput,
  type ArcherOptions,
  trainArcher,
} from "./algorithms/archer.ts";
export {
  type CritiqueGrpoConfig,
  type CritiqueGrpoConfigInput,
  type CritiqueGrpoOptions,
  trainCritiqueGrpo,
} from "./algorithms/critique-grpo.ts";
export { type DpoConfig, type DpoConfigInput, type DpoOptions, trainDpo } from "./algorithms/dpo.ts";
export { type GrpoConfig, type GrpoConfigInput, type GrpoOptions, trainGrpo } from "./algorithms/grpo.ts";
export { type HopeConfig, type HopeConfigInput, type HopeOptions, trainHope } from "./algorithms/hope.ts";
export {
  type NlacConfig,
  type NlacConfigInput,
  type NlacOptions,
  trainNlac,
} from "./algorithms/nlac.ts";
export { type PpoConfig, type PpoConfigInput, type PpoOptions, trainPpo } from "./algorithms/ppo.ts";
export {
  evaluateReact,
  type ReactConfig,
  type ReactConfigInput,
  type ReactOptions,
} from "./algorithms/react.ts";
export { type RftConfig, type RftConfigInput, type RftOptions, trainRft } from "./algorithms/rft.ts";
export { type SacConfig, type SacConfigInput, type SacOptions, trainSac } from "./algorithms/sac.ts";
export { type SftConfig, type SftConfigInput, type SftOptions, trainSft } from "./algorithms/sft.ts";
export type { LearnerDType } from "./base/dtype.ts";
export { type ErrorCode, NlacError } from "./base/errors.ts";
export type { Progress } from "./display/progress.ts";
export { environments } from "./environments/index.ts";
export type { EpisodeFigures, Figures } from "./episodes/figures.ts";
export type { Outcome, Trajectory, Transition, Turn } from "./episodes/trajectory.ts";
export { Learner } from "./learner/learner.ts";
export type {
  AdapterOptions,
  CreateOptions,
  Heads,
  LearnerOptions,
  RankConnection,
  ResumeOptions,
} from "./learner/options.ts";
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
  StepResult as OptimizerStepResult,
  Support,
  SurrogateOptions,
  SurrogateResult,
  SurrogateText,
  TokenKlOptions,
  WeightSet,
} from "./model/language-model.ts";
export type { ModelInfo } from "./native/addon.ts";
export type { Player } from "./playing/batches.ts";
export { bestOfPlayer } from "./playing/best-of-player.ts";
export { type CollectOptions, collectTrajectories, type EpisodeRequest } from "./playing/collect.ts";
export { type EvaluateOptions, type Evaluation, evaluate } from "./playing/evaluate.ts";
export { noopPlayer } from "./playing/noop-player.ts";
export { servicePlayer } from "./playing/service-player.ts";
export { DistributedLearner } from "./ranks/distributed-learner.ts";
export { joinRanks, type Ranks } from "./ranks/join.ts";
export { type RankPlace, rankPlace } from "./ranks/place.ts";
export type { LearnerSource } from "./ranks/protocol.ts";
export { serveRank } from "./ranks/serve-rank.ts";
export { defineRecipe, loadRecipe, type Recipe, type RecipeInput } from "./recipe/recipe.ts";
export {
  type RecipeResult,
  type ResumeRunOptions,
  resumeRun,
  type TrainRecipeOptions,
  trainOrResume,
  trainRecipe,
} from "./recipe/train-recipe.ts";
export { type Draws, PrioritizedSampler, type SampleOptions, type SamplerOptions } from "./replay/sampler.ts";
export type { RolloutsConfig } from "./rollouts/config.ts";
export { openRollouts, type Rollouts, type RolloutsOptions } from "./rollouts/open-rollouts.ts";
export { type MetricsRow, RunDirectory, type RunOptions } from "./run/directory.ts";
export type { DrawsRecord, ProbeRecord, SampleRecord, TokenRecord } from "./run/samples.ts";
export {
  type Checkpoint,
  type MemoryRun,
  memoryRun,
  type TrainingResult,
  type TrainingRun,
} from "./run/training-run.ts";
export type { Admission, ServedModel } from "./serve/conversation-cache.ts";
export type { Redact } from "./serve/redact.ts";
export type { Scope } from "./serve/scopes.ts";
export { type Extension, type ServeOptions, type Server, serve } from "./serve/server.ts";
export type { QueueLimits, ReportedRow, ReportedRun, RunEvent, Sink } from "./sinks/sink.ts";
export type { Interval } from "./statistics/intervals.ts";
export { passHatK, type TaskTrials } from "./statistics/pass-k.ts";
export {
  type AppendOptions,
  Conversation,
  type ConversationJson,
  type SampledTurn,
  type Segment,
} from "./tokens/conversation.ts";
export type { AddedToken, NamedToken, TokenizerConfig, TokenizerJson } from "./tokens/format.ts";
export type { ReasoningForm } from "./tokens/reasoning.ts";
export {
  type CallText,
  ChatTemplate,
  type ChatTemplateOptions,
  type ContinuationContext,
  type RenderOptions,
} from "./tokens/template.ts";
export { type DecodeOptions, Tokenizer, type TokenizerParts } from "./tokens/tokenizer.ts";
export { type WarmupConfig, type WarmupOptions, warmUp } from "./training/warmup.ts";
