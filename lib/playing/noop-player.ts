/** A player without a policy: the floor that a policy must beat. */

import { NlacError } from "../base/errors.ts";
import { type Environment, nothingUsed } from "../contract/environment.ts";
import { actionText } from "../prompts/policy.ts";
import type { Player } from "./batches.ts";
import { servicePlayer } from "./service-player.ts";

/**
 * A player that takes the environment's idle action every turn.
 * @throws NlacError ERR_CONFIG for an environment without an idle action
 */
export function noopPlayer({
  name,
  idle,
  actionFormat,
}: Pick<Environment, "name" | "idle" | "actionFormat">): Player {
  if (idle === undefined)
    throw new NlacError(
      "ERR_CONFIG",
      `${name} has no "idle" action, so it cannot be played by the agent that does nothing.`,
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
