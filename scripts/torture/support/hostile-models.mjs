// Model directories from a small grammar: a valid tiny model with a few faults in its files.
import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { uniform } from "../../../dist/base/random.js";
import { byteVocabulary } from "../../../dist/tokens/bpe.js";

/** Repeatable choices of one run. */
export function randomSource(seed, number) {
  let drawn = 0;
  const next = () => uniform(seed, number, drawn++);
  const below = (n) => Math.floor(next() * n);
  const pick = (list) => list[below(list.length)];
  const some = (list, least, most) => {
    const rest = [...list];
    return Array.from(
      { length: least + below(most - least + 1) },
      () => rest.splice(below(rest.length), 1)[0],
    );
  };
  return { below, pick, some, chance: (p) => next() < p };
}

/** A tokenizer.json of the 256 bytes and `added`. */
export function byteTokenizer({ normalizer = null, added = [], vocab = byteVocabulary(), merges = [] } = {}) {
  return {
    version: "1.0",
    added_tokens: added.map((token, i) => ({ id: 256 + i, ...token })),
    normalizer,
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: null,
    decoder: { type: "ByteLevel" },
    model: { type: "BPE", vocab, merges },
  };
}

const width = 8;
const vocabulary = 260;

const config = {
  architectures: ["LlamaForCausalLM"],
  model_type: "llama",
  vocab_size: vocabulary,
  hidden_size: width,
  intermediate_size: 16,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  num_key_value_heads: 2,
  max_position_embeddings: 256,
  rms_norm_eps: 1e-5,
  tie_word_embeddings: true,
  eos_token_id: 257,
};

const tensors = {
  "model.embed_tokens.weight": [vocabulary, width],
  "model.layers.0.input_layernorm.weight": [width],
  "model.layers.0.self_attn.q_proj.weight": [width, width],
  "model.layers.0.self_attn.k_proj.weight": [width, width],
  "model.layers.0.self_attn.v_proj.weight": [width, width],
  "model.layers.0.self_attn.o_proj.weight": [width, width],
  "model.layers.0.post_attention_layernorm.weight": [width],
  "model.layers.0.mlp.gate_proj.weight": [16, width],
  "model.layers.0.mlp.up_proj.weight": [16, width],
  "model.layers.0.mlp.down_proj.weight": [width, 16],
  "model.norm.weight": [width],
};

const template =
  "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/** The parts of a directory, before faults. */
function validModel() {
  let end = 0;
  const header = {};
  for (const [name, shape] of Object.entries(tensors)) {
    const bytes = 4 * shape.reduce((a, b) => a * b, 1);
    header[name] = { dtype: "F32", shape, data_offsets: [end, end + bytes] };
    end += bytes;
  }
  const added = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"].map((content) => ({
    content,
    special: true,
  }));
  return {
    config: { ...config },
    tokenizer: byteTokenizer({ added }),
    settings: { eos_token: "<|im_end|>", chat_template: template },
    header,
    headerText: undefined,
    dataBytes: end,
    index: undefined,
    special: undefined,
    raw: {},
    mustFail: false,
  };
}

const numbers = [0, -1, 1, 2, 3, 7, 2 ** 31, 2 ** 53, 1e300, -1e300, 0.5, null, "8", [], {}, true];
const configFields = Object.keys(config).concat(
  "rope_theta",
  "rope_scaling",
  "head_dim",
  "hidden_act",
  "layer_types",
);

const templates = [
  "{% for i in range(1000000000) %}x{% endfor %}",
  "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
  `{% set n = namespace(s='x') %}${"{% set n.s = n.s + n.s %}".repeat(60)}{{ n.s }}`,
  `{% set n = namespace(s=[1]) %}${"{% set n.s = n.s + n.s %}".repeat(60)}{{ n.s | length }}`,
  `${"{% for i in range(99999) %}".repeat(3)}{{ i }}${"{% endfor %}".repeat(3)}`,
  "{{ messages.__proto__ }}{{ messages.constructor.constructor('return process')() }}",
  "{{ ('a' * 1000000000) }}",
  "{{ 'a' | indent(500000000, true) }}",
  "{{ messages | tojson(indent=500000000) }}",
  "{% for m in messages %}{{ m.content | replace('', m.content) | replace('a', m.content) }}{% endfor %}",
  "{{ raise_exception(messages) }}",
  `{{ ${"(".repeat(50000)}1${")".repeat(50000)} }}`,
  `{{ ${"-".repeat(50000)}1 }}`,
  "{%".repeat(20000),
  `{%${" ".repeat(200000)}`,
  `{#${"-".repeat(200000)}`,
  "{% for m in messages %}{{ m.content | upper | lower | title }}{% endfor %}",
  "",
  "{{",
  "{% set x = namespace() %}{% set x.x = x %}{{ x | tojson }}",
  "{{ bos_token }}{{ undefined_variable.a.b }}",
];

