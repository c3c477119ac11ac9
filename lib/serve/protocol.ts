/**
 * Requests and errors of OpenAI's chat and completion endpoints. Unsupported parameters are refused
 * if they would change the response, and otherwise ignored.
 */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import type { ToolSchema } from "../contract/environment.ts";
import type { Grammar } from "../model/grammar.ts";
import type { GenerateRequest } from "../model/language-model.ts";

/** A response with an error status. */
export class RequestError extends Error {
  readonly status: 400 | 401 | 404 | 413 | 429 | 500 | 503;
  readonly type: string;
  readonly code: string | null;
  readonly parameter: string | null;

  constructor(
    status: RequestError["status"],
    type: string,
    message: string,
    code: string | null = null,
    parameter: string | null = null,
  ) {
    super(message);
    this.status = status;
    this.type = type;
    this.code = code;
    this.parameter = parameter;
  }

  /** The body in OpenAI's format. */
  get body() {
    const { message, type, code, parameter: param } = this;
    return { error: { message, type, param, code } };
  }
}

export function badRequest(message: string, parameter: string | null = null, code: string | null = null) {
  return new RequestError(400, "invalid_request_error", message, code, parameter);
}

/** Any error as a response. Unexpected errors do not reveal details. */
export function asRequestError(error: unknown): RequestError {
  if (error instanceof RequestError) return error;
  if (error instanceof NlacError) {
    const { code, message } = error;
    if (code === "ERR_VALUE" || code === "ERR_TOKENIZER" || code === "ERR_CONFIG")
      return badRequest(message, null, code);
    if (code === "ERR_OUT_OF_MEMORY" || code === "ERR_ABORTED")
      return new RequestError(503, "server_error", message, code);
    return new RequestError(500, "server_error", message, code);
  }
  return new RequestError(500, "server_error", "The server failed.", "ERR_INTERNAL");
}

/** A text, given as a string or as parts. */
const content = z.union([
  z.string(),
  z
    .array(
      z.looseObject({
        type: z.literal("text", { error: "Only text can be read, no images, sound or files" }),
        text: z.string(),
      }),
      { error: "must be a text, or a list of parts that are texts" },
    )
    .transform((parts) => parts.map(({ text }) => text).join("")),
]);

const call = z.looseObject({
  type: z.literal("function").default("function"),
  function: z.looseObject({ name: z.string().min(1), arguments: z.string() }),
});

/** A message of a request. */
const message = z.discriminatedUnion("role", [
  z.looseObject({ role: z.enum(["system", "developer", "user"]), content }),
  z.looseObject({
    role: z.literal("assistant"),
    content: content.nullish(),
    tool_calls: z
      .array(call)
      .max(1, "A turn has one call at most; calls beside each other are not supported")
      .nullish(),
  }),
  z.looseObject({ role: z.literal("tool"), content }),
]);

const tool = z.looseObject({
  type: z.literal("function"),
  function: z.looseObject({
    name: z.string().regex(/^[\w.-]{1,64}$/),
    description: z
      .string()
      .nullish()
      .transform((text) => text ?? ""),
    parameters: z
      .record(z.string(), z.unknown())
      .nullish()
      .transform((schema) => schema ?? { type: "object", properties: {} }),
  }),
});

const stop = z
  .union([z.string(), z.array(z.string()).max(4)])
  .nullish()
  .transform((value) => (typeof value === "string" ? [value] : (value ?? [])));

/** A parameter that is accepted only with a value that has no effect. */
const only = <T>(schema: z.ZodType<T>, because: string) => schema.nullish().or(z.never({ error: because }));

const sampling = {
  model: z.string(),
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(0).nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  max_tokens: z.int().min(1).nullish(),
  seed: z.int().nullish(),
  stop,
  n: z.int().min(1).max(128).nullish(),
  best_of: z.int().nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.looseObject({ include_usage: z.boolean().nullish() }).nullish(),
  /** Also return token ids, for training (vLLM's name). */
  return_token_ids: z.boolean().nullish(),
  presence_penalty: only(z.literal(0), "penalties are not supported"),
  frequency_penalty: only(z.literal(0), "penalties are not supported"),
  logit_bias: only(z.record(z.string(), z.never()), "biases are not supported"),
};

const noneIsLeftOut = ({
  n,
  best_of,
}: {
  n?: number | null | undefined;
  best_of?: number | null | undefined;
}) => (best_of ?? 1) <= (n ?? 1);
const allAreGiven = { path: ["best_of"], error: "every text is given back: ask for as many with n" };

