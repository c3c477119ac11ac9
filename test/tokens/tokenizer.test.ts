import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { compilePreTokenizer, mayBacktrack } from "../../lib/tokens/pretokenizer.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { corpusDocument, documents, randomIds } from "./corpus.ts";
import {
  fixtureJson,
  qwen3AddedTokens,
  smollm2Metadata,
  type TokenizerName,
  tokenizerNamed,
  tokenizerNames,
} from "./fixtures.ts";

interface Answers {
  plain: number[];
  /** Bytes of each word. */
  words: number[];
  /** Absent where added tokens make no difference. */
  template?: number[];
}

const digest = (bytes: Uint8Array | string) => createHash("sha256").update(bytes).digest("hex").slice(0, 12);
const digestNumbers = (ids: number[]) => digest(Buffer.from(Int32Array.from(ids).buffer));

function wordLengths(name: TokenizerName, text: string): number[] {
  const cut = compilePreTokenizer(tokenizerNamed(name).json.pre_tokenizer);
  const words = cut(name === "qwen-like" ? text.normalize("NFC") : text);
  return text === "" ? [] : words.map((word) => Buffer.byteLength(word));
}

describe.each(tokenizerNames)("%s, against the Python library", (name) => {
  const tokenizer = tokenizerNamed(name);

  it("encodes edge cases to the same ids", () => {
    for (const { text, ...answers } of fixtureJson<({ text: string } & Record<TokenizerName, Answers>)[]>(
      "cases.json",
    )) {
      const { plain, template, words } = answers[name];
      expect(wordLengths(name, text), JSON.stringify(text)).toEqual(words);
      expect(tokenizer.encode(text), JSON.stringify(text)).toEqual(plain);
      expect(tokenizer.encodeTemplate(text), JSON.stringify(text)).toEqual(template ?? plain);
    }
  });

  const recorded =
    fixtureJson<Record<TokenizerName, { tokens: number; ids: string[]; words: string[]; texts: string[] }>>(
      "corpus.json",
    )[name];

  it("encodes a megabyte of mixed text to the same ids", () => {
    let tokens = 0;
    const different: number[] = [];
    for (let i = 0; i < documents; i++) {
      const ids = tokenizer.encode(corpusDocument(i));
      tokens += ids.length;
      if (digestNumbers(ids) !== recorded.ids[i]) different.push(i);
    }
    expect(different).toEqual([]);
    expect(tokens).toBe(recorded.tokens);
  });

  it("cuts it into the same words", () => {
    const words = recorded.words.map((_, i) => digestNumbers(wordLengths(name, corpusDocument(i))));
    expect(words).toEqual(recorded.words);
  });

  it("decodes random ids, most of them not UTF-8, to the same text", () => {
    const texts = recorded.texts.map((_, i) => digest(tokenizer.decode(randomIds(i, tokenizer.vocabSize))));
    expect(texts).toEqual(recorded.texts);
  });
});

it("reads the corpus that the recorded digests are of", () => {
  const bytes = Array.from({ length: documents }, (_, i) => Buffer.byteLength(corpusDocument(i)));
  expect(bytes.reduce((sum, n) => sum + n, 0)).toBe(fixtureJson<{ bytes: number }>("corpus.json").bytes);
});

/** Text made of spellings of added tokens, their pieces, and anything else. */
const hostileText = (spellings: readonly string[]) =>
  fc
    .array(
      fc.oneof(
        fc.constantFrom(...spellings),
        fc.constantFrom(...spellings).chain((s) => fc.nat(s.length).map((n) => s.slice(0, n))),
        fc.constantFrom(...spellings).chain((s) => fc.nat(s.length).map((n) => s.slice(n))),
        fc.string({ unit: "grapheme", maxLength: 8 }),
        fc.constantFrom(" ", "\n", "<", "|", ">"),
      ),
      { maxLength: 12 },
    )
    .map((parts) => parts.join(""));

