/** Environments by name, as recipes and commands ask for them. */

import { NlacError } from "../errors.ts";
import type { Environment } from "./contract.ts";
import { environments } from "./index.ts";

export const environmentNames = Object.keys(environments);

/** Throws ERR_CONFIG for a name that is not one of `environmentNames`, or for options the environment refuses. */
export function makeEnvironment(name: string, options: Record<string, unknown> = {}): Environment<unknown> {
  if (!Object.hasOwn(environments, name)) {
    throw new NlacError(
      "ERR_CONFIG",
      `There is no environment ${JSON.stringify(name)}; there are ${environmentNames.join(", ")}.`,
    );
  }
  const make = environments[name as keyof typeof environments] as (options: unknown) => Environment<unknown>;
  return make(options);
}