export const chatRequest = z
  .looseObject({
    ...sampling,
    messages: z.array(message).min(1),
    max_completion_tokens: z.int().min(1).nullish(),
    tools: z.array(tool).nullish(),
    tool_choice: z
      .union([
        z.enum(["auto", "none", "required"]),
        z.looseObject({ type: z.literal("function"), function: z.looseObject({ name: z.string() }) }),
      ])
      .nullish(),
    response_format: z
      .union([
        z.looseObject({ type: z.enum(["text", "json_object"]) }),
        z.looseObject({
          type: z.literal("json_schema"),
          json_schema: z.looseObject({ schema: z.record(z.string(), z.unknown()) }),
        }),
      ])
      .nullish(),
    logprobs: z.boolean().nullish(),
    top_logprobs: z.int().min(0).max(20).nullish(),
    functions: only(z.array(z.never()), "functions are given as tools"),
    function_call: only(
      z.enum(["auto", "none"]),
      "functions are given as tools, and calls are asked for by tool_choice",
    ),
  })
  .refine(noneIsLeftOut, allAreGiven)
  .refine(({ logprobs, top_logprobs }) => logprobs || !top_logprobs, {
    path: ["top_logprobs"],
    error: "log probabilities are asked for by logprobs: true",
  });

export const completionRequest = z
  .looseObject({
    ...sampling,
    prompt: z.union([
      z.string().transform((text) => [text]),
      z
        .array(z.int())
        .min(1)
        .transform((ids) => [ids]),
      z.array(z.union([z.string(), z.array(z.int()).min(1)])).min(1),
    ]),
    logprobs: z.int().min(0).max(5).nullish(),
    echo: only(z.literal(false), "the prompt is not repeated"),
    suffix: only(z.literal(""), "there is no suffix"),
  })
  .refine(noneIsLeftOut, allAreGiven);

export type ChatRequest = z.infer<typeof chatRequest>;
export type CompletionRequest = z.infer<typeof completionRequest>;

/** Throws a RequestError of status 400 that names the first invalid parameter. */
export function readRequest<T>(schema: z.ZodType<T>, body: unknown): T {
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const { path, message } = deepest(parsed.error.issues[0]!);
  const parameter = path
    .map((key, i) => (typeof key === "number" ? `[${key}]` : `${i ? "." : ""}${String(key)}`))
    .join("");
  throw badRequest(`${parameter === "" ? "the request" : parameter}: ${message}`, parameter || null);
}

/** The issue of the last alternative of a union, which is the most specific. */
function deepest(issue: z.core.$ZodIssue): { path: PropertyKey[]; message: string } {
  if (issue.code !== "invalid_union" || issue.errors.length === 0) return issue;
  const [inner] = issue.errors.at(-1) ?? [];
  if (inner === undefined) return issue;
  const { path, message } = deepest(inner);
  return { path: [...issue.path, ...path], message };
}

/** The content of a message; messages are the same if these are equal. */
export interface Said {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  call?: { name: string; arguments: string };
}

export function saidIn(messages: ChatRequest["messages"]): Said[] {
  return messages.map((message): Said => {
    if (message.role !== "assistant")
      return { role: message.role === "developer" ? "system" : message.role, content: message.content };
    const [called] = message.tool_calls ?? [];
    return {
      role: "assistant",
      content: message.content ?? "",
      ...(called && { call: { name: called.function.name, arguments: called.function.arguments } }),
    };
  });
}

/** The functions shown to the model, even if this turn must not call them. */
export function toolsIn(request: ChatRequest): ToolSchema[] {
  return (request.tools ?? []).map(({ function: { name, description, parameters } }) => ({
    name,
    description,
    parameters,
  }));
}

/** Whether the reply may be a call. */
export function mayCall({ tools, tool_choice }: ChatRequest): boolean {
  return (tools ?? []).length > 0 && tool_choice !== "none";
}

/**
 * The functions of which one must be called; undefined if a call is not required.
 *
 * @throws RequestError of status 400 for an unknown name
 */
export function mustCall(request: ChatRequest): ToolSchema[] | undefined {
  const { tool_choice: choice } = request;
  if (choice == null || choice === "auto" || choice === "none") return undefined;
  const tools = toolsIn(request);
  const named = choice === "required" ? tools : tools.filter(({ name }) => name === choice.function.name);
  if (named.length === 0) throw badRequest("tool_choice: no tool has this name.", "tool_choice");
  return named;
}

/** The grammar of the reply according to `response_format`. */
export function formatOf({ response_format: format }: ChatRequest): Grammar | undefined {
  if (format == null || format.type === "text") return undefined;
  return format.type === "json_schema" ? { jsonSchema: format.json_schema.schema } : { json: true };
}

/** Sampling parameters, with OpenAI's defaults. */
export function samplingOf(
  request: ChatRequest | CompletionRequest,
  maxNewTokens: number | null | undefined,
): Partial<GenerateRequest> {
  return {
    temperature: request.temperature ?? 1,
    topP: request.top_p ?? 1,
    topK: request.top_k ?? 0,
    minP: request.min_p ?? 0,
    stop: request.stop.filter((text) => text !== ""),
    ...(maxNewTokens == null ? {} : { maxNewTokens }),
  };
}
