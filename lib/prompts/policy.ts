/**
 * The acting prompt (ReAct: Yao et al., 2022): the task's own messages, with the form of an action
 * at the end of the system message. The refiner requests the same form, so that a refined action is
 * a possible output of the policy, token for token.
 */

import { NlacError } from "../base/errors.ts";
import type { Action, Environment, Message, Observation, ToolSchema } from "../contract/environment.ts";
import type { Grammar } from "../model/grammar.ts";
import type { LanguageModel } from "../model/language-model.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { callGrammar } from "./call-grammar.ts";
import { argumentsText, parseCall, parseCallTurn } from "./calls.ts";
import { malformed, type Parsed, sections } from "./parsing.ts";

/** How a policy writes its actions: see `Environment.actionFormat`. */
export type ActionFormat = Environment["actionFormat"];

/** Stands for the action in the form. */
const placeholder = "What you say or do, on one line.";

/** The form of an action, shared by the policy and the refiner. */
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
    case "call":
      return [
        "Either a call of one function, in the form that you were given for calls; a line of reasoning may stand before it.",
        "Or, without a call, what you say.",
      ].join("\n");
    case "solution":
      return "Reason step by step, then give the final answer once, in the form \\boxed{answer}.";
  }
}

/**
 * A line without a colon, so that it is not mistaken for part of the form, and without leading
 * white space.
 */
const thoughtLine =
  "[^\\t-\\r :\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff][^\\t-\\r:\\u2028\\u2029]*";

/**
 * Grammar of an action that can be parsed and whose call fits its tool's schema. Only for the
 * format "tool"; the other formats are free text.
 */
export function actionGrammar(tools: readonly ToolSchema[], format: ActionFormat): Grammar | undefined {
  if (format !== "tool" || tools.length === 0) return undefined;
  return {
    sequence: [
      { literal: "Thought:\n" },
      { regex: thoughtLine },
      { literal: "\nAction:\n" },
      callGrammar(tools),
    ],
  };
}

/** The first messages of an episode. */
export function policyMessages({ messages, tools }: Observation, format: ActionFormat): Message[] {
  const form =
    format === "solution"
      ? actionFormatText(format)
      : `Write every turn in exactly this form and add nothing after it:\n\n${actionFormatText(format)}`;
  const instructions = format === "tool" && tools?.length ? `${toolsText(tools)}\n\n${form}` : form;
  const [first, ...rest] = messages;
  if (first?.role === "system") {
    return [{ role: "system", content: `${first.content}\n\n${instructions}` }, ...rest];
  }
  return [{ role: "system", content: instructions }, ...messages];
}

/** The tools in words, for policies that do not use the chat template's form of calls. */
function toolsText(tools: readonly ToolSchema[]): string {
  return [
    "You can take these actions, each given with the JSON Schema of its arguments:",
    ...tools.map((tool) => JSON.stringify(tool)),
  ].join("\n");
}

/**
 * Opens the policy's conversation. The chat template describes the tools, except in the format
 * "tool", whose form of calls differs from the template's.
 *
 * @throws NlacError ERR_CONFIG if the template does not support calls, or uses a form that cannot
 *   be parsed
 */
export function policyConversation(
  model: Pick<LanguageModel, "conversation">,
  observation: Observation,
  format: ActionFormat,
): Conversation {
  const messages = policyMessages(observation, format);
  if (format === "tool") return model.conversation(messages);
  const conversation = model.conversation(messages, { tools: observation.tools });
  if (format !== "call") return conversation;
  const probe: ToolSchema = { name: "name", description: "", parameters: {} };
  const { text } = conversation.writeCall({ name: probe.name, arguments: "{}" });
  const parsed = parseCallTurn(text, [probe]);
  // Text without a known call is a plain reply.
  if (!parsed.ok || parsed.action.tool?.name !== probe.name)
    throw new NlacError(
      "ERR_CONFIG",
      `The model's chat template writes calls in a form that nlac does not parse: ${JSON.stringify(text)}. Use the ` +
        'action format "tool" in the environment instead.',
    );
  return conversation;
}

/** The message to an agent whose action could not be parsed. */
export function unreadableMessage(reason: string, format: ActionFormat): Message {
  return {
    role: "user",
    content: `That could not be read: ${reason}. Write exactly this form:\n\n${actionFormatText(format)}`,
  };
}

/** The action in one readable line, for logs. */
export function actionSummary(action: Action): string {
  return action.tool === undefined
    ? action.text
    : `${action.tool.name}(${JSON.stringify(action.tool.arguments)})`;
}

/** An action in the form that `parseAction` reads; in the format "call", a plain reply. */
export function actionText(action: Action, format: ActionFormat): string {
  if (format === "solution" || format === "call") return action.text;
  return `Thought:\n${action.thought ?? ""}\nAction:\n${action.text}`;
}

/** The ids of an action as the policy would generate it next in `conversation`, with their end. */
export function turnTokens(
  model: Pick<LanguageModel, "endOfTurn">,
  conversation: Conversation,
  action: Action,
  format: ActionFormat,
): number[] {
  if (format !== "call" || action.tool === undefined)
    return [...conversation.writeAnswer(actionText(action, format)), model.endOfTurn];
  const call = { name: action.tool.name, arguments: argumentsText(action), thought: action.thought };
  // After a call, some templates end the turn with another id.
  const { tokens, end = model.endOfTurn } = conversation.writeCall(call);
  return [...tokens, end];
}

/** Why `parseAction` would refuse `action`, such as for an empty thought; undefined if it reads it. */
export function unreadableReason(action: Action, format: ActionFormat): string | undefined {
  if (format === "call") return undefined; // the chat template writes calls, and any text is a reply
  const parsed = parseAction(actionText(action, format), format);
  return parsed.ok ? undefined : parsed.reason;
}

/** @param tools the functions, for the types of arguments in the format "call" */
export function parseAction(
  text: string,
  format: ActionFormat,
  tools: readonly ToolSchema[] = [],
): Parsed<{ action: Action }> {
  if (format === "solution") {
    const solution = text.trim();
    return solution === "" ? malformed("the solution is empty") : { ok: true, action: { text: solution } };
  }
  if (format === "call") return parseCallTurn(text, tools);
  const parts = sections(text, ["Thought", "Action"]);
  if (!parts.ok) return parts;
  const thought = parts.sections.Thought;
  const body = parts.sections.Action;
  if (format === "text") {
    if (body.includes("\n")) return malformed('what stands after "Action:" must be a single line');
    // Small models copy the form instead of filling it in.
    if (body.replace(/^<(.*)>$/, "$1") === placeholder)
      return malformed('what stands after "Action:" must be an action, not the form\'s own words');
    return { ok: true, action: { text: body, thought } };
  }
  const call = parseCall(body);
  return call.ok ? { ok: true, action: { text: call.text, thought, tool: call.tool } } : call;
}
