/** An episode as plain text, for models that judge it from outside. */

import type { Action, Message } from "../contract/environment.ts";
import { actionSummary } from "./policy.ts";

/** A turn as a reader sees it. */
export interface ReadTurn {
  /** The action; the text as generated if it could not be parsed. */
  action: Action | string;
  observation: readonly Message[];
}

/** The messages, one paragraph each. */
export function messagesText(messages: readonly Message[]): string {
  return messages.map(({ role, content }) => `[${role}] ${content.trim()}`).join("\n");
}

/** Numbered turns: the agent's thought and action, then the environment's answer. */
export function transcriptText(turns: readonly ReadTurn[]): string {
  if (turns.length === 0) return "(nothing yet)";
  return turns
    .map(({ action, observation }, i) => {
      const thought = typeof action === "string" ? undefined : action.thought;
      return [
        `Turn ${i + 1}`,
        ...(thought === undefined || thought === "" ? [] : [`Agent thinks: ${thought}`]),
        typeof action === "string"
          ? `Agent writes (unreadable): ${action}`
          : `Agent: ${actionSummary(action)}`,
        ...(observation.length === 0 ? [] : [messagesText(observation)]),
      ].join("\n");
    })
    .join("\n\n");
}
