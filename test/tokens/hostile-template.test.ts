/** Chat templates that take too much, and text that becomes a control token where it is changed. */

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Message } from "../../lib/contract/environment.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { fixtureJson, tokenizerNamed } from "./fixtures.ts";

const coded = (code: string, message = /./) =>
  expect.objectContaining({ code, message: expect.stringMatching(message) });
const question: Message[] = [{ role: "user", content: "a" }];

describe("templates that take too much", () => {
  it.each([
    ["a huge range", "{% for i in range(1000000000) %}{% endfor %}"],
    ["an endless range", "{{ range(0, 1, 0) }}"],
    ["nested loops", `${"{% for i in range(1000) %}".repeat(4)}x${"{% endfor %}".repeat(4)}`],
    [
      "macros that double",
      `{% macro m0(s) %}{{ s }}{{ s }}{% endmacro %}${Array.from({ length: 40 }, (_, i) => `{% macro m${i + 1}(s) %}{{ m${i}(s) }}{{ m${i}(s) }}{% endmacro %}`).join("")}{{ m40("x") }}`,
    ],
    [
      "a text that doubles",
      `{% set n = namespace(s="x") %}${"{% set n.s = n.s + n.s %}".repeat(64)}{{ n.s }}`,
    ],
    [
      "a list that doubles",
      `{% set n = namespace(s=[1]) %}${"{% set n.s = n.s + n.s %}".repeat(64)}{{ n.s }}`,
    ],
    ["a text that is repeated", '{{ "x" * 900000000 }}'],
    [
      "a format that prints a long text many times",
      `{% set n = namespace(s="x") %}${"{% set n.s = n.s + n.s %}".repeat(17)}{{ ("{0}" * 90000).format(n.s) }}`,
    ],
    [
      "the same with percent signs",
      `{% set n = namespace(s="x") %}${"{% set n.s = n.s + n.s %}".repeat(17)}{{ ("%(s)s" * 90000) | format(s=n.s) }}`,
    ],
    ["a long raw block without an end", `{% raw %}${"{% raw ".repeat(100_000)}`],
    ["a wide indent", '{{ "a" | indent(900000000, true) }}'],
    ["endless recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"],
    ["a long source", " ".repeat(2_000_000)],
    ["deep brackets", `{{ ${"(".repeat(200_000)} }}`],
  ])("%s", (_, source) => {
    expect(() => new ChatTemplate(source).render(question)).toThrow(coded("ERR_TOKENIZER"));
  });

  it("has no value for the first item of an empty list", () => {
    expect(new ChatTemplate("{% set x = [] | first %}a").render(question)).toBe("a");
  });

  it("but long conversations are rendered", () => {
    const tokenizer = tokenizerNamed("qwen-like");
    const messages = Array.from(
      { length: 2000 },
      (_, i): Message => ({ role: i % 2 === 0 ? "user" : "assistant", content: "word ".repeat(100) }),
    );
    expect(ChatTemplate.of(tokenizer).encode(tokenizer, messages).length).toBeGreaterThan(200_000);
  });

  it.each(["constructor", "__proto__", "toString", "valueOf", "hasOwnProperty"])(
    "cannot reach JavaScript by .%s",
    (name) => {
      const template = new ChatTemplate(
        `[{{ messages.${name} }}{{ messages[0].${name} }}{{ messages[0]["${name}"] }}{{ "a".${name} }}{{ ${name} }}]`,
      );
      expect(template.render(question)).toBe("[]");
    },
  );
});

it.each([
  ["a number", 5],
  ["null", null],
  ["nothing", undefined],
  ["an object", { a: 1 }],
  ["a list", ["a"]],
])("a message whose content is %s is refused", (_, content) => {
  const tokenizer = tokenizerNamed("qwen-like");
  const template = ChatTemplate.of(tokenizer);
  const messages = [{ role: "user", content }] as unknown as Message[];
  expect(() => template.render(messages)).toThrow(coded("ERR_VALUE", /messages\[0\]\.content/));
  expect(() => template.encode(tokenizer, messages)).toThrow(coded("ERR_VALUE"));
  expect(() => template.encodeContinuation(tokenizer, { after: "user", system: false }, messages)).toThrow(
    coded("ERR_VALUE"),
  );
  expect(() => template.encode(tokenizer, [null] as unknown as Message[])).toThrow(coded("ERR_VALUE"));
  expect(() => template.encode(tokenizer, 5 as unknown as Message[])).toThrow(coded("ERR_VALUE"));
});

