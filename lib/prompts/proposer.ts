/**
 * The hindsight proposer of HOPE (appendices G.4, H.4, I.4): knows from a summary how an episode
 * went on, and generates actions that the agent could have taken at an earlier turn. Each has the
 * reason that the agent itself could have given, without that knowledge; it becomes the action's
 * thought.
 */

import { shapeOf } from "../base/json-text.ts";
import { isObject } from "../base/validation.ts";
import type { Action, Message, PrivilegedInformation } from "../contract/environment.ts";
import type { Grammar } from "../model/grammar.ts";
import { callAction } from "./calls.ts";
import { leaks, words } from "./leaks.ts";
import { malformed, type Parsed } from "./parsing.ts";
import { type ActionFormat, actionSummary, actionText, parseAction } from "./policy.ts";
import { messagesText, type ReadTurn, transcriptText } from "./transcript.ts";

/** The request for `count` other actions after `turns`. */
export function proposerMessages(
  opening: readonly Message[],
  turns: readonly ReadTurn[],
  summary: string,
  count: number,
  format: ActionFormat,
): Message[] {
  const form =
    format === "tool" || format === "call"
      ? '{"name": <name of the function>, "arguments": {<its arguments>}}'
      : "<string: the action alone, on one line, as the agent would write it>";
  const done = turns.map(({ action }) => (typeof action === "string" ? action : actionSummary(action)));
  return [
    {
      role: "system",
      content: [
        "You teach an agent. One of its episodes is over, and you have a summary of all of it, which may name a secret that",
        `the agent did not know. Go back to an earlier turn and say what the agent should have done there: ${count} different`,
        "actions that are better than what it did.",
        "",
        "How you proceed: first reason with everything you know; then choose actions; then find, for each, the reason that",
        "the agent could have had at that turn.",
        "",
        "Rules:",
        "- An action must be possible at that turn and allowed by the agent's instructions.",
        "- It must be new: not one that the agent has already taken.",
        "- teacher_reason is yours. Use the summary and what happened until that turn.",
        "- player_reason is the agent's. It may use only what the agent had seen by that turn. It must not mention the",
        "  summary, the secret, or the group of things to which the secret belongs. The action must not name the secret either.",
        "",
        `Answer with a JSON list of ${count} objects and nothing else:`,
        `[{"teacher_reason": <string>, "action": ${form}, "player_reason": <string: one line>}, …]`,
      ].join("\n"),
    },
    {
      role: "user",
      content: [
        "# What the agent was told",
        messagesText(opening),
        "",
        "# Summary of the whole episode",
        summary,
        "",
        "# What had happened by that turn",
        transcriptText(turns),
        "",
        "# Actions already taken",
        ...(done.length === 0 ? ["(none)"] : done.map((action) => `- ${action}`)),
        "",
        `Write the JSON list of ${count} different actions that would have been better next.`,
      ].join("\n"),
    },
  ];
}

/** The form of the reply, for models that can be constrained. */
export function proposalGrammar(count: number, format: ActionFormat): Grammar {
  const text = { type: "string", minLength: 1 };
  const calls = format === "tool" || format === "call";
  const call = {
    type: "object",
    properties: { name: text, arguments: { type: "object" } },
    required: ["name", "arguments"],
    additionalProperties: false,
  };
  const item = {
    type: "object",
    properties: { teacher_reason: text, action: calls ? call : text, player_reason: text },
    required: ["teacher_reason", "action", "player_reason"],
    additionalProperties: false,
  };
  return { jsonSchema: { type: "array", items: item, minItems: count, maxItems: count } };
}

/** Longest reply that is read, in characters, and its deepest nesting. */
const maxLength = 100_000;
const maxDepth = 32;

/** Why a proposal is not used. */
export type Refusal = "malformed" | "leaked" | "repeated";

export interface Proposals {
  /** At most `count` different actions, each with the agent's reason as its thought. */
  actions: Action[];
  refused: Record<Refusal, number>;
}

