/** The interface of an inference engine; vllm.ts, sglang.ts and openai.ts implement it. */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { callServer, HttpFault } from "./http.ts";

/** The weights of one version, on the shared path. */
export interface Weights {
  /** Names the version; no other run has the same. */
  label: string;
  kind: "model" | "adapter";
  directory: string;
}

export interface Server {
  readonly url: string;
  /** The model's name at the server. */
  readonly model: string;
  /** Longest context in tokens, if the server says so. */
  readonly maxPositions: number | undefined;
  /** The engine and its version, for messages. */
  readonly about: string;
  /**
   * Whether the server's answers name the version of the weights. If so, an answer without a version
   * is refused. Set by `install`.
   */
  labels: boolean;
}

/** A request whose every field has a value. */
export interface ActionRequest {
  tokens: readonly number[];
  maxNewTokens: number;
  temperature: number;
  topP: number;
  topK: number;
  minP: number;
  repetitionPenalty: number;
  /** Ids that end the text. */
  stopTokenIds: readonly number[];
  /** In [0, 2^53). */
  seed: number | undefined;
}

export interface Answer {
  /** New ids, with the stop id. */
  tokens: number[];
  /** One per token, nats; NaN where the server gives none. */
  logProbs: Float32Array;
  cachedTokens: number;
  /** The server gave up, because it was paused. */
  aborted: boolean;
  /** The label of the weights, if the server says so. */
  label: string | undefined;
}

export interface Engine {
  /** The release from whose source these calls were taken, for messages. */
  readonly readFrom: string;
  /**
   * The temperature that the server divides logits by before it computes the log probabilities of
   * an answer, if the answer was sampled at `temperature`.
   */
  scoredAt(temperature: number): number;
  /** Checks whether a server has the calls that can be tried without changing it. */
  open(url: string, kind: Weights["kind"]): Promise<Server>;
  /**
   * Gives the server new weights. Throws in the middle if a call fails; the server is then paused,
   * and must not be used.
   */
  install(server: Server, weights: Weights): Promise<void>;
  /** Frees a version that is not used any more. */
  release(server: Server, weights: Weights): Promise<void>;
  generate(
    server: Server,
    request: ActionRequest,
    weights: Weights | undefined,
    signal: AbortSignal | undefined,
  ): Promise<Answer>;
}

const modelsSchema = z.object({
  data: z.array(z.object({ id: z.string(), max_model_len: z.int().nullish() })).min(1),
});

/** The first model of GET /v1/models, which all three engines have. */
export async function firstModel(url: string): Promise<{ id: string; maxPositions: number | undefined }> {
  const { id, max_model_len } = readAnswer(
    modelsSchema,
    await callServer(url, "/v1/models"),
    `${url}/v1/models`,
  ).data[0]!;
  return { id, maxPositions: max_model_len ?? undefined };
}

/** Throws ERR_ROLLOUTS that names the field. */
export function readAnswer<T>(schema: z.ZodType<T>, answer: unknown, where: string): T {
  const parsed = schema.safeParse(answer);
  if (parsed.success) return parsed.data;
  throw new NlacError(
    "ERR_ROLLOUTS",
    `${where} sent an answer of an unexpected form: ${z.prettifyError(parsed.error)}`,
  );
}

/**
 * Makes a call that some servers lack. Throws ERR_ROLLOUTS with `advice` if this one does;
 * HttpFault.
 */
export async function callOrAdvise(
  url: string,
  path: string,
  body: object | undefined,
  advice: string,
): Promise<unknown> {
  try {
    return await callServer(url, path, body);
  } catch (error) {
    if (!(error instanceof HttpFault && error.isMissing)) throw error;
    throw new NlacError("ERR_ROLLOUTS", `${url} has no ${path.split("?")[0]}. ${advice}`, { cause: error });
  }
}

/** Log probabilities as numbers; NaN where there is none. */
export function logProbsOf(values: readonly (number | null)[]): Float32Array {
  return Float32Array.from(values, (value) => value ?? Number.NaN);
}
