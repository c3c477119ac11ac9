/**
 * Counts the actions that an environment answers, for players that do not say how many they took.
 */

import { overlay } from "../base/overlay.ts";
import type { Environment } from "../contract/environment.ts";
import type { Trajectory } from "../episodes/trajectory.ts";

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

/**
 * The number of unreadable actions in branches, without those before the branch. They are steps too,
 * but `countSteps` does not see them, because the environment does not get them.
 */
export function unreadableActions(branches: readonly Pick<Trajectory, "turns" | "branch">[]): number {
  const later = branches.flatMap(({ turns, branch }) => turns.slice(branch?.turn));
  return later.filter(({ action }) => action === undefined).length;
}
