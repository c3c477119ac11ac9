/** The parts of tokenizer.json and tokenizer_config.json that nlac reads. */

import { NlacError } from "../base/errors.ts";
import { isObject, shown } from "../base/validation.ts";

/** A token that is matched before pre-tokenization, such as `<|im_end|>`. */
export interface AddedToken {
  id: number;
  content: string;
  single_word?: boolean;
  lstrip?: boolean;
  rstrip?: boolean;
  normalized?: boolean;
  /** Whether it is a control token; others, like `<think>`, are shown in decoded text. */
  special?: boolean;
}

/** The fields of tokenizer.json that are used. */
export interface TokenizerJson {
  added_tokens?: AddedToken[];
  normalizer?: unknown;
  pre_tokenizer?: unknown;
  post_processor?: unknown;
  decoder?: unknown;
  model: {
    type?: string;
    vocab: Record<string, number>;
    merges: (string | [string, string])[];
    ignore_merges?: boolean;
    byte_fallback?: boolean;
    unk_token?: string | null;
    fuse_unk?: boolean;
    continuing_subword_prefix?: string | null;
    end_of_word_suffix?: string | null;
    [key: string]: unknown;
  };
  [key: string]: unknown;
}

/** A token by its text; configurations write it in two ways. */
export type NamedToken = string | { content: string } | null;

/** The fields of tokenizer_config.json that are used. */
export interface TokenizerConfig {
  bos_token?: NamedToken;
  eos_token?: NamedToken;
  unk_token?: NamedToken;
  pad_token?: NamedToken;
  chat_template?: string | { name: string; template: string }[];
  [key: string]: unknown;
}

/** Whether an added token is plain text: whitespace, in which nothing can be forged. */
export function isPlain({ special, content }: AddedToken): boolean {
  return special !== true && /^[\s\u2581]+$/u.test(content);
}

/** The text of `bos_token` etc. */
export function tokenText(token: NamedToken | undefined): string | undefined {
  return typeof token === "string" ? token : (token?.content ?? undefined);
}

/** The chat template; of several, the default one and the one for tools as one. */
export function configuredTemplate({ chat_template: own }: TokenizerConfig): string | undefined {
  if (!Array.isArray(own)) return own ?? undefined;
  const named = (wanted: string) => own.find(({ name }) => name === wanted)?.template;
  return withToolTemplate(named("default"), named("tool_use"));
}

/**
 * One template that renders as transformers chooses between two: `forTools` if there are tools, else
 * `template`. The empty strings keep the tags between them from stripping whitespace of either.
 */
export function withToolTemplate(
  template: string | undefined,
  forTools: string | undefined,
): string | undefined {
  if (template === undefined || forTools === undefined) return template;
  const part = (source: string) => `{{ "" }}${source.replace(/\n$/, "")}{{ "" }}`;
  return `{% if tools %}${part(forTools)}{% else %}${part(template)}{% endif %}`;
}

/** Throws ERR_MODEL_FORMAT unless `value` is the tokenizer.json of a BPE model. */
export function checkTokenizerJson(value: unknown): TokenizerJson {
  const refuse = (why: string): never => {
    throw new NlacError("ERR_MODEL_FORMAT", `tokenizer.json cannot be used: ${why}.`);
  };
  const json = isObject(value) ? (value as TokenizerJson) : refuse("it is not an object");
  const model = isObject(json.model) ? json.model : refuse("it has no model");
  // Files from before 2022 have no type.
  if (model.type !== undefined && model.type !== "BPE")
    refuse(`its model is ${JSON.stringify(model.type)}, not BPE`);
  if (!isObject(model.vocab)) refuse("its vocabulary is missing");
  if (!Array.isArray(model.merges)) refuse("its merges are missing");
  if (typeof (model.unk_token ?? "") !== "string") refuse(`its unk_token is ${shown(model.unk_token)}`);
  if (model.continuing_subword_prefix || model.end_of_word_suffix) refuse("it marks subwords");
  for (const [token, id] of Object.entries(model.vocab)) {
    if (!isId(id)) refuse(`the id of ${JSON.stringify(token)} is ${JSON.stringify(id)}`);
  }
  for (const merge of model.merges as unknown[]) {
    const parts = typeof merge === "string" ? [merge] : merge;
    if (!Array.isArray(parts) || !parts.every((part) => typeof part === "string") || parts.length > 2) {
      refuse(`a merge is ${shown(merge)}`);
    }
  }
  const added = json.added_tokens ?? [];
  if (!Array.isArray(added)) refuse("its added tokens are not a list");
  for (const token of added) {
    if (!isObject(token) || typeof token.content !== "string" || token.content === "" || !isId(token.id)) {
      refuse(`an added token is ${JSON.stringify(token)}`);
    }
    if (token.content.length > maxAddedLength) {
      refuse(`an added token has ${token.content.length} characters`);
    }
  }
  return json;
}

/** Most steps of a normalizer or pre-tokenizer: each reads the whole text. */
export const maxSteps = 100;

/** Longest content of an added token. */
const maxAddedLength = 1024;

/** Throws ERR_MODEL_FORMAT if a named token or the chat template is not a text. */
export function checkTokenizerConfig({ config, chatTemplate }: { config: unknown; chatTemplate?: unknown }) {
  const refuse = (why: string): never => {
    throw new NlacError("ERR_MODEL_FORMAT", `tokenizer_config.json cannot be used: ${why}.`);
  };
  const settings = isObject(config) ? config : refuse("it is not an object");
  for (const name of ["bos_token", "eos_token", "unk_token", "pad_token"]) {
    const token = settings[name];
    const text = isObject(token) ? token.content : token;
    if (text !== undefined && text !== null && typeof text !== "string") refuse(`${name} is ${shown(text)}`);
  }
  const own = settings.chat_template ?? chatTemplate;
  const templates = Array.isArray(own) ? own.map((item) => (isObject(item) ? item.template : item)) : [own];
  for (const template of templates) {
    if (template !== undefined && template !== null && typeof template !== "string")
      refuse(`a chat_template is ${shown(template)}`);
  }
}

/** The two parts of a merge; older files write them as one string. */
export function mergePair(merge: string | [string, string]): [string, string] {
  if (typeof merge !== "string") return merge;
  const space = merge.indexOf(" ", 1);
  return [merge.slice(0, space), merge.slice(space + 1)];
}

function isId(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) < 2 ** 21;
}
