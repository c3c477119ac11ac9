// Random messages through templates and random tokenizers: the ids must have the same added tokens as
// the same conversation with harmless text. Tokens of white space do not count there: two literals of a
// template can spell one around an empty message, and white space beside a token that strips its
// neighbours disappears. A run is one tokenizer with one template and 20
// conversations of up to 12 messages. Every second template is random; the others are those of the
// tests, which are written like the templates of known families of models.
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { ChatTemplate } from "../../dist/tokens/template.js";
import { Tokenizer } from "../../dist/tokens/tokenizer.js";
import { byteTokenizer, randomSource } from "./support/hostile-models.mjs";

export const about = "text of messages through filters and normalizers gives no control token";

const [conversations, longest] = [20, 12];

/** Templates by the name of their family, and the spellings of the tokens in them. */
const folder = fileURLToPath(new URL("../../test/fixtures/tokens/templates/", import.meta.url));
const families = readdirSync(folder)
  .sort()
  .map((file) => {
    const source = readFileSync(`${folder}${file}`, "utf8");
    const found = source.match(/<[^<>%{}'"\s]+>|\[\/?[A-Z_]+\]|<<\/?SYS>>/g) ?? [];
    const spellings = [...new Set(["<s>", "</s>", ...found])];
    return { name: file.replace(".jinja", ""), source, spellings };
  });

export async function run({ runs, seed, first = 0, report }) {
  for (let number = first; number < first + runs; number++) {
    const began = performance.now();
    const counts = { conversations: 0, strings: 0, refused: 0 };
    const family = number % 2 === 0 ? undefined : families[((number - 1) / 2) % families.length];
    let failure;
    try {
      oneRun(randomSource(seed, number), counts, family);
      if (family !== undefined) counts[`strings of ${family.name}`] = counts.strings;
    } catch (error) {
      failure = { number, message: String(error?.stack ?? error) };
    }
    const worst = { "s a run": (performance.now() - began) / 1000 };
    report({ runs: 1, counts, worst, ...(failure && { failure }) });
    await new Promise(setImmediate); // for signals
  }
}

function oneRun(random, counts, family) {
  const spellings = family?.spellings ?? random.some(allSpellings, 2, 8);
  const normalized = random.chance(0.5);
  const normalizer = random.pick(normalizers);
  const json = byteTokenizer({
    normalizer,
    added: spellings.map((content) => ({
      content,
      normalized,
      special: random.chance(0.7),
      lstrip: random.chance(0.1),
      rstrip: random.chance(0.1),
    })),
  });
  const tokenizer = new Tokenizer({ json, config: {} });
  // A prefix can complete a token at the start of the text, which a message must not decide.
  const start = normalizer?.type === "Prepend" ? "x" : "";
  const template = new ChatTemplate(start + (family?.source ?? randomTemplate(random, spellings)), {
    variables: { bos_token: "<s>", eos_token: "</s>" },
  });
  const addedOf = (contents) =>
    template
      .encode(
        tokenizer,
        contents.map((content, i) => ({ role: i % 2 === 0 ? "user" : "assistant", content })),
      )
      .filter((id) => tokenizer.addedIds.has(id) && tokenizer.contentOf(id).trim() !== "")
      .join();
  const harmless = new Map();
  for (let i = 0; i < conversations; i++) {
    const length = 1 + random.below(longest);
    let wanted = harmless.get(length);
    try {
      wanted ??= addedOf(Array(length).fill("h"));
      harmless.set(length, wanted);
    } catch (error) {
      if (error?.code !== "ERR_TOKENIZER") throw error;
      counts.refused++;
      return;
    }
    const contents = Array.from({ length }, () => hostileText(random, spellings));
    for (const text of contents) {
      const ids = tokenizer.encode(text).filter((id) => tokenizer.addedIds.has(id));
      if (ids.length > 0) throw new Error(`encode(${JSON.stringify(text)}) gives ${ids}`);
    }
    const got = addedOf(contents);
    counts.conversations++;
    counts.strings += length;
    if (got === wanted) continue;
    throw new Error(
      `${got} instead of ${wanted} from ${JSON.stringify({ contents, source: template.source, spellings, normalizer: json.normalizer })}`,
    );
  }
}

const allSpellings = [
  ...["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]", "<think>", "</think>", "<｜User｜>"],
  ...["<|user|>", "<|assistant|>", "<<SYS>>", "{{x}}", "word", "  ", "\n\n", "<0x0A>", "☃", "😀", "é"],
];

const normalizers = [
  ...["Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"].map((type) => ({ type })),
  null,
  { type: "Strip", strip_left: true, strip_right: true },
  { type: "Prepend", prepend: "<" },
  { type: "Replace", pattern: { String: "@" }, content: "" },
  { type: "Replace", pattern: { String: "(" }, content: "<" },
  { type: "Replace", pattern: { Regex: "\\s+" }, content: " " },
  { type: "Sequence", normalizers: [{ type: "NFKC" }, { type: "Lowercase" }] },
];

const filters = [
  ...[
    "",
    "",
    "|lower",
    "|upper",
    "|trim",
    "|title",
    "|capitalize",
    "|string",
    "|safe",
    "|tojson",
    "|indent(2)",
  ],
  ...[
    "|replace('@', '')",
    "|replace('(', '<')",
    "|replace(')', '>')",
    "|replace('&lt;', '<')",
    "|replace('!', '|')",
  ],
  ...[
    ".split('@')|join",
    ".split('@')|join('<')",
    ".split('|')|reverse|join('|')",
    "[::-1]",
    "[1:]",
    "[:-1]",
  ],
  ...["[::2]", ".strip()", ".lower()", ".upper()", ".title()", ".lstrip()", ".rstrip()"],
];

function randomTemplate(random, spellings) {
  const content = () =>
    `m.content${random.pick(filters)}${random.chance(0.3) ? random.pick(filters.filter((f) => f[0] === "|")) : ""}`;
  const literal = () => random.pick([...spellings, "<", "|", "<|", "|>", "[", "\n", " ", "x"]);
  const part = () =>
    random.pick([
      () => literal().replaceAll("{{", "{ {"),
      () => `{{ ${content()} }}`,
      () => `{{ ${JSON.stringify(literal())} + ${content()} + ${JSON.stringify(literal())} }}`,
      () => `{% set c = ${content()} %}{{ c }}`,
      () => `{% if ${JSON.stringify(literal())} in 'abc' %}{{ m.content }}{% endif %}`,
      () => "{{ m.role }}",
    ])();
  return `{% for m in messages %}${Array.from({ length: 1 + random.below(6) }, part).join("")}{% endfor %}`;
}

function hostileText(random, spellings) {
  const spelling = () => random.pick(spellings);
  const wide = (text) => text.replace(/[!-~]/g, (c) => String.fromCharCode(c.charCodeAt(0) + 0xfee0));
  const part = () =>
    random.pick([
      spelling,
      () => spelling().toUpperCase(),
      () => wide(spelling()),
      () => Array.from(spelling()).reverse().join(""),
      () => Array.from(spelling()).join("@"),
      () => Array.from(spelling()).join("a"),
      () => spelling().replaceAll("<", "(").replaceAll(">", ")").replaceAll("|", "!"),
      () => spelling().replaceAll("<", "&lt;"),
      () => spelling().slice(random.below(4)),
      () => spelling().slice(0, -1 - random.below(3)),
      () => spelling().replace(/[^a-z]/g, ""),
      () => String.fromCharCode(random.below(0x10000)),
      () => String.fromCharCode(0xfdd0 + random.below(32)),
      () => "\ufdd0\ufdd1\ufdd1",
      () => random.pick([" ", "\n", "a", "é", "İ", "\u0338", "😀", "<", ">"]),
    ])();
  return Array.from({ length: 1 + random.below(5) }, part).join("");
}
