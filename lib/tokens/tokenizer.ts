/**
 * Text to token ids and back. `encode` is for untrusted text and never returns control tokens;
 * `encodeTemplate` is for the text of chat templates.
 */

import { randomBytes } from "node:crypto";
import { mkdir, open, readFile, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { Tokenizer as HuggingFaceTokenizer } from "@huggingface/tokenizers";
import { NlacError } from "../base/errors.ts";
import { syncDirectory } from "../files/disk.ts";
import { BytePairEncoder, bytesOfToken } from "./bpe.ts";
import {
  type AddedToken,
  checkTokenizerJson,
  defaultTemplate,
  mergePair,
  type TokenizerConfig,
  type TokenizerJson,
  tokenText,
} from "./format.ts";
import { tokenizerFromGguf } from "./gguf.ts";
import { compilePreTokenizer, type PreTokenizer } from "./pretokenizer.ts";

export interface DecodeOptions {
  /** Leave control tokens out of the text. Default false. */
  skipSpecial?: boolean;
}

/** The parts of a tokenizer; `fromDirectory` and `fromGguf` read them. */
export interface TokenizerParts {
  /** The contents of tokenizer.json. */
  json: TokenizerJson;
  /** The contents of tokenizer_config.json. */
  config: TokenizerConfig;
  /** Jinja source, from chat_template.jinja or the configuration. */
  chatTemplate?: string | undefined;
  /** Ids that end a turn. Default: the configuration's eos_token. */
  eosTokenIds?: readonly number[];
}

/** A byte-level BPE tokenizer (GPT-2, Llama 3, Qwen, SmolLM). Immutable. */
export class Tokenizer {
  /** The largest id plus one. A model may have more rows. */
  readonly vocabSize: number;
  /** Ids of control tokens, e.g. `<|im_end|>`. */
  readonly specialIds: ReadonlySet<number>;
  /** Ids of tokens that are matched whole in template text: control tokens and e.g. `<think>`. */
  readonly addedIds: ReadonlySet<number>;
  /** Ids that end a turn. */
  readonly eosTokenIds: readonly number[];
  /** Jinja source of the chat template; base models have none. */
  readonly chatTemplate: string | undefined;
  /** The contents of tokenizer.json. */
  readonly json: Readonly<TokenizerJson>;
  /** Texts of the named tokens in chat templates: `bos_token`, `eos_token`, … */
  readonly namedTokens: Readonly<Record<string, string>>;

  readonly #config: TokenizerConfig;
  readonly #normalize: (text: string) => string;
  readonly #words: PreTokenizer;
  readonly #pairs: BytePairEncoder;
  readonly #verbatim: AddedTokenMatcher;
  readonly #normalized: AddedTokenMatcher;
  /** Spellings of added tokens, longest first. */
  readonly #spellings: readonly string[];
  /** First UTF-16 units of the spellings. */
  readonly #initials: ReadonlySet<string>;
  /** By id; undefined for unused ids. */
  readonly #bytes: readonly (Uint8Array | undefined)[];
  readonly #ids: ReadonlyMap<string, number>;

  /** Throws ERR_MODEL_FORMAT if the parts are not a byte-level BPE tokenizer. */
  constructor(parts: TokenizerParts) {
    const json = checkTokenizerJson(parts.json);
    this.json = json;
    this.#config = parts.config;
    const added = json.added_tokens ?? [];
    const ids = new Map(Object.entries(json.model.vocab));
    for (const token of added) ids.set(token.content, token.id);
    this.#ids = ids;

    let vocabSize = 0;
    for (const id of ids.values()) vocabSize = Math.max(vocabSize, id + 1);
    this.vocabSize = vocabSize;
    this.addedIds = new Set(added.map(({ id }) => id));
    this.specialIds = new Set(added.filter(({ special }) => special === true).map(({ id }) => id));

    const bytes = new Array<Uint8Array | undefined>(vocabSize).fill(undefined);
    for (const [token, id] of Object.entries(json.model.vocab)) bytes[id] = bytesOfToken(token);
    const utf8 = new TextEncoder();
    for (const { id, content } of added) bytes[id] = utf8.encode(content);
    this.#bytes = bytes;

    this.#normalize = compileNormalizer(json.normalizer);
    this.#words = compilePreTokenizer(json.pre_tokenizer);
    this.#pairs = new BytePairEncoder({
      vocabulary: new Map(Object.entries(json.model.vocab)),
      merges: json.model.merges.map(mergePair),
      forbidden: this.addedIds,
      wholeWords: json.model.ignore_merges === true,
    });
    const afterNormalizing = (token: AddedToken) => token.normalized ?? token.special !== true;
    this.#verbatim = new AddedTokenMatcher(added.filter((token) => !afterNormalizing(token)));
    this.#normalized = new AddedTokenMatcher(
      added.filter(afterNormalizing).map((token) => ({ ...token, content: this.#normalize(token.content) })),
    );
    this.#spellings = [...new Set(added.flatMap(({ content }) => [content, this.#normalize(content)]))].sort(
      (a, b) => b.length - a.length,
    );

    this.#initials = new Set(this.#spellings.map((spelling) => spelling[0]!));

    const named: Record<string, string> = {};
    for (const name of ["bos_token", "eos_token", "unk_token", "pad_token"] as const) {
      const text = tokenText(parts.config[name]);
      if (text !== undefined) named[name] = text;
    }
    this.namedTokens = named;
    this.chatTemplate = parts.chatTemplate ?? defaultTemplate(parts.config);
    const eos = named.eos_token === undefined ? undefined : ids.get(named.eos_token);
    const eosTokenIds = parts.eosTokenIds ?? (eos === undefined ? [] : [eos]);
    for (const id of eosTokenIds) this.#checkId(id);
    this.eosTokenIds = [...new Set(eosTokenIds)];
  }

  /**
   * Reads a Hugging Face directory: tokenizer.json, and if present tokenizer_config.json,
   * special_tokens_map.json, chat_template.jinja, config.json and generation_config.json (for the
   * ids that end a turn).
   *
   * @throws NlacError ERR_MODEL_NOT_FOUND if there is no tokenizer.json, ERR_MODEL_FORMAT if it is
   *   not supported
   */
  static async fromDirectory(directory: string): Promise<Tokenizer> {
    const json = await readJson(join(directory, "tokenizer.json"));
    if (json === undefined) {
      throw new NlacError("ERR_MODEL_NOT_FOUND", `There is no tokenizer.json in ${directory}.`);
    }
    const named = (await readJson(join(directory, "special_tokens_map.json"))) as TokenizerConfig | undefined;
    const own = (await readJson(join(directory, "tokenizer_config.json"))) as TokenizerConfig | undefined;
    const config: TokenizerConfig = { ...named, ...own };
    const parts: TokenizerParts = {
      json: json as TokenizerJson,
      config,
      chatTemplate: await readText(join(directory, "chat_template.jinja")),
    };
    const eosTokenIds = new Set<number>();
    for (const file of ["generation_config.json", "config.json"]) {
      const settings = (await readJson(join(directory, file))) as { eos_token_id?: unknown } | undefined;
      for (const id of [settings?.eos_token_id ?? []].flat()) eosTokenIds.add(Number(id));
    }
    if (eosTokenIds.size === 0) return new Tokenizer(parts);
    const tokenizer = new Tokenizer({ ...parts, eosTokenIds: [...eosTokenIds] });
    const eos = tokenizer.idOf(tokenizer.namedTokens.eos_token ?? "");
    if (eos === undefined || eosTokenIds.has(eos)) return tokenizer;
    return new Tokenizer({ ...parts, eosTokenIds: [...eosTokenIds, eos] });
  }

  /**
   * Rebuilds the tokenizer that a GGUF file's metadata describes.
   *
   * @throws NlacError ERR_MODEL_FORMAT for an unsupported tokenizer or pre-tokenizer
   */
  static fromGguf(metadata: Record<string, unknown>): Tokenizer {
    return new Tokenizer(tokenizerFromGguf(metadata));
  }

  /**
   * Ids of untrusted text. Never contains the id of an added token, even if the text spells one.
   * Unpaired surrogates become U+FFFD; bytes that are not in the vocabulary are omitted.
   */
  encode(text: string): number[] {
    const ids: number[] = [];
    this.#encodeRun(wellFormed(text), ids);
    return ids;
  }

  /**
   * Ids of trusted text, in which added tokens are recognised.
   *
   * @param guard a character that `guardSpellings` inserted into untrusted parts of `text`. It
   *   invalidates the added token that it is in, and is itself omitted.
   */
  encodeTemplate(text: string, guard?: string): number[] {
    const ids: number[] = [];
    const unguarded = (run: string) => (guard === undefined ? run : run.replaceAll(guard, ""));
    for (const part of this.#verbatim.split(wellFormed(text), guard)) {
      if (typeof part === "number") {
        ids.push(part);
        continue;
      }
      if (this.#normalized.empty) {
        this.#encodeRun(unguarded(part), ids);
        continue;
      }
      for (const inner of this.#normalized.split(this.#normalize(part), guard)) {
        if (typeof inner === "number") ids.push(inner);
        else this.#encodeRun(unguarded(inner), ids);
      }
    }
    return ids;
  }

  /**
   * `text` with `guard` after the first character of every added token that it spells, or starts to
   * spell at its end. Other text is returned unchanged.
   *
   * @param guard one character that does not occur in `text`
   */
  guardSpellings(text: string, guard: string): string {
    let guarded = "";
    let end = 0;
    for (let i = 0; i < text.length; i++) {
      if (!this.#initials.has(text[i]!)) continue;
      const spells = this.#spellings.some(
        (spelling) => text.startsWith(spelling, i) || spelling.startsWith(text.slice(i)),
      );
      if (!spells) continue;
      const after = i + String.fromCodePoint(text.codePointAt(i)!).length;
      guarded += text.slice(end, after) + guard;
      end = after;
    }
    return guarded + text.slice(end);
  }

  /**
   * The text of `ids`; invalid UTF-8 becomes U+FFFD. Ids beyond the vocabulary, which a padded
   * model can generate, have no text.
   */
  decode(ids: readonly number[] | Int32Array, options: DecodeOptions = {}): string {
    const parts: Uint8Array[] = [];
    for (const id of ids) {
      if (options.skipSpecial === true && this.specialIds.has(id)) continue;
      const bytes = this.#bytes[id];
      if (bytes !== undefined) parts.push(bytes);
    }
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Buffer.concat(parts));
  }

  /** The bytes of an id, which may be part of a character. Empty for unused ids. */
  bytesOf(id: number): Uint8Array {
    return this.#bytes[id]?.slice() ?? new Uint8Array();
  }

  /** The bytes of every id, `vocabSize` entries; empty for unused ids. */
  tokenBytes(): Uint8Array[] {
    return Array.from(this.#bytes, (bytes) => bytes?.slice() ?? new Uint8Array());
  }

  /** The id of the token with exactly this text in the vocabulary, including added tokens. */
  idOf(token: string): number | undefined {
    return this.#ids.get(token);
  }

  /**
   * Writes tokenizer.json and tokenizer_config.json (with the chat template), so that transformers
   * can load the directory. Each file is replaced atomically. Creates `directory` if necessary.
   */
  async save(directory: string): Promise<void> {
    await mkdir(directory, { recursive: true });
    const config: TokenizerConfig = { tokenizer_class: "PreTrainedTokenizerFast", ...this.#config };
    if (this.chatTemplate !== undefined) config.chat_template = this.chatTemplate;
    await replaceFile(join(directory, "tokenizer.json"), `${JSON.stringify(this.json)}\n`);
    await replaceFile(join(directory, "tokenizer_config.json"), `${JSON.stringify(config, null, 2)}\n`);
  }

  #encodeRun(text: string, out: number[]): void {
    if (text === "") return;
    for (const word of this.#words(this.#normalize(text))) this.#pairs.encode(word, out);
  }

  #checkId(id: number): void {
    if (Number.isInteger(id) && id >= 0 && id < this.vocabSize) return;
    throw new NlacError("ERR_MODEL_FORMAT", `The end-of-turn id ${id} is not in the vocabulary.`);
  }
}

