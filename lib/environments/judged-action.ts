/** Judged actions of scripted episodes, from what was foreseen and what came of them. */

import type { Action, JudgedAction, StepResult } from "../contract/environment.ts";

/** @param future what could be expected before the answer was seen; where the episode goes on, it still can */
export function judgedAction(
  action: Action,
  future: string,
  { observation, reward, terminated }: StepResult,
): JudgedAction {
  const seen = observation.map(({ content }) => content).join(" ");
  return {
    action,
    future,
    outcome: {
      observation,
      reward,
      terminated,
      ...(terminated ? {} : { future }),
      joined: `The answer is: ${seen}${terminated ? "" : ` ${future}`}`,
    },
  };
}
