import { execFile, spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { describe, expect, it } from "vitest";
import { serve } from "../../lib/serve/server.ts";
import { ScriptedModel } from "../support/scripted-model.ts";
import { hello, open, start, weather } from "../support/scripted-server.ts";
import { logSoftmax, tinyLearner } from "../support/tiny.ts";

const call = (city: string) =>
  `<tool_call>\n{"name": "weather", "arguments": {"city": "${city}"}}\n</tool_call>`;

describe("the openai client", () => {
  it("lists the model, and gets an error for an unknown one", async () => {
    const { client } = await start(() => "Hi");
    expect((await client.models.list()).data.map(({ id }) => id)).toEqual(["scripted"]);
    expect((await client.models.retrieve("scripted")).owned_by).toBe("nlac");
    await expect(client.models.retrieve("other")).rejects.toMatchObject({
      status: 404,
      code: "model_not_found",
    });
    await expect(client.chat.completions.create({ ...hello, model: "other" })).rejects.toMatchObject({
      status: 404,
    });
  });

  it("gets an answer with its usage, several with n, and passes its parameters to the model", async () => {
    const { client, model } = await start((_, __, i) => `Answer ${i}.`);
    const one = await client.chat.completions.create({
      ...hello,
      temperature: 0.5,
      top_p: 0.9,
      seed: 7,
      max_tokens: 40,
      stop: "END",
    });
    expect(one.choices[0]!.message).toMatchObject({ role: "assistant", content: "Answer 0." });
    expect(one.choices[0]!.finish_reason).toBe("stop");
    const { prompt, request } = model.calls[0]!;
    expect(prompt).toMatch(/Hello<\|im_end\|>\n<\|im_start\|>assistant\n$/);
    expect(request).toMatchObject({ temperature: 0.5, topP: 0.9, seed: 7n, maxNewTokens: 40, stop: ["END"] });
    expect(one.usage).toMatchObject({
      prompt_tokens: request.tokens!.length,
      completion_tokens: 10,
      total_tokens: request.tokens!.length + 10,
    });

    // Parameters that OpenAI's API lacks, and the defaults.
    await client.chat.completions.create({ ...hello, temperature: 0, top_k: 5, min_p: 0.1 } as never);
    await client.chat.completions.create({ ...hello, top_k: -1 } as never);
    const [more, plain] = model.calls.splice(1);
    expect([more?.request, plain?.request]).toMatchObject([
      { temperature: 0, topP: 1, topK: 5, minP: 0.1 },
      { temperature: 1, topP: 1, topK: 0, minP: 0 },
    ]);

    const many = await client.chat.completions.create({ ...hello, n: 3, seed: 7 });
    expect(many.choices.map(({ index, message }) => [index, message.content])).toEqual(
      [0, 1, 2].map((i) => [i, `Answer ${i}.`]),
    );
    const seeds = model.calls.slice(1).map(({ request }) => request.seed);
    expect(seeds[0]).toBe(7n);
    expect(new Set(seeds).size).toBe(3);
    const cut = await start(() => "On and on…");
    expect((await cut.client.chat.completions.create(hello)).choices[0]!.finish_reason).toBe("length");
  });

  it("gets log probabilities and ids", async () => {
    const { client, model } = await start(() => "Hé");
    const answer = (await client.chat.completions.create({
      ...hello,
      logprobs: true,
      return_token_ids: true,
    } as never)) as OpenAI.ChatCompletion;
    const { content } = answer.choices[0]!.logprobs!;
    expect(content!.map(({ logprob }) => logprob)).toEqual(Array(4).fill(-0.5));
    // "é" is two tokens, each of a byte that is no character by itself.
    expect(content!.slice(0, 3).map(({ bytes }) => bytes)).toEqual([[72], [0xc3], [0xa9]]);
    expect((answer.choices[0] as never as { token_ids: number[] }).token_ids).toEqual([
      ...model.encode("Hé"),
      model.endOfTurn,
    ]);
    expect((answer as never as { prompt_token_ids: number[] }).prompt_token_ids).toEqual(
      model.calls[0]!.request.tokens,
    );
  });

  it("gets the most probable tokens at each position, with their bytes, streamed or not, from both endpoints", async () => {
    const learner = await tinyLearner();
    const server = await serve({ learner, name: "tiny", port: 0 });
    open.push(server, { close: () => learner.dispose() });
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
    const { tokenizer, info } = learner;
    /**
     * log softmax of the logits sorted, as long as it is asked for, where each of `written` stands.
     */
    const expected = async (prompt: readonly number[], written: readonly number[], most: number) => {
      const [logits] = await learner.logits([[...prompt, ...written]]);
      return written.map((token, i) => {
        const row = logSoftmax(logits!, prompt.length + i - 1, info.vocabSize);
        const order = [...row.keys()].sort((a, b) => row[b]! - row[a]!);
        return { own: row[token]!, top: order.slice(0, most).map((id) => ({ id, logProb: row[id]! })) };
      });
    };

    const request = { model: "tiny", messages: hello.messages, seed: 3, max_tokens: 12, n: 2 };
    const asked = { ...request, logprobs: true, top_logprobs: 20, return_token_ids: true };
    type Ids = { prompt_token_ids: number[]; choices: { token_ids: number[] }[] };
    const whole = await client.chat.completions.create(asked);
    const { prompt_token_ids, choices } = whole as never as Ids;
    for (const [c, { token_ids }] of choices.entries()) {
      const content = whole.choices[c]!.logprobs!.content!;
      const wanted = await expected(prompt_token_ids, token_ids, 20);
      expect(content).toHaveLength(token_ids.length);
      for (const [i, { logprob, top_logprobs }] of content.entries()) {
        expect(logprob).toBeCloseTo(wanted[i]!.own, 4);
        expect(top_logprobs.map(({ token, bytes }) => ({ token, bytes }))).toEqual(
          wanted[i]!.top.map(({ id }) => ({
            token: learner.decode([id]),
            bytes: [...tokenizer!.bytesOf(id)],
          })),
        );
        for (const [k, { logprob }] of top_logprobs.entries())
          expect(logprob).toBeCloseTo(wanted[i]!.top[k]!.logProb, 4);
      }
    }
    const streamed: OpenAI.ChatCompletionTokenLogprob[][] = [[], []];
    for await (const part of await client.chat.completions.create({ ...asked, stream: true }))
      for (const { index, logprobs } of part.choices) streamed[index]!.push(...(logprobs?.content ?? []));
    expect(streamed).toEqual(whole.choices.map(({ logprobs }) => logprobs!.content));
    const [plain] = (await client.chat.completions.create({ ...request, logprobs: true })).choices;
    expect(plain!.logprobs!.content!.flatMap(({ top_logprobs }) => top_logprobs)).toEqual([]);

    const completion = {
      model: "tiny",
      prompt: "On",
      seed: 4,
      max_tokens: 12,
      logprobs: 5,
      return_token_ids: true,
    };
    const [completed] = (await client.completions.create(completion)).choices;
    const written = (completed as never as { token_ids: number[] }).token_ids;
    // Half of a character has no text: its name is its bytes.
    const name = (id: number) =>
      id < 128 || id > 255 ? learner.decode([id]) : `bytes:\\x${id.toString(16)}`;
    expect(completed!.logprobs!.tokens).toEqual(written.map(name));
    const maps = completed!.logprobs!.top_logprobs as Record<string, number>[];
    for (const [i, { own, top }] of (await expected(learner.encode("On"), written, 5)).entries()) {
      const all = [...top, { id: written[i]!, logProb: own }];
      expect(Object.keys(maps[i]!).sort()).toEqual([...new Set(all.map(({ id }) => name(id)))].sort());
      for (const { id, logProb } of all) expect(maps[i]![name(id)]).toBeCloseTo(logProb, 4);
    }
    const parts: OpenAI.CompletionChoice[] = [];
    for await (const part of await client.completions.create({ ...completion, stream: true }))
      parts.push(...part.choices);
    expect(parts.at(-1)!.logprobs).toEqual(completed!.logprobs);
    const { choices: alone } = await client.completions.create({ ...completion, logprobs: 0 });
    expect(alone[0]!.logprobs!.top_logprobs).toBeNull();
    for (const logprobs of [6, -1, true]) {
      const wrong = client.completions.create({ ...completion, logprobs } as never);
      await expect(wrong).rejects.toMatchObject({ status: 400, param: "logprobs" });
    }
  });

  it("streams the same text as without streaming, in whole characters", async () => {
    const text = "Grüße 👋 an dich";
    const { client } = await start(() => text);
    for (const request of [{ ...hello }, { ...hello, n: 2 }]) {
      const stream = await client.chat.completions.create({
        ...request,
        stream: true,
        stream_options: { include_usage: true },
      });
      const texts = ["", ""];
      let usage: OpenAI.CompletionUsage | null | undefined;
      const reasons: (string | null)[] = [];
      for await (const { choices, usage: counted } of stream) {
        for (const { index, delta, finish_reason } of choices) {
          expect(delta.content ?? "").not.toContain("\ufffd");
          texts[index] += delta.content ?? "";
          if (finish_reason !== null) reasons.push(finish_reason);
        }
        usage = counted ?? usage;
      }
      expect(texts.filter((part) => part !== "")).toEqual(Array(reasons.length).fill(text));
      expect(usage!.completion_tokens).toBe(reasons.length * (Buffer.byteLength(text) + 1));
    }
  });

  it("completes prompts of text and of ids", async () => {
    const { client, model } = await start((prompt) => `${prompt}!`);
    const answer = await client.completions.create({
      model: "scripted",
      prompt: ["one", "two"],
      n: 2,
      max_tokens: 9,
    });
    expect(answer.choices.map(({ text }) => text)).toEqual(["one!", "one!", "two!", "two!"]);
    expect(model.calls[0]!.request.maxNewTokens).toBe(9);
    const ids = await client.completions.create({
      model: "scripted",
      prompt: model.encode("ids"),
      logprobs: 0,
    });
    expect(ids.choices[0]!.text).toBe("ids!");
    expect(ids.choices[0]!.logprobs!.token_logprobs).toHaveLength(5);
    let streamed = "";
    for await (const part of await client.completions.create({
      model: "scripted",
      prompt: "s",
      stream: true,
    }))
      streamed += part.choices[0]!.text;
    expect(streamed).toBe("s!");
  });

  it("counts every prompt once, and all tokens of the answers", async () => {
    const { client, model } = await start((_, __, i) => "x".repeat(i));
    const chat = await client.chat.completions.create({ ...hello, n: 3, seed: 1 });
    const prompt = model.calls[0]!.request.tokens!.length;
    // With the end of the turn: 1, 2 and 3 tokens.
    expect(chat.usage).toEqual({
      ...{ prompt_tokens: prompt, completion_tokens: 6, total_tokens: prompt + 6 },
      prompt_tokens_details: { cached_tokens: 0 },
    });

    model.calls.length = 0;
    const prompts = { model: "scripted", prompt: ["one", "three"], n: 2, seed: 1 };
    const { usage } = await client.completions.create(prompts);
    expect(usage).toMatchObject({ prompt_tokens: 8, total_tokens: 8 + usage!.completion_tokens });
    const seeds = model.calls.map(({ request }) => request.seed);
    expect([seeds[0], new Set(seeds).size]).toEqual([1n, 4]); // no two completions draw the same numbers
  });

  it("counts what was cached of a prompt once, however many answers it gets", async () => {
    const learner = await tinyLearner();
    const server = await serve({ learner, name: "tiny", port: 0 });
    open.push(server, { close: () => learner.dispose() });
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
    const [known, unknown] = ["known ".repeat(20), "new ".repeat(20)];
    const cached = async (prompt: string | string[], n: number) => {
      const body = { model: "tiny", prompt, n, max_tokens: 2 };
      const { usage } = await client.completions.create(body);
      return usage!.prompt_tokens_details!.cached_tokens;
    };
    await cached(known, 1);
    const once = await cached(known, 1);
    expect(once).toBeGreaterThan(60);
    expect(await cached(known, 3)).toBe(once);
    expect(await cached([unknown, known], 3)).toBe(once);
  });

  it("may ask for more tokens than the context has room for", async () => {
    const { client, model } = await start(() => "Hi.");
    Object.assign(model, { maxPositions: 100 });
    for (const max_tokens of [undefined, 5, 90])
      await client.chat.completions.create({ ...hello, ...(max_tokens && { max_tokens }) });
    const [request] = model.calls.map(({ request }) => request);
    const room = 100 - request!.tokens!.length;
    expect(room).toBeLessThan(90);
    expect(model.calls.map(({ request }) => request.maxNewTokens)).toEqual([room, 5, room]);
  });

  it.each([true, false])("streams usage in the last chunk alone: requested %s", async (include_usage) => {
    const { client } = await start(() => "Hello");
    const options = { stream: true, stream_options: { include_usage } } as const;
    const chunks: { usage?: unknown }[] = [];
    for await (const chunk of await client.chat.completions.create({ ...hello, ...options }))
      chunks.push(chunk);
    const counted = chunks.length;
    for await (const chunk of await client.completions.create({ model: "scripted", prompt: "s", ...options }))
      chunks.push(chunk);
    // As OpenAI's API: null in all other chunks if it was requested, else absent.
    for (const [i, { usage }] of chunks.entries()) {
      const last = i === counted - 1 || i === chunks.length - 1;
      if (!include_usage) expect(usage).toBeUndefined();
      else if (last) expect(usage).toMatchObject({ completion_tokens: 6 });
      else expect(usage).toBeNull();
    }
  });

  it("calls tools, streamed or not, and continues with their answers on the sampled ids", async () => {
    const { client, model } = await start((prompt) =>
      prompt.includes("<tool_response>") ? "It rains." : `Let me see.\n${call("Bonn")}`,
    );
    const tools = [{ type: "function" as const, function: weather }];
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: "Weather in Bonn?" }];
    const { choices } = await client.chat.completions.create({ ...hello, messages, tools });
    expect(choices[0]).toMatchObject({
      finish_reason: "tool_calls",
      message: {
        content: "Let me see.",
        tool_calls: [{ type: "function", function: { name: "weather", arguments: '{"city": "Bonn"}' } }],
      },
    });

    const parts: OpenAI.ChatCompletionChunk.Choice.Delta.ToolCall[] = [];
    for await (const part of await client.chat.completions.create({
      ...hello,
      messages,
      tools,
      stream: true,
    }))
      parts.push(...(part.choices[0]?.delta.tool_calls ?? []));
    expect(parts).toMatchObject([{ index: 0, function: { name: "weather", arguments: '{"city": "Bonn"}' } }]);

    const written = model.calls[0]!.request.tokens!.length;
    messages.push(choices[0]!.message, {
      role: "tool",
      tool_call_id: choices[0]!.message.tool_calls![0]!.id,
      content: "rain",
    });
    const second = await client.chat.completions.create({ ...hello, messages, tools });
    expect(second.choices[0]!.message.content).toBe("It rains.");
    const ids = model.calls.at(-1)!.request.tokens!;
    expect(ids.slice(0, written)).toEqual(model.calls[0]!.request.tokens);
    expect(model.decode(ids.slice(written))).toContain(`Let me see.\n${call("Bonn")}<|im_end|>`);

    // A conversation that was held elsewhere is written as the template would.
    const foreign = await start(() => "So it is.");
    await foreign.client.chat.completions.create({ ...hello, messages, tools });
    expect(foreign.model.calls[0]!.prompt).toContain('{"name": "weather", "arguments": {"city": "Bonn"}}');
    const none = await client.chat.completions.create({ ...hello, tools, tool_choice: "none" });
    expect(none.choices[0]!.message.tool_calls).toBeUndefined();
  });

  it.each([
    [{ messages: [] }, /messages/],
    [
      { messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "x" } }] }] },
      /messages\[0\]\.content.*Only text/,
    ],
    [{ messages: [{ role: "nobody", content: "x" }] }, /messages\[0\]\.role/],
    [{ temperature: 3 }, /temperature/],
    [{ n: 0 }, /^400 n: /],
    [{ top_logprobs: 5 }, /top_logprobs: log probabilities need logprobs/],
    [{ logprobs: true, top_logprobs: 21 }, /^400 top_logprobs: .*<=20/],
    [{ logprobs: true, top_logprobs: -1 }, /^400 top_logprobs: .*>=0/],
    [{ logprobs: 1 }, /logprobs/],
    [{ response_format: { type: "xml" } }, /response_format/],
    [
      { response_format: { type: "json_schema", json_schema: { name: "a", schema: { type: "strin" } } } },
      /response_format\.jsonSchema has a "type" that is none: "strin"/,
    ],
    [
      { response_format: { type: "json_schema", json_schema: { schema: { not: {} } } } },
      /response_format\.jsonSchema has "not", which cannot be enforced/,
    ],
    [{ presence_penalty: 1 }, /presence_penalty: penalties are not supported/],
    [{ repetition_penalty: 1.1 }, /repetition_penalty: penalties are not supported/],
    [
      { chat_template_kwargs: { enable_thinking: false } },
      /chat_template_kwargs: the chat template takes no/,
    ],
    [{ top_k: -2 }, /top_k/],
    [{ tool_choice: "required" }, /tool_choice: the request has no tools/],
    [
      {
        tools: [{ type: "function", function: weather }],
        tool_choice: { type: "function", function: { name: "wether" } },
      },
      /tool_choice: no tool is named "wether"/,
    ],
    [
      { tools: [{ type: "function", function: { name: "a", parameters: [] } }] },
      /tools\[0\]\.function\.parameters: must be a JSON Schema, as an object/,
    ],
    [
      {
        tools: [
          { type: "function", function: { name: "a", parameters: { uniqueItems: true, type: "array" } } },
        ],
        tool_choice: { type: "function", function: { name: "a" } },
      },
      /the tool "a"\.jsonSchema has "uniqueItems"/,
    ],
    [{ seed: "x" }, /seed/],
    [{ functions: [{ name: "f" }] }, /functions: use tools instead/],
    [{ function_call: { name: "f" } }, /function_call: use tools and tool_choice instead/],
    [{ n: 2, best_of: 3 }, /best_of: .*with n/],
    [{ messages: [{ role: "user", content: null }] }, /messages\[0\]\.content: must be a text/],
  ])("is told what is wrong with %j", async (change, message) => {
    const { client, model } = await start(() => "Hi");
    const wrong = client.chat.completions.create({ ...hello, ...change } as never);
    await expect(wrong).rejects.toMatchObject({ status: 400, type: "invalid_request_error" });
    await expect(wrong).rejects.toThrow(message);
    expect(model.calls).toEqual([]);
  });

  it("accepts tools without description and parameters, and gives every call a different id", async () => {
    const { client } = await start(() => call("Bonn"));
    const bare = { ...weather, description: null, parameters: null };
    const tools = [{ type: "function", function: bare }];
    const ask = () => client.chat.completions.create({ ...hello, tools } as never) as never;
    const answers: OpenAI.ChatCompletion[] = [await ask(), await ask()];
    const ids = answers.map(({ choices }) => choices[0]!.message.tool_calls![0]!.id);
    expect(new Set(ids).size).toBe(2);
  });

  it("may start a conversation with a call by the assistant", async () => {
    const { client, model } = await start(() => "So it is.");
    const called = { name: "weather", arguments: '{"city": "Bonn"}' };
    const tool_calls = [{ id: "a", type: "function" as const, function: called }];
    const messages: OpenAI.ChatCompletionMessageParam[] = [
      { role: "assistant", content: "I look.", tool_calls },
      { role: "tool", tool_call_id: "a", content: "rain" },
    ];
    const tools = [{ type: "function" as const, function: weather }];
    await client.chat.completions.create({ ...hello, messages, tools });
    expect(model.calls[0]!.prompt).toContain(`I look.\n${call("Bonn")}<|im_end|>`);
  });

  it("gets an error for tools if the model's template has none", async () => {
    const server = await serve({ learner: new ScriptedModel(() => "Hi"), name: "scripted", port: 0 });
    open.push(server);
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
    const tools = [{ type: "function" as const, function: weather }];
    await expect(client.chat.completions.create({ ...hello, tools })).rejects.toMatchObject({
      status: 400,
      param: "tools",
      message: expect.stringContaining("Serve a model whose template does"),
    });
    expect((await client.chat.completions.create(hello)).choices[0]!.message.content).toBe("Hi");
  });

  it("gets an error for a prompt that does not fit, a body that is not JSON, and an unknown path", async () => {
    const learner = await tinyLearner();
    const server = await serve({ learner, name: "tiny", port: 0 });
    open.push(server, { close: () => learner.dispose() });
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
    const long = [{ role: "user" as const, content: "x".repeat(300) }];
    await expect(client.chat.completions.create({ model: "tiny", messages: long })).rejects.toMatchObject({
      status: 400,
      code: "context_length_exceeded",
    });
    const headers = { "content-type": "application/json" };
    const text = await fetch(`${server.url}/v1/chat/completions`, { method: "POST", headers, body: "{" });
    expect([text.status, await text.json()]).toEqual([
      400,
      { error: expect.objectContaining({ message: "The request's body is not JSON." }) },
    ]);
    const reason = async (path: string) => {
      const reply = await fetch(server.url + path, { method: "POST", headers, body: "{}" });
      const { error } = (await reply.json()) as { error: { code: string; message: string } };
      expect([reply.status, error.code]).toEqual([404, "not_found"]);
      return error.message.replace(`There is no POST ${path}.`, "").trim();
    };
    expect(await reason("/v1/nothing")).toBe("");
    expect(await reason("/chat/completions")).toBe("The base URL ends in /v1.");
    expect(await reason("/v1/responses")).toMatch(/Responses API is not supported.*chat\/completions/);
    expect(await reason("/v1/episodes/a/b/reward")).toMatch(/encodeURIComponent/);
    expect(await reason("/v1/training")).toBe("Only servers with --train have it.");
    expect(await reason("/v1/episodes/a/corrections")).toBe("Only servers with --train have it.");
    const huge = await fetch(`${server.url}/v1/completions`, {
      method: "POST",
      headers,
      body: `{"model":"tiny","prompt":"${"x".repeat(17 << 20)}"}`,
    });
    expect(huge.status).toBe(413);
    expect((await fetch(`${server.url}/health`)).status).toBe(200);
  });

  it("gets the same text for the same seed from a real learner, also streamed and cut at a stop string", async () => {
    const learner = await tinyLearner();
    const server = await serve({ learner, name: "tiny", port: 0 });
    open.push(server, { close: () => learner.dispose() });
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
    const request = { model: "tiny", messages: hello.messages, seed: 3, max_tokens: 30 };
    const [a, b] = await Promise.all([
      client.chat.completions.create(request),
      client.chat.completions.create(request),
    ]);
    expect(a.choices[0]!.message.content).toBe(b.choices[0]!.message.content);
    const text = a.choices[0]!.message.content!;
    const half = text.length >> 1;
    for (const stop of [[], [text.slice(half, half + 2)]]) {
      let streamed = "";
      for await (const part of await client.chat.completions.create({ ...request, stop, stream: true }))
        streamed += part.choices[0]?.delta.content ?? "";
      expect(streamed).toBe(stop.length === 0 ? text : text.slice(0, text.indexOf(stop[0]!)));
    }
  });
});