/** Finds added tokens in text: the leftmost first, and the longest of several. */
class AddedTokenMatcher {
  readonly empty: boolean;
  readonly #tokens: ReadonlyMap<string, AddedToken>;
  readonly #pattern: RegExp;

  constructor(tokens: readonly AddedToken[]) {
    this.empty = tokens.length === 0;
    this.#tokens = new Map(tokens.map((token) => [token.content, token]));
    const longestFirst = [...this.#tokens.keys()].sort((a, b) => b.length - a.length);
    this.#pattern = new RegExp(
      longestFirst.map((content) => content.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|"),
      "gu",
    );
  }

  /** Ids of the tokens, and the texts between them. */
  split(text: string, guard: string | undefined): (string | number)[] {
    if (this.empty) return text === "" ? [] : [text];
    const parts: (string | number)[] = [];
    let end = 0;
    for (const match of text.matchAll(this.#pattern)) {
      const token = this.#tokens.get(match[0])!;
      let from = match.index;
      let to = from + match[0].length;
      // For a token of one character, the guard follows the token.
      if (guard !== undefined && text.startsWith(guard, to)) continue;
      if (
        token.single_word === true &&
        (wordAtEnd.test(text.slice(end, from)) || wordAtStart.test(text.slice(to)))
      ) {
        continue;
      }
      if (from < end) continue;
      if (token.lstrip === true) from = end + text.slice(end, from).trimEnd().length;
      if (token.rstrip === true) to = text.length - text.slice(to).trimStart().length;
      if (from > end) parts.push(text.slice(end, from));
      parts.push(token.id);
      end = to;
    }
    if (end < text.length) parts.push(text.slice(end));
    return parts;
  }
}

const wordAtEnd = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]$/u;
const wordAtStart = /^[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}]/u;

