/**
 * Requests of OpenAI's chat and completion endpoints. Unknown parameters are refused,
 * and so are known ones that would change the response and are not supported. The others are
 * ignored.
 */

import { z } from "zod";
import type { Message, ToolSchema } from "../contract/environment.ts";
import type { Grammar } from "../model/grammar.ts";
import type { GenerateRequest } from "../model/language-model.ts";
import { isCallId } from "../tokens/messages.ts";
import { badRequest } from "./request-error.ts";

/** Limits of a request's lists and texts. Texts of prompts are limited by the model's context. */
const most = {
  messages: 4096,
  parts: 4096,
  tools: 128,
  /** Calls of a turn. */
  calls: 128,
  stops: 4,
  /** Characters of a stop string, a name or an id. */
  stop: 1000,
  name: 256,
  /** Bytes of the tools together, and of the schema of `response_format`, as JSON. */
  toolBytes: 256 * 2 ** 10,
  schemaBytes: 64 * 2 ** 10,
} as const;

/** An object without other keys. `ignored` keys are accepted and dropped. */
const known = <T extends z.core.$ZodLooseShape>(shape: T, ignored: readonly string[] = []) =>
  z.preprocess(without(ignored), z.strictObject(shape));

const without = (ignored: readonly string[]) => (value: unknown) =>
  typeof value !== "object" || value === null || Array.isArray(value)
    ? value
    : Object.fromEntries(Object.entries(value).filter(([key]) => !ignored.includes(key)));

/**
 * A list that is counted before its items are looked at, one by one up to the first invalid one:
 * thousands of problems would take long to describe, and only one is reported.
 */
const list = <T extends z.ZodType>(
  item: T,
  { min = 0, max, error }: { min?: number; max: number; error?: string },
) =>
  z
    .array(z.unknown(), error === undefined ? {} : { error })
    .min(min)
    .max(max)
    .transform((items, context): z.output<T>[] => {
      const read: z.output<T>[] = [];
      for (const [i, value] of items.entries()) {
        const parsed = item.safeParse(value);
        if (!parsed.success) {
          const issue = parsed.error.issues[0]!;
          context.issues.push({ ...issue, path: [i, ...issue.path], input: value } as z.core.$ZodRawIssue);
          return z.NEVER;
        }
        read.push(parsed.data);
      }
      return read;
    });

/** What the core counts with. */
const maxInteger = 2 ** 31 - 1;

const name = z.string().min(1).max(most.name);

/** A text, given as a string or as parts. */
const content = z.union([
  z.string(),
  list(
    known(
      {
        type: z.literal("text", { error: "Only text can be read, no images, sound or files" }),
        text: z.string(),
      },
      ["cache_control", "prompt_cache_breakpoint", "annotations", "id", "index"],
    ),
    { max: most.parts, error: "must be a text, or a list of parts that are texts" },
  ).transform((parts) => parts.map(({ text }) => text).join("")),
]);

/** Other values than texts are accepted and match no call. */
const callId = z
  .unknown()
  .transform((id) => (typeof id === "string" ? id : undefined))
  .optional();

const call = known(
  {
    id: callId,
    type: z.literal("function").default("function"),
    function: known({ name, arguments: z.string() }, ["parsed_arguments"]),
  },
  ["index", "extra_content", "provider_specific_fields"],
);

/** What clients send beside a message's content: names, ids, and parts of earlier answers. */
const besideContent = [
  ...["name", "id", "refusal", "annotations", "audio", "function_call", "reasoning"],
  ...["reasoning_content", "reasoning_details", "cache_control", "parsed", "provider_specific_fields"],
  "thinking_blocks",
];

const otherMessage = z.strictObject({
  role: z.enum(["system", "developer", "user", "tool"]),
  content,
  tool_call_id: callId,
});

/** A message of a request. */
const message = z.preprocess(
  without(besideContent),
  z.discriminatedUnion("role", [
    otherMessage,
    z.strictObject({
      role: z.literal("assistant"),
      content: content.nullish(),
      tool_call_id: callId,
      tool_calls: list(call, { max: most.calls }).nullish(),
    }),
  ]),
);

