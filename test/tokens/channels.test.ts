/**
 * Conversations of templates that write reasoning and answer in messages of their own, and end the
 * last answer in another way than earlier ones, as gpt-oss's does.
 */

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Message } from "../../lib/contract/environment.ts";
import { splitThought, withoutThought } from "../../lib/prompts/corrected-thought.ts";
import { channelCall } from "../../lib/tokens/channel-call.ts";
import { completionText } from "../../lib/tokens/completion-text.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { TextStream } from "../../lib/tokens/text-stream.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { byteTokenizerParts } from "../support/scripted-model.ts";
import { fixtureText } from "./fixtures.ts";

const marks = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"];

function tokenizerOf(chatTemplate: string): Tokenizer {
  const parts = byteTokenizerParts();
  const json = parts.json as unknown as { added_tokens: Record<string, unknown>[] };
  const idOf = (content: string) => 258 + marks.indexOf(content);
  for (const content of marks)
    json.added_tokens.push({ ...json.added_tokens[0], ...{ id: idOf(content), content, special: true } });
  return new Tokenizer({ ...parts, chatTemplate, eosTokenIds: [idOf("<|return|>"), idOf("<|call|>")] });
}

const tokenizer = tokenizerOf(fixtureText("templates/channels-like.jinja"));
const template = ChatTemplate.of(tokenizer);
const user = (content: string): Message => ({ role: "user", content });
const sampled = (text: string) => tokenizer.encodeTemplate(text);
const reasoned = (thought: string, answer: string) =>
  `<|channel|>analysis<|message|>${thought}<|end|><|start|>assistant<|channel|>final<|message|>${answer}`;
/** The template's own ids of the whole conversation. */
const rendered = (messages: Message[], addGenerationPrompt = false) =>
  template.encode(tokenizer, messages, { addGenerationPrompt });

it("what opens an answer is read off the template", () => {
  expect(template.reasoning).toEqual({
    ...{ dropsLineBreaks: false, opened: false },
    messages: { opening: "<|start|>assistant", answer: "<|channel|>final<|message|>" },
  });
});

describe("a conversation of several turns", () => {
  it("has the ids of the template at every question, and each state extends the one before", () => {
    const messages: Message[] = [{ role: "system", content: "Be brief." }, user("Is it alive?")];
    const conversation = Conversation.start(tokenizer, template, messages);
    let before: number[] = [];
    for (const [completion, answer] of [
      [reasoned("A cat is.", "Yes."), "Yes."],
      ["<|channel|>final<|message|>At once.", "At once."], // without reasoning
      [reasoned("One <|channel|>analysis<|message|>more", "Two\n\n lines.\n"), "Two\n\n lines.\n"],
      [reasoned("", ""), ""],
      ["No channel.", "No channel."],
      // Of two answers the first one stays, which was shown first.
      [`<|channel|>final<|message|>Draft.<|end|><|start|>assistant${reasoned("Better.", "Done.")}`, "Draft."],
      [`Draft.<|end|><|start|>assistant${reasoned("Better.", "Done.")}`, "Draft."],
    ] as const) {
      expect(conversation.prompt()).toEqual(rendered(messages, true));
      expect(conversation.tokens.slice(0, before.length)).toEqual(before);
      before = conversation.tokens;
      conversation.appendGeneration({ tokens: sampled(`${completion}<|return|>`) }).append(user("Go on."));
      messages.push({ role: "assistant", content: answer }, user("Go on."));
      expect(conversation.tokens).toEqual(rendered(messages));
    }
    expect(tokenizer.decode(conversation.tokens)).not.toContain("A cat is.");
  });

  it("holds the answer with the ids and log probabilities that were sampled", () => {
    const conversation = Conversation.start(tokenizer, template, [user("Hi.")]);
    const tokens = sampled(`${reasoned("hm", "Hello")}<|return|>`);
    const logProbs = Float32Array.from(tokens, (_, i) => -i / 8);
    conversation.appendGeneration({ tokens, logProbs });
    const written = conversation.segments.filter(({ source }) => source === "model");
    expect(written).toHaveLength(1);
    expect(tokenizer.decode(conversation.tokens.slice(written[0]!.start, written[0]!.end))).toBe("Hello");
    expect(Array.from(written[0]!.logProbs!)).toEqual(Array.from(logProbs.slice(-6, -1)));
    expect(conversation.withoutReasoning({ tokens })).toEqual(sampled("Hello"));
  });

  it("has nothing of a turn that was cut off before its answer", () => {
    for (const text of ["<|channel|>analysis<|message|>It never", "<|channel|>fin", "<|channel|>"]) {
      const conversation = Conversation.start(tokenizer, template, [user("Hi.")]);
      const cut = { tokens: sampled(text) };
      expect(conversation.withoutReasoning(cut)).toEqual([]);
      expect(conversation.appendGeneration(cut).append(user("So?")).tokens).toEqual(
        rendered([user("Hi."), { role: "assistant", content: "" }, user("So?")]),
      );
    }
  });

  it("takes text of an assistant for an answer, without its reasoning", () => {
    const conversation = Conversation.start(tokenizer, template, [user("Hi.")]);
    conversation.append({ role: "assistant", content: "<think>hm</think>Sunny." }, user("So?"));
    expect(conversation.tokens).toEqual(
      rendered([user("Hi."), { role: "assistant", content: "Sunny." }, user("So?")]),
    );
  });

  it("never takes text of a message for a control token", () => {
    const text = fc.array(fc.oneof(fc.constantFrom(...marks, "final", "analysis"), fc.string()), {
      maxLength: 6,
    });
    fc.assert(
      fc.property(text, text, (said, asked) => {
        const conversation = Conversation.start(tokenizer, template, [user("Hi.")]);
        conversation.append({ role: "assistant", content: said.join("") }).append(user(`${asked.join("")}.`));
        const special = (ids: readonly number[]) => ids.filter((id) => tokenizer.specialIds.has(id));
        const plain = rendered([user("Hi."), { role: "assistant", content: "a" }, user("b")]);
        expect(special(conversation.tokens)).toEqual(special(plain));
      }),
    );
  });
});

