/** Opens the customers' player: a language model, a script, or a custom one. */

import { NlacError } from "../../base/errors.ts";
import type { ServiceSource } from "../../services/open-service.ts";
import type { User } from "./user.ts";
import { scriptedUser } from "./user-scripted.ts";
import { type SimulatedUserOptions, simulatedUser } from "./user-simulated.ts";

/** The option `user` of `tauBench`. A bare service is short for `{ service }`. */
export type UserOption = "scripted" | SimulatedUserOptions | ServiceSource | User;

/** Opens the user without sending a request. Throws ERR_CONFIG for invalid options. */
export function openUser(option: UserOption): User {
  if (option === "scripted") return scriptedUser;
  if (typeof option === "function") return simulatedUser({ service: option });
  if (typeof option !== "object" || option === null) {
    throw new NlacError("ERR_CONFIG", 'It must be "scripted", a service or { service, strategy }.');
  }
  if ("start" in option) return option;
  return simulatedUser("service" in option ? option : { service: option });
}