/** A message that follows a turn of the model, as clients write it in a chat request. */
export const observedMessage = z
  .preprocess(without(besideContent), otherMessage)
  .transform(({ role, content }): Message => ({ role: role === "developer" ? "system" : role, content }));

const tool = known(
  {
    type: z.literal("function"),
    function: known(
      {
        name: z.string().regex(/^[\w.-]{1,64}$/),
        description: z
          .string()
          .nullish()
          .transform((text) => text ?? ""),
        parameters: z
          .record(z.string(), z.unknown(), { error: "must be a JSON Schema, as an object" })
          .nullish()
          .transform((schema) => schema ?? { type: "object", properties: {} }),
      },
      ["strict"],
    ),
  },
  ["cache_control"],
);

const tools = list(tool, { max: most.tools })
  .refine((all) => new Set(all.map((one) => one.function.name)).size === all.length, {
    error: "two tools have the same name",
  })
  .refine((all) => byteLength(all) <= most.toolBytes, {
    error: `the tools may have ${most.toolBytes} bytes at most`,
  });

const stopText = z.string().max(most.stop);
const stop = z
  .union([stopText, list(stopText, { max: most.stops })])
  .nullish()
  .transform((value) => (typeof value === "string" ? [value] : (value ?? [])));

/** A parameter that is accepted only with a value that has no effect. */
const only = <T>(schema: z.ZodType<T>, because: string) => schema.nullish().or(z.never({ error: because }));

const empty = z.custom<object>(
  (value) => typeof value === "object" && value !== null && Object.keys(value).length === 0,
);

const sampling = {
  model: name,
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  /** 0 and vLLM's -1 keep all tokens. */
  top_k: z.int().min(-1).max(maxInteger).nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  max_tokens: z.int().min(1).nullish(),
  seed: z.int().nullish(),
  stop,
  n: z.int().min(1).max(128).nullish(),
  best_of: z.int().nullish(),
  stream: z.boolean().nullish(),
  stream_options: known({ include_usage: z.boolean().nullish() }, ["include_obfuscation"]).nullish(),
  /** Also return token ids, for training (vLLM's name). */
  return_token_ids: z.boolean().nullish(),
  presence_penalty: only(z.literal(0), "penalties are not supported"),
  frequency_penalty: only(z.literal(0), "penalties are not supported"),
  logit_bias: only(empty, "biases are not supported"),
  repetition_penalty: only(z.literal(1), "penalties are not supported"),
};

/** Parameters that do not change an answer here. */
const ignoredByCompletions = [
  ...["user", "metadata", "safety_identifier", "service_tier", "store", "prompt_cache_key"],
];
const ignoredByChats = [
  ...ignoredByCompletions,
  ...["parallel_tool_calls", "prediction", "prompt_cache_options"],
  ...["prompt_cache_retention", "reasoning_effort", "verbosity"],
];

const noneIsLeftOut = ({
  n,
  best_of,
}: {
  n?: number | null | undefined;
  best_of?: number | null | undefined;
}) => (best_of ?? 1) <= (n ?? 1);
const allAreGiven = { path: ["best_of"], error: "all completions are returned: choose their number with n" };

