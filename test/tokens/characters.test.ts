/**
 * Tokenizers of characters with bytes as a last resort; scripts/fixtures/character_tokens.py made
 * the answers.
 */

import { createHash } from "node:crypto";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Message, ToolSchema } from "../../lib/contract/environment.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import { isPlain, type TokenizerConfig, type TokenizerJson } from "../../lib/tokens/format.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { TextStream } from "../../lib/tokens/text-stream.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { inDirectory } from "../support/tiny.ts";
import { corpusDocument } from "./corpus.ts";
import { fixtureJson, fixtureText } from "./fixtures.ts";

const configs: Record<string, TokenizerConfig> = {
  "llama2-like": { bos_token: "<s>", eos_token: "</s>", unk_token: "<unk>" },
  "mistral-like": { bos_token: "<s>", eos_token: "</s>", unk_token: "<unk>" },
  "gemma-like": { bos_token: "<bos>", eos_token: "<end_of_turn>", unk_token: "<unk>" },
};
const names = Object.keys(configs);

interface Recorded {
  name: string;
  /** Of a variant; the named ones have files. */
  json?: TokenizerJson;
  cases: { plain: number[]; template?: number[] }[];
  texts: { ids: number[]; text: string; plain: string }[];
  corpus: string[];
}
const { texts, tokenizers } = fixtureJson<{ texts: string[]; tokenizers: Recorded[] }>("characters.json.gz");

const made = new Map<string, Tokenizer>();
function tokenizerOf({ name, json }: { name: string; json?: TokenizerJson }): Tokenizer {
  let tokenizer = made.get(name);
  tokenizer ??= new Tokenizer({
    json: json ?? fixtureJson<TokenizerJson>(`${name}.json.gz`),
    config: configs[name] ?? {},
    ...(json === undefined && { chatTemplate: fixtureText(`templates/${name}.jinja`) }),
  });
  made.set(name, tokenizer);
  return tokenizer;
}

const digest = (ids: number[]) =>
  createHash("sha256")
    .update(Buffer.from(Int32Array.from(ids).buffer))
    .digest("hex")
    .slice(0, 12);

const byteToken = (byte: number) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;

/** Whether text may become an unknown token, because bytes have no token. */
function hasUnknown({ model }: Readonly<TokenizerJson>): boolean {
  const bytes = Array.from({ length: 256 }, (_, byte) => model.vocab[byteToken(byte)]);
  return model.byte_fallback !== true || bytes.includes(undefined as never);
}

