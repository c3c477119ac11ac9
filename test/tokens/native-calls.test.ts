/**
 * Calls of templates that render a result together with its call: gpt-oss's, in which a call is a
 * message in a channel, and Gemma 4's, in which strings stand between control tokens and results in
 * the turn of their calls.
 */

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Message, ToolSchema } from "../../lib/contract/environment.ts";
import { parseCalls } from "../../lib/prompts/calls.ts";
import { withoutThought } from "../../lib/prompts/corrected-thought.ts";
import { parseAction, policyConversation, turnTokens } from "../../lib/prompts/policy.ts";
import type { TextPiece } from "../../lib/tokens/added-tokens.ts";
import { completionText } from "../../lib/tokens/completion-text.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { TextStream } from "../../lib/tokens/text-stream.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { byteTokenizerParts } from "../support/scripted-model.ts";
import { fixtureJson, fixtureText } from "./fixtures.ts";

const marksOf = {
  "channels-like": [
    ...["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"],
  ],
  "braces-like": [
    ...["<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>"],
    ...["<tool_response|>", '<|"|>', "<|channel>", "<channel|>", "<|think|>"],
  ],
};
type Name = keyof typeof marksOf;

function tokenizerOf(name: Name): Tokenizer {
  const parts = byteTokenizerParts();
  const json = parts.json as unknown as { added_tokens: Record<string, unknown>[] };
  const marks = marksOf[name];
  const idOf = (content: string) => 258 + marks.indexOf(content);
  for (const content of marks)
    json.added_tokens.push({ ...json.added_tokens[0], ...{ id: idOf(content), content, special: true } });
  const chatTemplate = fixtureText(`templates/${name}.jinja`);
  const eosTokenIds = [idOf(name === "channels-like" ? "<|return|>" : "<turn|>")];
  return new Tokenizer({ ...parts, chatTemplate, eosTokenIds });
}

interface RecordedMessage extends Message {
  tool_calls?: { function: { name: string; arguments: Record<string, unknown> } }[];
}
interface Chat {
  template: Name;
  tools: ToolSchema[];
  messages: RecordedMessage[];
  /** After each message, without and with the generation prompt. */
  texts: string[];
}

const chats = fixtureJson<Chat[]>("native-calls.json");
const { tools } = chats[0]!;
const question: Message[] = [{ role: "user", content: "Look it up." }];