function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, "\ufffd");
}

function compileNormalizer(rule: unknown): (text: string) => string {
  if (rule === null || rule === undefined) return (text) => text;
  if ((rule as { type?: unknown }).type === "NFC") return (text) => text.normalize("NFC");
  try {
    const { normalizer } = new HuggingFaceTokenizer(
      {
        added_tokens: [],
        normalizer: rule,
        pre_tokenizer: null,
        post_processor: null,
        decoder: null,
        model: { type: "BPE", vocab: {}, merges: [] },
      },
      {},
    );
    if (normalizer !== null) return (text) => normalizer(text);
  } catch (error) {
    throw new NlacError("ERR_MODEL_FORMAT", `Unsupported normalizer: ${JSON.stringify(rule)}.`, {
      cause: error,
    });
  }
  throw new NlacError("ERR_MODEL_FORMAT", `Unsupported normalizer: ${JSON.stringify(rule)}.`);
}

async function readText(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw new NlacError("ERR_IO", `${path} cannot be read.`, { cause: error });
  }
}

async function readJson(path: string): Promise<unknown> {
  const text = await readText(path);
  if (text === undefined) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new NlacError("ERR_MODEL_FORMAT", `${path} is not JSON: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

/** Writes a temporary file, syncs and renames it: readers see the old file or the new one. */
async function replaceFile(path: string, content: string): Promise<void> {
  const beside = `${path}.${randomBytes(6).toString("hex")}`;
  try {
    const file = await open(beside, "wx");
    try {
      await file.writeFile(content);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(beside, path);
    syncDirectory(dirname(path));
  } catch (error) {
    await rm(beside, { force: true });
    throw new NlacError("ERR_IO", `${path} cannot be written.`, { cause: error });
  }
}