describe.each(tokenizers)("$name, against the Python library", (recorded) => {
  const tokenizer = tokenizerOf(recorded);

  it("encodes edge cases to the same ids", () => {
    for (const [i, text] of texts.entries()) {
      const { plain, template } = recorded.cases[i]!;
      expect(tokenizer.encode(text), JSON.stringify(text)).toEqual(plain);
      expect(tokenizer.encodeTemplate(text), JSON.stringify(text)).toEqual(template ?? plain);
    }
  });

  it("encodes mixed text to the same ids", () => {
    const different = recorded.corpus.flatMap((expected, i) =>
      digest(tokenizer.encode(corpusDocument(i))) === expected ? [] : [i],
    );
    expect(different).toEqual([]);
  });

  it("decodes random ids, at once and one by one, to the same text", () => {
    for (const { ids, text, plain } of recorded.texts) {
      expect(tokenizer.decode(ids)).toBe(text);
      expect(tokenizer.decode(ids, { skipSpecial: true })).toBe(plain);
      const stream = tokenizer.stream();
      const pieces = [...ids.map((id) => stream.add(id)), stream.end()];
      expect(tokenizer.withoutFirstSpace(pieces.join(""))).toBe(text);
      expect(pieces.every((piece) => piece === "" || !/^[\udc00-\udfff]|[\ud800-\udbff]$/.test(piece))).toBe(
        true,
      );
      const streamed = new TextStream(tokenizer, []);
      for (const id of ids) streamed.add(id);
      expect(
        tokenizer.decode(ids, { skipSpecial: true, keepCallMarks: true }).startsWith(streamed.sent),
      ).toBe(true);
    }
  });

  it("never makes an added token of text", () => {
    const spellings = [...tokenizer.addedIds].map((id) => tokenizer.contentOf(id)!);
    const piece = fc.oneof(
      fc.constantFrom(...spellings),
      fc.constantFrom(...spellings).chain((s) => fc.nat(s.length).map((n) => s.slice(0, n))),
      fc.string({ unit: "grapheme", maxLength: 8 }),
      fc.constantFrom(" ", "\n", "\n\n", "\u2581", "<0x0A>", "<", ">"),
    );
    const unknown = hasUnknown(tokenizer.json) ? tokenizer.idOf("<unk>") : undefined;
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 12 }), (parts) => {
        const text = parts.join("");
        const ids = tokenizer.encode(text);
        expect(ids.filter((id) => tokenizer.addedIds.has(id) && id !== unknown)).toEqual([]);
        expect(tokenizer.encodeTemplate([{ text, trusted: false }])).toEqual(ids);
        if (recorded.json !== undefined) return;
        const back = tokenizer.decode(tokenizer.encode(text, { continues: true }), { continues: true });
        expect(back).toBe(text.replaceAll("\u2581", " ").replace(/\p{Surrogate}/gu, "\ufffd"));
      }),
      { numRuns: 200 },
    );
  });
});

describe("streamed text", () => {
  const tokenizer = tokenizerOf({ name: "mistral-like" });
  const bytesOf = (text: string) => [...Buffer.from(text)].map((byte) => tokenizer.idOf(byteToken(byte))!);

  it("has whole characters, and holds bytes until another token shows that they are one text", () => {
    const stream = tokenizer.stream();
    const word = tokenizer.idOf("\u2581")!;
    expect(
      bytesOf("😀é")
        .map((id) => stream.add(id))
        .join(""),
    ).toBe("");
    expect(stream.add(word)).toBe("😀é ");
    // The library makes U+FFFD of every byte of such a run, even of valid ones.
    expect([...bytesOf("é"), bytesOf("é")[0]!].map((id) => stream.add(id)).join("")).toBe("");
    expect(stream.end()).toBe("\ufffd\ufffd\ufffd");
  });

  it("lacks the very first space only", () => {
    const ids = tokenizer.encode("  a  b");
    expect(tokenizer.decode(ids)).toBe(" a  b");
    const stream = new TextStream(tokenizer, []);
    expect(ids.map((id) => stream.add(id)).join("")).toBe(tokenizer.decode(ids));
    expect(tokenizer.decode(ids, { continues: true })).toBe("  a  b");
  });
});

it("encodes a megabyte without spaces, which quadratic merging would not do in the time of a test", () => {
  const tokenizer = tokenizerOf({ name: "gemma-like" });
  const long = "abcdefghijklmnopqrstuvwxyzé".repeat(40_000).slice(0, 1 << 20);
  const ids = tokenizer.encode(long);
  expect(ids.length).toBeGreaterThan(1 << 17);
  expect(tokenizer.decode(ids)).toBe(long);
});

