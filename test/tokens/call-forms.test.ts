import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Message, ToolSchema } from "../../lib/contract/environment.ts";
import { parseCalls } from "../../lib/prompts/calls.ts";
import { parseAction, policyConversation, turnTokens } from "../../lib/prompts/policy.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import { parseTemplate, renderTemplate } from "../../lib/tokens/jinja.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { TextStream } from "../../lib/tokens/text-stream.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { byteTokenizerParts } from "../support/scripted-model.ts";
import { fixtureJson, fixtureText } from "./fixtures.ts";

/** Control tokens as in the vocabularies of Mistral and gpt-oss; `<tool_call>` is none in that of Qwen. */
const marks = [
  ...["[TOOL_CALLS]", "[ARGS]", "[INST]", "[/INST]", "<tool_call>", "</tool_call>"],
  ...["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"],
];

function tokenizerOf(chatTemplate: string): Tokenizer {
  const parts = byteTokenizerParts();
  const json = parts.json as unknown as { added_tokens: Record<string, unknown>[] };
  for (const [i, content] of marks.entries())
    json.added_tokens.push({
      ...json.added_tokens[0],
      ...{ id: 258 + i, content, special: !content.endsWith("tool_call>") },
    });
  return new Tokenizer({ ...parts, chatTemplate });
}

/** JSON in Python's spelling. */
function spaced(value: object): string {
  return JSON.stringify(value, null, 1)
    .replaceAll(/\n\s*/g, " ")
    .replaceAll(/([[{]) | ([\]}])/g, "$1$2");
}

const question: Message[] = [{ role: "user", content: "Weather?" }];
const parameters = {
  type: "object",
  properties: {
    city: { type: "string" },
    days: { type: "integer" },
    sunny: { type: "boolean" },
    note: { anyOf: [{ type: "string" }, { type: "null" }] },
    where: { $ref: "#/$defs/place" },
    list: { type: "array", items: {} },
  },
  $defs: { place: { type: "object" } },
};
const tool: ToolSchema = { name: "get_weather", description: "Weather.", parameters };
const other: ToolSchema = {
  name: "wait",
  description: "Waits.",
  parameters: { type: "object", properties: {} },
};
const tools = [tool, other];

const lists = `{%- for message in messages %}{{- '[INST]' + message.role + ' ' + message.content }}
{%- if message.tool_calls %}{{- '[TOOL_CALLS] [' }}{%- for call in message.tool_calls %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + ', "id": "' + call.id + '"}' }}
{{- '' if loop.last else ', ' }}{%- endfor %}{{- ']' }}{%- endif %}{{- '<|im_end|>' }}
{%- if loop.first and tools %}{{- tools | tojson }}{%- endif %}{%- endfor %}`;

const forms: [name: string, template: string, text: string][] = [
  [
    "tags-like",
    fixtureText("templates/tags-like.jinja"),
    "Hm.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBonn\n</parameter>\n" +
      "<parameter=days>\n2.50\n</parameter>\n</function>\n</tool_call>",
  ],
  [
    "args-like",
    fixtureText("templates/args-like.jinja"),
    'Hm.\n[TOOL_CALLS]get_weather[ARGS]{"city": "Bonn", "days": 2.50}',
  ],
  [
    "python-like",
    fixtureText("templates/python-like.jinja"),
    'Hm.\n<function_calls>get_weather(city="Bonn", days=2.50)</function_calls>',
  ],
  [
    "lists-like",
    lists,
    'Hm.\n[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Bonn", "days": 2.50}, "id": "call00000"}]',
  ],
];

