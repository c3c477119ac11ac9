/**
 * SGLang's own API: /generate and the calls that change weights. Taken from the source of SGLang
 * 0.5.23.
 */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { callOrAdvise, type Engine, firstModel, logProbsOf, readAnswer } from "./engine.ts";
import { callServer, quickMs } from "./http.ts";

const old = "nlac needs a newer SGLang; 0.5.23 has it.";
const adapters = "Start SGLang with --enable-lora, --max-lora-rank and --lora-target-modules; 0.5.23 has it.";

const serverSchema = z.object({ version: z.string().nullish() });
const infoSchema = z.object({ weight_version: z.string().nullish() });
const doneSchema = z.object({
  success: z.boolean(),
  message: z.string().nullish(),
  error_message: z.string().nullish(),
});
const answerSchema = z.object({
  output_ids: z.array(z.int().min(0)),
  meta_info: z.object({
    finish_reason: z.object({ type: z.string() }),
    weight_version: z.string().nullish(),
    cached_tokens: z.int().nullish(),
    /** Per token: log probability, id, text. */
    output_token_logprobs: z.array(z.tuple([z.number().nullable(), z.int()], z.unknown())).nullish(),
  }),
});

export const sglang: Engine = {
  readFrom: "SGLang 0.5.23",

  // Unless SGLANG_RETURN_ORIGINAL_LOGPROB is set, logits are divided by the temperature first;
  // those of greedy text are not.
  scoredAt: (temperature) => (temperature === 0 ? 1 : temperature),

  async open(url) {
    const info = await callOrAdvise(url, "/model_info", undefined, `It is not an SGLang server, or ${old}`);
    readAnswer(infoSchema, info, `${url}/model_info`);
    const about = readAnswer(
      serverSchema,
      await callOrAdvise(url, "/server_info", undefined, old),
      `${url}/server_info`,
    );
    const { id, maxPositions } = await firstModel(url);
    return { url, model: id, maxPositions, about: `SGLang ${about.version ?? ""}`.trim(), labels: false };
  },

  async install(server, { kind, label, directory }) {
    const { url } = server;
    if (kind === "adapter") {
      const body = { lora_name: label, lora_path: directory };
      requireDone(await callOrAdvise(url, "/load_lora_adapter", body, adapters), `${url}/load_lora_adapter`);
      return;
    }
    await callOrAdvise(url, "/pause_generation", { mode: "abort" }, old);
    const body = { model_path: directory, weight_version: label, flush_cache: true };
    const done = await callOrAdvise(url, "/update_weights_from_disk", body, old);
    requireDone(done, `${url}/update_weights_from_disk`);
    server.labels = true;
    await callOrAdvise(url, "/continue_generation", {}, old);
  },

  async release({ url }, { kind, label }) {
    if (kind === "adapter")
      await callServer(url, "/unload_lora_adapter", { lora_name: label }, undefined, quickMs);
  },

  async generate({ url, labels }, request, weights, signal) {
    const body = {
      input_ids: request.tokens,
      sampling_params: {
        max_new_tokens: request.maxNewTokens,
        temperature: request.temperature,
        top_p: request.topP,
        top_k: request.topK === 0 ? -1 : request.topK,
        min_p: request.minP,
        repetition_penalty: request.repetitionPenalty,
        stop_token_ids: request.stopTokenIds,
        skip_special_tokens: false,
        ...(request.seed === undefined ? {} : { sampling_seed: request.seed }),
      },
      return_logprob: true,
      stream: false,
      ...(weights?.kind === "adapter" ? { lora_path: weights.label } : {}),
    };
    const answer = readAnswer(
      answerSchema,
      await callServer(url, "/generate", body, signal),
      `${url}/generate`,
    );
    const { finish_reason, weight_version, cached_tokens, output_token_logprobs } = answer.meta_info;
    const { output_ids: tokens } = answer;
    const aborted = finish_reason.type === "abort";
    const scores = output_token_logprobs ?? tokens.map((id) => [null, id] as const);
    if (!aborted && (scores.length !== tokens.length || scores.some(([, id], i) => id !== tokens[i])))
      throw new NlacError(
        "ERR_ROLLOUTS",
        `${url}/generate returned log probabilities of other tokens than it generated.`,
      );
    return {
      tokens,
      logProbs: logProbsOf(scores.map(([score]) => score)),
      cachedTokens: cached_tokens ?? 0,
      aborted,
      label: labels ? (weight_version ?? undefined) : undefined,
    };
  },
};

/** Throws ERR_ROLLOUTS unless the server reports success. */
function requireDone(answer: unknown, where: string): void {
  const { success, message, error_message } = readAnswer(doneSchema, answer, where);
  if (success) return;
  throw new NlacError("ERR_ROLLOUTS", `${where}: ${message ?? error_message ?? "failed without a message"}.`);
}
