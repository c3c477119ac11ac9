/**
 * vLLM's API server: /v1/completions, and the calls of its development mode that change weights.
 * Taken from the source of vLLM 0.33.0.
 */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { complete } from "./completions.ts";
import { callOrAdvise, type Engine, firstModel, readAnswer, type Server } from "./engine.ts";
import { callServer, HttpFault, quickMs } from "./http.ts";

const development = "Start vLLM with VLLM_SERVER_DEV_MODE=1.";
const adapters = "Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.";

const versionSchema = z.object({ version: z.string() });
const pausedSchema = z.object({ is_paused: z.boolean() });
/** Releases before 0.33 may answer with an empty body. */
const resetSchema = z.object({ success: z.boolean() }).optional();

export const vllm: Engine = {
  readFrom: "vLLM 0.33.0",

  // By default (`--logprobs-mode raw_logprobs`) they are computed before temperature and filters.
  scoredAt: () => 1,

  async open(url, kind) {
    const { version } = readAnswer(
      versionSchema,
      await callOrAdvise(url, "/version", undefined, "It is not a vLLM server."),
      `${url}/version`,
    );
    const { id, maxPositions } = await firstModel(url);
    if (kind === "model") {
      const answer = await callOrAdvise(url, "/is_paused", undefined, development);
      if (readAnswer(pausedSchema, answer, `${url}/is_paused`).is_paused)
        throw new NlacError(
          "ERR_ROLLOUTS",
          `${url} is paused, probably after a failed change of weights. Restart it.`,
        );
    }
    return { url, model: id, maxPositions, about: `vLLM ${version}`, labels: false };
  },

  async install(server, { kind, label, directory }) {
    const { url } = server;
    if (kind === "adapter") {
      // A name is never given to another version, so the server need not be paused.
      const body = { lora_name: label, lora_path: directory };
      await callOrAdvise(url, "/v1/load_lora_adapter", body, adapters);
      server.labels = true;
      return;
    }
    await callOrAdvise(url, "/pause?mode=abort", {}, development);
    const reload = { method: "reload_weights", kwargs: { weights_path: directory } };
    await callOrAdvise(url, "/collective_rpc", reload, development);
    const reset = await callOrAdvise(url, "/reset_prefix_cache", {}, development);
    if (readAnswer(resetSchema, reset, `${url}/reset_prefix_cache`)?.success === false)
      throw new NlacError("ERR_ROLLOUTS", `${url} could not empty its prefix cache.`);
    server.labels = await nameVersion(server, label);
    await callOrAdvise(url, "/resume", {}, development);
  },

  async release({ url }, { kind, label }) {
    if (kind === "adapter")
      await callServer(url, "/v1/unload_lora_adapter", { lora_name: label }, undefined, quickMs);
  },

  async generate(server, request, weights, signal) {
    const isAdapter = weights?.kind === "adapter";
    const fields = {
      model: isAdapter ? weights.label : server.model,
      max_tokens: request.maxNewTokens,
      temperature: request.temperature,
      top_p: request.topP,
      top_k: request.topK,
      min_p: request.minP,
      repetition_penalty: request.repetitionPenalty,
      stop_token_ids: request.stopTokenIds,
      ...(request.seed === undefined ? {} : { seed: request.seed }),
      ...(server.labels && !isAdapter ? { return_weight_versions: true } : {}),
    };
    const { model, ...answer } = await complete(server, request.tokens, fields, signal);
    return isAdapter ? { ...answer, label: model } : answer;
  },
};

/** Makes the server name its weights in answers. Returns false for releases that cannot. */
async function nameVersion({ url }: Server, label: string): Promise<boolean> {
  try {
    await callServer(url, "/update_weight_version", { new_version: label });
    return true;
  } catch (error) {
    if (error instanceof HttpFault && error.isMissing) return false;
    throw error;
  }
}
