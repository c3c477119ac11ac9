/**
 * Servers with the calls of vLLM 0.33.0 or SGLang 0.5.23 that nlac makes, field by field as their
 * source reads them. They generate with a second learner, loaded from the directories that they are
 * given.
 */

import { existsSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { Learner } from "../../lib/learner/learner.ts";
import type { GenerateRequest } from "../../lib/model/language-model.ts";

export interface Call {
  path: string;
  // biome-ignore lint/suspicious/noExplicitAny: each test knows the bodies it expects
  body: any;
}

export interface Reply {
  status?: number;
  json?: unknown;
}

export interface InferenceServerOptions {
  engine: "vllm" | "sglang";
  /** Loads what the server has at first. */
  open(): Promise<Learner>;
  /** Called before each call; what it returns is the reply. */
  intercept?: (call: Call) => Reply | undefined | Promise<Reply | undefined>;
  /** Changes the reply to a generation. */
  // biome-ignore lint/suspicious/noExplicitAny: each test changes the fields that it is about
  alter?: (json: any) => void;
}

export interface InferenceServer {
  url: string;
  /** All calls, without the query. */
  calls: Call[];
  /** Paths of the calls that change weights, in order. */
  changes(): string[];
  close(): Promise<void>;
}

const aborted = Symbol("aborted");
const generating = ["/v1/completions", "/generate"];

export async function inferenceServer(options: InferenceServerOptions): Promise<InferenceServer> {
  const calls: Call[] = [];
  const api = options.engine === "vllm" ? new Vllm(await options.open()) : new Sglang(await options.open());
  const server = createServer(async (incoming, response) => {
    let text = "";
    for await (const chunk of incoming) text += chunk;
    const [path = "", query = ""] = (incoming.url ?? "").split("?");
    const call = { path, body: text === "" ? undefined : JSON.parse(text) };
    calls.push(call);
    let reply: Reply;
    try {
      reply = (await options.intercept?.(call)) ?? (await api.answer(call, new URLSearchParams(query)));
      if (generating.includes(path) && reply.status === undefined) options.alter?.(reply.json);
    } catch (error) {
      reply = { status: 500, json: { error: String(error) } };
    }
    response.writeHead(reply.status ?? 200, { "content-type": "application/json" });
    response.end(reply.json === undefined ? "" : JSON.stringify(reply.json));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const reading = ["/version", "/v1/models", "/is_paused", "/model_info", "/server_info", ...generating];
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls,
    changes: () => calls.map(({ path }) => path).filter((path) => !reading.includes(path)),
    async close() {
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
      await api.learner.dispose();
    },
  };
}

/** What both engines do: requests run until the server is paused, which ends them. */
abstract class Api {
  learner: Learner;
  paused = false;
  #stop = new AbortController();

  constructor(learner: Learner) {
    this.learner = learner;
  }

  abstract answer(call: Call, query: URLSearchParams): Promise<Reply>;

  pause(): void {
    this.paused = true;
    this.#stop.abort();
    this.#stop = new AbortController();
  }

  /** Replaces the weights by those of an exported model. */
  async reload(directory: string): Promise<void> {
    if (!this.paused) throw new Error("not paused");
    const before = this.learner;
    this.learner = await Learner.load(directory, { dtype: before.dtype });
    await before.dispose();
  }

  async generate(request: GenerateRequest) {
    try {
      return (await this.learner.generate([request], { signal: this.#stop.signal }))[0]!;
    } catch (error) {
      if ((error as { code?: string }).code === "ERR_ABORTED") return aborted;
      throw error;
    }
  }
}

/** Whether a directory has a whole adapter. */
const isAdapter = (directory: string) =>
  ["adapter_model.safetensors", "adapter_config.json"].every((name) => existsSync(join(directory, name)));

/** Throws like pydantic or msgspec for fields that a request does not have. */
function only(body: object, fields: readonly string[]): void {
  const unknown = Object.keys(body).filter((key) => !fields.includes(key));
  if (unknown.length > 0) throw new Error(`unknown fields ${unknown}`);
}

const completionFields = [
  ...["model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"],
  ...["stop_token_ids", "seed", "logprobs", "return_token_ids", "return_weight_versions"],
];

class Vllm extends Api {
  #label = "default";
  readonly #adapters = new Set<string>();

  async answer({ path, body }: Call, query: URLSearchParams): Promise<Reply> {
    switch (path) {
      case "/version":
        return { json: { version: "0.33.0" } };
      case "/v1/models":
        return { json: { object: "list", data: [{ id: "base", max_model_len: this.learner.maxPositions }] } };
      case "/is_paused":
        return { json: { is_paused: this.paused } };
      case "/pause":
        if (query.get("mode") !== "abort") return { status: 400 };
        this.pause();
        return { json: { status: "paused" } };
      case "/resume":
        this.paused = false;
        return { json: { status: "resumed" } };
      case "/collective_rpc":
        only(body, ["method", "args", "kwargs", "timeout"]);
        if (body.method !== "reload_weights") return { status: 500 };
        only(body.kwargs, ["weights_path"]);
        await this.reload(body.kwargs.weights_path);
        return { json: { results: [null] } };
      case "/reset_prefix_cache":
        return { json: { success: true } };
      case "/update_weight_version":
        this.#label = body.new_version;
        return { json: { success: true, new_version: body.new_version } };
      case "/v1/load_lora_adapter": {
        only(body, ["lora_name", "lora_path"]);
        if (!isAdapter(body.lora_path) || this.#adapters.has(body.lora_name)) return { status: 400 };
        this.#adapters.add(body.lora_name);
        return {};
      }
      case "/v1/unload_lora_adapter":
        return this.#adapters.delete(body.lora_name) ? {} : { status: 404 };
      case "/v1/completions":
        return this.#complete(body);
      default:
        return { status: 404, json: { detail: "Not Found" } };
    }
  }

  async #complete(body: Call["body"]): Promise<Reply> {
    only(body, completionFields);
    if (body.model !== "base" && !this.#adapters.has(body.model)) return { status: 404 };
    if (this.paused) return { status: 503, json: { error: "paused" } };
    const label = this.#label;
    const written = await this.generate({
      ...{ tokens: body.prompt, maxNewTokens: body.max_tokens, temperature: body.temperature },
      ...{ topP: body.top_p, topK: body.top_k, minP: body.min_p, seed: body.seed },
      ...{ stopTokenIds: body.stop_token_ids },
    });
    const choice =
      written === aborted
        ? { finish_reason: "abort", token_ids: [], logprobs: { token_logprobs: [] }, weight_versions: [] }
        : {
            finish_reason: written.finishReason,
            token_ids: written.tokens,
            logprobs: { token_logprobs: Array.from(written.logProbs) },
            weight_versions: [{ version: label, start: 0, end: written.tokens.length }],
          };
    const { weight_versions, ...rest } = choice;
    return {
      json: {
        model: body.model,
        choices: [
          {
            ...{ index: 0, text: "", prompt_token_ids: body.prompt, ...rest },
            ...(body.return_weight_versions ? { weight_versions } : {}),
          },
        ],
        usage: { prompt_tokens: body.prompt.length, prompt_tokens_details: null },
      },
    };
  }
}

const samplingFields = [
  ...["max_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"],
  ...["stop_token_ids", "skip_special_tokens", "sampling_seed"],
];

class Sglang extends Api {
  #label = "default";
  #resume: (() => void)[] = [];
  readonly #adapters = new Set<string>();

  async answer({ path, body }: Call): Promise<Reply> {
    switch (path) {
      case "/v1/models":
        return { json: { object: "list", data: [{ id: "base", max_model_len: this.learner.maxPositions }] } };
      case "/model_info":
        return { json: { model_path: "base", weight_version: this.#label } };
      case "/server_info":
        return { json: { version: "0.5.23" } };
      case "/pause_generation":
        only(body, ["mode"]);
        this.pause();
        return { json: { status: "ok" } };
      case "/continue_generation":
        this.paused = false;
        for (const resume of this.#resume.splice(0)) resume();
        return { json: { status: "ok" } };
      case "/update_weights_from_disk":
        only(body, ["model_path", "weight_version", "flush_cache"]);
        await this.reload(body.model_path);
        this.#label = body.weight_version;
        return { json: { success: true, message: "Succeeded.", num_paused_requests: 0 } };
      case "/load_lora_adapter":
        only(body, ["lora_name", "lora_path"]);
        if (!isAdapter(body.lora_path) || this.#adapters.has(body.lora_name))
          return { status: 400, json: { success: false, error_message: "not loaded" } };
        this.#adapters.add(body.lora_name);
        return { json: { success: true, error_message: null, loaded_adapters: {} } };
      case "/unload_lora_adapter":
        only(body, ["lora_name"]);
        return { json: { success: this.#adapters.delete(body.lora_name) } };
      case "/generate":
        return this.#generate(body);
      default:
        return { status: 404, json: { detail: "Not Found" } };
    }
  }

  async #generate(body: Call["body"]): Promise<Reply> {
    only(body, ["input_ids", "sampling_params", "return_logprob", "stream", "lora_path"]);
    if (body.lora_path !== undefined && !this.#adapters.has(body.lora_path)) return { status: 400 };
    const { sampling_params: sampling, input_ids: tokens } = body;
    only(sampling, samplingFields);
    // A paused SGLang lets requests wait.
    if (this.paused) await new Promise<void>((resolve) => this.#resume.push(resolve));
    const { temperature } = sampling;
    const written = await this.generate({
      ...{ tokens, maxNewTokens: sampling.max_new_tokens, temperature, topP: sampling.top_p },
      ...{ topK: Math.max(0, sampling.top_k), minP: sampling.min_p, seed: sampling.sampling_seed },
      stopTokenIds: sampling.stop_token_ids,
    });
    const meta = { id: "1", weight_version: this.#label, prompt_tokens: tokens.length, cached_tokens: 0 };
    if (written === aborted)
      return { json: { text: "", output_ids: [], meta_info: { ...meta, finish_reason: { type: "abort" } } } };
    const { tokens: ids, finishReason } = written;
    // Its log probabilities are those of the logits divided by the temperature.
    const [scaled] = await this.learner.logProbs([{ prompt: tokens, response: ids }], {
      temperature: temperature === 0 ? 1 : temperature,
    });
    return {
      json: {
        text: "",
        output_ids: ids,
        meta_info: {
          ...{ ...meta, finish_reason: { type: finishReason }, completion_tokens: ids.length },
          output_token_logprobs: ids.map((id, i) => [scaled![i]!, id, null]),
        },
      },
    };
  }
}