describe("text that is changed on its way to the ids", () => {
  const normalizers = [
    null,
    { type: "Lowercase" },
    { type: "NFC" },
    { type: "NFD" },
    { type: "NFKC" },
    { type: "NFKD" },
    { type: "StripAccents" },
    { type: "Strip", strip_left: true, strip_right: true },
    { type: "Prepend", prepend: "<|" },
    { type: "Replace", pattern: { String: "@" }, content: "" },
    { type: "Replace", pattern: { Regex: "[(]+" }, content: "<" },
    {
      type: "Sequence",
      normalizers: [{ type: "NFKD" }, { type: "StripAccents" }, { type: "Lowercase" }],
    },
  ];
  const filters = [
    "",
    "|lower",
    "|upper",
    "|trim",
    "|title",
    "|capitalize",
    "|safe",
    "|string",
    "|indent(1)",
    "|replace('@', '')",
    "|replace('(', '<')|replace(')', '>')",
    "|replace('&lt;', '<')|replace('&gt;', '>')",
    "|tojson",
    ".split('@')|join",
    ".split('@')|join('|')",
    ".split('@')|reverse|join",
    "[::-1]",
    "[1:]",
    "[:-1]",
    ".strip()",
    ".lower()",
    ".upper()",
    ".replace('@', '')",
    ".title()",
  ];
  const frames = [
    (content: string) => `<|im_start|>{{ m.role }}\n{{ ${content} }}<|im_end|>\n`,
    (content: string) => `{{ '<|im_start|>' + m.role + '\n' + ${content} + '<|im_end|>' + '\n' }}`,
    (content: string) => `<|im_start|><{{ ${content} }}><|{{ ${content} }}|></{{ ${content} }}><|im_end|>`,
  ];
  const spellings = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>"];
  const full = (text: string) => text.replace(/[!-~]/g, (c) => String.fromCharCode(c.charCodeAt(0) + 0xfee0));
  const attack = fc
    .constantFrom(...spellings)
    .chain((spelling) =>
      fc.constantFrom(
        spelling,
        spelling.toUpperCase(),
        full(spelling),
        full(spelling.toUpperCase()),
        spelling.replace("<", "("),
        spelling.replace("<", "&lt;").replace(">", "&gt;"),
        [...spelling].join("@"),
        [...spelling].reverse().join(""),
        spelling.split("|").join("@"),
        spelling.slice(0, 5),
        spelling.slice(5),
        spelling.replace(/[<|>/]/g, ""),
        ` ${spelling} `,
        spelling.replace("<", "<\u0338"),
        spelling.replace("i", "i\u0301").replace("I", "\u0130"),
      ),
    );
  const hostile = fc
    .array(
      fc.oneof(attack, fc.string({ maxLength: 3 }), fc.constantFrom("\ufdd0", "\ufdd1", "\ue000", "\ud83d")),
      {
        minLength: 1,
        maxLength: 4,
      },
    )
    .map((parts) => parts.join(""));

  const base = fixtureJson<Tokenizer["json"]>("qwen-like.json.gz");
  it.each(normalizers.map((rule) => [JSON.stringify(rule), rule] as const))(
    "never becomes a control token, with the normalizer %s",
    (_, normalizer) => {
      for (const normalized of [true, false]) {
        const added = base.added_tokens!.map((token) => ({ ...token, normalized }));
        const tokenizer = new Tokenizer({ json: { ...base, normalizer, added_tokens: added }, config: {} });
        const addedOf = (ids: readonly number[]) => ids.filter((id) => tokenizer.addedIds.has(id));
        for (const [i, filter] of filters.entries()) {
          const frame = frames[(i + Number(normalized)) % frames.length]!;
          const source = `{% for m in messages %}${frame(`m.content${filter}`)}{% endfor %}`;
          let template: ChatTemplate;
          let wanted: number[];
          try {
            template = new ChatTemplate(source);
            wanted = addedOf(template.encode(tokenizer, [question[0]!, question[0]!]));
          } catch (error) {
            // A normalizer that writes parts of control tokens itself; or HTML in place of control
            // tokens, which Python makes of what is added to a text that is `safe`.
            if (!source.includes("|safe + ")) expect(["Prepend", "Replace"]).toContain(normalizer?.type);
            expect(error).toEqual(coded("ERR_TOKENIZER"));
            continue;
          }
          fc.assert(
            fc.property(hostile, hostile, (a, b) => {
              expect(addedOf(tokenizer.encode(a))).toEqual([]);
              const messages = [a, b].map((content): Message => ({ role: "user", content }));
              expect(addedOf(template.encode(tokenizer, messages)), source).toEqual(wanted);
            }),
            { numRuns: 15 },
          );
        }
      }
    },
  );

  it("is normalized once for all pieces between two added tokens, as the plain text is", () => {
    const added_tokens = ["word", "stop"].map((content, i) => ({ id: 900 + i, content, normalized: true }));
    const tokenizer = new Tokenizer({
      json: { ...base, normalizer: { type: "Prepend", prepend: "<" }, added_tokens },
      config: {},
    });
    const template = new ChatTemplate("{% for m in messages %}{{ 'word' + m.content + 'stop' }}{% endfor %}");
    for (const content of ["h", ""]) {
      const ids = template.encode(tokenizer, [{ role: "user", content }]);
      // Only the start of the text gets the "<" that both tokens have when they are normalized.
      expect(ids).toEqual(tokenizer.encodeTemplate(`word${content}stop`));
      expect(ids.filter((id) => tokenizer.addedIds.has(id))).toEqual([900]);
    }
  });

  it("keeps the control tokens that a template assembles around the role", () => {
    const tokenizer = new Tokenizer({
      json: {
        ...base,
        added_tokens: [...base.added_tokens!, { id: 999, content: "<|user|>", special: true }],
      },
      config: {},
    });
    const template = new ChatTemplate(
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|im_end|>{% endfor %}",
    );
    const ids = template.encode(tokenizer, [{ role: "user", content: "<|user|>user" }]);
    expect(ids.filter((id) => tokenizer.addedIds.has(id))).toEqual([999, tokenizer.idOf("<|im_end|>")]);
  });
});