describe("text that spells added tokens", () => {
  it("has Qwen3's twenty-six to spell", () => {
    const tokenizer = tokenizerNamed("qwen-like");
    expect(tokenizer.addedIds.size).toBe(26);
    expect([...tokenizer.addedIds].map((id) => tokenizer.decode([id]))).toEqual([...qwen3AddedTokens]);
    expect(tokenizer.specialIds.size).toBe(14);
  });

  it.each(tokenizerNames)("never becomes one in %s", (name) => {
    const tokenizer = tokenizerNamed(name);
    const spellings = [...tokenizer.addedIds].map((id) => tokenizer.decode([id]));
    for (const spelling of spellings) {
      expect(tokenizer.encodeTemplate(spelling)).toHaveLength(1);
      const ids = tokenizer.encode(spelling);
      expect(ids.filter((id) => tokenizer.addedIds.has(id))).toEqual([]);
      expect(tokenizer.decode(ids)).toBe(spelling);
    }
    fc.assert(
      fc.property(hostileText(spellings), (text) => {
        expect(tokenizer.encode(text).filter((id) => tokenizer.addedIds.has(id))).toEqual([]);
        expect(tokenizer.encodeTemplate([{ text, trusted: false }])).toEqual(tokenizer.encode(text));
      }),
      { numRuns: 500 },
    );
  });

  it("is not found where one of its characters is not trusted", () => {
    const tokenizer = tokenizerNamed("smollm2");
    const [head, tail] = ["over<|im_", "end|>"];
    for (const trusted of [true, false]) {
      const pieces = [
        { text: head, trusted },
        { text: tail, trusted: !trusted },
      ];
      expect(tokenizer.encodeTemplate(pieces)).toEqual(tokenizer.encode(head + tail));
    }
    const both = [head, tail].map((text) => ({ text, trusted: true }));
    expect(tokenizer.encodeTemplate(both)).toContain(tokenizer.idOf("<|im_end|>"));
  });
});

it("gives decode the text back, for whole vocabularies of bytes", () => {
  const tokenizer = tokenizerNamed("llama3-like");
  fc.assert(
    fc.property(fc.string({ unit: "binary" }), (text) => {
      expect(tokenizer.decode(tokenizer.encode(text))).toBe(text.replace(/\p{Surrogate}/gu, "\ufffd"));
    }),
  );
});

it("takes unpaired surrogates for U+FFFD", () => {
  const tokenizer = tokenizerNamed("smollm2");
  expect(tokenizer.encode("a\ud83d b\ude00")).toEqual(tokenizer.encode("a\ufffd b\ufffd"));
  expect(tokenizer.encodeTemplate("a\ud83d<|im_end|>")).toEqual([...tokenizer.encode("a\ufffd"), 2]);
});

it("leaves control tokens out of the text when asked", () => {
  const tokenizer = tokenizerNamed("qwen-like");
  const ids = tokenizer.encodeTemplate("<|im_start|>user\n<think>x</think><|im_end|>");
  expect(tokenizer.decode(ids, { skipSpecial: true })).toBe("user\n<think>x</think>");
  expect(tokenizer.decode(ids)).toBe("<|im_start|>user\n<think>x</think><|im_end|>");
});

it("decodes ids past the vocabulary to nothing", () => {
  const tokenizer = tokenizerNamed("smollm2");
  expect(tokenizer.decode([...tokenizer.encode("a"), tokenizer.vocabSize, 10 ** 6])).toBe("a");
});

it("gives the bytes of every id, so that pieces of a character add up to it", () => {
  const tokenizer = tokenizerNamed("smollm2");
  const bytes = tokenizer.tokenBytes();
  expect(bytes).toHaveLength(tokenizer.vocabSize);
  expect(Buffer.from(bytes[2]!).toString()).toBe("<|im_end|>");
  const ids = tokenizer.encode("春 é");
  expect(Buffer.concat(ids.map((id) => bytes[id]!)).toString()).toBe("春 é");
});

it("encodes a word of two hundred thousand letters", () => {
  const tokenizer = tokenizerNamed("smollm2");
  const long = "ab".repeat(100_000);
  expect(tokenizer.decode(tokenizer.encode(long))).toBe(long);
});

