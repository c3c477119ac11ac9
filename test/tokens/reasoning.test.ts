import { describe, expect, it } from "vitest";
import type { Message } from "../../lib/contract/environment.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { likeDeepSeek, likeQwq } from "../support/reasoning-templates.ts";
import { byteTokenizer } from "../support/scripted-model.ts";
import { fixtureText, tokenizerNamed } from "./fixtures.ts";

const user = (content: string): Message => ({ role: "user", content });
const likeQwen3 = fixtureText("templates/qwen-like.jinja");

/**
 * Templates that drop reasoning, with tokenizers where the closing tag is one id, and where it is
 * spelled out.
 */
const families = [
  ["QwQ's", likeQwq, tokenizerNamed("qwen-like")],
  ["QwQ's, in bytes", likeQwq, byteTokenizer()],
  ["DeepSeek-R1's", likeDeepSeek, tokenizerNamed("qwen-like")],
  ["DeepSeek-R1's, in bytes", likeDeepSeek, byteTokenizer()],
  ["Qwen3's", likeQwen3, tokenizerNamed("qwen-like")],
  ["Qwen3's, in bytes", likeQwen3, byteTokenizer()],
] as const;

it("how templates drop reasoning is read off them", () => {
  const form = (source: string) => new ChatTemplate(source).reasoning;
  expect(form(likeQwq)).toEqual({ dropsLineBreaks: true, opened: true });
  expect(form(likeDeepSeek)).toEqual({ dropsLineBreaks: false, opened: true });
  expect(form(likeQwen3)).toEqual({ dropsLineBreaks: true, opened: false });
  for (const name of ["smollm2", "llama3-like"] as const)
    expect(ChatTemplate.of(tokenizerNamed(name)).reasoning).toBeUndefined();
  expect(form("{{ raise_exception('no') }}")).toBeUndefined();
});

