import { expect, test } from "vitest";
import type { ActionRequest, Server, Weights } from "../../lib/rollouts/engine.ts";
import { vllm } from "../../lib/rollouts/vllm.ts";
import { type JsonAnswer, type JsonServer, jsonServer } from "../support/json-server.ts";

const model: Weights = { label: "v1", kind: "model", directory: "/shared/1" };
const adapter: Weights = { ...model, kind: "adapter" };
const request: ActionRequest = {
  ...{ tokens: [1, 2], maxNewTokens: 8, temperature: 0.7, topP: 0.9, topK: 4, minP: 0.1 },
  ...{ repetitionPenalty: 1, stopTokenIds: [2], seed: 3 },
};
const completion = { model: "v1", choices: [{ token_ids: [5], weight_versions: [{ version: "v1" }] }] };

/** A server whose calls answer as vLLM's, except for `changes`. */
async function withServer(
  changes: Record<string, JsonAnswer>,
  body: (server: JsonServer, opened: Server) => Promise<void>,
): Promise<void> {
  const answers: Record<string, JsonAnswer> = {
    "/version": { json: { version: "0.33.0" } },
    "/v1/models": { json: { data: [{ id: "base", max_model_len: 64 }] } },
    "/is_paused": { json: { is_paused: false } },
    "/reset_prefix_cache": { json: { success: true } },
    "/v1/completions": { json: completion },
    ...changes,
  };
  const server = await jsonServer(({ path }) => answers[path.split("?")[0]!] ?? {});
  try {
    await body(server, { url: server.url, model: "base", maxPositions: 64, about: "vLLM", labels: false });
  } finally {
    await server.close();
  }
}

const failed = (message: RegExp) => ({ code: "ERR_ROLLOUTS", message: expect.stringMatching(message) });

test("open checks the calls that the kind of weights needs", async () => {
  await withServer({ "/is_paused": { status: 404 } }, async ({ url }) => {
    expect(await vllm.open(url, "adapter")).toMatchObject({ model: "base", about: "vLLM 0.33.0" });
    await expect(vllm.open(url, "model")).rejects.toMatchObject(
      failed(/no \/is_paused. Start vLLM with VLLM_SERVER_DEV_MODE=1/),
    );
  });
  await withServer({ "/version": { status: 404 } }, async ({ url }) => {
    await expect(vllm.open(url, "model")).rejects.toMatchObject(failed(/It is not a vLLM server/));
  });
  await withServer({ "/is_paused": { json: { is_paused: true } } }, async ({ url }) => {
    await expect(vllm.open(url, "model")).rejects.toMatchObject(failed(/is paused, probably after/));
  });
});

test("a model is loaded while the server is paused, and its version named", async () => {
  await withServer({}, async ({ requests }, server) => {
    await vllm.install(server, model);
    expect(requests.map(({ path, body }) => [path, body])).toEqual([
      ["/pause?mode=abort", {}],
      ["/collective_rpc", { method: "reload_weights", kwargs: { weights_path: "/shared/1" } }],
      ["/reset_prefix_cache", {}],
      ["/update_weight_version", { new_version: "v1" }],
      ["/resume", {}],
    ]);
    const answer = await vllm.generate(server, request, model, undefined);
    expect(answer).toMatchObject({ tokens: [5], label: "v1" });
    expect(requests.at(-1)!.body).toMatchObject({ model: "base", return_weight_versions: true, seed: 3 });
  });
});

test("a server that fails half-way is not resumed", async () => {
  const faults: [string, JsonAnswer, RegExp][] = [
    ["/collective_rpc", { status: 404 }, /no \/collective_rpc. Start vLLM with VLLM_SERVER_DEV_MODE=1/],
    ["/reset_prefix_cache", { json: { success: false } }, /could not empty its prefix cache/],
  ];
  for (const [path, answer, message] of faults)
    await withServer({ [path]: answer }, async ({ requests }, server) => {
      await expect(vllm.install(server, model)).rejects.toMatchObject(failed(message));
      expect(requests.at(-1)!.path).toBe(path);
    });
});

test("releases that cannot name their weights are not asked for names", async () => {
  await withServer({ "/update_weight_version": { status: 404 } }, async ({ requests }, server) => {
    await vllm.install(server, model);
    expect(requests.at(-1)!.path).toBe("/resume");
    await vllm.generate(server, request, model, undefined);
    expect(requests.at(-1)!.body).not.toHaveProperty("return_weight_versions");
  });
});

test("an adapter is loaded beside others, named in requests, and unloaded", async () => {
  await withServer({}, async ({ requests }, server) => {
    await vllm.install(server, adapter);
    expect((await vllm.generate(server, request, adapter, undefined)).label).toBe("v1");
    await vllm.release(server, adapter);
    await vllm.release(server, model); // nothing to free
    expect(requests.map(({ path }) => path)).toEqual([
      ...["/v1/load_lora_adapter", "/v1/completions", "/v1/unload_lora_adapter"],
    ]);
    expect(requests[0]!.body).toEqual({ lora_name: "v1", lora_path: "/shared/1" });
    expect(requests[1]!.body.model).toBe("v1");
  });
});
