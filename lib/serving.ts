/** `nlac/serving`: OpenAI's API over a learner, and training on the episodes of its clients. */

// The declarations name Learner, whose dispose() needs a type that a project's target may lack.
/// <reference lib="esnext.disposable" preserve="true" />

export {
  type ServeAndTrainOptions,
  serveAndTrain,
  type TrainingServer,
} from "./agents/serve-and-train.ts";
export { listVersions, rollBackVersion, type Version } from "./agents/versions.ts";
export type { AcknowledgedReward, EpisodeRecord } from "./episodes/records.ts";
export type { ActionFormat } from "./prompts/policy.ts";
export type { Admission, ServedModel } from "./serve/conversation-cache.ts";
export type { Redact } from "./serve/redact.ts";
export type { Scope } from "./serve/scopes.ts";
export { type Extension, type ServeOptions, type Server, serve } from "./serve/server.ts";