describe("from GGUF metadata", () => {
  it("cuts words with combining marks as Qwen3.5's pre-tokenizer does in the Python library", () => {
    const { json } = Tokenizer.fromGguf({ ...smollm2Metadata(), "tokenizer.ggml.pre": "qwen35" });
    expect(json.normalizer).toEqual({ type: "NFC" });
    const cut = compilePreTokenizer(json.pre_tokenizer);
    const recorded = fixtureJson<string[]>("marks.json");
    const digests = recorded.map((_, i) =>
      digestNumbers(cut(corpusDocument(i).normalize("NFC")).map((word) => Buffer.byteLength(word))),
    );
    expect(digests).toEqual(recorded);
    expect(digests).toHaveLength(documents);
    // The corpus tells the rules apart.
    const { words } = fixtureJson<Record<TokenizerName, { words: string[] }>>("corpus.json")["qwen-like"];
    expect(recorded.filter((digest, i) => digest === words[i]).length).toBeLessThan(documents / 2);
  });

  it("cuts words as gpt-oss's pre-tokenizer does in the Python library", () => {
    const { json } = Tokenizer.fromGguf({ ...smollm2Metadata(), "tokenizer.ggml.pre": "gpt-4o" });
    const cut = compilePreTokenizer(json.pre_tokenizer);
    const recorded = fixtureJson<string[]>("o200k.json");
    const digests = recorded.map((_, i) =>
      digestNumbers(cut(corpusDocument(i)).map((word) => Buffer.byteLength(word))),
    );
    expect(digests).toEqual(recorded);
    expect(digests).toHaveLength(documents);
    // It is known to take linear time, also where a word is long or a part of it does not match.
    expect(mayBacktrack(json.pre_tokenizer)).toBe(false);
    for (const letters of ["A", "a", "字", "字A", "aA", "Aa字", "ʰ", "\u0301", "'", `${"字".repeat(999)}A`]) {
      const text = letters.repeat(1_000_000 / letters.length);
      const before = process.cpuUsage();
      expect(cut(text).join("")).toBe(text);
      const { user, system } = process.cpuUsage(before);
      expect((user + system) / 1000).toBeLessThan(3000); // ms of the processor, on a busy machine too
    }
  });

  it("takes ids, named tokens and the template", () => {
    const tokenizer = tokenizerNamed("smollm2");
    expect(tokenizer.vocabSize).toBe(49152);
    expect(tokenizer.specialIds.size).toBe(17);
    expect(tokenizer.eosTokenIds).toEqual([2]);
    expect(tokenizer.namedTokens).toMatchObject({ bos_token: "<|im_start|>", eos_token: "<|im_end|>" });
    expect(tokenizer.chatTemplate).toContain("<|im_start|>");
  });

  it("reads typed arrays, and takes the end of a turn besides the end of text", () => {
    const metadata = smollm2Metadata();
    const tokenizer = Tokenizer.fromGguf({
      ...metadata,
      "tokenizer.ggml.token_type": Int32Array.from(metadata["tokenizer.ggml.token_type"] as number[]),
      "tokenizer.ggml.eos_token_id": 0,
      "tokenizer.ggml.eot_token_id": 2,
    });
    expect(tokenizer.eosTokenIds).toEqual([0, 2]);
  });

  it.each([
    [{ "tokenizer.ggml.model": "bert" }, /"bert"/],
    [{ "tokenizer.ggml.model": "llama" }, /tokenizer\.ggml\.scores/],
    [{ "tokenizer.ggml.model": undefined }, /none/],
    [{ "tokenizer.ggml.pre": "tekken" }, /"tekken"/],
    [{ "tokenizer.ggml.merges": undefined }, /tokenizer\.ggml\.merges/],
    [{ "tokenizer.ggml.token_type": [1] }, /1 token types/],
    [{ "tokenizer.ggml.merges": ["a zz9"] }, /zz9/],
    [{ "tokenizer.ggml.eos_token_id": 70000 }, /70000/],
  ])("refuses %j", (change, message) => {
    const make = () => Tokenizer.fromGguf({ ...smollm2Metadata(), ...change });
    expect(make).toThrow(message);
    expect(make).toThrow(expect.objectContaining({ code: "ERR_MODEL_FORMAT" }));
  });
});

function smallTokenizer() {
  const vocab: Record<string, number> = { a: 0, b: 1, ab: 2, Ġ: 3, â: 4, ĺ: 5, ĥ: 6, "</s>": 7 };
  return {
    json: {
      added_tokens: [{ id: 7, content: "</s>", special: true, normalized: false }],
      normalizer: null as unknown,
      pre_tokenizer: { type: "ByteLevel", add_prefix_space: false } as unknown,
      model: { type: "BPE", vocab, merges: ["a b"] as (string | [string, string])[] },
    },
    config: { eos_token: "</s>" },
  };
}

