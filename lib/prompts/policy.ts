/**
 * The acting prompt (ReAct: Yao et al., 2022): the task's own messages and, at the end of the system message,
 * how an action is to be written. The refiner asks for the same form, so that a refined action is a possible
 * output of the policy, token for token.
 */

import type { Action, Environment, Message, Observation } from "../environments/contract.ts";
import { malformed, type Parsed, sections } from "./parsing.ts";

export type ActionFormat = Environment["actionFormat"];

/** What stands for the action in the form. */
const placeholder = "What you say or do, on one line.";

/** How an action is written; shared by the policy and the refiner. */
export function actionFormatText(format: ActionFormat): string {
  switch (format) {
    case "text":
      return [
        "Thought:",
        "<One line of reasoning that leads to what you do next.>",
        "Action:",
        `<${placeholder}>`,
      ].join("\n");
    case "tool":
      return [
        "Thought:",
        "<One line of reasoning that leads to what you do next.>",
        "Action:",
        '{"name": <name of the action>, "arguments": <its arguments as a JSON object>}',
      ].join("\n");
    case "solution":
      return "Reason step by step, then give the final answer once, in the form \\boxed{answer}.";
  }
}

/** The messages an episode starts with. */
export function policyMessages(observation: Observation, format: ActionFormat): Message[] {
  const instructions =
    format === "solution"
      ? actionFormatText(format)
      : `Write every turn in exactly this form and add nothing after it:\n\n${actionFormatText(format)}`;
  const [first, ...rest] = observation.messages;
  if (first?.role === "system") {
    return [{ role: "system", content: `${first.content}\n\n${instructions}` }, ...rest];
  }
  return [{ role: "system", content: instructions }, ...observation.messages];
}

/** What an agent is told whose action could not be read. */
export function unreadableMessage(reason: string, format: ActionFormat): Message {
  return {
    role: "user",
    content: `That could not be read: ${reason}. Write exactly this form:\n\n${actionFormatText(format)}`,
  };
}

/** The one line a person would read as the action, for logs. */
export function actionSummary(action: Action): string {
  return action.tool === undefined
    ? action.text
    : `${action.tool.name}(${JSON.stringify(action.tool.arguments)})`;
}

/** An action in the form that `parseAction` reads. */
export function actionText(action: Action, format: ActionFormat): string {
  if (format === "solution") return action.text;
  const body = action.tool === undefined ? action.text : JSON.stringify(action.tool);
  return `Thought:\n${action.thought ?? ""}\nAction:\n${body}`;
}

export function parseAction(text: string, format: ActionFormat): Parsed<{ action: Action }> {
  if (format === "solution") {
    const solution = text.trim();
    return solution === "" ? malformed("the solution is empty") : { ok: true, action: { text: solution } };
  }
  const parts = sections(text, ["Thought", "Action"]);
  if (!parts.ok) return parts;
  const thought = parts.sections.Thought;
  const body = parts.sections.Action;
  if (format === "text") {
    if (body.includes("\n")) return malformed('what stands after "Action:" must be a single line');
    // A small model copies the form instead of filling it in.
    if (body.replace(/^<(.*)>$/, "$1") === placeholder)
      return malformed('what stands after "Action:" must be an action, not the form\'s own words');
    return { ok: true, action: { text: body, thought } };
  }
  const tool = parseToolCall(body);
  return tool.ok ? { ok: true, action: { text: body, thought, tool: tool.tool } } : tool;
}

/** Deepest nesting of a tool call's arguments; deeper ones are refused before they are parsed. */
const maxDepth = 64;

function parseToolCall(body: string): Parsed<{ tool: NonNullable<Action["tool"]> }> {
  let depth = 0;
  for (const character of body) {
    if (character === "{" || character === "[") depth++;
    if (depth > maxDepth) return malformed(`the arguments are nested deeper than ${maxDepth} levels`);
    if (character === "}" || character === "]") depth--;
  }
  let value: unknown;
  try {
    // "__proto__" must stay an ordinary key that no later assignment can act on.
    value = JSON.parse(body, (key, inner) => (key === "__proto__" ? undefined : inner));
  } catch {
    return malformed("the action is not valid JSON");
  }
  if (!isObject(value)) return malformed("the action must be a JSON object");
  const keys = Object.keys(value);
  if (keys.length !== 2 || !("name" in value) || !("arguments" in value)) {
    return malformed('the action must have exactly the keys "name" and "arguments"');
  }
  if (typeof value.name !== "string" || value.name === "")
    return malformed('"name" must be a non-empty string');
  if (!isObject(value.arguments)) return malformed('"arguments" must be a JSON object');
  return { ok: true, tool: { name: value.name, arguments: value.arguments } };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