/**
 * The usable actions of a reply. A reply that is not a JSON list is malformed as a whole; items of
 * a list are judged separately.
 *
 * @param taken actions that are not new
 * @param privileged what neither an action nor its thought may give away
 * @param seen what was said in the episode before that turn
 */
export function parseProposals(
  text: string,
  count: number,
  format: ActionFormat,
  taken: readonly Action[],
  privileged: PrivilegedInformation,
  seen = "",
): Parsed<Proposals> {
  const list = jsonList(text);
  if (!list.ok) return list;
  const actions: Action[] = [];
  const refused = { malformed: 0, leaked: 0, repeated: 0 };
  const known = new Set(taken.map(identity));
  for (const item of list.items.slice(0, count)) {
    const action = actionOf(item, format);
    if (action === undefined) refused.malformed++;
    else if (leaks(action, privileged, seen)) refused.leaked++;
    else if (known.has(identity(action))) refused.repeated++;
    else {
      known.add(identity(action));
      actions.push(action);
    }
  }
  return { ok: true, actions, refused };
}

function jsonList(text: string): Parsed<{ items: unknown[] }> {
  if (text.length > maxLength) return malformed(`the reply is longer than ${maxLength} characters`);
  // Many models put JSON into a fence, whatever they are told.
  const body = text
    .trim()
    .replace(/^```[a-z]*\s*/i, "")
    .replace(/\s*```$/, "");
  if (shapeOf(body).depth > maxDepth) return malformed(`the list is nested deeper than ${maxDepth} levels`);
  let value: unknown;
  try {
    // "__proto__" as a key could set a prototype in a later assignment.
    value = JSON.parse(body, (key, inner) => (key === "__proto__" ? undefined : inner));
  } catch {
    return malformed("the reply is not valid JSON");
  }
  return Array.isArray(value) ? { ok: true, items: value } : malformed("the reply must be a JSON list");
}

/**
 * The item as an action that the policy's own parser reads as the same; undefined if it is none.
 */
function actionOf(item: unknown, format: ActionFormat): Action | undefined {
  if (!isObject(item)) return undefined;
  const { teacher_reason: teacher, action: given, player_reason: player } = item;
  if (typeof teacher !== "string" || typeof player !== "string") return undefined;
  const thought = player.replaceAll(/\s+/g, " ").trim();
  if (thought === "") return undefined;
  const action =
    format === "tool" || format === "call" ? called(given, thought) : said(given, thought, format);
  if (action === undefined) return undefined;
  // A call in the template's own form is written by the conversation, not as text.
  if (format === "call") return action;
  const again = parseAction(actionText(action, format), format);
  const same = again.ok && again.action.text === action.text && again.action.thought === action.thought;
  return same ? action : undefined;
}

function said(given: unknown, thought: string, format: ActionFormat): Action | undefined {
  if (typeof given !== "string" || given.trim() === "") return undefined;
  // A solution holds its own reasoning.
  return format === "solution" ? { text: given.trim() } : { text: given.trim(), thought };
}

function called(given: unknown, thought: string): Action | undefined {
  if (!isObject(given) || typeof given.name !== "string" || !isObject(given.arguments)) return undefined;
  return given.name === "" ? undefined : callAction(given.name, given.arguments, thought);
}

/** Equal for actions that do the same. */
function identity({ text, tool }: Action): string {
  return words(tool === undefined ? text : JSON.stringify(tool)).trim();
}

/**
 * The request for an action that differs from those that the policy has just sampled (the baseline
 * Explore-Prompt, appendix E.1). It follows the first of them.
 */
export function differentActionRequest(actions: readonly Action[], form: string): string {
  return [
    "These are actions that you would take here:",
    ...actions.map((action) => `- ${actionSummary(action)}`),
    "Take one that differs from all of them. Write it in exactly this form:",
    "",
    form,
  ].join("\n");
}
