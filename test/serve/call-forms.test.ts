import { Ajv2020 } from "ajv/dist/2020.js";
import OpenAI from "openai";
import { describe, expect, it } from "vitest";
import { serve } from "../../lib/serve/server.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { byteTokenizerParts, ScriptedModel, withControlTokens } from "../support/scripted-model.ts";
import { hello, open, weather } from "../support/scripted-server.ts";
import { tinyConfig, tinyLearner } from "../support/tiny.ts";
import { fixtureText } from "../tokens/fixtures.ts";

const template = (name: string) => fixtureText(`templates/${name}.jinja`);
const wait = { name: "wait", parameters: { type: "object", properties: {}, additionalProperties: false } };

/** Two calls, as templates of each form write them. */
const replies = {
  "tags-like":
    "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n</function>\n</tool_call>\n" +
    "<tool_call>\n<function=wait>\n</function>\n</tool_call>",
  "args-like": 'I look.[TOOL_CALLS]weather[ARGS]{"city": "Bonn"}[TOOL_CALLS]wait[ARGS]{}',
  "ids-like":
    'I look.\n[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Bonn"}, "id": "Aa1Bb2Cc3"}, ' +
    '{"name": "wait", "arguments": {}, "id": "Dd4Ee5Ff6"}]',
  "python-like": 'I look.<function_calls>weather(city="Bonn")\nwait()</function_calls>',
  "braces-like":
    'I look.<|tool_call>call:weather{city:<|"|>Bonn<|"|>}<tool_call|><|tool_call>call:wait{}<tool_call|>',
} as const;

/** Control tokens of templates that need some, and what ends a turn of calls. */
const controls: Readonly<Record<string, readonly string[]>> = {
  "braces-like": ["<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>", "<|turn>", "<turn|>"],
  "channels-like": ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"],
};
const endOf = (name: string) => (name === "braces-like" ? "<|tool_response>" : "<|im_end|>");

/** A client of a server of this model. */
async function clientOf(model: ScriptedModel): Promise<OpenAI> {
  const server = await serve({ learner: model, name: "scripted", port: 0 });
  open.push(server);
  return new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
}

/** A client of a server with a model of random weights. */
async function randomClient(name: string, marks = controls[name] ?? []): Promise<OpenAI> {
  const parts = withControlTokens(byteTokenizerParts(), marks);
  const tokenizer = new Tokenizer({ ...parts, chatTemplate: template(name) });
  const config = { ...tinyConfig, vocab_size: 300, max_position_embeddings: 4096 };
  const learner = await tinyLearner({ tokenizer }, config);
  const server = await serve({ learner, name: "tiny", port: 0 });
  open.push(server, { close: () => learner.dispose() });
  return new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
}