describe("chats, against transformers", () => {
  interface Chat {
    tokenizer: string;
    messages: Message[];
    tools?: ToolSchema[];
    addGenerationPrompt?: boolean;
    text: string;
    ids: number[];
  }
  const { chats, call } = fixtureJson<{ chats: Chat[]; call: string }>("character-chats.json");

  it.each(chats.map((chat, i) => [`${chat.tokenizer} ${i}`, chat] as const))("%s", (_, chat) => {
    const tokenizer = tokenizerOf({ name: chat.tokenizer });
    const template = ChatTemplate.of(tokenizer);
    const options = { tools: chat.tools, addGenerationPrompt: chat.addGenerationPrompt ?? true };
    expect(template.render(chat.messages, options)).toBe(chat.text);
    expect(tokenizer.encodeTemplate(chat.text)).toEqual(chat.ids);
    expect(template.encode(tokenizer, chat.messages, options)).toEqual(chat.ids);
  });

  it("every template has some", () => {
    const counts = names.map((name) => chats.filter(({ tokenizer }) => tokenizer === name).length);
    expect(counts).toEqual([5, 6, 5]);
  });

  it.each(names)("%s grows a conversation by the ids of the whole", (name) => {
    const tokenizer = tokenizerOf({ name });
    const template = ChatTemplate.of(tokenizer);
    const messages: Message[] = [
      { role: "user", content: "Is it larger than a loaf?" },
      { role: "assistant", content: "No." },
      { role: "user", content: "Can it float? 1234" },
    ];
    const conversation = Conversation.start(tokenizer, template, messages.slice(0, 1));
    conversation.append(...messages.slice(1));
    const whole = template.encode(tokenizer, messages, { addGenerationPrompt: true });
    expect(conversation.prompt()).toEqual(whole);
  });

  it("mistral-like writes a call as the template does", () => {
    const tokenizer = tokenizerOf({ name: "mistral-like" });
    const template = ChatTemplate.of(tokenizer);
    const context = { system: false, tools: undefined };
    const written = template.writeCalls(tokenizer, context, [
      {
        name: "get_weather",
        arguments: '{"city": "Ålesund"}',
      },
    ]);
    expect(call.endsWith(`${written.text}</s>`)).toBe(true);
    expect(written.tokens[0]).toBe(tokenizer.idOf("[TOOL_CALLS]"));
    expect(tokenizer.decode(written.tokens)).toBe(written.text);
  });
});

