import { expect, test } from "vitest";
import type { ActionRequest, Server, Weights } from "../../lib/rollouts/engine.ts";
import { sglang } from "../../lib/rollouts/sglang.ts";
import { type JsonAnswer, type JsonServer, jsonServer } from "../support/json-server.ts";

const model: Weights = { label: "v1", kind: "model", directory: "/shared/1" };
const adapter: Weights = { ...model, kind: "adapter" };
const request: ActionRequest = {
  ...{ tokens: [1, 2], maxNewTokens: 8, temperature: 0.7, topP: 0.9, topK: 0, minP: 0.1 },
  ...{ repetitionPenalty: 1, stopTokenIds: [2], seed: undefined },
};
/** An answer of two tokens, with `meta` changed. */
const generated = (meta: object = {}): JsonAnswer => ({
  json: {
    output_ids: [5, 2],
    meta_info: {
      ...{ finish_reason: { type: "stop" }, weight_version: "v1", cached_tokens: 1 },
      output_token_logprobs: [
        [-1, 5, "a"],
        [null, 2, null],
      ],
      ...meta,
    },
  },
});

/** A server whose calls answer as SGLang's, except for `changes`. */
async function withServer(
  changes: Record<string, JsonAnswer>,
  body: (server: JsonServer, opened: Server) => Promise<void>,
): Promise<void> {
  const answers: Record<string, JsonAnswer> = {
    "/v1/models": { json: { data: [{ id: "base", max_model_len: 64 }] } },
    "/model_info": { json: { weight_version: "default" } },
    "/server_info": { json: { version: "0.5.23" } },
    "/generate": generated(),
    ...changes,
  };
  const server = await jsonServer(({ path }) => answers[path] ?? { json: { success: true } });
  try {
    await body(server, { url: server.url, model: "base", maxPositions: 64, about: "SGLang", labels: false });
  } finally {
    await server.close();
  }
}

const failed = (message: RegExp) => ({ code: "ERR_ROLLOUTS", message: expect.stringMatching(message) });

test("open says what is wrong with a server", async () => {
  await withServer({}, async ({ url }) => {
    expect(await sglang.open(url, "model")).toMatchObject({ model: "base", about: "SGLang 0.5.23" });
  });
  await withServer({ "/model_info": { status: 404 } }, async ({ url }) => {
    await expect(sglang.open(url, "model")).rejects.toMatchObject(failed(/It is not an SGLang server/));
  });
});

test("a model is loaded while the server is paused; a failure leaves it paused", async () => {
  await withServer({}, async ({ requests }, server) => {
    await sglang.install(server, model);
    expect(requests.map(({ path, body }) => [path, body])).toEqual([
      ["/pause_generation", { mode: "abort" }],
      ["/update_weights_from_disk", { model_path: "/shared/1", weight_version: "v1", flush_cache: true }],
      ["/continue_generation", {}],
    ]);
    expect((await sglang.generate(server, request, model, undefined)).label).toBe("v1");
  });
  const update = "/update_weights_from_disk";
  for (const [answer, message] of [
    [{ status: 404 }, /no \/update_weights_from_disk. nlac needs a newer SGLang/],
    [{ json: { success: false, message: "no such path" } }, /no such path/],
  ] as const)
    await withServer({ [update]: answer }, async ({ requests }, server) => {
      await expect(sglang.install(server, model)).rejects.toMatchObject(failed(message));
      expect(requests.at(-1)!.path).toBe(update);
    });
});

test("requests have token ids and SGLang's names of the fields", async () => {
  await withServer({}, async ({ requests }, server) => {
    const answer = await sglang.generate(server, request, undefined, undefined);
    expect(answer).toEqual({
      ...{ tokens: [5, 2], logProbs: Float32Array.of(-1, Number.NaN), cachedTokens: 1 },
      ...{ aborted: false, label: undefined },
    });
    const { sampling_params, ...body } = requests[0]!.body;
    expect(body).toEqual({ input_ids: [1, 2], return_logprob: true, stream: false });
    expect(sampling_params).toEqual({
      ...{ max_new_tokens: 8, temperature: 0.7, top_p: 0.9, top_k: -1, min_p: 0.1 },
      ...{ repetition_penalty: 1, stop_token_ids: [2], skip_special_tokens: false },
    });
    await sglang.generate(server, { ...request, topK: 3, seed: 9 }, undefined, undefined);
    expect(requests[1]!.body.sampling_params).toMatchObject({ top_k: 3, sampling_seed: 9 });
  });
});

test("an answer with log probabilities of other tokens is refused, unless it was aborted", async () => {
  const other = { output_token_logprobs: [[-1, 5, "a"]] };
  await withServer({ "/generate": generated(other) }, async (_, server) => {
    const answer = sglang.generate(server, request, undefined, undefined);
    await expect(answer).rejects.toMatchObject(failed(/of other tokens/));
  });
  const aborted = { ...other, finish_reason: { type: "abort" } };
  await withServer({ "/generate": generated(aborted) }, async (_, server) => {
    expect(await sglang.generate(server, request, undefined, undefined)).toMatchObject({ aborted: true });
  });
  await withServer({ "/generate": { json: { meta_info: {} } } }, async (_, server) => {
    const answer = sglang.generate(server, request, undefined, undefined);
    await expect(answer).rejects.toMatchObject(failed(/an answer of an unexpected form/));
  });
});

test("an adapter is loaded without a pause, named in requests, and unloaded", async () => {
  await withServer({}, async ({ requests }, server) => {
    await sglang.install(server, adapter);
    await sglang.generate(server, request, adapter, undefined);
    await sglang.release(server, adapter);
    await sglang.release(server, model); // nothing to free
    expect(requests.map(({ path }) => path)).toEqual([
      ...["/load_lora_adapter", "/generate", "/unload_lora_adapter"],
    ]);
    expect(requests[1]!.body.lora_path).toBe("v1");
  });
});

test("log probabilities are those of divided logits, except of greedy text", () => {
  expect([0, 0.5, 1].map(sglang.scoredAt)).toEqual([1, 0.5, 1]);
});
