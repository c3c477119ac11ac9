/** The agent that does nothing, turn after turn, as its environment says: the floor that a policy must beat. */

import { NlacError } from "../base/errors.ts";
import { type Environment, nothingUsed } from "../contract/environment.ts";
import { actionText } from "../prompts/policy.ts";
import type { Player } from "./batches.ts";
import { servicePlayer } from "./service-player.ts";

/** @throws NlacError ERR_CONFIG for an environment that does not say what doing nothing is */
export function noopPlayer({
  name,
  idle,
  actionFormat,
}: Pick<Environment, "name" | "idle" | "actionFormat">): Player {
  if (idle === undefined)
    throw new NlacError(
      "ERR_CONFIG",
      `${name} does not say what an agent does that does nothing: give it an "idle" action.`,
    );
  const isCall = actionFormat === "call" && idle.tool !== undefined;
  const action = { thought: "I do nothing.", ...idle };
  const text = isCall ? `<tool_call>${idle.text}</tool_call>` : actionText(action, actionFormat);
  return servicePlayer({
    model: "do-nothing",
    complete: async () => text,
    usage: () => ({ ...nothingUsed }),
  });
}