describe.each(Object.entries(replies))("answers by a template that is %s", (name, reply) => {
  const tools = [weather, wait].map((one) => ({ type: "function" as const, function: one }));

  it("have all calls of a turn, streamed or not, and continue on the sampled ids", async () => {
    const model = new ScriptedModel(
      (prompt) => (prompt.includes("rain") ? "It rains." : reply),
      template(name),
      controls[name],
    );
    const client = await clientOf(model);
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: "Weather in Bonn?" }];
    const { choices } = await client.chat.completions.create({ ...hello, messages, tools });
    const expected = [
      { type: "function", function: { name: "weather", arguments: '{"city": "Bonn"}' } },
      { type: "function", function: { name: "wait", arguments: "{}" } },
    ];
    expect(choices[0]).toMatchObject({
      finish_reason: "tool_calls",
      message: { content: "I look.", tool_calls: expected },
    });
    const made = choices[0]!.message.tool_calls!;
    expect(new Set(made.map(({ id }) => id)).size).toBe(2);
    const parts: object[] = [];
    for await (const part of await client.chat.completions.create({
      ...hello,
      messages,
      tools,
      stream: true,
    }))
      parts.push(...(part.choices[0]?.delta.tool_calls ?? []));
    expect(parts).toMatchObject(expected.map((call, index) => ({ index, ...call })));

    const before = model.calls[0]!.request.tokens!;
    const answers = made.map(({ id }, i) => ({
      role: "tool" as const,
      tool_call_id: id,
      content: `rain ${i}`,
    }));
    // Sent in another order, they are read in that of the calls.
    messages.push(choices[0]!.message, ...answers.toReversed());
    const second = await client.chat.completions.create({ ...hello, messages, tools });
    expect(second.choices[0]!.message.content).toBe("It rains.");
    const ids = model.calls.at(-1)!.request.tokens!;
    // Gemma 4's template drops the empty reasoning of the generation prompt.
    const kept = model.decode(before).replace(/<\|channel>thought\n<channel\|>$/, "");
    expect(model.decode(ids).startsWith(kept)).toBe(true);
    const later = model.decode(ids).slice(kept.length);
    expect(later).toContain(`${reply}${endOf(name)}`);
    expect(later.indexOf("rain 0")).toBeGreaterThan(0);
    expect(later.indexOf("rain 0")).toBeLessThan(later.indexOf("rain 1"));
    if (name === "braces-like") expect(later).toContain('response:wait{value:<|"|>rain 1<|"|>}');
    const given = name === "ids-like" ? ["Aa1Bb2Cc3", "Dd4Ee5Ff6"] : made.map(({ id }) => id);
    expect(made.map(({ id }) => id)).toEqual(given);
    const results = (text: string) => text.slice(text.indexOf("[TOOL_RESULTS]"));
    if (name === "ids-like")
      expect(results(later)).toBe(
        '[TOOL_RESULTS] {"content": rain 0, "call_id": "Aa1Bb2Cc3"}[/TOOL_RESULTS]' +
          '[TOOL_RESULTS] {"content": rain 1, "call_id": "Dd4Ee5Ff6"}[/TOOL_RESULTS]',
      );

    // A conversation that was held elsewhere is written as the template would.
    const foreign = new ScriptedModel(() => "So it is.", template(name), controls[name]);
    const stranger = await clientOf(foreign);
    await stranger.chat.completions.create({ ...hello, messages, tools });
    expect(foreign.calls[0]!.prompt).toContain(reply.slice("I look.".length).trim());
    if (name === "ids-like") expect(results(foreign.calls[0]!.prompt)).toBe(results(later));
  });

  it("are text if a call is malformed", async () => {
    const broken = name === "ids-like" ? reply.slice(0, -1) : reply.replace("wait", "wait<");
    const model = new ScriptedModel(() => broken, template(name), controls[name]);
    const client = await clientOf(model);
    const { choices } = await client.chat.completions.create({ ...hello, tools });
    expect(choices[0]).toMatchObject({ finish_reason: "stop", message: { content: broken } });
    expect(choices[0]!.message.tool_calls).toBeUndefined();
  });

  it("match a required function's schema, for a model of random weights", async () => {
    const schema = {
      type: "object",
      properties: {
        city: { enum: ["Bonn", "Köln"] },
        degrees: { type: "integer", minimum: -20, maximum: 40 },
        note: { type: "string" },
        rain: { type: ["boolean", "null"] },
        where: { $ref: "#/$defs/place" },
      },
      required: ["degrees", "rain", "where"],
      additionalProperties: false,
      $defs: {
        place: {
          type: "object",
          properties: { zone: { enum: ["a", "b"] } },
          required: ["zone"],
          additionalProperties: false,
        },
      },
    };
    const isValid = new Ajv2020({ allowUnionTypes: true }).compile(schema);
    const client = await randomClient(name);
    const asked = {
      ...{ model: "tiny", messages: hello.messages, temperature: 1.5, max_tokens: 1500 },
      tools: [{ type: "function" as const, function: { ...weather, parameters: schema } }, tools[1]!],
      tool_choice: "required" as const,
    };
    let complete = 0;
    for (let seed = 1; seed <= 6; seed++) {
      const { choices } = await client.chat.completions.create({ ...asked, seed });
      const { finish_reason, message } = choices[0]!;
      if (finish_reason === "length") continue;
      complete++;
      expect(finish_reason).toBe("tool_calls");
      const [made] = message.tool_calls as OpenAI.ChatCompletionMessageFunctionToolCall[];
      const given: unknown = JSON.parse(made!.function.arguments);
      expect(made!.function.name === "wait" ? made!.function.arguments === "{}" : isValid(given)).toBe(true);
    }
    expect(complete).toBeGreaterThan(1);
    const limited = { type: "object", properties: { a: { type: "string", format: "date" } } };
    const refused = client.chat.completions.create({
      ...{ ...asked, tools: [{ type: "function", function: { name: "on", parameters: limited } }] },
      ...(name === "tags-like" ? {} : { max_tokens: 400 }),
    });
    if (name === "tags-like")
      await expect(refused).rejects.toThrow(/the tool "on" has a parameter "a" with the format "date"/);
    else if (name === "braces-like")
      await expect(refused).rejects.toThrow(/the tool "on" has a parameter "a" with "format"/);
    else expect((await refused).choices).toHaveLength(1);
  });
});

