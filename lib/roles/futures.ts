/**
 * The bootstrapped future d' of the Bellman backup in words (eq. 1), under θ̄: what may follow from
 * s' on. It is either requested right after the observation, as in the paper's prompts (appendix
 * A.2); or, as in its equation, the target policy takes an action a' at s' and the successor
 * predicts d' from (s', a'), as L1 trains it.
 */

import type { Message } from "../contract/environment.ts";
import type { Transition } from "../episodes/trajectory.ts";
import type { Generation } from "../model/language-model.ts";
import { futureRequest } from "../prompts/backup.ts";
import { criticRequest, parseCritique } from "../prompts/critic.ts";
import { parseFuture, successorRequest } from "../prompts/successor.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { DropCause } from "./drops.ts";
import { type RoleWriter, user } from "./role-writer.ts";

/** A generation and the d' parsed from it; without d', the cause. */
export interface Future {
  generation?: Generation;
  text?: string;
  dropped?: DropCause;
}

/**
 * Extends every conversation of (s, a) by the observation, the request for d', and d'. Undefined
 * entries stay undefined. If d' did not fit or could not be parsed, do not use its conversation
 * further.
 */
export async function bootstrapFutures(
  writer: RoleWriter,
  chains: readonly (Conversation | undefined)[],
  transitions: readonly Transition[],
): Promise<(Future | undefined)[]> {
  if (writer.config.bootstrap === "successor") return foretell(writer, chains, transitions);
  const asked = chains.map((chain, i) => chain?.append(requestAfter(transitions[i]!)));
  const written = await writer.write("future", "target", asked);
  return written.map((generation, i) => {
    if (chains[i] === undefined) return undefined;
    if (generation === undefined) return { dropped: "context" };
    // The conversation would have no future for the target to join.
    if (writer.endsInThought(generation)) return { generation, dropped: "cut_off" };
    return { generation, text: writer.answer(generation) };
  });
}

async function foretell(
  writer: RoleWriter,
  chains: readonly (Conversation | undefined)[],
  transitions: readonly Transition[],
): Promise<(Future | undefined)[]> {
  const { config, actionFormat } = writer;
  const next = chains.map((chain, i) => chain?.fork().append(...transitions[i]!.observation));
  const actions = await writer.write("next", "target", next);
  const request = user(config.futures === 1 ? criticRequest(false, actionFormat) : successorRequest());
  const asked = next.map((chain, i) => (actions[i] === undefined ? undefined : chain!.append(request)));
  const written = await writer.write("future", "target", asked);
  return written.map((generation, i) => {
    if (chains[i] === undefined) return undefined;
    if (generation === undefined) return { dropped: "context" };
    const parsed = writer.read("future", generation, (text) =>
      config.futures === 1 ? parseCritique(text, false) : parseFuture(text),
    );
    if (!parsed.ok)
      return { generation, dropped: generation.finishReason === "length" ? "cut_off" : "unreadable" };
    const text = parsed.future!;
    chains[i]!.append(requestAfter(transitions[i]!)).appendAssistantText(text);
    return { generation, text };
  });
}

function requestAfter({ observation, reward }: Transition): Message {
  return user(futureRequest(observation, reward));
}