describe.each(families)("the history of a model whose template is like %s", (_, source, tokenizer) => {
  const template = new ChatTemplate(source);
  const { opened } = template.reasoning!;
  const reasoned = (thought: string, answer: string) =>
    `${opened ? "" : "<think>\n"}${thought}\n</think>\n\n${answer}`;
  /** The template's own ids, where a tag in a message is taken for what it is. */
  const rendered = (messages: Message[], addGenerationPrompt = false) =>
    tokenizer.encodeTemplate(template.render(messages, { addGenerationPrompt }));
  /**
   * Template text: with the tags as the single ids that a model samples, where the vocabulary has
   * them.
   */
  const sampled = (text: string) => [...tokenizer.encodeTemplate(text), tokenizer.eosTokenIds[0]!];

  it("is the template's own, turn after turn, and each state extends the one before", () => {
    const messages: Message[] = [{ role: "system", content: "Be brief." }, user("Is it alive?")];
    const conversation = Conversation.start(tokenizer, template, messages);
    let before: number[] = [];
    for (const [thought, answer] of [
      ["Let me see.\n\nA cat is.", "Yes."],
      ["", "Thought:\nhm\nAction:\nIs it big?"],
      ["One </think> more", "Spaces,  and\n\nlines.\n"],
    ] as const) {
      expect(conversation.prompt()).toEqual(rendered(messages, true));
      expect(conversation.tokens.slice(0, before.length)).toEqual(before);
      before = conversation.tokens;
      const text = reasoned(thought, answer);
      conversation.appendGeneration({ tokens: sampled(text) }).append(user("Go on."));
      messages.push({ role: "assistant", content: text }, user("Go on."));
    }
    expect(conversation.prompt()).toEqual(rendered(messages, true));
    expect(tokenizer.decode(conversation.tokens)).not.toContain("Let me see.");
  });

  it("holds the answer with the ids and log probabilities that were sampled", () => {
    const conversation = Conversation.start(tokenizer, template, [user("Hi.")]);
    // Another way to cut "Hello" than the tokenizer's own.
    const answer = [..."Hello"].flatMap((letter) => tokenizer.encode(letter));
    const reasoning = tokenizer.encodeTemplate(reasoned("hm", ""));
    const tokens = [...reasoning, ...answer, tokenizer.eosTokenIds[0]!];
    const logProbs = Float32Array.from(tokens, (_, i) => -i / 8);
    conversation.appendGeneration({ tokens, logProbs });
    const written = conversation.segments.filter(({ source }) => source === "model");
    const last = written.at(-1)!;
    const kept = conversation.tokens.slice(last.start, last.end);
    expect(kept).toEqual(tokens.slice(-kept.length));
    expect(kept.slice(-answer.length - 1)).toEqual(tokens.slice(-answer.length - 1));
    expect(Array.from(last.logProbs!)).toEqual(Array.from(logProbs.slice(-kept.length)));
    expect(conversation.withoutReasoning({ tokens })).toEqual(
      written.flatMap(({ start, end }) => conversation.tokens.slice(start, end)),
    );
  });

  it("has nothing of a turn that was cut off while it reasoned, and all of one that did not reason", () => {
    const open = () => Conversation.start(tokenizer, template, [user("Hi.")]);
    const cut = tokenizer.encodeTemplate(`${opened ? "" : "<think>\n"}It never`);
    expect(open().withoutReasoning({ tokens: cut })).toEqual([]);
    const empty = open().appendGeneration({ tokens: cut }).append(user("So?"));
    const said = (content: string) => rendered([user("Hi."), { role: "assistant", content }, user("So?")]);
    expect(empty.tokens).toEqual(said(""));
    const whole = open()
      .appendGeneration({ tokens: sampled("At once.") })
      .append(user("So?"));
    expect(whole.tokens).toEqual(said("At once."));
    // What stands in the history as text has no stop id, and was not cut off.
    expect(open().appendAssistantText("At once.").append(user("So?")).tokens).toEqual(said("At once."));
    const text = reasoned("Why not.", "At once.");
    expect(open().appendAssistantText(text).append(user("So?")).tokens).toEqual(said(text));
  });

  it("keeps the reasoning where a request speaks of it", () => {
    const conversation = Conversation.start(tokenizer, template, [user("Hi.")]);
    const prompt = conversation.prompt();
    const tokens = sampled(reasoned("Let me see.", "Yes."));
    conversation.appendGeneration({ tokens }).replaceLastGeneration({ tokens }, { reasoning: "kept" });
    expect(conversation.tokens.slice(0, prompt.length + tokens.length)).toEqual([...prompt, ...tokens]);
  });
});

it("a template that keeps reasoning keeps it here, after its generation prompt", () => {
  const tokenizer = tokenizerNamed("smollm2");
  const conversation = Conversation.start(tokenizer, ChatTemplate.of(tokenizer), [user("Hi.")]);
  const prompt = conversation.prompt();
  const tokens = tokenizer.encode("<think>\nhm\n</think>\n\nYes.");
  conversation.appendGeneration({ tokens });
  expect(conversation.tokens.slice(0, prompt.length + tokens.length)).toEqual([...prompt, ...tokens]);
});

it("the ids that end a closing tag may go on with the answer", () => {
  // In bytes nothing does; a merge of ">" and a line break is such an id.
  const parts = tokenizerNamed("smollm2");
  const template = new ChatTemplate(likeQwq);
  const conversation = Conversation.start(parts, template, [user("Hi.")]);
  const [merged] = parts.encode(">\n");
  const spelled = parts.encode("hm\n</think");
  const tokens = [...spelled, ...parts.encode(">\n\n"), ...parts.encode("Yes."), parts.eosTokenIds[0]!];
  expect(parts.decode([merged!]).startsWith(">")).toBe(true);
  expect(parts.decode(conversation.withoutReasoning({ tokens }))).toBe("Yes.<|im_end|>");
  const inOne = parts.encode(">Yes");
  expect(
    parts.decode(conversation.withoutReasoning({ tokens: [...spelled, ...inOne, parts.eosTokenIds[0]!] })),
  ).toBe("Yes<|im_end|>");
});