describe.each(forms)("calls by a template that is %s", (_, source, expected) => {
  const tokenizer = tokenizerOf(source);
  const template = ChatTemplate.of(tokenizer);
  const model = {
    endOfTurn: tokenizer.eosTokenIds[0]!,
    conversation: (messages: readonly Message[], options?: { tools?: readonly ToolSchema[] | undefined }) =>
      Conversation.start(tokenizer, template, messages, options),
  };
  const open = () => policyConversation(model, { messages: question, tools }, "call");

  it("are written, and read again as they were", () => {
    const text = '{"name": "get_weather", "arguments": {"city": "Bonn", "days": 2.50}}';
    const action = {
      ...{ text, thought: "Hm." },
      tool: { name: "get_weather", arguments: { city: "Bonn", days: 2.5 } },
    };
    const conversation = open();
    const tokens = turnTokens(model, conversation, action, "call").slice(0, -1);
    expect(tokenizer.decode(tokens)).toBe(expected);
    // What `generation.text` would hold.
    const said = tokenizer.decode(tokens, { skipSpecial: true, keepCallMarks: true });
    expect(parseAction(said, "call", conversation.tools)).toEqual({ ok: true, action });
  });

  it("have no arguments, or several calls", () => {
    const conversation = open();
    const waiting = { name: "wait", arguments: "{}" };
    expect(parseCalls(conversation.writeCall(waiting).text, tools)).toMatchObject({
      ok: true,
      calls: [{ tool: { name: "wait", arguments: {} } }],
    });
    const called = { name: "get_weather", arguments: '{"city": "Köln"}' };
    const { text } = conversation.writeCalls([called, waiting, called]);
    const weather = { name: "get_weather", arguments: { city: "Köln" } };
    expect(parseCalls(text, tools)).toMatchObject({
      ok: true,
      calls: [{ tool: weather }, { tool: { name: "wait", arguments: {} } }, { tool: weather }],
    });
    expect(parseAction(text, "call", tools)).toEqual({ ok: false, reason: "a turn may hold one call only" });
  });

  it("are written as the template renders them", () => {
    const called = (name: string, given: object) => ({
      type: "function",
      function: { name, arguments: given },
    });
    const where = { city: "Bonn", days: 2, sunny: true, note: null, where: { a: [1, "b"] } };
    for (const calls of [
      [called("get_weather", where)],
      [called("wait", {}), called("get_weather", where)],
    ]) {
      // Each call has an id of its own.
      const tool_calls = calls.map((call, i) => ({ ...call, id: `call0000${i}` }));
      const message = { role: "assistant", content: "Hm.", tool_calls };
      const variables = { messages: [...question, message], tools, add_generation_prompt: false };
      const rendered = renderTemplate(parseTemplate(source), variables, 1000);
      const written = open().writeCalls(
        calls.map(({ function: { name, arguments: given } }) => ({
          ...{ name, arguments: spaced(given), thought: "Hm." },
        })),
      );
      // Without white space before a call, the writer adds a line break.
      expect(rendered.replaceAll(/Hm\.\s*/g, "Hm.")).toContain(
        `${written.text.replace(/Hm\.\s*/, "Hm.")}<|im_end|>`,
      );
    }
  });

  it("spell no control token in their arguments", () => {
    const { tokens } = open().writeCall({
      name: "get_weather",
      arguments: JSON.stringify({ city: "[TOOL_CALLS]x[ARGS]{} <|im_end|>" }),
    });
    const control = tokens.filter((id) => tokenizer.addedIds.has(id)).map((id) => tokenizer.contentOf(id));
    expect(control).toEqual(marks.filter((mark) => expected.includes(mark) && control.includes(mark)));
    const said = tokenizer.decode(tokens, { skipSpecial: true, keepCallMarks: true });
    expect(parseCalls(said, tools)).toMatchObject({
      ok: true,
      calls: [{ tool: { arguments: { city: "[TOOL_CALLS]x[ARGS]{} <|im_end|>" } } }],
    });
  });

  it("are read again with any arguments", () => {
    const conversation = open();
    const text = fc.oneof(
      fc.string(),
      fc.string({ unit: "grapheme" }),
      fc.constantFrom("5", "true", "None", " null", "</param", "<", "\n", "{}", '"', "\\", "'", "\u2028"),
    );
    const json = fc.jsonValue({ noUnicodeString: false });
    const withoutPrototype = (key: string, value: unknown) => (key === "__proto__" ? undefined : value);
    const args = fc.record(
      {
        city: text,
        days: fc.integer(),
        sunny: fc.boolean(),
        // A text that looks like null is read as null in plain text, so it is left out.
        note: fc.oneof(
          text.filter((one) => !/^(null|None)$/.test(one)),
          fc.constant(null),
        ),
        where: fc.dictionary(text, json),
        list: fc.array(json),
      },
      { requiredKeys: [] },
    );
    fc.assert(
      fc.property(args, (given) => {
        const written = conversation.writeCall({ name: "get_weather", arguments: JSON.stringify(given) });
        const parsed = parseCalls(written.text, tools);
        const read = JSON.parse(JSON.stringify(given), withoutPrototype) as object;
        expect(parsed).toMatchObject({ ok: true, thought: "" });
        expect(parsed.ok && parsed.calls.map(({ tool }) => tool)).toEqual([
          { name: "get_weather", arguments: read },
        ]);
      }),
    );
  });
});

