/** Makes judged actions of scripted episodes from predictions and results. */

import type { Action, JudgedAction, StepResult } from "../contract/environment.ts";

/**
 * @param future what could be expected without knowledge of the answer; if the episode goes on, it
 *   still applies
 */
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
