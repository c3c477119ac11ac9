/** `reset`, `step` and `close` of an environment, made from its `start`: one episode at a time. */

import { NlacError } from "../errors.ts";
import type { Environment, Episode, ResetOptions } from "./contract.ts";

export function driver<Task>(
  name: string,
  start: (task: Task, options: ResetOptions) => Promise<Episode>,
): Pick<Environment<Task>, "reset" | "step" | "close"> {
  let current: Episode | undefined;
  const close = async (): Promise<void> => {
    const last = current;
    current = undefined;
    await last?.close();
  };
  return {
    async reset(task, options) {
      await close();
      current = await start(task, options);
      return current.observation;
    },
    async step(action) {
      if (current === undefined) throw new NlacError("ERR_ENVIRONMENT", `${name}: call reset before step.`);
      return current.step(action);
    },
    close,
  };
}
