/**
 * `nlac/environments`: the environments that come with nlac, and what your own are made of: the
 * interface, tools, the checker, adapters, models that play a person.
 */

import { carDealer } from "./car-dealer/index.ts";
import { errands } from "./errands/index.ts";
import { guessMyCity } from "./guess-my-city/index.ts";
import { math } from "./math/index.ts";
import { recorded } from "./recorded.ts";
import { tauBench } from "./tau-bench/index.ts";
import { twentyQuestions } from "./twenty-questions/index.ts";

/** The environments that come with nlac. */
export const environments = { twentyQuestions, math, errands, tauBench, recorded, guessMyCity, carDealer };

export type {
  Action,
  Demonstration,
  Environment,
  Episode,
  JudgedAction,
  Message,
  Observation,
  PrivilegedInformation,
  StartOptions,
  StepResult,
  ToolSchema,
  Usage,
} from "../contract/environment.ts";
export { callAction } from "../prompts/calls.ts";
export {
  type ChatService,
  type CompletionOptions,
  type CompletionSettings,
  chatService,
  type Price,
  type ServiceOptions,
} from "../services/chat-service.ts";
export type { Budget } from "../services/limits.ts";
export type { LocalModel, LocalServiceOptions } from "../services/local.ts";
export {
  openService,
  type RecordingOptions,
  type RecordOption,
  type Script,
  type ServiceSource,
} from "../services/open-service.ts";
export { type AiTool, aiTools } from "./adapters/ai.ts";
export { type McpClient, type McpSource, type McpTools, mcpTools } from "./adapters/mcp.ts";
export type { CheckArguments } from "./arguments.ts";
export { type CarDealerOptions, type CarDealerTask, scriptedDealer } from "./car-dealer/index.ts";
export { type CheckOptions, checkEnvironment, type ScriptedPolicy } from "./check.ts";
export { defineEnvironment } from "./define.ts";
export {
  type Tool,
  type ToolArguments,
  type ToolContext,
  type ToolDefinition,
  ToolError,
  tool,
} from "./define-tool.ts";
export type { DemonstratedTurn, EnvironmentDefinition, MaybePromise } from "./definition.ts";
export {
  type Errand,
  type ErrandPolicy,
  type ErrandState,
  type ErrandsOptions,
  type ErrandsTask,
  errandsModel,
  errandsSuccessRate,
} from "./errands/index.ts";
export {
  type CityGuesserOptions,
  cityGuesser,
  type GuessMyCityOptions,
  type GuessMyCityTask,
} from "./guess-my-city/index.ts";
export { gradeMath, type MathOptions, type MathProblem } from "./math/index.ts";
export {
  type Conversation as TauBenchConversation,
  type ConversationOptions as TauBenchConversationOptions,
  type RetailSynthesis,
  type SimulatedUserOptions,
  type SynthesizeRetailOptions,
  synthesizeRetail,
  type TauBenchCall,
  type TauBenchOptions,
  type TauBenchTask,
  type TauBenchTaskRecord,
  type User as TauBenchUser,
  type UserOption as TauBenchUserOption,
} from "./tau-bench/index.ts";
export {
  type GuesserOptions,
  type Oracle,
  type OracleReply,
  scriptedGuesser,
  type TwentyQuestionsOptions,
  type TwentyQuestionsTask,
} from "./twenty-questions/index.ts";