const patterns = [
  "(a+)+$",
  "(a|aa)+$",
  "(.*)*x",
  "(?:\\s*a?)*$",
  "((a{1,50}){1,50}){1,50}$",
  "(",
  "[",
  "\\",
  "(?<=a+)+b",
];
const rules = [
  null,
  5,
  [],
  {},
  { type: "Sequence" },
  { type: "Sequence", pretokenizers: [null] },
  { type: "Sequence", normalizers: {} },
  { type: "Split", pattern: { String: "" }, behavior: "Isolated" },
  { type: "Split", pattern: null, behavior: "Removed" },
  { type: "Precompiled", precompiled_charsmap: "AAAA" },
  { type: "Replace", pattern: { String: "" }, content: "<|im_end|>" },
  { type: "Nonsense" },
];

function deep(open, close, depth) {
  return open.repeat(depth) + close.repeat(depth);
}

/** Each takes (model, random) and spoils something. */
const faults = {
  config(model, random) {
    for (const field of random.some(configFields, 1, 3)) model.config[field] = random.pick(numbers);
  },
  configText(model, random) {
    model.raw["config.json"] = random.pick([
      "",
      "[]",
      "null",
      "NaN",
      '{"vocab_size": 1e999}',
      '{"vocab_size": NaN}',
      deep("[", "]", 100_000),
      deep('{"a":', "}", 100_000),
      `{${'"a":1,'.repeat(100_000)}"a":1}`,
      `{"a":[${"[],".repeat(300_000)}[]]}`,
    ]);
  },
  pattern(model, random) {
    const split = {
      type: "Split",
      pattern: { Regex: random.pick(patterns) },
      behavior: "Isolated",
      invert: false,
    };
    const bytes = { type: "ByteLevel", add_prefix_space: false, use_regex: false };
    if (random.chance(0.5))
      model.tokenizer.pre_tokenizer = { type: "Sequence", pretokenizers: [split, bytes] };
    else model.tokenizer.normalizer = { type: "Replace", pattern: split.pattern, content: "x" };
  },
  rule(model, random) {
    model.tokenizer[random.pick(["normalizer", "pre_tokenizer", "decoder", "post_processor"])] =
      random.pick(rules);
  },
  vocabulary(model, random) {
    const vocab = model.tokenizer.model?.vocab;
    if (vocab === undefined) return; // another fault has replaced the model
    for (let i = random.below(4); i >= 0; i--) {
      const name = random.pick([
        "",
        "a",
        "ab",
        "__proto__",
        "constructor",
        "toString",
        "<|im_end|>",
        "☃",
        "\ud800",
      ]);
      Object.defineProperty(vocab, name, {
        value: random.pick([...numbers, 65, 257, 2 ** 21 - 1]),
        enumerable: true,
        configurable: true,
        writable: true,
      });
    }
    if (random.chance(0.3)) for (const byte of random.some(Object.keys(vocab), 1, 50)) delete vocab[byte];
  },
  merges(model, random) {
    const { model: bpe } = model.tokenizer;
    if (bpe?.vocab === undefined) return; // another fault has replaced the model
    bpe.vocab.aa = 258;
    const list = [
      ["a", "a"],
      "a a",
      ["aa", "a"],
      ["aa", "aa"],
      "aa",
      5,
      null,
      ["a"],
      ["", "a"],
      ["a", "b", "c"],
      {},
    ];
    bpe.merges = Array.from({ length: 1 + random.below(4) }, () => random.pick(list));
    if (random.chance(0.2)) bpe.merges = random.pick([{}, null, 5, "a a"]);
  },
  added(model, random) {
    const token = {
      id: random.pick([...numbers, 97, 256, 300]),
      content: random.pick(["", " ", "a", 5, null, "x".repeat(2000)]),
    };
    model.tokenizer.added_tokens = random.pick([
      [...model.tokenizer.added_tokens, token],
      {},
      null,
      [null],
      "x",
    ]);
  },
  model(model, random) {
    const odd = { type: "Unigram", vocab: [["a", "NaN"]], unk_id: 5, byte_fallback: true };
    model.tokenizer.model = random.pick([
      null,
      [],
      odd,
      { type: "WordPiece", vocab: {} },
      { vocab: {}, merges: [] },
    ]);
  },
  manyTokens(model, random) {
    const { model: bpe } = model.tokenizer;
    if (bpe?.vocab === undefined) return; // another fault has replaced the model
    const count = random.pick([1000, 50_000]);
    if (random.chance(0.5)) for (let i = 0; i < count; i++) bpe.vocab[`tok${i}`] = 1000 + i;
    else
      model.tokenizer.added_tokens = Array.from({ length: count }, (_, i) => ({
        id: 1000 + i,
        content: `<${i}`,
      }));
  },
  tokenizerText(model, random) {
    model.raw["tokenizer.json"] = random.pick([
      "",
      "5",
      "null",
      deep("[", "]", 200_000),
      '{"model":',
      "\0",
      "\ufeff{}",
    ]);
  },
  template(model, random) {
    model.settings.chat_template = random.pick([...templates, 5, {}, [null], [{ name: "default" }], null]);
  },
  settings(model, random) {
    model.settings[random.pick(["bos_token", "eos_token", "pad_token"])] = random.pick([
      5,
      [],
      {},
      { content: 5 },
      "nope",
      "",
    ]);
    if (random.chance(0.3))
      model.raw["generation_config.json"] = JSON.stringify({ eos_token_id: random.pick(numbers) });
  },
  header(model, random) {
    const name = random.pick(Object.keys(model.header));
    const entry = model.header[name];
    random.pick([
      () => delete model.header[name],
      () =>
        (entry.shape = random.pick([
          [],
          [0],
          [0, 2 ** 60],
          [-1],
          [2 ** 62, 4],
          [1e300],
          Array(9).fill(1),
          null,
        ])),
      () => (entry.data_offsets = random.pick([[0], [4, 0], [0, 2 ** 60], [0, 4], [-4, 4], null, [0, 4, 8]])),
      () => (entry.dtype = random.pick(["F16", "I64", "Q4", 5, null, ""])),
      () =>
        (model.header.extra = {
          dtype: "F32",
          shape: [0, 5],
          data_offsets: [model.dataBytes, model.dataBytes],
        }),
      () => (model.header.__metadata__ = random.pick([5, { a: 1 }, { a: "b" }, []])),
      () =>
        (model.headerText = `${JSON.stringify(model.header).slice(0, -1)},${JSON.stringify({ [name]: entry }).slice(1)}`),
      () => (model.dataBytes += random.pick([-4, 4, 1])),
    ])();
  },
  headerSize(model, random) {
    const item = (i) => `"t${i}":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}`;
    const count = random.pick([1000, 30_000, 400_000]);
    model.headerText = random.pick([
      () => `{${Array.from({ length: count }, (_, i) => item(i)).join(",")}}`,
      () => `{"a":${deep("[", "]", 10_000)}}`,
      () => `{"__metadata__":{${Array.from({ length: count }, (_, i) => `"k${i}":""`).join(",")}}}`,
      () => `{"${"n".repeat(5_000_000)}":{}}`,
    ])();
  },
  index(model, random) {
    const name = random.pick([
      ...[
        "../outside.safetensors",
        "/etc/passwd.safetensors",
        "a/../../outside.safetensors",
        "..\\x.safetensors",
      ],
      ...["model-1.safetensors", "", ".safetensors", 5, null, "model-1.safetensors\0"],
    ]);
    model.index = { weight_map: Object.fromEntries(Object.keys(tensors).map((tensor) => [tensor, name])) };
    model.mustFail = name !== "model-1.safetensors";
    if (random.chance(0.2)) model.index = random.pick([[], {}, { weight_map: [] }, { weight_map: {} }]);
  },
  special(model, random) {
    const files = [
      "config.json",
      "tokenizer.json",
      "tokenizer_config.json",
      "model.safetensors",
      "chat_template.jinja",
    ];
    model.special = {
      name: random.pick(files),
      kind: random.pick(["fifo", "device", "directory", "loop", "socket"]),
    };
  },
};