it("a GGUF file with merges of characters, as Gemma 4's, gives the ids of its tokenizer.json", () => {
  const recorded = tokenizers.find(({ name }) => name === "gemma-like")!;
  const json = fixtureJson<TokenizerJson>("gemma-like.json.gz");
  const tokens: string[] = [];
  for (const [token, id] of Object.entries(json.model.vocab)) tokens[id] = token;
  const kinds: number[] = tokens.map((token) => (/^<0x..>$/.test(token) ? 6 : 1));
  for (const { id, content, special } of json.added_tokens ?? []) {
    tokens[id] = content;
    kinds[id] = content === "<unk>" ? 2 : special ? 3 : 4;
  }
  const merges = json.model.merges.map((merge) => (Array.isArray(merge) ? merge.join(" ") : merge));
  const metadata = {
    "tokenizer.ggml.model": "gemma4",
    ...{ "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds },
    ...{ "tokenizer.ggml.merges": merges, "tokenizer.ggml.add_space_prefix": false },
  };
  const tokenizer = Tokenizer.fromGguf(metadata);
  for (const [i, text] of texts.entries())
    expect(tokenizer.encode(text), JSON.stringify(text)).toEqual(recorded.cases[i]!.plain);
  const broken = { ...metadata, "tokenizer.ggml.merges": ["ab"] };
  expect(() => Tokenizer.fromGguf(broken)).toThrow(expect.objectContaining({ code: "ERR_MODEL_FORMAT" }));
});

describe("SentencePiece models in GGUF files", () => {
  interface Model {
    metadata: Record<string, unknown>;
    cases: { text: string; ids: number[] }[];
    corpus: string[];
  }
  const models = fixtureJson<Model[]>("sentencepiece.json.gz");

  it.each([0, 1])("model %i encodes as sentencepiece does", (i) => {
    const { metadata, cases, corpus } = models[i]!;
    const tokenizer = Tokenizer.fromGguf(metadata);
    for (const { text, ids } of cases)
      expect(tokenizer.encodeTemplate(text), JSON.stringify(text)).toEqual(ids);
    const different = corpus.flatMap((expected, i) =>
      digest(tokenizer.encode(corpusDocument(i).replaceAll("\0", ""))) === expected ? [] : [i],
    );
    expect(different).toEqual([]);
  });

  it("are saved as a tokenizer.json with the same ids", async () => {
    const tokenizer = Tokenizer.fromGguf(models[0]!.metadata);
    await inDirectory(async (directory) => {
      await tokenizer.save(directory);
      const again = await Tokenizer.fromDirectory(directory);
      for (const text of texts) expect(again.encode(text)).toEqual(tokenizer.encode(text));
      expect(again.eosTokenIds).toEqual([2]);
    });
  });

  it("merge the leftmost of two pairs whose results have the same score", () => {
    const tokens = ["<unk>", "a", "b", "c", "ab", "bc"];
    const metadata = {
      "tokenizer.ggml.model": "llama",
      "tokenizer.ggml.tokens": tokens,
      "tokenizer.ggml.token_type": [2, 1, 1, 1, 1, 1],
      "tokenizer.ggml.scores": [0, -3, -4, -5, 0, 0],
      "tokenizer.ggml.add_space_prefix": false,
    };
    const tokenizer = Tokenizer.fromGguf(metadata);
    expect(tokenizer.encode("abcbc")).toEqual([4, 3, 5]);
    const better = { ...metadata, "tokenizer.ggml.scores": [0, -3, -4, -5, -1, 0] };
    expect(Tokenizer.fromGguf(better).encode("abcbc")).toEqual([1, 5, 5]);
  });

  it.each([
    [{ "tokenizer.ggml.scores": undefined }, /scores/],
    [{ "tokenizer.ggml.scores": [1, 2] }, /score for each/],
  ])("are refused with %j", (change, message) => {
    expect(() => Tokenizer.fromGguf({ ...models[0]!.metadata, ...change })).toThrow(message);
  });
});

describe("what it refuses", () => {
  const { json } = tokenizerOf({ name: "llama2-like" });
  const steps = (json.decoder as { decoders: unknown[] }).decoders;
  const sequence = (...decoders: unknown[]) => ({ decoder: { type: "Sequence", decoders } });
  it.each([
    ["no decoder", { decoder: null }, /decoder/],
    ["Strip without Fuse", sequence(steps[0], steps[1], steps[3]), /Fuse/],
    ["another order", sequence(steps[1], steps[0], steps[2]), /decoder/],
    [
      "Strip of two",
      sequence(...steps.slice(0, 3), { type: "Strip", content: " ", start: 2, stop: 0 }),
      /Strip/,
    ],
    [
      "a decoder that grows",
      sequence({ type: "Replace", pattern: { String: "a" }, content: "bb" }),
      /decoder/,
    ],
    ["an unknown token that is missing", { model: { ...json.model, unk_token: "<none>" } }, /<none>/],
    [
      "a Metaspace of two characters",
      { pre_tokenizer: { type: "Metaspace", replacement: "__" } },
      /Metaspace/,
    ],
    [
      "a scheme that is none",
      { pre_tokenizer: { type: "Metaspace", replacement: "_", prepend_scheme: 5 } },
      /scheme/,
    ],
  ])("%s", (_, change, message) => {
    const make = () => new Tokenizer({ json: { ...json, ...change } as TokenizerJson, config: {} });
    expect(make).toThrow(message);
    expect(make).toThrow(expect.objectContaining({ code: "ERR_MODEL_FORMAT" }));
  });
});

it("takes whitespace for plain text, and control tokens and tags not", () => {
  const plain = (content: string, special = false) => isPlain({ id: 1, content, special });
  expect(["\n\n", "\u2581\u2581", " \t"].every((content) => plain(content))).toBe(true);
  expect([plain("<table>"), plain("\n", true), plain(" a")]).toEqual([false, false, false]);
});
