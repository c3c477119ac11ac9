/**
 * Text to token ids and back. `encode` is for untrusted text and never returns control tokens;
 * `encodeTemplate` is for the text of chat templates.
 */

import { randomBytes } from "node:crypto";
import { open, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { NlacError } from "../base/errors.ts";
import { isOverTimeLimit, withTimeLimit } from "../base/time-limit.ts";
import { isObject, shown } from "../base/validation.ts";
import { makeDirectory, syncDirectory } from "../files/disk.ts";
import { readModelFile, readModelJson, settingsLimit, tokenizerLimit } from "../files/read-file.ts";
import { AddedTokenMatcher, type TextPiece } from "./added-tokens.ts";
import { bytePairEncoder, byteVocabulary, tokenOfText, type WordEncoder } from "./bpe.ts";
import { byteLevelTexts, compileDecoder, type StreamDecoder, type TokenTexts } from "./decoder.ts";
import { type CharacterPairOptions, characterPairEncoder } from "./fallback.ts";
import {
  type AddedToken,
  checkTokenizerConfig,
  checkTokenizerJson,
  configuredTemplate,
  isPlain,
  mergePair,
  type TokenizerConfig,
  type TokenizerJson,
  tokenText,
  withToolTemplate,
} from "./format.ts";
import { tokenizerFromGguf } from "./gguf.ts";
import { compileNormalizer, type Normalizer, type Place, prepends } from "./normalizer.ts";
import {
  compilePreTokenizer,
  mayBacktrack,
  type PreTokenizer,
  prefixesSpace,
  worksOnBytes,
} from "./pretokenizer.ts";

/** How a text is encoded. */
export interface EncodeOptions {
  /**
   * The text continues other text. Some tokenizers put a space before text (Llama 2, Mistral); such
   * a text gets none. Default false.
   */
  continues?: boolean;
}

/** What a decoded text leaves out. */
export interface DecodeOptions {
  /** Leave control tokens out of the text. Default false. */
  skipSpecial?: boolean;
  /** With `skipSpecial`: keep those that are part of a call's form. Default false. */
  keepCallMarks?: boolean;
  /**
   * The ids continue a text. Some tokenizers drop the first space of a text; here it stays. Default
   * false.
   */
  continues?: boolean;
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
  /** The rank of each merge, if several have the same. */
  mergeRanks?: readonly number[] | undefined;
}

/**
 * A BPE tokenizer: of bytes (GPT-2, Llama 3, Qwen, SmolLM), or of characters with bytes for those
 * that are missing (Llama 2, Gemma, Mistral before Tekken). Immutable.
 */
export class Tokenizer {
  /** The largest id plus one. A model may have more rows. */
  readonly vocabSize: number;
  /** Ids of control tokens, e.g. `<|im_end|>`. */
  readonly specialIds: ReadonlySet<number>;
  /** Those that are part of a call's form and belong to a generation's text. */
  readonly callMarkIds: ReadonlySet<number>;
  /** Ids that end a turn of calls in place of the usual id; empty in most vocabularies. */
  readonly callEndIds: ReadonlySet<number>;
  /**
   * Ids of tokens that are matched whole in template text only: control tokens and e.g. `<think>`.
   * Tokens of whitespace are not among them; they are matched in all text.
   */
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
  readonly #normalize: Normalizer;
  readonly #words: PreTokenizer;
  readonly #pairs: WordEncoder;
  readonly #texts: TokenTexts;
  /** Whether text may get a space before it. */
  readonly #prefixes: boolean;
  readonly #verbatim: AddedTokenMatcher;
  readonly #normalized: AddedTokenMatcher;
  /** Added tokens as they are written. */
  readonly #written: AddedTokenMatcher;
  /** Whether the patterns come from the model and may backtrack without end. */
  readonly #timed: boolean;
  /** By id; undefined for unused ids. */
  readonly #tokens: readonly (string | undefined)[];
  /** Bytes of the ids that were decoded. */
  readonly #bytes = new Map<number, Uint8Array>();
  readonly #vocabulary: ReadonlyMap<string, number>;
  readonly #added: ReadonlyMap<string, number>;

  /** Throws ERR_MODEL_FORMAT if the parts are not a supported BPE tokenizer. */
  constructor(parts: TokenizerParts) {
    const json = checkTokenizerJson(parts.json);
    checkTokenizerConfig(parts);
    this.json = json;
    this.#config = parts.config;
    const added = json.added_tokens ?? [];
    this.#vocabulary = new Map(Object.entries(json.model.vocab));
    this.#added = new Map(added.map((token) => [token.content, token.id]));

    const tokens: (string | undefined)[] = [];
    for (const [token, id] of this.#vocabulary) tokens[id] = token;
    for (const { content, id } of added) tokens[id] = content;
    this.vocabSize = tokens.length;
    this.#tokens = tokens;
    this.addedIds = new Set(added.filter((token) => !isPlain(token)).map(({ id }) => id));
    const special = added.filter((token) => token.special === true);
    this.specialIds = new Set(special.map(({ id }) => id));
    this.callMarkIds = new Set(special.filter(({ content }) => callMarks.has(content)).map(({ id }) => id));

    this.#normalize = compileNormalizer(json.normalizer);
    this.#words = compilePreTokenizer(json.pre_tokenizer);
    this.#prefixes = prepends(json.normalizer) || prefixesSpace(json.pre_tokenizer);
    this.#timed = mayBacktrack([json.pre_tokenizer, json.normalizer]);
    const options = {
      vocabulary: this.#vocabulary,
      merges: json.model.merges.map(mergePair),
      ranks: parts.mergeRanks,
      forbidden: this.addedIds,
      wholeWords: json.model.ignore_merges === true,
      byteFallback: json.model.byte_fallback === true,
      fuseUnknown: json.model.fuse_unk === true,
    };
    if (worksOnBytes(json.pre_tokenizer)) {
      this.#texts = byteLevelTexts;
      const isKnown = this.idOf(json.model.unk_token ?? "") !== undefined;
      this.#pairs = byteEncoder({ ...options, unknown: isKnown ? this.#unknown(parts) : undefined });
      for (const byte of Object.keys(byteVocabulary())) {
        if (!this.specialIds.has(json.model.vocab[byte] ?? -1)) continue;
        throw new NlacError("ERR_MODEL_FORMAT", `A control token has the id of the byte ${shown(byte)}.`);
      }
    } else {
      this.#texts = compileDecoder(json.decoder);
      this.#pairs = characterPairEncoder({ ...options, unknown: this.#unknown(parts) });
    }
    // One time limit for all of them: there may be many thousand.
    const normal = (tokens: readonly AddedToken[]) =>
      this.#limited(lengthOf(tokens), () =>
        tokens.map((token) => ({ ...token, content: this.#normalize(token.content, "start") })),
      );
    const afterNormalizing = (token: AddedToken) => token.normalized ?? token.special !== true;
    this.#verbatim = new AddedTokenMatcher(added.filter((token) => !afterNormalizing(token)));
    this.#normalized = new AddedTokenMatcher(normal(added.filter(afterNormalizing)));
    const marked = added.filter((token) => !isPlain(token));
    this.#written = new AddedTokenMatcher([...normal(marked), ...marked]);
    const named: Record<string, string> = {};
    for (const name of ["bos_token", "eos_token", "unk_token", "pad_token"] as const) {
      const text = tokenText(parts.config[name]);
      if (text !== undefined) named[name] = text;
    }
    this.namedTokens = named;
    this.chatTemplate = parts.chatTemplate ?? configuredTemplate(parts.config);
    const eos = named.eos_token === undefined ? undefined : this.idOf(named.eos_token);
    const eosTokenIds = parts.eosTokenIds ?? (eos === undefined ? [] : [eos]);
    for (const id of eosTokenIds) this.#checkId(id);
    this.callEndIds = new Set(
      special.filter(({ content }) => callEnds.includes(content)).map(({ id }) => id),
    );
    this.eosTokenIds = [...new Set([...eosTokenIds, ...this.callEndIds])];
  }

  /**
   * Reads a Hugging Face directory: tokenizer.json, and if present tokenizer_config.json,
   * special_tokens_map.json, chat_template.jinja (with additional_chat_templates/tool_use.jinja),
   * config.json and generation_config.json (for the ids that end a turn).
   *
   * @throws NlacError ERR_MODEL_NOT_FOUND if there is no tokenizer.json, ERR_MODEL_FORMAT if it is
   *   not supported
   */
  static async fromDirectory(directory: string): Promise<Tokenizer> {
    const path = join(directory, "tokenizer.json");
    const json = await readModelJson(path, tokenizerLimit);
    if (json === undefined) {
      throw new NlacError("ERR_MODEL_NOT_FOUND", `There is no tokenizer.json in ${directory}.`);
    }
    const named = await readSettings(join(directory, "special_tokens_map.json"));
    const own = await readSettings(join(directory, "tokenizer_config.json"));
    const config: TokenizerConfig = { ...named, ...own };
    const readTemplate = (name: string) => readModelFile(join(directory, name), settingsLimit.bytes);
    const parts: TokenizerParts = {
      json: json as TokenizerJson,
      config,
      chatTemplate: withToolTemplate(
        await readTemplate("chat_template.jinja"),
        await readTemplate(join("additional_chat_templates", "tool_use.jinja")),
      ),
    };
    const eosTokenIds = new Set<number>();
    for (const file of ["generation_config.json", "config.json"]) {
      const settings = await readSettings(join(directory, file));
      for (const id of [settings?.eos_token_id ?? []].flat()) eosTokenIds.add(Number(id));
    }
    if (eosTokenIds.size === 0) return built(parts);
    const tokenizer = built({ ...parts, eosTokenIds: [...eosTokenIds] });
    const eos = tokenizer.idOf(tokenizer.namedTokens.eos_token ?? "");
    if (eos === undefined || eosTokenIds.has(eos)) return tokenizer;
    return built({ ...parts, eosTokenIds: [...eosTokenIds, eos] });
  }

  /**
   * Rebuilds the tokenizer that a GGUF file's metadata describes.
   *
   * @throws NlacError ERR_MODEL_FORMAT for an unsupported tokenizer or pre-tokenizer
   */
  static fromGguf(metadata: Record<string, unknown>): Tokenizer {
    return built(tokenizerFromGguf(metadata));
  }

  /**
   * Ids of untrusted text. Never contains the id of a control token, or of another added token but
   * whitespace, even if the text spells one. Unpaired surrogates become U+FFFD. Characters that the
   * vocabulary cannot express become its unknown token, or are omitted if it has none.
   *
   * @throws NlacError ERR_VALUE for anything but a text, ERR_TOKENIZER if a pattern of the
   *   tokenizer takes too long
   */
  encode(text: string, options: EncodeOptions = {}): number[] {
    if (typeof text !== "string") throw new NlacError("ERR_VALUE", `${shown(text)} is not a text.`);
    return this.encodeTemplate([{ text, trusted: false }], options);
  }

  /** Runs `work` on `length` characters, under a time limit if it needs one. */
  #limited<T>(length: number, work: () => T): T {
    if (!this.#timed) return work();
    try {
      return withTimeLimit(encodingMs + length * encodingMsPerCharacter, work);
    } catch (error) {
      if (!isOverTimeLimit(error)) throw error;
      throw new NlacError(
        "ERR_TOKENIZER",
        `The tokenizer's patterns take too long for a text of ${length} characters.`,
        { cause: error },
      );
    }
  }

  /**
   * Ids of trusted text, in which added tokens are recognised. In pieces that are not trusted, they
   * are not.
   *
   * @throws NlacError as `encode`
   */
  encodeTemplate(text: string | readonly TextPiece[], options: EncodeOptions = {}): number[] {
    const pieces = typeof text === "string" ? [{ text, trusted: true }] : text;
    if (!Array.isArray(pieces)) throw new NlacError("ERR_VALUE", `${shown(text)} is not a text.`);
    const length = pieces.reduce((sum, piece) => sum + piece.text.length, 0);
    const place = options.continues === true ? "inside" : "start";
    return this.#limited(length, () => this.#encodePieces(pieces, place));
  }

  /**
   * The ids of `text`, which follows `before` in a template's output. Some tokenizers put a space
   * before a text that follows an added token.
   *
   * @throws NlacError as `encode`
   */
  encodeAfter(before: readonly TextPiece[], text: readonly TextPiece[]): number[] {
    if (!this.#prefixes) return this.encodeTemplate(text);
    const last = this.encodeTemplate(before).at(-1);
    if (last === undefined) return this.encodeTemplate(text);
    return this.#limited(textOf(text).length, () =>
      this.#encodePieces(text, this.addedIds.has(last) ? "after-token" : "inside"),
    );
  }

  #encodePieces(pieces: readonly TextPiece[], start: Place): number[] {
    const ids: number[] = [];
    const clean = pieces.map((piece) => ({ ...piece, text: wellFormed(piece.text) }));
    let place = start;
    for (const part of this.#verbatim.split(clean)) {
      if (typeof part === "number") ids.push(part);
      else if (!this.#normalized.findsIn(part)) {
        const text = textOf(part);
        const normal = this.#normalize(text, place);
        this.#encodeNormalized(normal, ids, this.#placeAfter(text, normal, place));
      } else {
        // Piece by piece: a normalizer must not move text from one to the other.
        const normal = part.map(({ text, trusted }, i) => ({
          text: this.#normalize(text, i === 0 ? place : "inside"),
          trusted,
        }));
        place = this.#placeAfter(textOf(part), textOf(normal), place);
        for (const inner of this.#normalized.split(normal)) {
          if (typeof inner === "number") ids.push(inner);
          else this.#encodeNormalized(textOf(inner), ids, place);
          place = "after-token";
        }
      }
      place = "after-token";
    }
    return ids;
  }

  /** Where a normalized text stands: not at the start if the first character was left out. */
  #placeAfter(text: string, normal: string, place: Place): Place {
    const first = String.fromCodePoint(text.codePointAt(0) ?? 0);
    const isKept = place !== "start" || normal.startsWith(first) || this.#normalize(first, place) !== "";
    return isKept ? place : "after-token";
  }

  /** Where `text` spells added tokens: the leftmost first, and the longest of several. */
  findAdded(text: string): { id: number; start: number; end: number }[] {
    return Array.from(this.#written.find(text), ({ token, start, end }) => ({ id: token.id, start, end }));
  }

  /**
   * The text of `ids`; invalid UTF-8 becomes U+FFFD. Ids beyond the vocabulary, which a padded
   * model can generate, have no text.
   */
  decode(ids: readonly number[] | Int32Array, options: DecodeOptions = {}): string {
    if (!Array.isArray(ids) && !(ids instanceof Int32Array)) {
      throw new NlacError("ERR_VALUE", `${shown(ids)} is not a list of token ids.`);
    }
    const isKept = (id: number) => options.keepCallMarks === true && this.callMarkIds.has(id);
    const shownIds =
      options.skipSpecial === true ? ids.filter((id) => !this.specialIds.has(id) || isKept(id)) : ids;
    const text = this.#texts.decode(
      shownIds,
      (id) => this.#bytesAt(id),
      (id) => this.#isByte(id),
    );
    return options.continues === true ? text : this.withoutFirstSpace(text);
  }

  /**
   * Decodes ids one at a time, to the text of `decode` with `continues`. Control tokens are part of
   * the text.
   */
  stream(): StreamDecoder {
    return this.#texts.stream(
      (id) => this.#bytesAt(id),
      (id) => this.#isByte(id),
    );
  }

  #isByte(id: number): boolean {
    return this.#texts.isByte(this.#tokens[id]!);
  }

  /** A text as `decode` returns it, of one with `continues`. */
  withoutFirstSpace(text: string): string {
    return this.#texts.dropsFirstSpace && text.startsWith(" ") ? text.slice(1) : text;
  }

  /** The bytes of an id, which may be part of a character. Empty for unused ids. */
  bytesOf(id: number): Uint8Array {
    return this.#bytesAt(id)?.slice() ?? new Uint8Array();
  }

  #bytesAt(id: number): Uint8Array | undefined {
    let bytes = this.#bytes.get(id);
    const token = this.#tokens[id];
    if (bytes !== undefined || token === undefined) return bytes;
    const verbatim = this.#texts === byteLevelTexts && this.#added.get(token) === id;
    bytes = verbatim ? utf8.encode(token) : this.#texts.bytesOf(token);
    this.#bytes.set(id, bytes);
    return bytes;
  }

  /** The text of an added token in templates; undefined for other ids. */
  contentOf(id: number): string | undefined {
    const token = this.#tokens[id];
    return token !== undefined && this.#added.get(token) === id ? token : undefined;
  }

  /** The bytes of every id, `vocabSize` entries; empty for unused ids. */
  tokenBytes(): Uint8Array[] {
    return Array.from({ length: this.vocabSize }, (_, id) => this.bytesOf(id));
  }

  /** The id of the token with exactly this text in the vocabulary, including added tokens. */
  idOf(token: string): number | undefined {
    return this.#added.get(token) ?? this.#vocabulary.get(token);
  }

  /**
   * Writes tokenizer.json and tokenizer_config.json (with the chat template), so that transformers
   * can load the directory. Each file is replaced atomically. Creates `directory` if necessary.
   *
   * @param changes settings of tokenizer_config.json that differ in what is written
   */
  async save(directory: string, changes: TokenizerConfig = {}): Promise<void> {
    makeDirectory(directory);
    const config: TokenizerConfig = {
      tokenizer_class: "PreTrainedTokenizerFast",
      ...this.#config,
      ...changes,
    };
    if (this.chatTemplate !== undefined) config.chat_template = this.chatTemplate;
    await replaceFile(join(directory, "tokenizer.json"), `${JSON.stringify(this.json)}\n`);
    await replaceFile(join(directory, "tokenizer_config.json"), `${JSON.stringify(config, null, 2)}\n`);
  }

  #encodeNormalized(text: string, out: number[], place: Place): void {
    for (const word of this.#words(text, place)) this.#pairs.encode(word, out);
  }

  /** The id for missing characters; undefined if there is none, or all bytes have a token. */
  #unknown({ json, config, eosTokenIds }: TokenizerParts): number | undefined {
    const { unk_token: token } = json.model;
    if (token === undefined || token === null || token === "") return undefined;
    const id = this.idOf(token);
    if (id === undefined) {
      throw new NlacError("ERR_MODEL_FORMAT", `The unknown token ${shown(token)} is not in the vocabulary.`);
    }
    const controls = [config.bos_token, config.eos_token].map(tokenText);
    return controls.includes(token) || eosTokenIds?.includes(id) ? undefined : id;
  }

  #checkId(id: number): void {
    if (Number.isInteger(id) && id >= 0 && id < this.vocabSize) return;
    throw new NlacError("ERR_MODEL_FORMAT", `The end-of-turn id ${id} is not in the vocabulary.`);
  }
}

