/** The environments that come with nlac. */

import { errands } from "./errands/index.ts";
import { math } from "./math/index.ts";
import { twentyQuestions } from "./twenty-questions/index.ts";

export const environments = { twentyQuestions, math, errands };

export { type CheckOptions, checkEnvironment, type ScriptedPolicy } from "./check.ts";
export type {
  Action,
  Environment,
  Episode,
  Message,
  Observation,
  ResetOptions,
  StepResult,
  ToolSchema,
} from "./contract.ts";
export {
  type ErrandPolicy,
  type ErrandState,
  type ErrandsOptions,
  type ErrandsTask,
  errandsModel,
  errandsSuccessRate,
} from "./errands/index.ts";
export { gradeMath, type MathOptions, type MathProblem } from "./math/index.ts";
export { type ChatService, chatService, type ServiceOptions } from "./service.ts";
export {
  type GuesserOptions,
  type Oracle,
  scriptedGuesser,
  type TwentyQuestionsOptions,
  type TwentyQuestionsTask,
} from "./twenty-questions/index.ts";