describe("rules of added tokens", () => {
  const withToken = (token: object) => {
    const small = smallTokenizer();
    small.json.added_tokens = [{ id: 7, content: "</s>", special: true, normalized: false, ...token }];
    return new Tokenizer(small);
  };

  it("with lstrip or rstrip it includes the spaces beside it", () => {
    expect(withToken({}).encodeTemplate("a </s> b")).toEqual([0, 3, 7, 3, 1]);
    expect(withToken({ lstrip: true }).encodeTemplate("a </s> b")).toEqual([0, 7, 3, 1]);
    expect(withToken({ rstrip: true }).encodeTemplate("a </s> b")).toEqual([0, 3, 7, 1]);
  });

  it("with single_word it is not found inside a word", () => {
    expect(withToken({ single_word: true }).encodeTemplate("a </s> b")).toContain(7);
    expect(withToken({ single_word: true }).encodeTemplate("a</s> b")).not.toContain(7);
  });

  it("with normalized it is found after normalizing", () => {
    const small = smallTokenizer();
    small.json.normalizer = { type: "Lowercase" };
    small.json.added_tokens = [{ id: 7, content: "</s>", special: true, normalized: true }];
    const tokenizer = new Tokenizer(small);
    expect(tokenizer.encodeTemplate("A</S>AB")).toEqual([0, 7, 2]);
    expect(tokenizer.encode("A</S>AB")).not.toContain(7);
  });

  it("normalizes the text around it once", () => {
    const small = smallTokenizer();
    small.json.normalizer = { type: "Prepend", prepend: "a" };
    small.json.added_tokens = [{ id: 7, content: "</s>", special: true, normalized: true }];
    // As the tokenizers package does.
    expect(new Tokenizer(small).encodeTemplate("b")).toEqual([2]);
    expect(new Tokenizer(small).encodeTemplate("ba")).toEqual([2, 0]);
  });

  it("does not let a merge make one", () => {
    const small = smallTokenizer();
    small.json.added_tokens = [{ id: 2, content: "ab", special: true, normalized: false }];
    const tokenizer = new Tokenizer({ json: small.json, config: {} });
    expect(tokenizer.encode("ab")).toEqual([0, 1]);
    expect(tokenizer.encodeTemplate("ab")).toEqual([2]);
  });
});

describe("what it refuses", () => {
  it.each([
    ["a model that is not BPE", { model: { type: "Unigram", vocab: {}, merges: [] } }, /Unigram/],
    ["characters without a decoder", { pre_tokenizer: { type: "Digits" } }, /decoder/],
    ["a pre-tokenizer it does not know", { pre_tokenizer: { type: "Punctuation" } }, /Punctuation/],
    ["an id that is none", { model: { type: "BPE", vocab: { a: -1 }, merges: [] } }, /-1/],
    ["a normalizer it does not know", { normalizer: { type: "Reverse" } }, /Reverse/],
    [
      "a way of splitting it does not know",
      { pre_tokenizer: { type: "Split", pattern: { String: " " }, behavior: "Merged" } },
      /Merged/,
    ],
  ])("%s", (_, change, message) => {
    const small = smallTokenizer();
    const make = () => new Tokenizer({ json: { ...small.json, ...change }, config: {} });
    expect(make).toThrow(message);
    expect(make).toThrow(expect.objectContaining({ code: "ERR_MODEL_FORMAT" }));
  });
});

