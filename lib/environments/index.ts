/** The environments that come with nlac. */

import { NlacError } from "../errors.ts";
import type { Environment } from "./contract.ts";
import { math } from "./math/index.ts";
import { twentyQuestions } from "./twenty-questions/index.ts";

export const environments = { twentyQuestions, math };

export const environmentNames = Object.keys(environments) as (keyof typeof environments)[];

/** An environment by its name, as recipes and the command line give it. Throws ERR_CONFIG. */
export function makeEnvironment(name: string, options: object = {}): Environment {
  if (!Object.hasOwn(environments, name)) {
    throw new NlacError(
      "ERR_CONFIG",
      `There is no environment "${name}"; there are ${environmentNames.join(", ")}.`,
    );
  }
  return environments[name as keyof typeof environments](options) as Environment;
}

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
export { gradeMath, type MathOptions, type MathProblem } from "./math/index.ts";
export { type ChatService, chatService, type ServiceOptions } from "./service.ts";
export {
  type GuesserOptions,
  type Oracle,
  scriptedGuesser,
  type TwentyQuestionsOptions,
  type TwentyQuestionsTask,
} from "./twenty-questions/index.ts";
