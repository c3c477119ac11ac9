/** All suites by name. */

import { NlacError } from "../base/errors.ts";
import type { Suite } from "./suite.ts";
import { adamw } from "./suites/adamw.ts";
import { ema } from "./suites/ema.ts";
import { families } from "./suites/families.ts";
import { generation } from "./suites/generation.ts";
import { losses } from "./suites/losses.ts";
import { sampler } from "./suites/sampler.ts";
import { soak } from "./suites/soak.ts";
import { training } from "./suites/training.ts";

export const suites: readonly Suite[] = [losses, sampler, ema, adamw, generation, training, families, soak];

/** The suite of this name. Throws ERR_VALUE. */
export function suiteNamed(name: string): Suite {
  const suite = suites.find((candidate) => candidate.name === name);
  if (suite !== undefined) return suite;
  throw new NlacError(
    "ERR_VALUE",
    `There is no benchmark "${name}"; there are ${suites.map((known) => known.name).join(", ")}.`,
  );
}