/** The encoder of bytes. Those without a token are handled as missing characters, or omitted. */
function byteEncoder(options: CharacterPairOptions): WordEncoder {
  const { vocabulary } = options;
  const bytes = Object.keys(byteVocabulary());
  const isComplete = bytes.every((byte) => vocabulary.has(byte));
  if (isComplete || (options.unknown === undefined && !options.byteFallback)) return bytePairEncoder(options);
  const forbidden = new Set(options.forbidden);
  for (const byte of bytes) forbidden.delete(vocabulary.get(byte) ?? -1);
  const encoder = characterPairEncoder({ ...options, forbidden });
  return { encode: (word, out) => encoder.encode(tokenOfText(word), out) };
}

/** Any other error of a tokenizer that was read is a fault of its file. */
function built(parts: TokenizerParts): Tokenizer {
  try {
    return new Tokenizer(parts);
  } catch (error) {
    if (error instanceof NlacError) throw error;
    throw new NlacError("ERR_MODEL_FORMAT", `The tokenizer cannot be used: ${(error as Error).message}.`, {
      cause: error,
    });
  }
}

/** Time that a tokenizer with unknown patterns may take, in milliseconds. */
const encodingMs = 1000;
const encodingMsPerCharacter = 0.02;

/**
 * Control tokens of the chat templates of Mistral, Llama 3, Gemma 4 and gpt-oss without which a call
 * could not be told from text. In other vocabularies such marks (`<tool_call>`) are no control
 * tokens.
 */
const callMarks: ReadonlySet<string> = new Set([
  ...["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<|python_tag|>", "<|tool_call>", "<tool_call|>", '<|"|>'],
  ...["<|channel|>", "<|constrain|>", "<|message|>"],
]);

/**
 * Control tokens that end a turn of calls (gpt-oss, Gemma 4); some files do not list them among the
 * ids that end a turn. A model that does not stop there writes the function's result itself.
 */
const callEnds = ["<|call|>", "<|tool_response>"];

const utf8 = new TextEncoder();

function textOf(pieces: readonly TextPiece[]): string {
  return pieces.map(({ text }) => text).join("");
}

function lengthOf(tokens: readonly AddedToken[]): number {
  return tokens.reduce((total, { content }) => total + content.length, 0);
}

function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, "\ufffd");
}

/** The object in a JSON file; undefined without a file. */
async function readSettings(path: string): Promise<Record<string, unknown> | undefined> {
  const value = await readModelJson(path, settingsLimit);
  if (value === undefined || isObject(value)) return value;
  throw new NlacError("ERR_MODEL_FORMAT", `${path} is not a JSON object.`);
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