describe("the ai SDK", () => {
  it("generates, streams, and runs a loop of tool calls", async () => {
    const { server, client } = await start((prompt) =>
      !prompt.includes("weather")
        ? "Plain words."
        : prompt.includes("<tool_response>")
          ? "It rains in Bonn."
          : call("Bonn"),
    );
    const provider = createOpenAICompatible({ name: "nlac", baseURL: client.baseURL });
    const model = provider.chatModel("scripted");
    expect((await generateText({ model, prompt: "Hello" })).text).toBe("Plain words.");
    let streamed = "";
    for await (const part of streamText({ model, prompt: "Hello" }).textStream) streamed += part;
    expect(streamed).toBe("Plain words.");
    const asked: unknown[] = [];
    const tools = {
      weather: tool({
        description: weather.description,
        inputSchema: jsonSchema<{ city: string }>(weather.parameters as never),
        execute: async (input) => {
          asked.push(input);
          return "rain";
        },
      }),
    };
    const loop = await generateText({ model, prompt: "Weather?", tools, stopWhen: stepCountIs(5) });
    expect(asked).toEqual([{ city: "Bonn" }]);
    expect(loop.text).toBe("It rains in Bonn.");
    expect(loop.steps).toHaveLength(2);
    expect(server.url).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/);
  });
});