export const chatRequest = known(
  {
    ...sampling,
    messages: list(message, { min: 1, max: most.messages }),
    max_completion_tokens: z.int().min(1).nullish(),
    tools: tools.nullish(),
    tool_choice: z
      .union([
        z.enum(["auto", "none", "required"]),
        z.strictObject({ type: z.literal("function"), function: z.strictObject({ name }) }),
      ])
      .nullish(),
    response_format: z
      .discriminatedUnion("type", [
        z.strictObject({ type: z.enum(["text", "json_object"]) }),
        z.strictObject({
          type: z.literal("json_schema"),
          json_schema: known(
            {
              schema: z
                .record(z.string(), z.unknown(), { error: "must be a JSON Schema, as an object" })
                .refine((schema) => byteLength(schema) <= most.schemaBytes, {
                  error: `a schema may have ${most.schemaBytes} bytes at most`,
                }),
            },
            ["name", "description", "strict"],
          ),
        }),
      ])
      .nullish(),
    logprobs: z.boolean().nullish(),
    top_logprobs: z.int().min(0).max(20).nullish(),
    functions: only(z.array(z.never()), "use tools instead"),
    function_call: only(z.enum(["auto", "none"]), "use tools and tool_choice instead"),
    modalities: only(z.tuple([z.literal("text")]), "only text is generated"),
    audio: only(z.never(), "only text is generated"),
    web_search_options: only(z.never(), "there is no web search"),
    moderation: only(z.never(), "there is no moderation"),
    /** Variables of the chat template (vLLM's name). */
    chat_template_kwargs: only(empty, "the chat template takes no variables from a request"),
  },
  ignoredByChats,
)
  .refine(noneIsLeftOut, allAreGiven)
  .refine(({ logprobs, top_logprobs }) => logprobs || !top_logprobs, {
    path: ["top_logprobs"],
    error: "log probabilities need logprobs: true",
  });

export const completionRequest = known(
  {
    ...sampling,
    prompt: z.unknown().transform(promptsIn),
    logprobs: z.int().min(0).max(5).nullish(),
    echo: only(z.literal(false), "the prompt is not repeated"),
    suffix: only(z.literal(""), "there is no suffix"),
  },
  ignoredByCompletions,
).refine(noneIsLeftOut, allAreGiven);

/**
 * The prompts of a request: a text, ids, or a list of these. Written out, because zod is slow on
 * ids.
 */
function promptsIn(value: unknown, context: z.RefinementCtx): (string | number[])[] {
  const areIds = (prompt: unknown): prompt is number[] =>
    Array.isArray(prompt) && prompt.length > 0 && prompt.every((id) => Number.isSafeInteger(id) && id >= 0);
  if (typeof value === "string") return [value];
  if (areIds(value)) return [value];
  const prompts: unknown[] = Array.isArray(value) ? value : [];
  if (prompts.length > 0 && prompts.every((prompt) => typeof prompt === "string" || areIds(prompt)))
    return prompts as (string | number[])[];
  context.addIssue("must be a text, a list of ids, or a list of texts and lists of ids");
  return z.NEVER;
}

function byteLength(value: unknown): number {
  return Buffer.byteLength(JSON.stringify(value));
}

type AskedMessages = z.infer<typeof chatRequest>["messages"];
/** What a request asks for, without its messages or prompts. */
export type ChatRequest = Omit<z.infer<typeof chatRequest>, "messages">;
export type CompletionRequest = Omit<z.infer<typeof completionRequest>, "prompt">;

/** Throws a RequestError of status 400 that names the first invalid parameter. */
export function readRequest<T>(schema: z.ZodType<T>, body: unknown): T {
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const issue = deepest(parsed.error.issues[0]!);
  if (issue.unknown !== undefined) {
    const parameter = pathText([...issue.path, issue.unknown]).slice(0, most.name);
    throw badRequest(`Unknown parameter: ${parameter}.`, parameter, "unknown_parameter");
  }
  const parameter = pathText(issue.path);
  throw badRequest(`${parameter === "" ? "the request" : parameter}: ${issue.message}`, parameter || null);
}

function pathText(path: readonly PropertyKey[]): string {
  return path
    .map((key, i) => (typeof key === "number" ? `[${key}]` : `${i ? "." : ""}${String(key)}`))
    .join("");
}

interface Fault {
  path: PropertyKey[];
  message: string;
  /** A key that no parameter has. */
  unknown?: string;
}

