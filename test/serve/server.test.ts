import OpenAI from "openai";
import { describe, expect, it, vi } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import { serve } from "../../lib/serve/server.ts";
import { CallingModel } from "../support/calling-model.ts";
import { closedGate } from "../support/closed-gate.ts";
import { expectFailure } from "../support/files-and-servers.ts";
import { hello, open, start } from "../support/scripted-server.ts";
import { tinyLearner } from "../support/tiny.ts";

describe("a server", () => {
  it("refuses requests without the token, and serves other machines only with a token", async () => {
    const { client, server } = await start(() => "Hi", { token: "secret" });
    expect((await client.chat.completions.create(hello)).choices[0]!.message.content).toBe("Hi");
    const stranger = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "guess", maxRetries: 0 });
    await expect(stranger.chat.completions.create(hello)).rejects.toMatchObject({
      status: 401,
      code: "invalid_api_key",
    });
    expect((await fetch(`${server.url}/v1/models`)).status).toBe(401);
    const learner = new CallingModel(() => "Hi");
    await expectFailure(serve({ learner, name: "x", host: "0.0.0.0", port: 0 }), "ERR_CONFIG", /token/);
    const taken = serve({ learner, name: "x", port: Number(new URL(server.url).port) });
    await expectFailure(
      taken,
      "ERR_IO",
      /another program listens on port \d+ of 127\.0\.0\.1 \(EADDRINUSE\)/,
    );
  });

  it("answers its own failures with a code, without paths; the log has all", async () => {
    const log: string[] = [];
    const { model, server } = await start(() => "Hi", { log: (line: string) => void log.push(line) });
    const full = new Error("ENOSPC: write /srv/runs/agent/open.jsonl");
    model.generate = () =>
      Promise.reject(
        new NlacError("ERR_IO", "/srv/runs/agent/open.jsonl cannot be used: no space.", { cause: full }),
      );
    for (const stream of [false, true]) {
      const reply = await fetch(`${server.url}/v1/chat/completions`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ ...hello, stream }),
      });
      const text = await reply.text();
      expect(text).toMatch(/"message":"The server cannot read or write[^"]*log[^"]*","type":"server_error"/);
      expect(text).toContain('"code":"ERR_IO"');
      expect(text).not.toContain("/srv");
      expect(log).toHaveLength(1);
      expect(log.pop()).toMatch(/open\.jsonl cannot be used: no space[\s\S]*caused by: Error: ENOSPC/);
    }
  });

  it("answers 429 with Retry-After if too many completions wait", async () => {
    const { client, model, server } = await start(() => "Hi", { maxWaiting: 2 });
    const gate = closedGate(model);
    const waiting = client.chat.completions.create({ ...hello, n: 2 });
    const another = client.chat.completions.create(hello);
    await expect.poll(() => gate.waiting, { timeout: 60_000 }).toBe(2);
    for (const stream of [true, false]) {
      const refused = await fetch(`${server.url}/v1/chat/completions`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ ...hello, stream }),
      });
      expect([refused.status, refused.headers.get("retry-after")]).toEqual([429, "1"]);
      expect(await refused.json()).toMatchObject({ error: { code: "queue_full" } });
    }
    gate.open();
    expect((await waiting).choices).toHaveLength(2);
    await another;
    expect((await client.chat.completions.create(hello)).choices).toHaveLength(1);
  });

  it("still takes as many requests for one completion while one for many runs", async () => {
    const { client, model } = await start(() => "Hi", { maxWaiting: 3 });
    const gate = closedGate(model);
    const one = () => client.chat.completions.create(hello);
    const waiting = [client.chat.completions.create({ ...hello, n: 3 })];
    await expect.poll(() => gate.waiting, { timeout: 60_000 }).toBe(1);
    await expect(client.chat.completions.create({ ...hello, n: 2 })).rejects.toMatchObject({ status: 429 });
    waiting.push(one(), one());
    await expect.poll(() => gate.waiting, { timeout: 60_000 }).toBe(3);
    await expect(one()).rejects.toMatchObject({ status: 429 });
    gate.open();
    expect((await Promise.all(waiting)).map(({ choices }) => choices.length)).toEqual([3, 1, 1]);
  });

  it("still takes a request of another client while one client fills the queue", async () => {
    const keys = ["greedy", "modest", "another"];
    const tokens = Object.fromEntries(keys.map((key) => [key, ["ask" as const]]));
    const { server, model } = await start(() => "Hi", { maxWaiting: 3, tokens });
    const gate = closedGate(model);
    const ask = (apiKey: string) =>
      new OpenAI({ baseURL: `${server.url}/v1`, apiKey, maxRetries: 0 }).chat.completions.create(hello);
    const waiting = [ask("greedy"), ask("greedy"), ask("greedy")];
    await expect.poll(() => gate.waiting, { timeout: 60_000 }).toBe(3);
    await expect(ask("greedy")).rejects.toMatchObject({ status: 429 });
    waiting.push(ask("modest"));
    await expect.poll(() => gate.waiting, { timeout: 60_000 }).toBe(4);
    // This place is taken now.
    for (const key of ["modest", "another"]) await expect(ask(key)).rejects.toMatchObject({ status: 429 });
    gate.open();
    expect(await Promise.all(waiting)).toHaveLength(4);
    expect((await ask("greedy")).choices).toHaveLength(1);
  });

  it("answers 429 while the answers to others may have too many log probabilities", async () => {
    const { client, model } = await start(() => "Hi", { maxWaiting: 1000 });
    const gate = closedGate(model);
    // 17.9 million each, of 100 million.
    const large = { ...hello, n: 128, max_tokens: 7000, logprobs: true, top_logprobs: 20 };
    const waiting = Array.from({ length: 5 }, () => client.chat.completions.create(large));
    await expect.poll(() => gate.waiting, { timeout: 60_000 }).toBe(5);
    await expect(client.chat.completions.create(large)).rejects.toMatchObject({ status: 429 });
    const small = client.chat.completions.create({ ...hello, logprobs: true });
    await expect.poll(() => gate.waiting, { timeout: 60_000 }).toBe(6);
    gate.open();
    await Promise.all([...waiting, small]);
    expect((await client.chat.completions.create(large)).choices).toHaveLength(128);
  });

  it("refuses a request for more completions than its limit", async () => {
    const { client, model } = await start(() => "Hi", { maxWaiting: 2 });
    await expect(client.chat.completions.create({ ...hello, n: 3 })).rejects.toMatchObject({ status: 400 });
    expect(model.calls).toEqual([]);
  });

  it("cancels a completion if the client disconnects", async () => {
    const learner = await tinyLearner({}, undefined);
    const server = await serve({ learner, name: "tiny", port: 0 });
    open.push(server, { close: () => learner.dispose() });
    const ended: string[] = [];
    const generate = learner.generate.bind(learner);
    learner.generate = (requests, options) =>
      generate(requests, options).then(
        (all) => {
          ended.push("whole");
          return all;
        },
        (error) => {
          ended.push(error.code);
          throw error;
        },
      );
    for (const stream of [true, false]) {
      const controller = new AbortController();
      const request = fetch(`${server.url}/v1/completions`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ model: "tiny", prompt: "x", max_tokens: 200, n: 100, stream }),
        signal: controller.signal,
      }).then((reply) => reply.text());
      setTimeout(() => controller.abort(), 40);
      await expect(request).rejects.toThrow();
    }
    await expect.poll(() => ended).toEqual(["ERR_ABORTED", "ERR_ABORTED"]);
  });

  it("joins no request's signal to one that outlives it, which would leak memory", async () => {
    const joined = vi.spyOn(AbortSignal, "any");
    const { client } = await start(() => "Hi");
    for (const stream of [false, true]) {
      const answer = await client.chat.completions.create({ ...hello, stream });
      if (Symbol.asyncIterator in answer) for await (const _ of answer);
    }
    expect(joined).not.toHaveBeenCalled();
    joined.mockRestore();
  });

  it("cancels unfinished completions after the grace period", async () => {
    const learner = await tinyLearner();
    const server = await serve({ learner, name: "tiny", port: 0 });
    open.push({ close: () => learner.dispose() });
    const generate = learner.generate.bind(learner);
    let written = 0;
    let ended: Promise<unknown> | undefined;
    learner.generate = (requests, options) => {
      const texts = generate(requests, { ...options, onToken: () => written++ });
      ended = texts.catch((error) => error.code);
      return texts;
    };
    const request = fetch(`${server.url}/v1/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: "tiny", prompt: "x", max_tokens: 200, n: 100 }),
    });
    const refused = request.then(
      (reply) => reply.ok,
      () => false,
    );
    await expect.poll(() => written).toBeGreaterThan(0);
    await server.close(1);
    expect(await ended).toBe("ERR_ABORTED");
    expect(await refused).toBe(false);
  });

  it("finishes running requests before it closes, and refuses new ones", async () => {
    const { client, model, server } = await start(() => "Hi");
    const gate = closedGate(model);
    const waiting = client.chat.completions.create(hello);
    await expect.poll(() => gate.waiting).toBe(1);
    const closed = server.close();
    await expect(client.chat.completions.create(hello)).rejects.toThrow();
    gate.open();
    expect((await waiting).choices[0]!.message.content).toBe("Hi");
    await closed;
  });
});
