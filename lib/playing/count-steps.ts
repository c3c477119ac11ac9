/**
 * Counts the actions that an environment answers, for players that do not say how many they took.
 */

import type { Environment } from "../contract/environment.ts";

/** The same environment, which calls `onStep` for every action that it is given. */
export function countSteps<Task>(environment: Environment<Task>, onStep: () => void): Environment<Task> {
  return replacing(environment, "start", async (task, options) => {
    const episode = await environment.start(task, options);
    return replacing(episode, "step", (action) => {
      onStep();
      return episode.step(action);
    });
  });
}

/**
 * `object` with the method `name` replaced. Other methods run on `object`, for private fields.
 */
function replacing<T extends object, Name extends keyof T>(object: T, name: Name, method: T[Name]): T {
  return new Proxy(object, {
    get(target, key) {
      if (key === name) return method;
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}