/** The issue of the last alternative of a union, which is the most specific. */
function deepest(issue: z.core.$ZodIssue): Fault {
  const { path, message } = issue;
  if (issue.code === "unrecognized_keys") return { path, message, unknown: issue.keys[0]! };
  const [inner] = issue.code === "invalid_union" ? (issue.errors.at(-1) ?? []) : [];
  if (inner === undefined) return { path, message };
  const fault = deepest(inner);
  return { ...fault, path: [...path, ...fault.path] };
}

/** The content of a message; messages are the same if these are equal, except for the ids of calls. */
export interface Said {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  /** Undefined without a call. */
  calls?: readonly { name: string; arguments: string; id?: string }[];
}

export function saidIn(messages: AskedMessages): Said[] {
  return inOrderOfCalls(messages).map((message): Said => {
    if (message.role !== "assistant")
      return { role: message.role === "developer" ? "system" : message.role, content: message.content };
    const calls = (message.tool_calls ?? []).map(({ id, function: called }) => ({
      ...{ name: called.name, arguments: called.arguments },
      // Other ids are not rendered.
      ...(isCallId(id) ? { id } : {}),
    }));
    return {
      role: "assistant",
      content: message.content ?? "",
      ...(calls.length > 0 && { calls }),
    };
  });
}

/**
 * The messages with the results of a turn's calls in the order of the calls, by which chat templates
 * tell them apart. Clients may send them in another order, with ids.
 */
function inOrderOfCalls(messages: AskedMessages): AskedMessages {
  const ordered = [...messages];
  for (const [i, message] of messages.entries()) {
    const calls = message.role === "assistant" ? (message.tool_calls ?? []) : [];
    if (calls.length < 2) continue;
    const places = new Map(calls.map(({ id }, place) => [id, place]));
    let end = i + 1;
    while (messages[end]?.role === "tool") end++;
    const results = messages.slice(i + 1, end);
    const placeOf = ({ tool_call_id: id }: AskedMessages[number]) =>
      id === undefined ? undefined : places.get(id);
    if (results.some((result) => placeOf(result) === undefined)) continue;
    results.sort((a, b) => placeOf(a)! - placeOf(b)!);
    ordered.splice(i + 1, results.length, ...results);
  }
  return ordered;
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
 * @throws RequestError of status 400 for an unknown name, or without tools
 */
export function mustCall(request: ChatRequest): ToolSchema[] | undefined {
  const { tool_choice: choice } = request;
  if (choice == null || choice === "auto" || choice === "none") return undefined;
  const tools = toolsIn(request);
  if (tools.length === 0) throw badRequest("tool_choice: the request has no tools.", "tool_choice");
  if (choice === "required") return tools;
  const { name } = choice.function;
  const named = tools.filter((tool) => tool.name === name);
  if (named.length === 0)
    throw badRequest(`tool_choice: no tool is named ${JSON.stringify(name)}.`, "tool_choice");
  return named;
}

/** The grammar of the reply according to `response_format`. */
export function formatOf({ response_format: format }: ChatRequest): Grammar | undefined {
  if (format == null || format.type === "text") return undefined;
  return format.type === "json_schema" ? { jsonSchema: format.json_schema.schema } : { json: true };
}

/**
 * Throws a RequestError of status 400 unless the context has room after a prompt of `length`
 * tokens.
 */
export function checkLength(length: number, maxPositions: number, parameter: string): void {
  if (length < maxPositions) return;
  throw badRequest(
    `The prompt has ${length} tokens, and the model's context ${maxPositions}.`,
    parameter,
    "context_length_exceeded",
  );
}

/** Sampling parameters, with OpenAI's defaults. */
export function samplingOf(
  request: ChatRequest | CompletionRequest,
  maxNewTokens: number | null | undefined,
): Partial<GenerateRequest> {
  return {
    temperature: request.temperature ?? 1,
    topP: request.top_p ?? 1,
    topK: Math.max(request.top_k ?? 0, 0),
    minP: request.min_p ?? 0,
    stop: request.stop.filter((text) => text !== ""),
    ...(maxNewTokens == null ? {} : { maxNewTokens }),
  };
}
