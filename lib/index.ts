/** nlac's public names. What is not exported here may change without notice. */

// The declarations of what has dispose() name Disposable, which a project's own target may lack.
/// <reference lib="esnext.disposable" preserve="true" />

export { type GrpoConfig, type GrpoConfigInput, type GrpoOptions, trainGrpo } from "./algorithms/grpo.ts";
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
export { type ErrorCode, NlacError } from "./base/errors.ts";
export { type Comparison, type ComparisonInput, defineComparison } from "./compare/comparison.ts";
export type { Progress } from "./display/progress.ts";
export * from "./environments/index.ts";
export { type EpisodeFigures, type Figures, figuresOf } from "./episodes/figures.ts";
export type { Outcome, Trajectory, Transition, Turn } from "./episodes/trajectory.ts";
export { Learner, type ModelInfo } from "./learner/learner.ts";
export type {
  AdapterOptions,
  CreateOptions,
  Heads,
  LearnerOptions,
  ResumeOptions,
} from "./learner/options.ts";
export type { Grammar } from "./model/grammar.ts";
export type {
  DistilledText,
  Divergence,
  GenerateOptions,
  GenerateRequest,
  Generation,
  LanguageModel,
  PolicyGradientModel,
  ScoredText,
  StepOptions,
  StepResult as OptimizerStepResult,
  Support,
  SurrogateOptions,
  SurrogateResult,
  SurrogateText,
  TokenKlOptions,
  WeightSet,
} from "./model/language-model.ts";
export {
  type AdamWInputs,
  type DType,
  type EmaOptions,
  type LinearTokenKlInputs,
  type LinearTokenLogProbsInputs,
  type LinearTokenNllInputs,
  type LinearTokenSurrogateInputs,
  type Losses,
  type LossGradients,
  type LossOptions,
  type LossTensors,
  ops,
  type SurrogateDetails,
  Tensor,
  type TensorData,
  type TensorOptions,
  type TokenLogProbs,
} from "./ops/index.ts";
export type { Player } from "./playing/batches.ts";
export { type CollectOptions, collectTrajectories, type EpisodeRequest } from "./playing/collect.ts";
export { type EvaluateOptions, type Evaluation, evaluate } from "./playing/evaluate.ts";
export { noopPlayer } from "./playing/noop-player.ts";
export { servicePlayer } from "./playing/service-player.ts";
export { defineRecipe, type Recipe, type RecipeInput } from "./recipe/recipe.ts";
export { type Draws, PrioritizedSampler, type SampleOptions, type SamplerOptions } from "./replay/sampler.ts";
export { type MetricsRow, RunDirectory, type RunOptions } from "./run/directory.ts";
export { type MemoryRun, memoryRun, type TrainingResult, type TrainingRun } from "./run/training-run.ts";
export { passHatK, type TaskTrials } from "./statistics/pass-k.ts";
export {
  Conversation,
  type ConversationJson,
  type SampledTurn,
  type Segment,
} from "./tokens/conversation.ts";
export { ChatTemplate, type ChatTemplateOptions, type RenderOptions } from "./tokens/template.ts";
export { type DecodeOptions, Tokenizer, type TokenizerParts } from "./tokens/tokenizer.ts";