describe("in a directory", () => {
  let directory: string;
  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), "nlac-tokens-"));
  });
  afterAll(() => rm(directory, { recursive: true }));

  it("is saved and read back the same", async () => {
    for (const name of tokenizerNames) {
      const tokenizer = tokenizerNamed(name);
      const place = join(directory, name, "inner");
      await tokenizer.save(place);
      await tokenizer.save(place);
      expect((await readdir(place)).sort()).toEqual(["tokenizer.json", "tokenizer_config.json"]);
      const again = await Tokenizer.fromDirectory(place);
      expect(again.chatTemplate).toBe(tokenizer.chatTemplate);
      expect(again.eosTokenIds).toEqual(tokenizer.eosTokenIds);
      expect(again.namedTokens).toEqual(tokenizer.namedTokens);
      expect([...again.addedIds]).toEqual([...tokenizer.addedIds]);
      const text = corpusDocument(3);
      expect(again.encode(text)).toEqual(tokenizer.encode(text));
    }
  });

  it("reads the ids that end a turn, the template's own file and tokens written as objects", async () => {
    const place = join(directory, "settings");
    const { json } = smallTokenizer();
    await new Tokenizer({ json, config: {} }).save(place);
    const write = (name: string, value: unknown) => writeFile(join(place, name), JSON.stringify(value));
    await write("tokenizer_config.json", { eos_token: { content: "</s>" }, chat_template: "old" });
    await write("generation_config.json", { eos_token_id: [2, 1] });
    await write("config.json", { eos_token_id: 1 });
    await writeFile(join(place, "chat_template.jinja"), "new");
    const tokenizer = await Tokenizer.fromDirectory(place);
    expect(tokenizer.eosTokenIds).toEqual([2, 1, 7]);
    expect(tokenizer.chatTemplate).toBe("new");
    await tokenizer.save(place);
    const config = JSON.parse(await readFile(join(place, "tokenizer_config.json"), "utf8"));
    expect(config).toMatchObject({ chat_template: "new", eos_token: { content: "</s>" } });
  });

  describe("several templates", () => {
    // Each part would lose whitespace to a tag beside it.
    const plain = "\n  {%- if true %}plain{% endif %} \n";
    const forTools = "\n {{ tools[0].function.name }}\n  {% for m in messages %} {% endfor %}\n\n";
    const several = [
      { name: "tool_use", template: forTools },
      { name: "rag", template: "rag" },
      { name: "default", template: plain },
    ];
    const tools = [{ name: "look", description: "", parameters: { type: "object", properties: {} } }];
    const rendered = (tokenizer: Tokenizer) => {
      const template = ChatTemplate.of(tokenizer);
      return [{}, { tools }].map((options) => template.render([{ role: "user", content: "?" }], options));
    };
    const alone = [plain, forTools].map((source, i) =>
      new ChatTemplate(source).render([{ role: "user", content: "?" }], i === 0 ? {} : { tools }),
    );

    it("of the configuration render as each alone: with tools the one for tools", async () => {
      const { json } = smallTokenizer();
      const tokenizer = new Tokenizer({ json, config: { chat_template: several } });
      expect(rendered(tokenizer)).toEqual(alone);
      expect(ChatTemplate.of(tokenizer).readsTools).toBe(true);
      const place = join(directory, "several");
      await tokenizer.save(place);
      expect(rendered(await Tokenizer.fromDirectory(place))).toEqual(alone);
    });

    it("of files of their own, and of a GGUF file, do too", async () => {
      const place = join(directory, "several-files");
      await new Tokenizer({ json: smallTokenizer().json, config: {} }).save(place);
      await mkdir(join(place, "additional_chat_templates"));
      await writeFile(join(place, "chat_template.jinja"), plain);
      await writeFile(join(place, "additional_chat_templates", "tool_use.jinja"), forTools);
      expect(rendered(await Tokenizer.fromDirectory(place))).toEqual(alone);
      const metadata = {
        ...smollm2Metadata(),
        "tokenizer.chat_template": plain,
        "tokenizer.chat_template.tool_use": forTools,
      };
      expect(rendered(Tokenizer.fromGguf(metadata))).toEqual(alone);
    });

    it("without a default are none", () => {
      const { json } = smallTokenizer();
      const config = { chat_template: several.slice(0, 2) };
      expect(new Tokenizer({ json, config }).chatTemplate).toBeUndefined();
    });
  });

  it("says what is missing or broken", async () => {
    await expect(Tokenizer.fromDirectory(join(directory, "nowhere"))).rejects.toMatchObject({
      code: "ERR_MODEL_NOT_FOUND",
    });
    const place = join(directory, "settings");
    await writeFile(join(place, "tokenizer.json"), "{");
    await expect(Tokenizer.fromDirectory(place)).rejects.toMatchObject({ code: "ERR_MODEL_FORMAT" });
  });
});