describe("Python's openai client", () => {
  it("gets the same answers", async ({ skip }) => {
    const cache = process.env.XDG_CACHE_HOME || join(homedir(), ".cache");
    const python = join(cache, "nlac", "peers", "bin", "python");
    const installed = existsSync(python) && spawnSync(python, ["-c", "import openai"]).status === 0;
    if (!installed) skip("scripts/peers.sh has not run");
    const { client, model } = await start((prompt) =>
      prompt.includes("Weather?") ? call("Bonn") : prompt.includes("JSON?") ? '{"a": 1}' : "Grüße 👋",
    );
    const script = join(import.meta.dirname, "client.py");
    const { stdout } = await promisify(execFile)(python, [script, client.baseURL, "scripted"]);
    expect(JSON.parse(stdout)).toEqual({
      models: ["scripted"],
      ...{ text: "Grüße 👋", reason: "stop", tokens: 13, streamed: "Grüße 👋", usage: 13 },
      likeliest: [
        { token: "G", logprob: -0.5, bytes: [71] },
        { token: "H", logprob: -1.5, bytes: [72] },
      ],
      completedLikeliest: { G: -0.5, H: -1.5, I: -2.5 },
      call: ["weather", { city: "Bonn" }, "tool_calls"],
      completed: ["Grüße 👋", "Grüße 👋"],
      parsed: { a: 1 },
      ...{ refused: "model_not_found", wrong: "temperature" },
    });
    const grammars = model.calls.flatMap(({ request }) => request.grammar ?? []);
    expect(grammars).toEqual([{ jsonSchema: expect.objectContaining({ required: ["a"] }) }]);
  });
});