/** JSON in Python's spelling. */
function spaced(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(spaced).join(", ")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const members = Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${spaced(item)}`);
  return `{${members.join(", ")}}`;
}

function familyOf(name: Name) {
  const tokenizer = tokenizerOf(name);
  const template = ChatTemplate.of(tokenizer);
  const open = (messages: readonly Message[] = question) =>
    Conversation.start(tokenizer, template, messages, { tools });
  const special = (ids: readonly number[]) =>
    ids.filter((id) => tokenizer.specialIds.has(id)).map((id) => tokenizer.contentOf(id));
  const read = (completion: string) =>
    parseCalls(withoutThought(completionText(tokenizer, tokenizer.encodeTemplate(completion))), tools);
  /** The ids of a sampled turn, the last one of which ends it. */
  const sampled = (text: string) => tokenizer.encodeTemplate(text);
  return { name, tokenizer, template, open, special, read, sampled };
}

const channels = familyOf("channels-like");
const braces = familyOf("braces-like");

/** The recorded text's ids; one of its arguments spells a control token. */
function idsOf(tokenizer: Tokenizer, text: string): number[] {
  const spelled = { text: "<|end|>", trusted: false };
  const parts = text.split(/(?<=\\ )<\|end\|>(?= é)/);
  const pieces: TextPiece[] = parts.flatMap((part, i) => [...(i === 0 ? [] : [spelled]), ...trusted(part)]);
  function trusted(part: string): TextPiece[] {
    return tokenizer.findAdded(part).reduce<{ pieces: TextPiece[]; done: number }>(
      ({ pieces, done }, { start, end }, i, all) => ({
        pieces: [
          ...pieces,
          { text: part.slice(done, start), trusted: false },
          { text: part.slice(start, end), trusted: true },
          ...(i === all.length - 1 ? [{ text: part.slice(end), trusted: false }] : []),
        ],
        done: end,
      }),
      { pieces: [], done: 0 },
    ).pieces;
  }
  return tokenizer.encodeTemplate(pieces);
}

describe.each(chats.map((chat, i) => [`${chat.template} ${i}`, chat] as const))(
  "a conversation of several turns by a template that is %s",
  (_, { template: name, messages, texts }) => {
    const { tokenizer, open } = name === "channels-like" ? channels : braces;
    const first = messages.findIndex(({ role }) => role === "user");
    const textAfter = (i: number, prompt: boolean) => texts[2 * (i - first) + (prompt ? 1 : 0)]!;

    /** Calls `append` for each turn, and compares the ids with the recorded text. */
    const grow = (appendCalls: (conversation: Conversation, message: RecordedMessage) => unknown) => {
      const conversation = open(messages.slice(0, first + 1));
      for (let i = first + 1; i < messages.length; i++) {
        const message = messages[i]!;
        const run = [message];
        while (message.role === "tool" && messages[i + 1]?.role === "tool") run.push(messages[++i]!);
        if (message.tool_calls !== undefined) appendCalls(conversation, message);
        else conversation.append(...run.map(({ role, content }) => ({ role, content })));
        const answers = message.role === "assistant" && message.tool_calls === undefined;
        // The last answer ends in another way.
        if (!(answers && name === "channels-like"))
          expect(conversation.tokens).toEqual(idsOf(tokenizer, textAfter(i, false)));
        if (message.role !== "assistant")
          expect(conversation.prompt()).toEqual(idsOf(tokenizer, textAfter(i, true)));
      }
      return conversation;
    };
    const callsOf = ({ tool_calls = [] }: RecordedMessage) =>
      tool_calls.map(({ function: { name, arguments: given } }) => ({ name, arguments: spaced(given) }));

    it("has the ids of transformers' text after every message", () => {
      const conversation = grow((grown, message) => grown.appendCalls(callsOf(message)));
      expect(tokenizer.decode(conversation.tokens)).toBe(textAfter(messages.length - 1, false));
    });

    it("has the sampled ids of the calls, with their log probabilities", () => {
      const turns: number[][] = [];
      const conversation = grow((grown, message) => {
        const { tokens, end } = grown.writeCalls(callsOf(message));
        turns.push([...tokens, end!]);
        const logProbs = Float32Array.from(turns.at(-1)!, (_, i) => -i / 16);
        grown.appendGeneration({ tokens: turns.at(-1)!, logProbs });
      });
      const written = conversation.segments.filter(({ logProbs }) => logProbs !== undefined);
      expect(written.map(({ start, end }) => conversation.tokens.slice(start, end))).toEqual(turns);
      expect(written.map(({ logProbs }) => logProbs!.at(-1))).toEqual(
        turns.map((one) => -(one.length - 1) / 16),
      );
    });

    it("grows alike after it was read from JSON, and in the thread that renders for a server", () => {
      const conversation = grow((grown, message) => {
        const json = JSON.parse(JSON.stringify(grown.ending())) as ReturnType<Conversation["ending"]>;
        const other = Conversation.fromJSON(json, tokenizer, ChatTemplate.of(tokenizer));
        grown.extend(other.appendCalls(callsOf(message)).toJSON());
      });
      const json = JSON.parse(JSON.stringify(conversation)) as ReturnType<Conversation["toJSON"]>;
      const copy = Conversation.fromJSON(json, tokenizer, ChatTemplate.of(tokenizer));
      const next: Message = { role: conversation.toJSON().turns.at(-1)!.role, content: "more" };
      expect(copy.append(next).tokens).toEqual(conversation.append(next).tokens);
    });
  },
);

const value = fc.letrec((tie) => ({
  value: fc.oneof(
    { depthSize: "small" },
    fc.string({ unit: "grapheme" }),
    fc.integer(),
    fc.boolean(),
    fc.constant(null),
    fc.double({ noNaN: true, noDefaultInfinity: true }),
    fc.constantFrom('"', "\\", "\n", "\u2028", "{a:1}", "<|call|>", "<|end|>"),
    fc.array(tie("value")),
    fc.dictionary(fc.stringMatching(/^[A-Za-z_][\w -]{0,8}[a-z]$/), tie("value")),
  ),
})).value;

describe.each([channels, braces])(
  "calls by a template that is $name",
  ({ name, tokenizer, template, open, special }) => {
    const model = {
      endOfTurn: tokenizer.eosTokenIds[0]!,
      conversation: (messages: readonly Message[], options?: { tools?: readonly ToolSchema[] | undefined }) =>
        Conversation.start(tokenizer, template, messages, options),
    };

    it("are read again with any arguments, and spell no control token", () => {
      const conversation = open();
      const plain = special(conversation.writeCall({ name: "ping-2", arguments: '{"a": 1}' }).tokens);
      const keys = fc.dictionary(fc.stringMatching(/^[a-z_][\w-]{0,8}$/), value);
      fc.assert(
        fc.property(keys, (given) => {
          const { text, tokens } = conversation.writeCall({
            name: "ping-2",
            arguments: JSON.stringify(given),
          });
          const parsed = parseCalls(text, tools);
          const read = JSON.parse(JSON.stringify(given), (key, inner: unknown) =>
            key === "__proto__" ? undefined : inner,
          ) as object;
          expect(parsed).toMatchObject({ ok: true, thought: "" });
          expect(parsed.ok && parsed.calls.map(({ tool }) => tool)).toEqual([
            { name: "ping-2", arguments: read },
          ]);
          // A string's marks are the template's own; of other control tokens there are as many as ever.
          expect(special(tokens).filter((mark) => mark !== '<|"|>')).toEqual(plain);
          expect(completionText(tokenizer, tokens)).toBe(text);
        }),
      );
    });

    it("are what the policy writes, and it ends them as the template does", () => {
      const conversation = policyConversation(model, { messages: question, tools }, "call");
      const text = '{"name": "search", "arguments": {"query": "x", "limit": 2.50}}';
      const action = {
        text,
        thought: "Hm.",
        tool: { name: "search", arguments: { query: "x", limit: 2.5 } },
      };
      const tokens = turnTokens(model, conversation, action, "call");
      const end = name === "channels-like" ? "<|call|>" : "<|tool_response>";
      expect(tokenizer.contentOf(tokens.at(-1)!)).toBe(end);
      expect(tokenizer.eosTokenIds).toContain(tokens.at(-1));
      const said = completionText(tokenizer, tokens.slice(0, -1));
      expect(said).toContain("Hm.");
      // gpt-oss's template writes the thought as reasoning, and drops it.
      expect(parseAction(withoutThought(said), "call", tools)).toMatchObject({
        ok: true,
        action: { tool: action.tool, ...(name === "channels-like" ? {} : { thought: "Hm." }) },
      });
      const stream = new TextStream(tokenizer, []);
      expect(tokens.map((id) => stream.add(id)).join("")).toBe(said);
      conversation.appendGeneration({ tokens }).append({ role: "tool", content: "sunny" });
      const thoughtStays = tokenizer.decode(conversation.tokens).includes("Hm.");
      expect(thoughtStays).toBe(name === "braces-like");
      // A plain answer is taught in the channel in which the template has it.
      const answer = turnTokens(model, conversation, { text: "Hello." }, "call");
      expect(tokenizer.decode(answer)).toBe(
        name === "channels-like" ? "<|channel|>final<|message|>Hello.<|return|>" : "Hello.<turn|>",
      );
      expect(completionText(tokenizer, answer)).toBe("Hello.");
    });

    it("have results that bring no control token", () => {
      const marks = marksOf[name];
      const text = fc.array(fc.oneof(fc.constantFrom(...marks, "final", "response:x{"), fc.string()), {
        maxLength: 6,
      });
      const answered = (content: string) =>
        open()
          .appendCalls([{ name: "ping-2", arguments: "{}" }])
          .append({ role: "tool", content });
      const plain = special(answered("a").tokens);
      fc.assert(
        fc.property(text, (parts) => {
          expect(special(answered(parts.join("")).tokens)).toEqual(plain);
        }),
      );
    });

    it("end with the template's id, whichever id the model stopped at", () => {
      const { tokens, end } = open().writeCall({ name: "ping-2", arguments: "{}" });
      const expected = open().appendGeneration({ tokens: [...tokens, end!] }).tokens;
      for (const stop of [[], [model.endOfTurn]])
        expect(open().appendGeneration({ tokens: [...tokens, ...stop] }).tokens).toEqual(expected);
      const text = open().writeAnswer("Hello.");
      const answered = open().appendGeneration({ tokens: [...text, model.endOfTurn] }).tokens;
      expect(open().appendGeneration({ tokens: [...text, end!] }).tokens).toEqual(answered);
    });

    it("may be answered one by one, or by a person", () => {
      const [first, second]: Message[] = [
        { role: "tool", content: "one" },
        { role: "tool", content: "two" },
      ];
      const called = () => open().appendCalls([{ name: "ping-2", arguments: "{}" }]);
      expect(called().append(first!).append(second!).tokens).toEqual(called().append(first!, second!).tokens);
      const { messages } = { messages: [...question, { role: "user", content: "Stop." } as const] };
      const asked = called().append({ role: "user", content: "Stop." });
      expect(
        tokenizer.decode(asked.tokens).endsWith(tokenizer.decode(open(messages).tokens).slice(-20)),
      ).toBe(true);
    });
  },
);

describe("hostile completions are refused with a reason", () => {
  it.each([
    ["an unknown channel", " to=functions.search<|channel|>analysis json<|message|>{}", "channel commentary"],
    ["the final channel", "<|channel|>final to=functions.search<|message|>{}", "channel commentary"],
    ["no channel", " to=functions.search<|message|>{}", "channel commentary"],
    ["another tool", "<|channel|>commentary to=browser.open<|message|>{}", "functions.NAME"],
    ["other content", "<|channel|>commentary to=functions.search code<|message|>{}", "json"],
    ["text", "<|channel|>commentary to=functions.search<|message|>hm {}", "not a JSON object"],
    ["open JSON", '<|channel|>commentary to=functions.search json<|message|>{"a": "b', "not a JSON object"],
    ["bad JSON", "<|channel|>commentary to=functions.search json<|message|>{a: 1}", "not valid JSON"],
    ["a list", "<|channel|>commentary to=functions.search json<|message|>[1]", "not a JSON object"],
    ["text after it", "<|channel|>commentary to=functions.search json<|message|>{} and", "after a call"],
    [
      "a second call",
      "<|channel|>commentary to=functions.search json<|message|>{}<|end|><|start|>assistant to=functions.search<|channel|>commentary json<|message|>{}",
      "after a call",
    ],
  ])("gpt-oss: a call with %s", (_, completion, reason) => {
    expect(channels.read(completion)).toEqual({ ok: false, reason: expect.stringContaining(reason) });
  });

  it.each([
    ["no name", "<|tool_call>call:{}<tool_call|>", "call:NAME"],
    ["no braces", "<|tool_call>call:search<tool_call|>", "call:NAME"],
    ["no end", '<|tool_call>call:search{query:<|"|>x<|"|>}', "must end with <tool_call|>"],
    ["an open string", '<|tool_call>call:search{query:<|"|>x}<tool_call|>', "must be written"],
    ["an open list", "<|tool_call>call:search{tags:[1<tool_call|>", "must be written"],
    ["a mark in a string", '<|tool_call>call:search{query:<|"|>a<|"|>b<|"|>}<tool_call|>', "must be written"],
    ["text without marks", "<|tool_call>call:search{query:x y}<tool_call|>", "must be written"],
    ["quotes", '<|tool_call>call:search{query:"x"}<tool_call|>', "must be written"],
    ["a repeated key", "<|tool_call>call:search{limit:1,limit:2}<tool_call|>", "must be written"],
    ["no comma", "<|tool_call>call:search{limit:1 ratio:2}<tool_call|>", "must be written"],
    ["a huge number", "<|tool_call>call:search{limit:1e999}<tool_call|>", "too large"],
    ["text after it", "<|tool_call>call:search{}<tool_call|> So.", "after a call"],
    ["its own result", "<|tool_call>call:search{}<tool_call|>response:search{}", "after a call"],
    ["deep nesting", `<|tool_call>call:search{tags:${"[".repeat(70)}`, "must be written"],
  ])("Gemma 4: a call with %s", (_, completion, reason) => {
    expect(braces.read(completion)).toEqual({ ok: false, reason: expect.stringContaining(reason) });
  });

  it.each([channels, braces])(
    "any ids of $name have a text, and a history that goes on",
    ({ tokenizer, open }) => {
      const ids = fc.array(
        fc.oneof(fc.integer({ min: 256, max: tokenizer.vocabSize - 1 }), fc.integer({ min: 0, max: 255 })),
      );
      fc.assert(
        fc.property(ids, (tokens) => {
          const stream = new TextStream(tokenizer, []);
          const text = completionText(
            tokenizer,
            tokens.filter((id) => !tokenizer.eosTokenIds.includes(id)),
          );
          const streamed = tokens.map((id) => stream.add(id)).join("");
          expect(text.startsWith(streamed)).toBe(true);
          expect(typeof parseCalls(withoutThought(text), tools).ok).toBe("boolean");
          const conversation = open().appendGeneration({ tokens });
          expect(conversation.append({ role: "user", content: "Go on." }).prompt().length).toBeGreaterThan(0);
        }),
      );
    },
  );
});

describe("what models write", () => {
  it.each([
    " to=functions.search<|channel|>commentary json<|message|>",
    "<|channel|>commentary to=functions.search <|constrain|>json<|message|>",
    " to=functions.search<|channel|>commentary <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.search<|message|>",
  ])("gpt-oss: the header %j stays as it was sampled, without the reasoning before it", (header) => {
    const { tokenizer, open, sampled } = channels;
    const body = '{"query": "x", "limit": 250.0}';
    const call = `${header}${body}`;
    const reasoned = `<|channel|>analysis<|message|>Why.<|end|><|start|>assistant${call}`;
    for (const completion of [call, reasoned]) {
      const tokens = sampled(`${completion}<|call|>`);
      const text = completionText(tokenizer, tokens.slice(0, -1));
      expect(text).toBe(completion === call ? call : `<think>Why.</think>${call}`);
      const stream = new TextStream(tokenizer, []);
      expect(tokens.map((id) => stream.add(id)).join("")).toBe(text);
      expect(parseCalls(withoutThought(text), tools)).toMatchObject({
        ok: true,
        thought: "",
        calls: [{ text: `{"name": "search", "arguments": ${body}}` }],
      });
      const conversation = open();
      const prompt = tokenizer.decode(conversation.prompt());
      expect(open().withoutReasoning({ tokens })).toEqual(sampled(`${call}<|call|>`));
      conversation.appendGeneration({ tokens }).append({ role: "tool", content: "sunny" });
      expect(tokenizer.decode(conversation.tokens)).toBe(
        `${prompt}${call}<|call|><|start|>functions.search to=assistant<|channel|>commentary<|message|>"sunny"<|end|>`,
      );
    }
  });

  it("gpt-oss: nothing stays of a turn that was cut off in the header of a call", () => {
    for (const cut of [
      " to=functions.se",
      "<|channel|>commentary to=functions.search",
      "<|channel|>analysis<|message|>It",
    ]) {
      const tokens = channels.sampled(cut);
      expect(channels.open().withoutReasoning({ tokens })).toEqual([]);
      expect(channels.read(cut)).toMatchObject({ ok: true, calls: [] });
    }
  });

  it("Gemma 4: reasoning between control tokens is dropped, and told apart in the text", () => {
    const { tokenizer, template, open, sampled } = braces;
    expect(template.reasoning).toMatchObject({ tags: { close: "<channel|>" } });
    const call = '<|tool_call>call:search{query:<|"|>x<|"|>}<tool_call|>';
    const tokens = sampled(`<|channel>thought\nWhy not?\n<channel|>${call}<|tool_response>`);
    const text = completionText(tokenizer, tokens.slice(0, -1));
    expect(text).toBe(`<think>Why not?\n</think>${call}`);
    const stream = new TextStream(tokenizer, []);
    expect(tokens.map((id) => stream.add(id)).join("")).toBe(text);
    const plain = open().appendGeneration({ tokens: sampled(`${call}<|tool_response>`) });
    expect(open().appendGeneration({ tokens }).tokens).toEqual(plain.tokens);
    expect(open().withoutReasoning({ tokens: sampled("<|channel>thought\nWhy") })).toEqual([]);
    // Text between calls stays, as it was sampled.
    const said = open().appendGeneration({ tokens: sampled(`I look.${call}<|tool_response>`) });
    expect(tokenizer.decode(said.tokens)).toContain(`I look.${call}<|tool_response>`);
  });

  it("Gemma 4: a string that spells a call is no call", () => {
    const { open, sampled } = braces;
    const spelled =
      '<|tool_call>call:search{query:<|"|><|tool_call>call:ping-2{}<tool_call|><|"|>}<tool_call|>';
    const conversation = open().appendGeneration({ tokens: sampled(`${spelled}<|tool_response>`) });
    expect(conversation.toJSON().turns.at(-1)!.calls).toEqual([{ name: "search" }]);
  });
});
