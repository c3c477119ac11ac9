/**
 * Customers played by a language model, with the four strategies of tau-bench's reference (Yao et
 * al., 2024):
 *
 * - `plain`: the model generates what the customer says. tau-bench calls it llm.
 * - `react`: it generates a thought first, which the agent does not see.
 * - `verify`: a supervisor, the same model, judges each reply; a rejected one is generated again.
 * - `reflection`: the supervisor says what was wrong and proposes another reply, and the customer
 *   is prompted again with both; if that is rejected too, the first reply is used.
 *
 * Departures. The thought of `react` never reaches the agent, and a stop word in it has no effect.
 * The supervisor's transcript labels the speakers correctly; the reference labels the agent as the
 * customer. The customer's memory contains only what was said. An unusable reply is requested
 * again. Only a stop word on its own ends a conversation, not one within a sentence.
 */

import { z } from "zod";
import { NlacError, throwIfAborted } from "../../base/errors.ts";
import { derivedSeed, streams } from "../../base/random.ts";
import { checkConfig } from "../../base/validation.ts";
import type { Message } from "../../contract/environment.ts";
import { malformed, type Parsed, sections } from "../../prompts/parsing.ts";
import { type ChatService, withoutThinking } from "../../services/chat-service.ts";
import type { ServiceSource } from "../../services/open-service.ts";
import { openServiceOption } from "../open-service-option.ts";
import { type Conversation, stopWord, type User } from "./user.ts";

/** A user that a chat model plays. */
export interface SimulatedUserOptions {
  /** Plays the customer, and the supervisor of `verify` and `reflection`. */
  service: ServiceSource;
  /** Default "plain". */
  strategy?: "plain" | "react" | "verify" | "reflection";
  /**
   * Sampling temperature. Default: the service's own. tau-bench uses 1; at 0 `verify` generates the
   * same reply again.
   */
  temperature?: number;
  /**
   * Most replies that `verify` and `reflection` generate for one turn. Default: tau-bench's, 3 and
   * 2.
   */
  attempts?: number;
}

const optionsSchema = z.strictObject({
  service: z.custom<ServiceSource>(),
  strategy: z.enum(["plain", "react", "verify", "reflection"]).default("plain"),
  temperature: z.number().nonnegative().optional(),
  attempts: z.int().min(1).optional(),
});

/** The customer's reply: the whole text, and the part that the agent sees. */
interface Reply {
  written: string;
  said: string;
}

type Ask = (messages: readonly Message[]) => Promise<string>;

/** Attempts at a usable reply. */
const readings = 3;

const greeting = "Hello! What can I do for you today?";

/** Throws ERR_CONFIG for invalid options; sends no request. */
export function simulatedUser(options: SimulatedUserOptions): User {
  const { service: source, strategy, temperature, attempts } = checkConfig(optionsSchema, options);
  const service = openServiceOption("service", source);
  const write = writers[strategy](attempts);
  return {
    async start({ instruction }, { seed, signal }): Promise<Conversation> {
      let requests = 0;
      const ask: Ask = async (messages) => {
        throwIfAborted(signal);
        const own = derivedSeed(seed, streams.person, requests++);
        return withoutThinking(await service.complete(messages, { temperature, seed: own, signal }));
      };
      const history: Message[] = [
        { role: "system", content: customerPrompt(instruction, strategy) },
        { role: "user", content: greeting },
      ];
      const say = async (): Promise<string> => {
        const { written, said } = await write({ ask, history, service });
        history.push({ role: "assistant", content: written });
        return said;
      };
      const opening = await say();
      return {
        opening,
        respond(text) {
          history.push({ role: "user", content: text.trim() || "(The agent says nothing.)" });
          return say();
        },
      };
    },
    usage: () => service.usage(),
    close: async () => service.close?.(),
  };
}

interface Turn {
  ask: Ask;
  /** The conversation from the model's side: the agent's messages have the role of the user. */
  history: readonly Message[];
  service: ChatService;
}

type Write = (turn: Turn) => Promise<Reply>;

type Strategy = NonNullable<SimulatedUserOptions["strategy"]>;

const writers: Record<Strategy, (attempts?: number) => Write> = {
  plain: () => (turn) => usableReply(turn, readPlain),
  react: () => (turn) => usableReply(turn, readReact),
  verify:
    (attempts = 3) =>
    async (turn) => {
      for (let attempt = 1; ; attempt++) {
        const reply = await usableReply(turn, readPlain);
        if ((await satisfies(turn, reply)) || attempt === attempts) return reply;
      }
    },
  reflection:
    (attempts = 2) =>
    async (turn) => {
      const first = await usableReply(turn, readPlain);
      if (await satisfies(turn, first)) return first;
      let reply = first;
      for (let attempt = 2; attempt <= attempts; attempt++) {
        const proposal = readProposal(await turn.ask([reflectionRequest(turn, reply)]));
        if (proposal === undefined) continue;
        const history: Message[] = [...turn.history, { role: "user", content: proposalNote(proposal) }];
        reply = await usableReply({ ...turn, history }, readPlain);
        if (await satisfies(turn, reply)) return reply;
      }
      return first;
    },
};

/**
 * Returns a usable reply, requested again with the previous one's problem if needed. Throws
 * ERR_SERVICE after `readings` attempts.
 */