describe("hostile tokenizers", () => {
  const { json } = smallTokenizer();
  const coded = (code: string) => expect.objectContaining({ code });

  it("are given a time limit for their patterns", () => {
    const split = {
      type: "Split",
      pattern: { Regex: "(a+)+$" },
      behavior: "Isolated",
      invert: false,
    };
    const bytes = { type: "ByteLevel", add_prefix_space: false, use_regex: false };
    const tokenizer = new Tokenizer({
      json: { ...json, pre_tokenizer: { type: "Sequence", pretokenizers: [split, bytes] } },
      config: {},
    });
    expect(() => tokenizer.encode(`${"a".repeat(60)}b`)).toThrow(coded("ERR_TOKENIZER"));
    expect(() => tokenizer.encodeTemplate(`${"a".repeat(60)}b`)).toThrow(coded("ERR_TOKENIZER"));
  });

  it("are given one time limit for all of their added tokens", () => {
    const normalizer = { type: "Replace", pattern: { Regex: "(a+)+$" }, content: "x" };
    // A twentieth of a second each.
    const added_tokens = Array.from({ length: 300 }, (_, i) => ({
      id: 300 + i,
      content: `${"a".repeat(23)}b${i}`,
    }));
    expect(() => new Tokenizer({ json: { ...json, normalizer, added_tokens }, config: {} })).toThrow(
      coded("ERR_TOKENIZER"),
    );
  });

  it.each([
    ["merges of numbers", { model: { ...json.model, merges: [5] } }],
    ["merges of three", { model: { ...json.model, merges: [["a", "b", "c"]] } }],
    ["added tokens that are no list", { added_tokens: {} }],
    ["an empty added token", { added_tokens: [{ id: 300, content: "" }] }],
    ["a long added token", { added_tokens: [{ id: 300, content: "x".repeat(5000) }] }],
    ["a huge id", { model: { ...json.model, vocab: { ...json.model.vocab, zzz: 2 ** 23 } } }],
    ["a control token with a byte's id", { added_tokens: [{ id: 0, content: "<s>", special: true }] }],
    ["a pre-tokenizer without steps", { pre_tokenizer: { type: "Sequence" } }],
    ["a pre-tokenizer that is a number", { pre_tokenizer: 5 }],
    ["a normalizer that is a list", { normalizer: [1] }],
    ["a pattern that is a number", { pre_tokenizer: { type: "Split", pattern: { Regex: 5 } } }],
  ])("with %s are refused", async (_, change) => {
    const directory = await mkdtemp(join(tmpdir(), "nlac-tokenizer-"));
    await writeFile(join(directory, "tokenizer.json"), JSON.stringify({ ...json, ...change }));
    await expect(Tokenizer.fromDirectory(directory)).rejects.toThrow(coded("ERR_MODEL_FORMAT"));
    await rm(directory, { recursive: true });
  });

  it("that are FIFOs, devices, directories or too large are refused at once", async () => {
    const directory = await mkdtemp(join(tmpdir(), "nlac-tokenizer-"));
    const path = join(directory, "tokenizer.json");
    execFileSync("mkfifo", [path]);
    await expect(Tokenizer.fromDirectory(directory)).rejects.toThrow(coded("ERR_IO"));
    await rm(path);
    await symlink("/dev/zero", path);
    await expect(Tokenizer.fromDirectory(directory)).rejects.toThrow(coded("ERR_IO"));
    await rm(path);
    await mkdir(path);
    await expect(Tokenizer.fromDirectory(directory)).rejects.toThrow(coded("ERR_IO"));
    await rm(path, { recursive: true });
    await writeFile(path, `[${",".repeat(9_000_000)}]`);
    await expect(Tokenizer.fromDirectory(directory)).rejects.toThrow(/more than 4000000 values/);
    await rm(directory, { recursive: true });
  });

  it("encodes only texts, and decodes only ids", () => {
    const tokenizer = new Tokenizer({ json, config: {} });
    for (const odd of [5, null, undefined, {}, ["a"]] as unknown as string[]) {
      expect(() => tokenizer.encode(odd)).toThrow(coded("ERR_VALUE"));
    }
    expect(() => tokenizer.encodeTemplate(5 as unknown as string)).toThrow(coded("ERR_VALUE"));
    expect(() => tokenizer.decode(5 as unknown as number[])).toThrow(coded("ERR_VALUE"));
  });
});