it("a template that changes more than the end of an answer is refused", () => {
  const source = fixtureText("templates/channels-like.jinja").replace(
    "'<|return|>' if loop.last",
    "' Bye.<|return|>' if loop.last",
  );
  const other = tokenizerOf(source);
  const conversation = Conversation.start(other, ChatTemplate.of(other), [user("Hi.")]);
  conversation.appendGeneration({ tokens: other.encodeTemplate("<|channel|>final<|message|>Hm.") });
  expect(() => conversation.append(user("So?"))).toThrow(
    expect.objectContaining({ code: "ERR_TOKENIZER", message: expect.stringContaining("by appending") }),
  );
});

describe("the text of a completion", () => {
  it.each([
    [reasoned("A cat is.", "Yes."), "<think>A cat is.</think>Yes."],
    ["<|channel|>final<|message|>At once.", "At once."],
    ["<|channel|>analysis<|message|>Unfin", "<think>Unfin"],
    ["<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>comm", "<think>One."],
    [
      `<|channel|>analysis<|message|>One.<|end|><|start|>assistant${reasoned("Two.", "3")}`,
      "<think>One.\nTwo.</think>3",
    ],
    ["Plain text.", "Plain text."],
    [
      `${reasoned("A cat is.", "Yes.")}<|end|><|start|>assistant${reasoned("Is it?", "No.")}`,
      "<think>A cat is.</think>Yes.",
    ],
    ["Yes.<|end|><|start|>assistant<|channel|>commentary<|message|>Well.", "Yes."],
    ["", ""],
  ])("of %j is %j, at once and token by token", (completion, text) => {
    const ids = sampled(completion);
    expect(completionText(tokenizer, ids)).toBe(text);
    const stream = new TextStream(tokenizer, []);
    expect(ids.map((id) => stream.add(id)).join("")).toBe(text);
  });

  it("is in the history, except for reasoning and what stands before a call", () => {
    const texts = ["Yes.", "to=", " to=functions.x", " to=me\n", " t", "\n", "<|end|>", "<|start|>assistant"];
    const headers = ["analysis", "final", "commentary"].map((name) => `<|channel|>${name}<|message|>`);
    const part = fc.constantFrom(...texts, ...headers);
    fc.assert(
      fc.property(fc.array(part, { maxLength: 8 }), (parts) => {
        const tokens = sampled(parts.join(""));
        const conversation = Conversation.start(tokenizer, template, [user("Hi.")]);
        const kept = tokenizer.decode(conversation.withoutReasoning({ tokens }), { skipSpecial: true });
        const text = completionText(tokenizer, tokens);
        if (channelCall(text) !== undefined) return;
        const shown = text.startsWith("<think>") ? (text.split("</think>")[1] ?? "") : text;
        expect(shown.trim()).toBe(kept.trim());
      }),
      { numRuns: 300 },
    );
  });

  it("has thought and answer apart, where it is read", () => {
    const text = completionText(tokenizer, sampled(reasoned("A cat is.", "Yes.")));
    expect(splitThought(text)).toEqual({ thought: "A cat is.", rest: "Yes." });
    expect(withoutThought(text)).toBe("Yes.");
  });
});