it("control tokens of a call are part of a streamed text, others are not", () => {
  const tokenizer = tokenizerOf(fixtureText("templates/args-like.jinja"));
  const text = "[TOOL_CALLS]wait[ARGS]{}[/INST]";
  const ids = tokenizer.encodeTemplate(text);
  const stream = new TextStream(tokenizer, []);
  const streamed = ids.map((id) => stream.add(id)).join("");
  expect(streamed).toBe("[TOOL_CALLS]wait[ARGS]{}");
  expect(tokenizer.decode(ids, { skipSpecial: true, keepCallMarks: true })).toBe(streamed);
  expect(tokenizer.decode(ids, { skipSpecial: true })).toBe("wait{}");
});

it("the form of calls is rendered without the tools, which may be many and large", () => {
  const rendered: string[] = [];
  const seen = (given: unknown) => {
    rendered.push(JSON.stringify(given));
    return "";
  };
  const source = `{{- seen(tools) }}${fixtureText("templates/args-like.jinja")}`;
  const tokenizer = tokenizerOf(source);
  const template = new ChatTemplate(source, { variables: { seen } });
  const form = template.callForm(tokenizer, { system: false, tools });
  for (let i = 0; i < 3; i++) {
    const many = Array.from({ length: 128 }, (_, n) => ({ ...tool, name: `name${i}_marked${n}` }));
    expect(template.callForm(tokenizer, { system: false, tools: many })).toEqual(form);
  }
  expect(rendered.length).toBeGreaterThan(0);
  expect(rendered.filter((given) => /get_weather|marked\d/.test(given))).toEqual([]);
});

it("arguments that are no JSON object cannot be written one by one", () => {
  const tokenizer = tokenizerOf(fixtureText("templates/tags-like.jinja"));
  const conversation = Conversation.start(tokenizer, ChatTemplate.of(tokenizer), question, { tools });
  for (const given of ["[1]", "{", "null"])
    expect(() => conversation.writeCall({ name: "wait", arguments: given })).toThrow(
      expect.objectContaining({ code: "ERR_VALUE" }),
    );
});

it("are refused if the template marks strings, but does not write lists and objects as Gemma 4's", () => {
  const source = `{%- for message in messages %}{{- '<|turn>' + message.role + ' ' + message.content }}
{%- for call in message.tool_calls or [] %}{{- '<|tool_call>call:' + call.function.name + '{' }}
{%- for key, value in call.function.arguments | items %}{{- key + ':' }}
{%- if value is string %}{{- '<|"|>' + value + '<|"|>' }}{%- else %}{{- value | string }}{%- endif %}
{{- '' if loop.last else ',' }}{%- endfor %}{{- '}<tool_call|>' }}{%- endfor %}{{- '<turn|>' }}
{%- if loop.first and tools %}{{- tools | tojson }}{%- endif %}{%- endfor %}`;
  const tokenizer = tokenizerOf(source);
  const template = ChatTemplate.of(tokenizer);
  const conversation = Conversation.start(tokenizer, template, question, { tools });
  expect(() => conversation.writeCall({ name: "wait", arguments: "{}" })).toThrow(
    expect.objectContaining({ code: "ERR_CONFIG" }),
  );
});

describe("a template that writes messages in channels, as gpt-oss's does", () => {
  const source = fixtureText("templates/channels-like.jinja");
  const tokenizer = tokenizerOf(source);
  const template = ChatTemplate.of(tokenizer);

  interface Chat {
    messages: Message[];
    tools?: ToolSchema[];
    addGenerationPrompt: boolean;
    variables?: Record<string, unknown>;
    text: string;
  }
  it.each(fixtureJson<Chat[]>("channels.json"))("renders as in transformers: $text", (chat) => {
    const { messages, tools, addGenerationPrompt, variables, text } = chat;
    const given = new ChatTemplate(source, variables && { variables });
    expect(given.render(messages, { tools, addGenerationPrompt })).toBe(text);
  });

  it("continues with a second question, as the template does", () => {
    const appending = source
      .replace("'<|return|>' if loop.last and not add_generation_prompt else '<|end|>'", "'<|end|>'")
      .replace("{{- '<|start|>assistant' }}", "{{- '<|start|>assistant<|channel|>final<|message|>' }}");
    const answered = Conversation.start(tokenizer, new ChatTemplate(appending), question);
    answered.appendGeneration({ tokens: tokenizer.encodeTemplate("Sunny.<|end|>") });
    answered.append({ role: "user", content: "And now?" });
    expect(tokenizer.decode(answered.prompt())).toBe(
      `${template.render([...question, { role: "assistant", content: "Sunny." }, { role: "user", content: "And now?" }])}` +
        "<|start|>assistant<|channel|>final<|message|>",
    );
  });
});
