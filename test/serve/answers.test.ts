import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, jsonSchema } from "ai";
import { Ajv2020 } from "ajv/dist/2020.js";
import OpenAI from "openai";
import { describe, expect, it } from "vitest";
import { serve } from "../../lib/serve/server.ts";
import { callingTokenizer } from "../support/calling-model.ts";
import { hello, open, start, weather } from "../support/scripted-server.ts";
import { tinyConfig, tinyLearner } from "../support/tiny.ts";

/** A learner of random weights that is told of tools, behind a server. */
async function startLearner() {
  const config = { ...tinyConfig, max_position_embeddings: 2048 };
  const learner = await tinyLearner({ tokenizer: callingTokenizer() }, config);
  const server = await serve({ learner, name: "tiny", port: 0 });
  open.push(server, { close: () => learner.dispose() });
  return new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
}

describe("constrained answers", () => {
  const request = { model: "tiny", messages: hello.messages, temperature: 1.5, max_tokens: 400 };
  const schema = {
    type: "object",
    properties: {
      city: { enum: ["Bonn", "Köln"] },
      degrees: { type: "integer", minimum: -20, maximum: 40 },
      rain: { type: ["boolean", "null"] },
    },
    required: ["city", "degrees", "rain"],
    additionalProperties: false,
  };
  const isValid = new Ajv2020({ allowUnionTypes: true }).compile(schema);
  const tools = [
    { type: "function" as const, function: { ...weather, parameters: schema } },
    {
      type: "function" as const,
      function: { name: "wait", parameters: { type: "object", properties: {}, additionalProperties: false } },
    },
  ];

  it("match the schema, streamed or not, for a model of random weights", async () => {
    const client = await startLearner();
    const response_format = { type: "json_schema" as const, json_schema: { name: "weather", schema } };
    for (const seed of [1, 2, 3]) {
      const { choices } = await client.chat.completions.create({ ...request, seed, response_format });
      const text = choices[0]!.message.content!;
      expect([choices[0]!.finish_reason, isValid(JSON.parse(text))]).toEqual(["stop", true]);
      let streamed = "";
      for await (const part of await client.chat.completions.create({
        ...request,
        seed,
        response_format,
        stream: true,
      }))
        streamed += part.choices[0]?.delta.content ?? "";
      expect(streamed).toBe(text);
    }
    const any = await client.chat.completions.create({
      ...request,
      n: 4,
      response_format: { type: "json_object" },
    });
    for (const { message, finish_reason } of any.choices)
      if (finish_reason === "stop") expect(JSON.parse(message.content!)).toBeTypeOf("object");
      else expect(message.content).toMatch(/^\{/);
  });

  it("are calls that match their function's schema if a call is required", async () => {
    const client = await startLearner();
    const named = { type: "function" as const, function: { name: "weather" } };
    for (const tool_choice of ["required", named] as const)
      for (const seed of [1, 2, 3]) {
        const asked = { ...request, seed, tools, tool_choice };
        const { choices } = await client.chat.completions.create(asked);
        expect(choices[0]!.finish_reason).toBe("tool_calls");
        const [made] = choices[0]!.message.tool_calls as OpenAI.ChatCompletionMessageFunctionToolCall[];
        const { name, arguments: text } = made!.function;
        expect(
          name === "wait" ? text === "{}" && tool_choice === "required" : isValid(JSON.parse(text)),
        ).toBe(true);
        const parts: OpenAI.ChatCompletionChunk.Choice.Delta.ToolCall[] = [];
        for await (const part of await client.chat.completions.create({ ...asked, stream: true }))
          parts.push(...(part.choices[0]?.delta.tool_calls ?? []));
        expect(parts).toMatchObject([{ index: 0, function: { name, arguments: text } }]);
      }
  });

  it("are a call or match the format if both are requested, and are refused if the schema cannot be compiled", async () => {
    const client = await startLearner();
    const format = (inner: Record<string, unknown>) => ({
      response_format: { type: "json_schema" as const, json_schema: { name: "a", schema: inner } },
    });
    const { choices } = await client.chat.completions.create({
      ...request,
      n: 6,
      tools,
      ...format({ enum: ["said"] }),
    });
    for (const { message } of choices)
      if (message.tool_calls === undefined) expect(message.content).toBe('"said"');
    const none = { type: "integer", minimum: 3, maximum: 1 };
    const wrong = client.chat.completions.create({ ...request, ...format(none) });
    await expect(wrong).rejects.toMatchObject({ status: 400, code: "ERR_VALUE" });
    const sort = { name: "sort", parameters: { type: "object", properties: { by: none } } };
    const refused = client.chat.completions.create({
      ...request,
      tools: [...tools, { type: "function", function: sort }],
      tool_choice: "required",
    });
    await expect(refused).rejects.toMatchObject({ status: 400, code: "ERR_VALUE" });
    await expect(refused).rejects.toThrow(/the grammar cannot be used: the schema "sort": /);
  });

  it("match the format even if they look like calls, unless there is such a function", async () => {
    const value = (name: string) => `{"name": "${name}", "arguments": {}}`;
    const response_format = { type: "json_object" as const };
    for (const [name, reason] of [
      ["Ada", "stop"],
      ["wait", "tool_calls"],
    ] as const) {
      const { client } = await start(() => value(name));
      const { choices } = await client.chat.completions.create({ ...hello, tools, response_format });
      expect(choices[0]!.finish_reason).toBe(reason);
      expect(choices[0]!.message.content).toBe(name === "Ada" ? value(name) : null);
    }
  });

  it("reach the ai SDK as objects", async () => {
    const client = await startLearner();
    const provider = createOpenAICompatible({
      name: "nlac",
      baseURL: client.baseURL,
      supportsStructuredOutputs: true,
    });
    const { object } = await generateObject({
      model: provider.chatModel("tiny"),
      schema: jsonSchema<object>(schema as never),
      prompt: "Weather?",
      temperature: 1.5,
    });
    expect(isValid(object)).toBe(true);
  });
});
