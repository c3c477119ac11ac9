/** Opens whoever plays the customers: a language model, a script, or one's own. */

import { NlacError } from "../../base/errors.ts";
import type { ServiceSource } from "../../services/open-service.ts";
import type { User } from "./user.ts";
import { scriptedUser } from "./user-scripted.ts";
import { type SimulatedUserOptions, simulatedUser } from "./user-simulated.ts";

/** How a user is asked for in `tauBench({ user })`. A service alone plays it as `{ service }` does. */
export type UserOption = "scripted" | SimulatedUserOptions | ServiceSource | User;

/** The user that was asked for; nothing is asked of a service yet. Throws ERR_CONFIG for options that do not validate. */
export function openUser(option: UserOption): User {
  if (option === "scripted") return scriptedUser;
  if (typeof option === "function") return simulatedUser({ service: option });
  if (typeof option !== "object" || option === null) {
    throw new NlacError("ERR_CONFIG", 'It must be "scripted", a service or { service, strategy }.');
  }
  if ("start" in option) return option;
  return simulatedUser("service" in option ? option : { service: option });
}
