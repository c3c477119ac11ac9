import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Message, ToolSchema } from "../../lib/contract/environment.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import type { ConversationJson } from "../../lib/tokens/conversation-json.ts";
import { mergesOfScores, sentencePieceJson } from "../../lib/tokens/sentencepiece.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { byteTokenizerParts, withControlTokens } from "../support/scripted-model.ts";
import { smollm2Metadata, type TokenizerName, tokenizerNamed, tokenizerNames } from "./fixtures.ts";

const tool: ToolSchema = {
  name: "look_up",
  description: "Looks something up.",
  parameters: { type: "object", properties: { key: { type: "string" } } },
};

function open(name: TokenizerName, messages: Message[], options: { tools?: ToolSchema[] } = {}) {
  const tokenizer = tokenizerNamed(name);
  const template = ChatTemplate.of(tokenizer);
  return { tokenizer, template, conversation: Conversation.start(tokenizer, template, messages, options) };
}

const user = (content: string): Message => ({ role: "user", content });

/** Words that spell nothing, with spaces only where no template trims them. */
const harmless = fc
  .array(fc.oneof(fc.stringMatching(/^[a-z0-9'.,?]{1,6}$/), fc.constantFrom("é", "今日", "🏳️‍🌈", "12")), {
    minLength: 1,
    maxLength: 6,
  })
  .chain((words) => fc.constantFrom(" ", "  ", "\n").map((space) => words.join(space)));

describe.each(tokenizerNames)("a conversation grown by appending, in %s", (name) => {
  const tokenizer = tokenizerNamed(name);
  const template = ChatTemplate.of(tokenizer);

  it("has the ids of the whole conversation rendered at once", () => {
    fc.assert(
      fc.property(
        fc.boolean(),
        fc.boolean(),
        harmless,
        fc.array(fc.tuple(harmless, fc.constantFrom("user" as const, "tool" as const), harmless), {
          maxLength: 4,
        }),
        (system, withTools, first, rounds) => {
          const tools = withTools ? [tool] : undefined;
          const messages: Message[] = [
            ...(system ? [{ role: "system" as const, content: "Be brief." }] : []),
            user(first),
          ];
          const conversation = Conversation.start(tokenizer, template, messages, { tools });
          const whole = () => template.encode(tokenizer, messages, { tools, addGenerationPrompt: true });
          expect(conversation.prompt()).toEqual(whole());
          for (const [answer, role, observation] of rounds) {
            conversation.appendAssistantText(answer).append({ role, content: observation });
            messages.push({ role: "assistant", content: answer }, { role, content: observation });
            expect(conversation.prompt()).toEqual(whole());
          }
        },
      ),
      { numRuns: 100 },
    );
  });

  it("joins messages given together as the template joins them", () => {
    const messages = [user("Look up a and b."), { role: "assistant" as const, content: "Both." }];
    const found: Message[] = [
      { role: "tool", content: "a is 1" },
      { role: "tool", content: "b is 2" },
    ];
    const conversation = Conversation.start(tokenizer, template, [messages[0]!], { tools: [tool] });
    conversation.append(messages[1]!, ...found);
    expect(conversation.prompt()).toEqual(
      template.encode(tokenizer, [...messages, ...found], { tools: [tool], addGenerationPrompt: true }),
    );
  });

  it("keeps what was there, whatever is appended", () => {
    const { conversation } = open(name, [user("Begin.")]);
    let before = [...conversation.tokens];
    const check = () => {
      expect(conversation.tokens.slice(0, before.length)).toEqual(before);
      expect(conversation.length).toBeGreaterThan(before.length);
      before = [...conversation.tokens];
      expect(conversation.prompt().slice(0, before.length)).toEqual(before);
    };
    conversation.appendGeneration({ tokens: tokenizer.encode("<think>\nlong thought\n</think>\n\nanswer") });
    check();
    conversation.append({ role: "tool", content: "one" });
    check();
    conversation.append({ role: "tool", content: "two" });
    check();
    conversation.append(user("again"));
    check();
  });

  it("lets no message bring a control token", () => {
    const spelled = [...tokenizer.addedIds].map((id) => tokenizer.decode([id])).join("");
    const controls = (text: string) => {
      const { conversation } = open(name, [user(text)], { tools: [{ ...tool, description: text }] });
      conversation.appendAssistantText(text).append({ role: "tool", content: text }).append(user(text));
      return conversation.prompt().filter((id) => tokenizer.addedIds.has(id));
    };
    expect(controls(spelled)).toEqual(controls("x"));
  });

  it("covers its ids with segments", () => {
    const { conversation } = open(name, [user("Begin.")]);
    conversation.appendAssistantText("One.").append(user("On.")).appendAssistantText("Two.");
    let covered = 0;
    for (const { start, end } of conversation.segments) {
      expect(start).toBe(covered);
      covered = end;
    }
    expect(covered).toBe(conversation.length);
    const texts = conversation.segments
      .filter(({ source }) => source === "model")
      .map(({ start, end }) => tokenizer.decode(conversation.tokens.slice(start, end)));
    expect(texts).toEqual(["One.", "Two."]);
  });
});

describe("an assistant's turn", () => {
  const eos = 2;

  it("holds exactly the ids sampled, with their log probabilities", () => {
    const { conversation, tokenizer } = open("smollm2", [user("Hi.")]);
    // Another way to cut "Hello" than the tokenizer's own.
    const tokens = [..."Hello"].flatMap((letter) => tokenizer.encode(letter));
    expect(tokens).not.toEqual(tokenizer.encode("Hello"));
    const logProbs = Float32Array.from([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6]);
    const prompt = conversation.prompt();
    conversation.appendGeneration({ tokens: [...tokens, eos], logProbs });
    expect(conversation.tokens.slice(prompt.length)).toEqual([...tokens, eos, ...tokenizer.encode("\n")]);
    const segment = conversation.segments.find(({ source }) => source === "model")!;
    expect(segment).toEqual({ source: "model", start: prompt.length, end: prompt.length + 6, logProbs });
  });

  it("is closed where the model was cut off, and not closed twice where it was not", () => {
    const { conversation, tokenizer } = open("smollm2", [user("Hi.")]);
    const text = tokenizer.encode("Hello");
    const [stop, newline] = tokenizer.encodeTemplate("<|im_end|>\n") as [number, number];
    const written = (tokens: number[]) => {
      const grown = conversation.fork().appendGeneration({ tokens });
      return grown.tokens.slice(conversation.prompt().length);
    };
    expect(written(text)).toEqual([...text, stop, newline]);
    expect(written([...text, stop])).toEqual([...text, stop, newline]);
    expect(written([...text, stop, newline])).toEqual([...text, stop, newline]);
    expect(written([])).toEqual([stop, newline]);
  });

  it("counts a stop id as the closing even where the template closes with another", () => {
    const tokenizer = Tokenizer.fromGguf({
      ...smollm2Metadata(),
      "tokenizer.ggml.eos_token_id": 0,
      "tokenizer.ggml.eot_token_id": 2,
    });
    const conversation = Conversation.start(tokenizer, ChatTemplate.of(tokenizer), [user("a")]);
    const start = conversation.length;
    conversation.appendGeneration({ tokens: [...tokenizer.encode("b"), 0] });
    expect(tokenizer.decode(conversation.tokens.slice(start))).toBe(
      "<|im_start|>assistant\nb<|endoftext|>\n",
    );
  });

  it("refuses log probabilities that are not one a token", () => {
    const { conversation } = open("smollm2", [user("Hi.")]);
    expect(() => conversation.appendGeneration({ tokens: [1, 2], logProbs: new Float32Array(3) })).toThrow(
      expect.objectContaining({ code: "ERR_SHAPE" }),
    );
    expect(conversation.segments).toHaveLength(1);
  });

  it("can be replaced while it is the last", () => {
    const { conversation } = open("qwen-like", [user("Hi.")]);
    const expected = conversation.fork().appendAssistantText("Second.");
    const { tokenizer } = open("qwen-like", [user("")]);
    conversation.appendAssistantText("First.").replaceLastGeneration({ tokens: tokenizer.encode("Second.") });
    expect(conversation.tokens).toEqual(expected.tokens);
    expect(conversation.segments).toEqual(expected.segments);
    conversation.append(user("More."));
    expect(() => conversation.replaceLastGeneration({ tokens: [1] })).toThrow(
      expect.objectContaining({ code: "ERR_VALUE" }),
    );
  });
});

describe("a template that drops old thoughts", () => {
  it("drops the thought of a turn here too, and no id of its answer", () => {
    const { conversation, tokenizer, template } = open("qwen-like", [user("2+2?")]);
    const sampled = tokenizer.encodeTemplate("<think>\neasy\n</think>\n\n4<|im_end|>");
    conversation.appendGeneration({ tokens: sampled }).append(user("Sure?"));
    const again: Message[] = [
      user("2+2?"),
      { role: "assistant", content: "<think>\neasy\n</think>\n\n4" },
      user("Sure?"),
    ];
    const text = template.render(again, { addGenerationPrompt: true });
    expect(text).not.toContain("easy");
    expect(conversation.prompt()).toEqual(tokenizer.encodeTemplate(text));
  });

  it("opens a turn without a thought where it is told to", () => {
    const tokenizer = tokenizerNamed("qwen-like");
    const template = ChatTemplate.of(tokenizer, { variables: { enable_thinking: false } });
    const conversation = Conversation.start(tokenizer, template, [user("2+2?")]);
    expect(tokenizer.decode(conversation.prompt()).endsWith("assistant\n<think>\n\n</think>\n\n")).toBe(true);
  });
});

it("gives each tool message its own turn if the previous one is already closed", () => {
  const { conversation, tokenizer } = open("qwen-like", [user("Look.")]);
  conversation.appendAssistantText("I do.");
  const start = conversation.length;
  conversation.append({ role: "tool", content: "one" }).append({ role: "tool", content: "two" });
  const turn = (text: string) => `<|im_start|>user\n<tool_response>\n${text}\n</tool_response><|im_end|>\n`;
  expect(tokenizer.decode(conversation.tokens.slice(start))).toBe(turn("one") + turn("two"));
});

describe("a template that puts instructions and tools into the turn of the last question", () => {
  const source = `
{%- set system = messages[0].content if messages[0].role == "system" else none %}
{%- set others = messages[1:] if system else messages %}
{%- for message in others %}
  {%- if message.role == "user" %}
    {%- if loop.last or others[loop.index0 + 1:] | selectattr("role", "equalto", "user") | list | length == 0 %}
      {%- if tools %}{{ "[TOOLS]" ~ tools[0].function.name ~ "[/TOOLS]" }}{% endif %}
      {{- "[INST]" ~ (system ~ "\\n" if system else "") ~ message.content ~ "[/INST]" }}
    {%- else %}{{ "[INST]" ~ message.content ~ "[/INST]" }}{% endif %}
  {%- else %}{{ message.content ~ "<|im_end|>" }}{% endif %}
{%- endfor %}`;
  const marks = ["[INST]", "[/INST]", "[TOOLS]", "[/TOOLS]"];
  const tokenizer = new Tokenizer({
    ...withControlTokens(byteTokenizerParts(), marks),
    chatTemplate: source,
  });
  const template = ChatTemplate.of(tokenizer);

  it("has them in the turn of the first question, and not again", () => {
    const first: Message[] = [{ role: "system", content: "Answer in verse." }, user("One?")];
    const conversation = Conversation.start(tokenizer, template, first, { tools: [tool] });
    const asked = "[TOOLS]look_up[/TOOLS][INST]Answer in verse.\nOne?[/INST]";
    expect(tokenizer.decode(conversation.prompt())).toBe(asked);
    expect(conversation.prompt()).toEqual(template.encode(tokenizer, first, { tools: [tool] }));
    conversation.appendAssistantText("Uno.").append(user("Two?"));
    expect(tokenizer.decode(conversation.prompt())).toBe(`${asked}Uno.<|im_end|>[INST]Two?[/INST]`);
  });

  it("has in later turns the ids of a conversation without instructions and tools", () => {
    const messages = [user("One?"), { role: "assistant" as const, content: "Uno." }, user("Two?")];
    const conversation = Conversation.start(tokenizer, template, messages.slice(0, 1));
    conversation.append(...messages.slice(1));
    expect(conversation.prompt()).toEqual(template.encode(tokenizer, messages));
  });
});

describe("a template that starts a reply after every conversation, also if not requested", () => {
  const source = `
{%- for message in messages %}
  {{- "<|head|>" ~ message.role ~ "\\n" ~ message.content ~ "<|im_end|>" }}
{%- endfor %}
{{- "<|head|>assistant\\n" }}`;
  const tokenizer = new Tokenizer({
    ...withControlTokens(byteTokenizerParts(), ["<|head|>"]),
    chatTemplate: source,
  });
  const template = ChatTemplate.of(tokenizer);

  it("has one start of a reply before each reply", () => {
    const messages: Message[] = [user("One?")];
    const conversation = Conversation.start(tokenizer, template, messages);
    const whole = () => template.encode(tokenizer, messages);
    expect(conversation.prompt()).toEqual(whole());
    for (const [answer, question] of [
      ["Uno.", "Two?"],
      ["Due.", "Three?"],
    ] as const) {
      conversation.appendAssistantText(answer);
      messages.push({ role: "assistant", content: answer });
      expect(tokenizer.decode(conversation.tokens).endsWith(`${answer}<|im_end|>`)).toBe(true);
      expect(conversation.prompt()).toEqual(whole());
      conversation.append(user(question));
      messages.push(user(question));
      expect(conversation.prompt()).toEqual(whole());
    }
    expect(tokenizer.decode(conversation.prompt())).toBe(
      "<|head|>user\nOne?<|im_end|><|head|>assistant\nUno.<|im_end|><|head|>user\nTwo?<|im_end|>" +
        "<|head|>assistant\nDue.<|im_end|><|head|>user\nThree?<|im_end|><|head|>assistant\n",
    );
  });
});

describe.each([" ", "\n"])(
  "a template that writes %j between the start of a reply and the answer",
  (lead) => {
    const source = `
{%- for message in messages %}
  {%- if message.role == "user" %}{{ "User: " ~ message.content ~ "\n\nAssistant:" }}
  {%- else %}{{ ${JSON.stringify(lead)} ~ message.content ~ "<|im_end|>" }}{% endif %}
{%- endfor %}`;
    const pieces = ["▁", "▁▁", "▁U", "▁User", "▁Uno", "▁D"];
    const bytes = Array.from(
      { length: 256 },
      (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, "0")}>`,
    );
    const vocab = [...bytes, ...Array.from("UserAintatDo:.?▁"), ...pieces].filter(
      (x, i, all) => all.indexOf(x) === i,
    );
    const { merges } = mergesOfScores(vocab.slice(256).map((token, i) => ({ token, score: -i })));
    const sentencePiece = (prefix: boolean) => ({
      json: sentencePieceJson({
        vocab: Object.fromEntries([...vocab, "<|im_end|>"].map((token, id) => [token, id])),
        merges,
        added: [{ id: vocab.length, content: "<|im_end|>", special: true }],
        unknown: undefined,
        prefix,
      }),
      config: {},
    });
    const tokenizers = {
      "byte-level": byteTokenizerParts(),
      "SentencePiece with a prefix": sentencePiece(true),
      "SentencePiece without one": sentencePiece(false),
    };

    it.each(Object.entries(tokenizers))(
      "has it before written answers, with a tokenizer of %s",
      (_, parts) => {
        const tokenizer = new Tokenizer({ ...parts, chatTemplate: source });
        const template = ChatTemplate.of(tokenizer);
        const messages = [user("Uno?"), { role: "assistant" as const, content: "Uno." }, user("Do?")];
        for (const answer of ["Uno.", `${lead}Uno.`]) {
          const conversation = Conversation.start(tokenizer, template, messages.slice(0, 1));
          const asked = conversation.prompt();
          conversation.append({ role: "assistant", content: answer }, messages[2]!);
          const whole = template.encode(tokenizer, messages);
          expect(conversation.prompt()).toEqual(whole);
          const start = Conversation.start(tokenizer, template, messages.slice(0, 1));
          expect([...asked, ...start.writeAnswer(answer)]).toEqual(
            whole.slice(0, whole.indexOf(tokenizer.idOf("<|im_end|>")!)),
          );
        }
      },
    );
  },
);

it("begins with the template's default system message, if it has one", () => {
  const { conversation, tokenizer } = open("smollm2", [user("Hi.")]);
  conversation.appendAssistantText("Hello.").append(user("More."));
  const text = tokenizer.decode(conversation.tokens);
  expect(text.match(/You are a helpful AI assistant named SmolLM/g)).toHaveLength(1);
  expect(text.startsWith("<|im_start|>system\n")).toBe(true);
});

describe("copies", () => {
  it("fork to grow on their own", () => {
    const { conversation } = open("llama3-like", [user("Hi.")]);
    const before = [...conversation.tokens];
    const fork = conversation.fork().append(user("More."));
    expect(conversation.tokens).toEqual(before);
    expect(conversation.segments).toHaveLength(1);
    expect(fork.length).toBeGreaterThan(before.length);
    conversation.appendAssistantText("Other.");
    expect(fork.tokens.slice(before.length)).not.toEqual(conversation.tokens.slice(before.length));
  });

  it("keep their ids, whichever of them is forked, cut back, changed or grown", () => {
    const operations = fc.tuple(
      fc.constantFrom("fork", "prefix", "replace", "grow"),
      fc.nat(),
      fc.nat(),
      fc.array(fc.nat(200), { minLength: 1, maxLength: 3 }),
    );
    fc.assert(
      fc.property(fc.array(operations, { maxLength: 40 }), (steps) => {
        const { conversation } = open("llama3-like", [user("Hi.")]);
        const all = [{ conversation, ids: [...conversation.tokens], ends: [conversation.length] }];
        for (const [what, which, where, tokens] of steps) {
          const chosen = all[which % all.length]!;
          const { conversation, ids, ends } = chosen;
          if (what === "fork") all.push({ ...chosen, conversation: conversation.fork(), ends: [...ends] });
          if (what === "prefix") {
            const kept = ends.slice(0, 1 + (where % ends.length));
            const prefix = conversation.prefix(kept.at(-1)!);
            all.push({ ...chosen, conversation: prefix, ids: ids.slice(0, kept.at(-1)), ends: kept });
          }
          if (what === "grow" || (what === "replace" && ends.length > 1)) {
            if (what === "grow") conversation.appendGeneration({ tokens });
            else conversation.replaceLastGeneration({ tokens });
            if (what === "replace") ends.pop();
            const turn = conversation.tokens.slice(ends.at(-1));
            expect(turn.join()).toContain(tokens.join());
            chosen.ids = [...ids.slice(0, ends.at(-1)), ...turn];
            ends.push(chosen.ids.length);
          }
          for (const one of all) {
            expect(one.conversation.tokens).toEqual(one.ids);
            expect(one.conversation.length).toBe(one.ids.length);
          }
        }
      }),
      { numRuns: 100 },
    );
  });

  it("hold the ids of an episode once, however many of its states are kept", () => {
    const { conversation } = open("llama3-like", [user("Hi.")]);
    conversation.appendGeneration({ tokens: new Array(100_000).fill(5) });
    const before = process.memoryUsage().heapUsed;
    const states = Array.from({ length: 400 }, () => {
      const state = conversation.fork();
      conversation.appendGeneration({ tokens: [5, 6] });
      return state;
    });
    // A copy each would be 320 MB.
    expect(process.memoryUsage().heapUsed - before).toBeLessThan(100e6);
    expect(states[1]!.length - states[0]!.length).toBeGreaterThan(1);
  });

  it("can be cut back to the end of any turn, and go on from there", () => {
    const { conversation } = open("llama3-like", [user("Hi.")]);
    const early = conversation.fork();
    conversation
      .appendGeneration({ tokens: [5, 6], logProbs: Float32Array.of(-1, -2) })
      .append(user("More."));
    const prefix = conversation.prefix(early.length);
    expect(prefix.toJSON()).toEqual(early.toJSON());
    expect(prefix.prompt()).toEqual(early.prompt());
    expect(conversation.prefix(conversation.length).toJSON()).toEqual(conversation.toJSON());
    expect(() => conversation.prefix(early.length + 1)).toThrow(
      expect.objectContaining({ code: "ERR_VALUE" }),
    );
  });

  it("go through JSON bit for bit and grow alike afterwards", () => {
    const { conversation, tokenizer, template } = open("qwen-like", [user("Hi.")], { tools: [tool] });
    const logProbs = Float32Array.from([-0.1, -1e-30, Number.NEGATIVE_INFINITY]);
    conversation.appendGeneration({ tokens: [7, 8, 9], logProbs });
    const json = JSON.parse(JSON.stringify(conversation)) as ConversationJson;
    const again = Conversation.fromJSON(json, tokenizer, template);
    expect(again.tokens).toEqual(conversation.tokens);
    expect(again.segments).toEqual(conversation.segments);
    const grow = (c: Conversation) => c.append({ role: "tool", content: "x" }).prompt();
    expect(grow(again)).toEqual(grow(conversation));
  });

  it.each([
    { version: 2 },
    { tokens: [1, 2] },
    { tokens: undefined },
    { tokens: "x" },
    { turns: [] },
    { turns: [null] },
    { turns: 5 },
    { segments: [] },
    { segments: [null] },
    { segments: undefined },
  ])("are not read from JSON that does not fit: %j", (change) => {
    const { conversation, tokenizer, template } = open("qwen-like", [user("Hi.")]);
    const json = { ...conversation.toJSON(), ...change } as unknown as ConversationJson;
    expect(() => Conversation.fromJSON(json, tokenizer, template)).toThrow(
      expect.objectContaining({ code: "ERR_VALUE" }),
    );
  });

  it("are not read from JSON with ids, roles or origins that do not exist", () => {
    const { conversation, tokenizer, template } = open("qwen-like", [user("Hi.")]);
    const json = conversation.toJSON();
    for (const change of [
      { tokens: json.tokens.map(() => -5.5) },
      { turns: json.turns.map((turn) => ({ ...turn, role: "robot" })) },
      { segments: json.segments.map((segment) => ({ ...segment, source: "nowhere" })) },
    ])
      expect(() => Conversation.fromJSON({ ...json, ...change } as never, tokenizer, template)).toThrow(
        expect.objectContaining({ code: "ERR_VALUE" }),
      );
    for (const nothing of [null, "x"] as never[])
      expect(() => Conversation.fromJSON(nothing, tokenizer, template)).toThrow(
        expect.objectContaining({ code: "ERR_VALUE" }),
      );
  });

  it.each([undefined, null, "x", [null], [{ role: "user" }]])("do not start from %j", (messages) => {
    expect(() => open("smollm2", messages as never)).toThrow(expect.objectContaining({ code: "ERR_VALUE" }));
  });

  it("do not start from nothing", () => {
    expect(() => open("smollm2", [])).toThrow(expect.objectContaining({ code: "ERR_VALUE" }));
  });
});
