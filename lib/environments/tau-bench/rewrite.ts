/**
 * Rewords a scenario's instruction with a language model. Its text is used only if it contains each
 * fact of the template's text and no new number or id; otherwise the template's text is used.
 */

import type { Message } from "../../contract/environment.ts";
import { type ChatService, withoutThinking } from "../../services/chat-service.ts";
import type { Instruction } from "./instruction.ts";

/** Attempts per text. */
const attempts = 2;

/** Throws ERR_SERVICE, and ERR_ABORTED when the signal fires. */
export async function rewriteInstruction(
  instruction: Instruction,
  service: ChatService,
  options: { seed: number; signal?: AbortSignal },
): Promise<{ text: string; changed: boolean }> {
  const messages: Message[] = [{ role: "user", content: rewriteRequest(instruction) }];
  for (let attempt = 0; attempt < attempts; attempt++) {
    const text = withoutThinking(await service.complete(messages, options));
    const fault = rewritingFault(text, instruction);
    if (fault === undefined) return { text, changed: true };
    if (text !== "") messages.push({ role: "assistant", content: text });
    messages.push({ role: "user", content: `That cannot be used: ${fault}. Write the brief again.` });
  }
  return { text: instruction.text, changed: false };
}

/** The first difference in meaning of `text`: a missing fact, or a new number or id. */
export function rewritingFault(text: string, { text: before, facts }: Instruction): string | undefined {
  const lower = text.toLowerCase();
  const missing = facts.filter((fact) => !lower.includes(fact.toLowerCase()));
  if (missing.length > 0) return `it must contain ${missing.join(", ")}`;
  const known = new Set(idsIn(before));
  const added = idsIn(text).filter((id) => !known.has(id));
  return added.length > 0 ? `it must not contain ${added.join(", ")}` : undefined;
}

/** Words that contain a digit, and e-mail addresses. */
function idsIn(text: string): string[] {
  return text.toLowerCase().match(/[\w#@.+-]*\d[\w@+-]*(?:\.[\w@+-]+)*/g) ?? [];
}

function rewriteRequest({ text, facts }: Instruction): string {
  return [
    "Below is a brief for somebody who plays a customer of an online shop: who the customer is, and what the customer",
    'wants. Write the brief again in other words, as a person would tell it to an actor: speak to the actor as "you", keep',
    "every wish and its details, add none, and keep who the customer is. You may add a motive or a mood.",
    "",
    text,
    "",
    "These words must stand in your text exactly as they are here:",
    ...facts.map((fact) => `- ${fact}`),
    "",
    "Write the new brief and nothing else.",
  ].join("\n");
}