describe("a template that writes a call as a message of its own, as gpt-oss's does", () => {
  const name = "channels-like";
  const tools = [weather, wait].map((one) => ({ type: "function" as const, function: one }));
  const header = "<|channel|>commentary to=functions.weather json<|message|>";
  const reasoned = (message: string) =>
    `<|channel|>analysis<|message|>Why.<|end|><|start|>assistant${message}`;

  it("answers with calls, and continues on the sampled ids without the reasoning", async () => {
    const call = `${header}{"city": "Bonn"}`;
    const model = new ScriptedModel(
      (prompt) => reasoned(prompt.includes("rain") ? "<|channel|>final<|message|>It rains." : call),
      template(name),
      controls[name],
    );
    const client = await clientOf(model);
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: "Weather in Bonn?" }];
    const { choices } = await client.chat.completions.create({ ...hello, messages, tools });
    const expected = { type: "function", function: { name: "weather", arguments: '{"city": "Bonn"}' } };
    expect(choices[0]).toMatchObject({
      finish_reason: "tool_calls",
      message: { content: null, tool_calls: [expected] },
    });
    const before = model.calls[0]!.request.tokens!;
    const [made] = choices[0]!.message.tool_calls!;
    messages.push(choices[0]!.message, { role: "tool", tool_call_id: made!.id, content: "rain" });
    const second = await client.chat.completions.create({ ...hello, messages, tools });
    expect(second.choices[0]!.message.content).toBe("<think>Why.</think>It rains.");
    const ids = model.calls.at(-1)!.request.tokens!;
    expect(ids.slice(0, before.length)).toEqual(before);
    expect(model.decode(ids.slice(before.length))).toBe(
      `${call}<|call|><|start|>functions.weather to=assistant<|channel|>commentary<|message|>"rain"<|end|>` +
        "<|start|>assistant",
    );
    // A server that did not write the call renders it as the template does.
    const foreign = new ScriptedModel(() => "<|channel|>final<|message|>So.", template(name), controls[name]);
    const stranger = await clientOf(foreign);
    await stranger.chat.completions.create({ ...hello, messages, tools });
    expect(foreign.calls[0]!.prompt).toContain(
      '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Bonn"}<|call|>' +
        '<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"rain"<|end|>',
    );
    // The template writes one call in a turn.
    const two = { ...choices[0]!.message, tool_calls: [made!, { ...made!, id: "call_2" }] };
    const refused = stranger.chat.completions.create({ ...hello, messages: [messages[0]!, two], tools });
    await expect(refused).rejects.toThrow(/only one call in a turn/);
  });

  it("answers with text if a call stands in another channel", async () => {
    const model = new ScriptedModel(
      () => reasoned("<|channel|>analysis to=functions.weather json<|message|>{}"),
      template(name),
      controls[name],
    );
    const client = await clientOf(model);
    const { choices } = await client.chat.completions.create({ ...hello, tools });
    expect(choices[0]!.finish_reason).toBe("stop");
    expect(choices[0]!.message.tool_calls).toBeUndefined();
  });

  it("writes a required call that matches the schema, for a model of random weights", async () => {
    const schema = {
      type: "object",
      properties: { city: { enum: ["Bonn", "Köln"] }, degrees: { type: "integer", minimum: 1, maximum: 40 } },
      required: ["city", "degrees"],
      additionalProperties: false,
    };
    const isValid = new Ajv2020().compile(schema);
    const client = await randomClient(name);
    const { choices } = await client.chat.completions.create({
      ...{ model: "tiny", messages: hello.messages, temperature: 1, max_tokens: 1000, seed: 1 },
      tools: [{ type: "function" as const, function: { ...weather, parameters: schema } }],
      tool_choice: "required" as const,
    });
    expect(choices[0]!.finish_reason).toBe("tool_calls");
    const [made] = choices[0]!.message.tool_calls as OpenAI.ChatCompletionMessageFunctionToolCall[];
    expect(isValid(JSON.parse(made!.function.arguments))).toBe(true);
  });

  it("keeps marks of calls that a required call has in its texts, for a model of random weights", async () => {
    const isValid = new Ajv2020().compile(longText);
    const client = await randomClient(name);
    for (let seed = 1; seed <= 4; seed++) {
      const { choices } = await client.chat.completions.create({
        ...{ model: "tiny", messages: hello.messages, temperature: 2, max_tokens: 2000, seed },
        tools: [{ type: "function" as const, function: { ...weather, parameters: longText } }],
        tool_choice: "required" as const,
      });
      expect(choices[0]!.finish_reason).toBe("tool_calls");
      const [made] = choices[0]!.message.tool_calls as OpenAI.ChatCompletionMessageFunctionToolCall[];
      expect(isValid(JSON.parse(made!.function.arguments))).toBe(true);
    }
  });
});

it.each(["channels-like", "braces-like", "args-like"])(
  "JSON has no control tokens of calls, for a model of random weights and %s's template",
  async (name) => {
    const marks = controls[name] ?? ["[TOOL_CALLS]", "[ARGS]"];
    const client = await randomClient(name, marks);
    for (let seed = 1; seed <= 2; seed++) {
      const { choices } = await client.chat.completions.create({
        ...{ model: "tiny", messages: hello.messages, temperature: 2, max_tokens: 2000, seed },
        response_format: {
          type: "json_schema",
          json_schema: { name: "long", schema: longText, strict: true },
        },
      });
      const { finish_reason, message } = choices[0]!;
      expect(finish_reason).toBe("stop");
      expect(new Ajv2020().validate(longText, JSON.parse(message.content!))).toBe(true);
      for (const mark of marks) expect(message.content).not.toContain(mark);
    }
  },
);

const longText = {
  type: "object",
  properties: { note: { type: "string", minLength: 200 } },
  required: ["note"],
  additionalProperties: false,
};
