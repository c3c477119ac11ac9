/**
 * Counts the actions that an environment answers, for players that do not say how many they took.
 */

import { overlay } from "../base/overlay.ts";
import type { Environment } from "../contract/environment.ts";

/** The same environment, which calls `onStep` for every action that it is given. */
export function countSteps<Task>(environment: Environment<Task>, onStep: () => void): Environment<Task> {
  const start: Environment<Task>["start"] = async (task, options) => {
    const episode = await environment.start(task, options);
    const step: typeof episode.step = (action) => {
      onStep();
      return episode.step(action);
    };
    return overlay(episode, { step });
  };
  return overlay(environment, { start });
}