/**
 * Faults that may take seconds, up to a limit: one directory in ten can have them. Without this limit
 * they would take nine tenths of the campaign's time.
 */
const costly = ["pattern", "template", "manyTokens"];
const cheap = Object.keys(faults).filter((name) => !costly.includes(name));

/** Writes a hostile directory below `parent`, or a .gguf file. Returns its path and its faults. */
export function writeHostileModel(parent, random) {
  const directory = join(parent, "model");
  rmSync(directory, { recursive: true, force: true });
  mkdirSync(directory);
  if (random.chance(0.2)) {
    const path = join(directory, "model.gguf");
    writeFileSync(path, hostileGguf(random));
    return { path, faults: ["gguf"], mustFail: false };
  }
  const model = validModel();
  const chosen = random.some(random.chance(0.1) ? Object.keys(faults) : cheap, 1, 3);
  for (const name of chosen) faults[name](model, random);
  const header = Buffer.from(model.headerText ?? JSON.stringify(model.header));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(header.length));
  const weights = Buffer.concat([size, header, Buffer.alloc(Math.max(0, model.dataBytes), 1)]);
  const files = {
    "config.json": JSON.stringify(model.config),
    "tokenizer.json": JSON.stringify(model.tokenizer),
    "tokenizer_config.json": JSON.stringify(model.settings),
    [model.index === undefined ? "model.safetensors" : "model-1.safetensors"]: weights,
    ...(model.index === undefined ? {} : { "model.safetensors.index.json": JSON.stringify(model.index) }),
    ...model.raw,
  };
  for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content);
  writeFileSync(join(parent, "outside.safetensors"), weights);
  if (model.special !== undefined) makeSpecial(join(directory, model.special.name), model.special.kind);
  return { path: directory, faults: chosen, mustFail: model.mustFail };
}

