/**
 * `nlac`: recipes, the methods, the learner, evaluation. The other entry points are
 * `nlac/environments`, `nlac/models`, `nlac/serving`, `nlac/compare` and `nlac/ops`. A name that
 * none of them exports may change without notice.
 */

// The declarations of what has dispose() name Disposable, which a project's own target may lack.
/// <reference lib="esnext.disposable" preserve="true" />

export {
  type ArcherConfigInput,
  type ArcherOptions,
  trainArcher,
} from "./algorithms/archer.ts";
export {
  type CritiqueGrpoConfigInput,
  type CritiqueGrpoOptions,
  trainCritiqueGrpo,
} from "./algorithms/critique-grpo.ts";
export { type DpoConfigInput, type DpoOptions, trainDpo } from "./algorithms/dpo.ts";
export { type GrpoConfigInput, type GrpoOptions, trainGrpo } from "./algorithms/grpo.ts";
export { type HopeConfigInput, type HopeOptions, trainHope } from "./algorithms/hope.ts";
export {
  type NlacConfigInput,
  type NlacOptions,
  trainNlac,
} from "./algorithms/nlac.ts";
export { type PpoConfigInput, type PpoOptions, trainPpo } from "./algorithms/ppo.ts";
export {
  evaluateReact,
  type ReactConfigInput,
  type ReactOptions,
} from "./algorithms/react.ts";
export { type RftConfigInput, type RftOptions, trainRft } from "./algorithms/rft.ts";
export { type SacConfigInput, type SacOptions, trainSac } from "./algorithms/sac.ts";
export { type SftConfigInput, type SftOptions, trainSft } from "./algorithms/sft.ts";
export type { LearnerDType } from "./base/dtype.ts";
export { type ErrorCode, NlacError } from "./base/errors.ts";
export type { ProgressStream } from "./display/live-lines.ts";
export { type Progress, TerminalProgress } from "./display/progress.ts";
export { environments } from "./environments/index.ts";
export type { EpisodeFigures, Figures } from "./episodes/figures.ts";
export {
  isFaulty,
  type Outcome,
  type Rest,
  type Stream,
  succeeded,
  type Trajectory,
  type Transition,
  type Turn,
  transitionsOf,
} from "./episodes/trajectory.ts";
export type { Lock } from "./files/lock.ts";
export { Learner } from "./learner/learner.ts";
export type {
  AdapterOptions,
  CreateOptions,
  LearnerOptions,
  ResumeOptions,
} from "./learner/options.ts";
export type { Player } from "./playing/batches.ts";
export { bestOfPlayer } from "./playing/best-of-player.ts";
export { type CollectOptions, collectTrajectories, type EpisodeRequest } from "./playing/collect.ts";
export { type EvaluateOptions, type Evaluation, evaluate } from "./playing/evaluate.ts";
export { noopPlayer } from "./playing/noop-player.ts";
export { servicePlayer } from "./playing/service-player.ts";
export { defineRecipe, loadRecipe, type Recipe, type RecipeInput } from "./recipe/recipe.ts";
export {
  type RecipeResult,
  type ResumeRunOptions,
  resumeRun,
  type TrainRecipeOptions,
  trainOrResume,
  trainRecipe,
} from "./recipe/train-recipe.ts";
export { RunDirectory, type RunOptions } from "./run/directory.ts";
export type { MetricsRow } from "./run/metrics.ts";
export type { DrawsRecord, ProbeRecord, SampleRecord, TokenRecord } from "./run/samples.ts";
export type { RunStatus } from "./run/status.ts";
export {
  type ArrivedDemonstrations,
  type Checkpoint,
  type MemoryRun,
  memoryRun,
  type TrainingResult,
  type TrainingRun,
} from "./run/training-run.ts";
export type { ReportedRow, ReportedRun, RunEvent, Sink } from "./sinks/sink.ts";
export type { Interval } from "./statistics/intervals.ts";
export { passHatK, type TaskTrials } from "./statistics/pass-k.ts";
export { type WarmupConfigInput, type WarmupOptions, warmUp } from "./training/warmup.ts";