describe("answers that nobody sampled, where the prompt opens the reasoning", () => {
  const tokenizer = tokenizerNamed("qwen-like");
  const think = (text: string) => tokenizer.encodeTemplate(text);
  /** Keeps the reasoning of all turns, an empty one too, as Qwen3.8's template. */
  const keeps =
    "{% for message in messages %}{% set said = message.content %}{% set why = '' %}" +
    "{% if '</think>' in said %}{% set why = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}" +
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}" +
    "<|im_start|>{{ message.role }}\n" +
    "{% if message.role == 'assistant' %}{{ '<think>\n' + why + '\n</think>\n\n' + said }}{% else %}{{ said }}{% endif %}" +
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
  const answers = ["Uno.", "<think>\nOne.\n</think>\n\nUno."];

  it.each(answers)("%j has the ids of the template's rendering, if it keeps reasoning", (text) => {
    const template = new ChatTemplate(keeps);
    const messages = [user("Uno?"), { role: "assistant" as const, content: text }, user("Do?")];
    // A tag in a message is taken for what it is.
    const whole = tokenizer.encodeTemplate(template.render(messages, { addGenerationPrompt: true }));
    const start = () => Conversation.start(tokenizer, template, messages.slice(0, 1));
    expect(start().appendAssistantText(text).append(messages[2]!).prompt()).toEqual(whole);
    const written = start();
    written.appendGeneration({ tokens: written.writeAnswer(text) }).append(messages[2]!);
    expect(written.prompt()).toEqual(whole);
    expect(whole.filter((id) => id === think("</think>")[0])).toHaveLength(1);
  });

  it.each([likeQwq, likeDeepSeek])("end it where the template drops reasoning (%#)", (source) => {
    const template = new ChatTemplate(source);
    const start = () => Conversation.start(tokenizer, template, [user("Uno?")]);
    expect(start().writeAnswer("Uno.")).toEqual(think("\n</think>\n\nUno."));
    expect(start().writeAnswer(answers[1]!)).toEqual(think("One.\n</think>\n\nUno."));
    const grown = start();
    grown.appendGeneration({ tokens: grown.writeAnswer("Uno.") });
    const text = tokenizer.decode(grown.tokens);
    expect(text).not.toContain("think>");
    expect(text).toContain("Uno.");
  });

  it("have tags with ids of their own where the prompt does not open the reasoning", () => {
    const start = Conversation.start(tokenizer, new ChatTemplate(likeQwen3), [user("Uno?")]);
    expect(start.writeAnswer(answers[1]!)).toEqual(think(answers[1]!));
    const other = tokenizerNamed("smollm2");
    const plain = Conversation.start(other, ChatTemplate.of(other), [user("Uno?")]);
    expect(plain.writeAnswer(answers[1]!)).toEqual(other.encode(answers[1]!));
  });

  it("begin a turn of the history as the template does, if it is not the prompt", () => {
    const source =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" +
      "{% if add_generation_prompt %}<|im_start|>assistant\nMy steps:\n{% endif %}";
    const template = new ChatTemplate(source);
    const messages = [user("Uno?"), { role: "assistant" as const, content: "Uno." }];
    const grown = Conversation.start(tokenizer, template, messages.slice(0, 1)).appendAssistantText("Uno.");
    expect(grown.append(user("Do?")).tokens).toEqual(template.encode(tokenizer, [...messages, user("Do?")]));
  });

  it("end it before calls", () => {
    const calls =
      "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n" +
      "{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}" +
      "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}{% endfor %}<|im_end|>\n{% endfor %}" +
      "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
    const tools = [{ name: "look", description: "", parameters: { type: "object", properties: {} } }];
    const call = { name: "look", arguments: "{}" };
    const start = () => Conversation.start(tokenizer, new ChatTemplate(calls), [user("Uno?")], { tools });
    const written = start();
    const { text, tokens } = written.writeCall(call);
    expect(tokens).toEqual(think(`\n</think>\n\n${text}`));
    expect(written.appendGeneration({ tokens }).tokens).toEqual(start().appendCalls([call]).tokens);
  });
});