function makeSpecial(path, kind) {
  rmSync(path, { force: true });
  if (kind === "fifo" || kind === "socket") execFileSync("mkfifo", [path]);
  else if (kind === "device") symlinkSync("/dev/zero", path);
  else if (kind === "directory") mkdirSync(path);
  else symlinkSync(path, path);
}

const ggufTypes = { u8: 0, u32: 4, i32: 5, f32: 6, string: 8, array: 9, u64: 10 };

function hostileGguf(random) {
  const number = (size, value) => {
    const bytes = Buffer.alloc(size);
    if (size === 8) bytes.writeBigUInt64LE(BigInt.asUintN(64, BigInt(value)));
    else bytes.writeUInt32LE(value >>> 0);
    return bytes;
  };
  const text = (value) => Buffer.concat([number(8, Buffer.byteLength(value)), Buffer.from(value)]);
  const strings = (values) =>
    Buffer.concat([
      number(4, ggufTypes.array),
      number(4, ggufTypes.string),
      number(8, values.length),
      ...values.map(text),
    ]);
  const many = (type, count, bytes) =>
    Buffer.concat([number(4, ggufTypes.array), number(4, type), number(8, count), Buffer.alloc(bytes)]);
  const u32 = (value) => Buffer.concat([number(4, ggufTypes.u32), number(4, value)]);
  const vocabulary = [...Object.keys(byteVocabulary()), "<|im_start|>", "<|im_end|>"];
  const pairs = {
    "general.architecture": Buffer.concat([number(4, ggufTypes.string), text("llama")]),
    "tokenizer.ggml.model": Buffer.concat([number(4, ggufTypes.string), text("gpt2")]),
    "tokenizer.ggml.tokens": strings(vocabulary),
    "tokenizer.ggml.token_type": many(ggufTypes.i32, vocabulary.length, 4 * vocabulary.length),
    "tokenizer.ggml.merges": strings([]),
    "tokenizer.ggml.eos_token_id": u32(257),
  };
  const key = random.pick(Object.keys(pairs));
  pairs[key] = random.pick([
    () => strings(["a", "a"]),
    () => strings(Array(200_000).fill("")),
    () => many(ggufTypes.u8, 10_000_000, 10_000_000),
    () => many(ggufTypes.f32, 2 ** 40, 8),
    () => u32(2 ** 31),
    () => strings(["", " ", "a b c"]),
    () => Buffer.concat([number(4, 99), number(8, 0)]),
    () => number(4, ggufTypes.string),
  ])();
  const entries = Object.entries(pairs);
  const bytes = Buffer.concat([
    Buffer.from("GGUF"),
    number(4, 3),
    number(8, random.pick([0, 1, 2 ** 40, 100_000])),
    number(8, random.pick([entries.length, entries.length, 2 ** 50, 1])),
    ...entries.flatMap(([name, value]) => [text(name), value]),
    Buffer.alloc(random.below(5000)),
  ]);
  return random.chance(0.2) ? bytes.subarray(0, random.below(bytes.length)) : bytes;
}
