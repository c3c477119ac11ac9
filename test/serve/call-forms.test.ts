import { Ajv2020 } from "ajv/dist/2020.js";
import OpenAI from "openai";
import { describe, expect, it } from "vitest";
import { serve } from "../../lib/serve/server.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { byteTokenizerParts, ScriptedModel } from "../support/scripted-model.ts";
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
  "python-like": 'I look.<function_calls>weather(city="Bonn")\nwait()</function_calls>',
} as const;

describe.each(Object.entries(replies))("answers by a template that is %s", (name, reply) => {
  const tools = [weather, wait].map((one) => ({ type: "function" as const, function: one }));

  it("have all calls of a turn, streamed or not, and continue on the sampled ids", async () => {
    const model = new ScriptedModel(
      (prompt) => (prompt.includes("rain") ? "It rains." : reply),
      template(name),
    );
    const server = await serve({ learner: model, name: "scripted", port: 0 });
    open.push(server);
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
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
    const results = made.map(({ id }, i) => ({
      role: "tool" as const,
      tool_call_id: id,
      content: `rain ${i}`,
    }));
    messages.push(choices[0]!.message, ...results);
    const second = await client.chat.completions.create({ ...hello, messages, tools });
    expect(second.choices[0]!.message.content).toBe("It rains.");
    const ids = model.calls.at(-1)!.request.tokens!;
    expect(ids.slice(0, before.length)).toEqual(before);
    expect(model.decode(ids.slice(before.length))).toContain(`${reply}<|im_end|>`);

    // A conversation that was held elsewhere is written as the template would.
    const foreign = new ScriptedModel(() => "So it is.", template(name));
    const elsewhere = await serve({ learner: foreign, name: "scripted", port: 0 });
    open.push(elsewhere);
    const stranger = new OpenAI({ baseURL: `${elsewhere.url}/v1`, apiKey: "none", maxRetries: 0 });
    await stranger.chat.completions.create({ ...hello, messages, tools });
    expect(foreign.calls[0]!.prompt).toContain(reply.slice("I look.".length).trim());
  });

  it("are text if a call is malformed", async () => {
    const broken = reply.replace("wait", "wait<");
    const model = new ScriptedModel(() => broken, template(name));
    const server = await serve({ learner: model, name: "scripted", port: 0 });
    open.push(server);
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
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
    const tokenizer = new Tokenizer({ ...byteTokenizerParts(), chatTemplate: template(name) });
    const learner = await tinyLearner({ tokenizer }, { ...tinyConfig, max_position_embeddings: 4096 });
    const server = await serve({ learner, name: "tiny", port: 0 });
    open.push(server, { close: () => learner.dispose() });
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
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
    else expect((await refused).choices).toHaveLength(1);
  });
});