async function usableReply(
  { ask, history, service }: Turn,
  read: (text: string) => Parsed<{ said: string }>,
): Promise<Reply> {
  const messages = [...history];
  const begins = !history.some(({ role }) => role === "assistant");
  for (let reading = 1; ; reading++) {
    const written = await ask(messages);
    const parsed = read(written);
    const result =
      parsed.ok && begins && parsed.said.includes(stopWord)
        ? malformed("the conversation has only begun")
        : parsed;
    if (result.ok) return { written, said: result.said };
    if (reading === readings) {
      throw new NlacError(
        "ERR_SERVICE",
        `The customer played by ${service.model} gave no usable reply in ${readings} attempts: ${result.reason}.`,
      );
    }
    if (written !== "") messages.push({ role: "assistant", content: written });
    messages.push({
      role: "user",
      content: `(That reply cannot be used: ${result.reason}. Write it again.)`,
    });
  }
}

/** A line that begins or ends with the stop word. Within a sentence it is only mentioned. */
const stops = /^["'`*(]*#{3} ?STOP ?#{3}|#{3} ?STOP ?#{3}["'`*).!]*$/im;
const anyStop = /#{3} ?STOP ?#{3}/gi;

/** What the agent sees, with the stop word at its end if the customer ends the conversation. */
function readPlain(text: string): Parsed<{ said: string }> {
  const stop = stops.test(text);
  if (!stop && text.search(anyStop) >= 0) {
    return malformed(`${stopWord} must stand by itself, and only where the conversation is to end`);
  }
  // Replaced by a line break, so that the text around it does not form another stop word.
  const said = text.replace(anyStop, "\n").trim();
  if (stop) return { ok: true, said: /\w/.test(said) ? `${said} ${stopWord}` : stopWord };
  return said === "" ? malformed("it says nothing") : { ok: true, said };
}

function readReact(text: string): Parsed<{ said: string }> {
  const parts = sections(text, ["Thought", "User Response"]);
  return parts.ok ? readPlain(parts.sections["User Response"]) : parts;
}

/**
 * Whether the supervisor accepts the reply. A judgement that is neither "true" nor "false" rejects
 * it.
 */
async function satisfies(turn: Turn, reply: Reply): Promise<boolean> {
  return /^\W*true\b/i.test(await turn.ask([verificationRequest(turn, reply)]));
}

function readProposal(text: string): string | undefined {
  const parts = sections(text, ["Reflection", "Response"]);
  return parts.ok ? parts.sections.Response : undefined;
}

function customerPrompt(instruction: string, strategy: Strategy): string {
  const thinks = strategy === "react";
  return [
    "You play a customer who talks to a company's service agent.",
    "",
    `Instruction: ${instruction}`,
    "",
    "Rules:",
    ...(thinks
      ? [
          "- First write a Thought: what the customer should do next. The agent does not see it.",
          "- Then write a User Response of one line: what the customer says. The agent sees it.",
        ]
      : ["- Write one line at a time: what the customer says next."]),
    "- Do not tell all of the instruction at once. Say what this step of the conversation needs, no more.",
    "- Make nothing up. Asked for something that the instruction does not say, an order id for instance, answer that you",
    "  do not remember it or do not have it.",
    `- Once all that the instruction wants is done, ${thinks ? "let the User Response be" : "write"} ${stopWord} and nothing else: it ends the conversation.`,
    "- Put what the instruction says into your own words; do not recite it.",
    "- Sound like a real person, with the character that the instruction describes.",
    ...(thinks
      ? [
          "",
          "Format:",
          "",
          "Thought:",
          "<the thought>",
          "",
          "User Response:",
          "<what the customer says; the agent gets this and nothing else>",
        ]
      : []),
  ].join("\n");
}

/** The conversation so far with the speakers' names, after the customer's instruction. */
function transcript(history: readonly Message[]): string {
  const names: Partial<Record<Message["role"], string>> = { user: "Agent", assistant: "Customer" };
  return history.map(({ role, content }) => `${names[role] ?? "Customer's brief"}: ${content}`).join("\n");
}

function supervised({ history }: Turn, { said }: Reply): string {
  return ["# Transcript:", transcript(history), "", "# Response:", said].join("\n");
}

function verificationRequest(turn: Turn, reply: Reply): Message {
  const content = [
    "You supervise a conversation between a Customer and an Agent. Below is its transcript, then the Response that the",
    "Customer has just written. Classify the Response: true if it is satisfactory, false if it is not.",
    "Your answer is read by a program: write true or false and nothing else.",
    "",
    supervised(turn, reply),
    "",
    "-----",
    "",
    "Classification:",
  ].join("\n");
  return { role: "user", content };
}

function reflectionRequest(turn: Turn, reply: Reply): Message {
  const content = [
    "You supervise a conversation between a simulated Customer and an Agent. Below is its transcript, then the Response",
    "that the Customer has just written and that you found unsatisfactory.",
    "Write a Reflection on what went wrong, and a new Response of the Customer that mends it.",
    "Your answer is read by a program: write these two parts and nothing else.",
    "",
    supervised(turn, reply),
    "",
    "# Format:",
    "",
    "Reflection:",
    "<the reflection>",
    "",
    "Response:",
    "<what the Customer should say>",
  ].join("\n");
  return { role: "user", content };
}

function proposalNote(proposal: string): string {
  return `(A supervisor proposes that the customer says: ${JSON.stringify(proposal)} Write what the customer says.)`;
}
