/** Texts match their grammars with any model: here its weights are random. */

import { Ajv } from "ajv";
import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import fc from "fast-check";
import { afterAll, describe, expect, it } from "vitest";
import { z } from "zod";
import type { Learner } from "../../lib/learner/learner.ts";
import { type Grammar, grammarText } from "../../lib/model/grammar.ts";
import { expectFailure } from "../support/files-and-servers.ts";
import { tinyConfig, tinyLearner } from "../support/tiny.ts";

const config = { ...tinyConfig, max_position_embeddings: 2048 };
const learning: Promise<Learner> = tinyLearner({ seed: 1 }, config);
afterAll(async () => (await learning).dispose());

const prompt = [..."Say it: "].map((letter) => letter.charCodeAt(0));

/** Texts under `grammar`, hot enough that every token is about as likely as any other. */
async function write(grammar: Grammar, count = 4, seed = 0, more: object = {}) {
  return (await learning).generate(
    Array.from({ length: count }, (_, i) => ({
      tokens: prompt,
      grammar,
      maxNewTokens: 600,
      temperature: 1.5,
      seed: seed * 1000 + i,
      ...more,
    })),
  );
}

/** JSON with a space after every comma and colon. */
function spaced(value: unknown): string {
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(spaced).join(", ")}]`;
  return `{${Object.entries(value)
    .map(([key, inner]) => `${JSON.stringify(key)}: ${spaced(inner)}`)
    .join(", ")}}`;
}

/** Whether a whole text may be `text`. */
async function allows(grammar: Grammar, text: string): Promise<boolean> {
  const learner = await learning;
  const forced = learner.encode(`${text}⟂`);
  const request = { tokens: prompt, grammar: { sequence: [grammar, { literal: "⟂" }] }, forced };
  try {
    await learner.generate([{ ...request, maxNewTokens: forced.length }]);
    return true;
  } catch (error) {
    expect((error as Error).message).toMatch(/does not fit the grammar/);
    return false;
  }
}

/** Random schemas of what is supported, small enough that their values end. */
const schemas = fc.letrec<{ schema: object }>((tie) => ({
  schema: fc.oneof(
    { maxDepth: 3, withCrossShrink: true },
    fc.constantFrom<object>({ type: "boolean" }, { type: "null" }, { type: ["null", "boolean"] }),
    fc
      .tuple(fc.integer({ min: -2000, max: 2000 }), fc.nat(3000))
      .map(([minimum, width]) => ({ type: "integer", minimum, maximum: minimum + width })),
    fc
      .tuple(fc.integer({ min: -500, max: 500 }), fc.integer({ min: 1, max: 999 }))
      .map(([minimum, width]) => ({
        type: "number",
        minimum: minimum / 8,
        exclusiveMaximum: minimum / 8 + width,
      })),
    fc
      .tuple(fc.nat(4), fc.nat(9))
      .map(([minLength, more]) => ({ type: "string", minLength, maxLength: minLength + more })),
    fc
      .constantFrom("^[a-z]{2,5}$", "\\d+-\\d\\d", "^(yes|no)$", "^[^a-y]{1,3}$", "ä|ö|[α-ω]")
      .map((pattern) => ({ type: "string", pattern })),
    fc
      .constantFrom("email", "json-pointer", "date", "of our own")
      .map((format) => ({ type: "string", format, pattern: "^[a-z]{1,4}@[a-z]{2}$" })),
    fc
      .array(fc.jsonValue({ maxDepth: 2 }), { minLength: 1, maxLength: 4 })
      .map((values) => ({ enum: values })),
    fc.string().map((value) => ({ const: value, type: "string" })),
    fc
      .tuple(tie("schema"), fc.nat(2), fc.nat(2))
      .map(([items, minItems, more]) => ({ type: "array", items, minItems, maxItems: minItems + more })),
    fc
      .array(tie("schema"), { minLength: 1, maxLength: 3 })
      .map((prefixItems) => ({ type: "array", prefixItems, minItems: prefixItems.length, items: false })),
    fc
      .record({
        properties: fc.dictionary(fc.constantFrom("a", "b", 'c"\\', "dä", " e", "type"), tie("schema"), {
          maxKeys: 4,
        }),
        share: fc.nat(4),
      })
      .map(({ properties, share }) => ({
        type: "object",
        properties,
        required: Object.keys(properties).slice(0, share),
      })),
    fc.array(tie("schema"), { minLength: 1, maxLength: 3 }).map((anyOf) => ({ anyOf })),
  ),
}));

describe("a text under a JSON schema", () => {
  it("is a value that ajv finds valid", { timeout: 300_000 }, async () => {
    const ajv = new Ajv2020({ strict: false, ownProperties: true, validateFormats: false });
    let ended = 0;
    await fc.assert(
      fc.asyncProperty(schemas.schema, fc.nat(1e6), async (schema, seed) => {
        const isValid = ajv.compile(schema);
        for (const { text, finishReason } of await write({ jsonSchema: schema as never }, 3, seed)) {
          expect(finishReason).not.toBe("stuck");
          if (finishReason === "length") continue;
          ended++;
          expect([text, isValid(JSON.parse(text))]).toEqual([text, true]);
        }
      }),
      { numRuns: Number(process.env.NLAC_GRAMMAR_RUNS ?? 60) },
    );
    expect(ended).toBeGreaterThan(100);
  });

  it.each([
    ["duration", /^P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)$/],
    ["uuid", /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i],
    ["uri", /^[a-z][a-z\d+.-]*:([\w.~:/?#@!$&'()*+,;=-]|%[\da-f]{2})*$/i],
    ["uri-reference", /^([\w.~:/?#@!$&'()*+,;=-]|%[\da-f]{2})*$/i],
    ["uri-template", /^([^\s"'<>\\^`{|}]|\{[^\s"\\{}]+\})*$/],
  ])("is JSON of the format %s", async (format, expected) => {
    let ended = 0;
    for (const { text, finishReason } of await write({ jsonSchema: { type: "string", format } }, 12)) {
      if (finishReason === "length") continue;
      ended++;
      expect(JSON.parse(text)).toMatch(expected);
    }
    expect(ended).toBeGreaterThan(0);
  });

  it.each([
    ["date", ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "2023-04-31"]],
    ["time", ["23:59:59Z", "00:00:00.5-03:30"], ["24:00:00Z", "22:59:60Z", "10:00:00"]],
    ["date-time", ["2024-02-29T01:02:03Z"], ["2023-02-29T01:02:03Z", "2024-01-01"]],
    ["email", ["a@b.co", "a.b+c_d@e-f.co.uk"], ["a@b", "a..b@c.de", "@c.de"]],
    ["hostname", ["localhost", "a.b-c.de"], ["-a", "a_b", "a..b"]],
    ["ipv4", ["0.0.0.0", "255.1.20.199"], ["256.1.1.1", "01.1.1.1", "1.1.1"]],
    ["ipv6", ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::1:2"], ["1::2::3", "1:2:3:4:5:6:7", ":::"]],
  ])("is a %s that ajv finds valid", async (format, valid, invalid) => {
    const ajv = new Ajv2020();
    addFormats.default(ajv);
    const schema = { type: "string", format };
    const isValid = ajv.compile(schema);
    for (const text of [...valid, ...invalid]) {
      expect([text, isValid(text)]).toEqual([text, valid.includes(text)]);
      expect([text, await allows({ jsonSchema: schema }, JSON.stringify(text))]).toEqual([
        text,
        isValid(text),
      ]);
    }
    for (const { text, finishReason } of await write({ jsonSchema: schema }, 12))
      if (finishReason === "stop") expect([text, isValid(JSON.parse(text))]).toEqual([text, true]);
  });

  it.each([
    ["^[01]\\d:[0-5]\\d(?::[0-5]\\d(?:\\.\\d+)?)?$", ["10:30", "10:30:01.5"], ["10:3001", "10:30:01."]],
    ["^v?\\d+\\.\\d+(-[a-z]+)?$", ["1.2", "v1.2-a"], ["1.2a", "1.2-"]],
    ["^(\\.\\d+)?Z$", ["Z", ".1Z"], ["1Z"]],
    ["^(bc*|a){2,}$", ["ba", "bca"], ["baca", "a"]],
    ["^.{1,200}$", ["a".repeat(200)], ['"', "\n", ""]],
    ["^[^x]{130,140}$", ["a".repeat(135)], ["a".repeat(129), `${"a".repeat(134)}"`]],
    ["^[^é]+$", ["ab"], ['a"', "é", "\n"]],
    ["^https?://", ["https://a.b/c"], ["ftp://a"]],
    ["@", ["a@b", "@"], ["a"]],
    ["^a$|^b", ["a", "bc"], ["ac", "ab"]],
    ['^[^"]+$', ["it's"], ["", '"']],
    ["^\\S+\\s\\S+$", ["a b", "a\u2003b"], ["a\u2003", "ab"]],
    ["^\\d{3}\\-[\\w-.]+$", ["123-a.b-c"], ["123", "123-a b"]],
  ])("that matches %s is every one that JavaScript matches without escapes", async (pattern, yes, no) => {
    const expected = new RegExp(pattern.replace("\\-", "-").replace("\\w-", "\\w\\-"), "u");
    for (const text of [...yes, ...no]) {
      expect([text, expected.test(text) && !/["\n]/.test(text)]).toEqual([text, yes.includes(text)]);
      const isAllowed = await allows({ jsonSchema: { type: "string", pattern } }, `"${text}"`);
      expect([text, isAllowed]).toEqual([text, yes.includes(text)]);
    }
  });

  it("that has a pattern and limits of its length keeps both", async () => {
    const name = { type: "string", pattern: "^[a-z][a-z0-9_]*$", minLength: 3, maxLength: 5 };
    for (const [text, expected] of [
      ["abc", true],
      ["abcde", true],
      ["ab", false],
      ["abcdef", false],
    ] as const)
      expect([text, await allows({ jsonSchema: name }, `"${text}"`)]).toEqual([text, expected]);
  });

  it.each<[string, object, unknown[], unknown[]]>([
    [
      "pydantic's discriminated unions",
      {
        $defs: {
          Cat: {
            type: "object",
            properties: { kind: { type: "string", const: "cat" }, lives: { type: "integer" } },
            required: ["kind", "lives"],
          },
          Dog: {
            type: "object",
            properties: { kind: { type: "string", const: "dog" } },
            required: ["kind"],
          },
        },
        discriminator: { propertyName: "kind" },
        oneOf: [{ $ref: "#/$defs/Cat" }, { $ref: "#/$defs/Dog" }],
      },
      [{ kind: "cat", lives: 9 }, { kind: "dog" }],
      [{ kind: "cat" }, { kind: "cow" }],
    ],
    [
      "alternatives that require a key that the other has not",
      {
        oneOf: [
          {
            type: "object",
            properties: { a: { type: "null" } },
            required: ["a"],
            additionalProperties: false,
          },
          {
            type: "object",
            properties: { b: { type: "null" } },
            required: ["b"],
            additionalProperties: false,
          },
        ],
      },
      [{ a: null }, { b: null }],
      [{ a: null, b: null }, {}],
    ],
    [
      "tuples of draft 7",
      { type: "array", items: [{ type: "null" }, { const: 1 }], additionalItems: false, minItems: 2 },
      [[null, 1]],
      [[null], [1, 1], [null, 1, 1]],
    ],
    [
      "zod's records of listed keys",
      {
        type: "object",
        propertyNames: { type: "string", enum: ["a", "b"] },
        additionalProperties: { type: "null" },
        required: ["a", "b"],
      },
      [{ a: null, b: null }],
      [{ a: null }, { a: null, b: null, c: null }],
    ],
    [
      "pydantic's dictionaries with the keys of an enum",
      {
        $defs: { Color: { enum: ["red", "blue"], type: "string" } },
        type: "object",
        propertyNames: { $ref: "#/$defs/Color" },
        additionalProperties: { type: "null" },
      },
      [{}, { blue: null }],
      [{ green: null }],
    ],
    [
      "what implies its type",
      { properties: { a: { minimum: 3 } }, required: ["a"] },
      [{ a: 3 }],
      [{ a: 2 }, {}],
    ],
    ["limits of integers", { type: "integer", minimum: 0.5, exclusiveMaximum: 3.5 }, [1, 3], [0, 4]],
    ["limits of 64 bits", { type: "integer", minimum: 0, maximum: 2 ** 63 }, [0, 2 ** 53], [-1, 1.5]],
    ["multiples of one", { type: "integer", multipleOf: 1 }, [-3], [0.5]],
    ["items that may repeat", { type: "array", items: { const: 1 }, uniqueItems: false }, [[1, 1]], [[2]]],
    ["formats without a syntax", { type: "string", format: "password" }, ["a"], [1]],
    ["a URL that is not empty", { type: "string", format: "uri", minLength: 1 }, ["http://a.b/"], [""]],
  ])("is as ajv says for %s", async (_, schema, valid, invalid) => {
    const options = { strict: false, validateFormats: false } as const;
    const isValid =
      "additionalItems" in schema ? new Ajv(options).compile(schema) : new Ajv2020(options).compile(schema);
    for (const value of [...valid, ...invalid]) {
      const text = spaced(value);
      expect([text, isValid(value)]).toEqual([text, valid.includes(value)]);
      expect([text, await allows({ jsonSchema: schema as never }, text)]).toEqual([
        text,
        valid.includes(value),
      ]);
    }
  });

  it("has as many code points as its length allows", async () => {
    const lengths = { minLength: 150, maxLength: 200 };
    let ended = 0;
    for (const { text, finishReason } of await write({ jsonSchema: { type: "string", ...lengths } }, 24)) {
      if (finishReason === "length") continue;
      ended++;
      const { length } = Array.from(JSON.parse(text) as string);
      expect(length).toBeGreaterThanOrEqual(150);
      expect(length).toBeLessThanOrEqual(200);
    }
    expect(ended).toBeGreaterThan(0);
  });

  it("is what zod describes", async () => {
    const schema = z.object({
      mail: z.email(),
      id: z.uuid(),
      day: z.iso.date(),
      shares: z.record(z.string(), z.boolean()),
    });
    const jsonSchema = z.toJSONSchema(schema) as Record<string, unknown>;
    let ended = 0;
    for (const { text, finishReason } of await write({ jsonSchema }, 8, 0, { maxNewTokens: 1500 })) {
      if (finishReason === "length") continue;
      ended++;
      expect([text, schema.safeParse(JSON.parse(text)).success]).toEqual([text, true]);
    }
    expect(ended).toBeGreaterThan(0);
  });

  it("follows references, also to the schema itself", async () => {
    const schema = {
      $defs: { node: { type: "object", properties: { next: { $ref: "#/$defs/node" }, leaf: { const: 1 } } } },
      $ref: "#/$defs/node",
    };
    const isValid = new Ajv2020().compile(schema);
    for (const { text, finishReason } of await write({ jsonSchema: schema }, 8))
      if (finishReason === "stop") expect(isValid(JSON.parse(text))).toBe(true);
  });

  it("names no key and no item that the schema does not, and is on one line, in the schema's order", async () => {
    const schema = {
      type: "object",
      properties: { b: { const: 1 }, a: { const: [] } },
      required: ["b", "a"],
    };
    for (const { text } of await write({ jsonSchema: schema })) expect(text).toBe('{"b": 1, "a": []}');
    for (const { text, finishReason } of await write({ json: true }, 8))
      if (finishReason === "stop") expect(Object.getPrototypeOf(JSON.parse(text))).toBe(Object.prototype);
  });
});

describe("a text under a regular expression", () => {
  it("is matched by JavaScript's", { timeout: 120_000 }, async () => {
    const atoms = fc.constantFrom(
      "a",
      "[b-e]",
      "\\d",
      "[^x]",
      ".",
      "(?:ab|c)",
      "(d|ef?)",
      "\\.",
      "é",
      "\\w",
      "[\\s,]",
      "\\u00e4",
    );
    const times = fc.constantFrom("", "?", "{2}", "{1,4}", "{0,2}", "*", "+");
    const branch = fc.array(
      fc.tuple(atoms, times).map((parts) => parts.join("")),
      { minLength: 1, maxLength: 5 },
    );
    const patterns = fc
      .array(
        branch.map((parts) => parts.join("")),
        { minLength: 1, maxLength: 3 },
      )
      .map((branches) => branches.join("|"));
    await fc.assert(
      fc.asyncProperty(patterns, fc.nat(1e6), async (regex, seed) => {
        const expected = new RegExp(`^(?:${regex})$`, "su");
        for (const { text, finishReason } of await write({ regex }, 3, seed)) {
          expect(finishReason).not.toBe("stuck");
          if (finishReason === "stop") expect(text).toMatch(expected);
        }
      }),
      { numRuns: Number(process.env.NLAC_GRAMMAR_RUNS ?? 60) },
    );
  });
});

describe("grammars", () => {
  it("are concatenated or alternatives", async () => {
    const grammar: Grammar = {
      sequence: [
        { literal: 'a "\\\n' },
        { anyOf: [{ ebnf: 'root ::= "x" root | "y"' }, { jsonSchema: { enum: [7, "z"] } }] },
      ],
    };
    for (const { text, finishReason } of await write(grammar, 8))
      if (finishReason === "stop") expect(text).toMatch(/^a "\\\n(x*y|7|"z")$/);
  });

  it("keep the model's log probabilities, and give the same text in any batch", async () => {
    const grammar = { regex: "[ab]{20}" };
    const learner = await learning;
    const [alone] = await write(grammar, 1);
    expect(alone!.text).toMatch(/^[ab]{20}$/);
    const [scored] = await learner.logProbs([{ prompt, response: alone!.tokens }]);
    for (const [i, logProb] of alone!.logProbs.entries()) expect(logProb).toBeCloseTo(scored![i]!, 4);
    const company = await Promise.all([
      write(grammar, 3),
      write({ json: true }, 5, 9),
      write({ regex: "c{50}" }, 1, 3),
    ]);
    expect(company[0][0]!.tokens).toEqual(alone!.tokens);
    expect(company[2][0]!.text).toBe("c".repeat(50));
  });

  it("work together with stop ids, stop strings, forbidden ids and greedy choice", async () => {
    const a = "a".charCodeAt(0);
    const [greedy] = await write({ regex: "(ab)+" }, 1, 0, { temperature: 0, maxNewTokens: 40 });
    expect(greedy!.text).toMatch(/^(ab)+a?$/);
    const [stopped] = await write({ regex: "[a-p]{9}q" }, 1, 0, { stopTokenIds: [a] });
    expect([stopped!.text.slice(-1), stopped!.tokens.length]).toEqual(["q", 11]); // "a" cannot end it anywhere
    const [cut] = await write({ regex: "xyz+" }, 1, 0, { stop: ["yz"] });
    expect([cut!.text, cut!.finishReason]).toEqual(["x", "stop"]);
    const [stuck] = await write({ regex: "xa" }, 1, 0, { forbidden: [a] });
    expect([stuck!.text, stuck!.finishReason]).toEqual(["x", "stuck"]);
    const filtered = await write({ regex: "[ab]{3}" }, 4, 0, { topK: 1, topP: 0.5, minP: 0.2 });
    for (const { text } of filtered) expect(text).toMatch(/^[ab]{3}$/);
  });

  it("may end a text if the model has no end id", async () => {
    const learner = await tinyLearner({}, { ...config, eos_token_id: undefined });
    try {
      const [written] = await learner.generate([
        { tokens: prompt, grammar: { regex: "ab" }, stopTokenIds: [], forbidden: [256, 257] },
      ]);
      expect([written!.text, written!.finishReason]).toEqual(["ab", "stop"]);
    } finally {
      await learner.dispose();
    }
  });

  it.each<[unknown, RegExp]>([
    [{}, /requests\[0\]\.grammar must be an object of one key/],
    [{ regex: "a", json: true }, /one key/],
    [{ glob: "*" }, /no kind "glob"/],
    [{ json: false }, /json must be true/],
    [{ regex: "(" }, /regex is not a regular expression/],
    [{ literal: "\0" }, /null characters/],
    [{ sequence: [] }, /at least one grammar/],
    [{ anyOf: [{ regex: "a" }, { literal: 3 }] }, /anyOf\[1\]\.literal must be a text/],
    [{ jsonSchema: 3 }, /must be a JSON Schema/],
    [{ jsonSchema: { type: "text" } }, /"type" that is none: "text"/],
    [{ jsonSchema: { minimum: 3, items: {} } }, /needs a "type"/],
    [{ jsonSchema: { not: {} } }, /has "not"/],
    [{ jsonSchema: { properties: { a: { not: {} } } } }, /properties\.a has "not"/],
    [{ jsonSchema: { type: "object", properties: { a: { not: {} } } } }, /properties\.a has "not"/],
    [{ jsonSchema: { type: "array", uniqueItems: true } }, /"uniqueItems", which cannot be enforced/],
    [{ jsonSchema: { anyOf: [{}], type: "object" } }, /has "type" beside "anyOf"/],
    [{ jsonSchema: { type: "string", enum: ["a", 1] } }, /not of its "type": 1/],
    [
      { jsonSchema: { type: "object", properties: { a: true }, required: ["a", "b"] } },
      /requires "b", which "properties" does not name/,
    ],
    [
      { jsonSchema: { $ref: "#/x", x: { type: "array", uniqueItems: true } } },
      /refers to "#\/x"; it must be/,
    ],
    [{ jsonSchema: { type: "object", required: ["toString"] } }, /requires "toString"/],
    [{ jsonSchema: { type: "object", required: "a" } }, /a list as its "required"/],
    [
      { jsonSchema: { type: "object", additionalProperties: { type: "null" }, minProperties: 2 } },
      /"minProperties" above 1 beside "additionalProperties"/,
    ],
    [{ jsonSchema: { type: "object", propertyNames: { type: "string", maxLength: 1 } } }, /"propertyNames"/],
    [{ jsonSchema: { type: "string", format: "iri" } }, /the format "iri", .* use a "pattern"/],
    [
      { jsonSchema: { type: "array", items: { type: "string", format: "json-pointer" } } },
      /items has the format/,
    ],
    [{ jsonSchema: { type: "string", format: "relative-json-pointer" } }, /has the format/],
    [{ jsonSchema: { type: "string", format: 3 } }, /the format 3/],
    [{ jsonSchema: { type: "string", pattern: "(" } }, /pattern is not a regular expression/],
    [{ jsonSchema: { type: "string", pattern: 'a"' } }, /no text without quotes, backslashes/],
    [{ jsonSchema: { type: "string", pattern: "[\\\\]" } }, /no text without quotes, backslashes/],
    [{ jsonSchema: { type: "string", pattern: "^\\n$" } }, /no text without .* control characters/],
    [{ jsonSchema: { type: "string", pattern: "^a+b+$", maxLength: 9 } }, /vary in length/],
    [{ jsonSchema: { type: "string", pattern: "^a{2}$", minLength: 3 } }, /vary in length/],
    [
      { jsonSchema: { type: "string", pattern: "^a+$", minLength: 3, maxLength: 2 } },
      /no text of the allowed/,
    ],
    [{ jsonSchema: { oneOf: [{ type: "number" }, { type: "integer" }] } }, /alternatives 0 and 1 may match/],
    [
      { jsonSchema: { oneOf: [{ type: "object", properties: { t: { const: 1 } } }, { type: "object" }] } },
      /alternatives 0 and 1 may match/,
    ],
    [{ jsonSchema: { allOf: [{ type: "object" }, { type: "object" }] } }, /"allOf" of several schemas/],
    [{ jsonSchema: { $ref: "#/$defs/none" } }, /refers to "#\/\$defs\/none", which is not a schema/],
    [{ regex: "(?=a)b" }, /regex cannot be enforced: it has a lookahead/],
    [{ regex: "\\bfoo" }, /it has a word boundary/],
    [{ regex: "(a)\\1" }, /it has a back reference/],
    [{ regex: "\\p{L}" }, /it has \\p\{L\}/],
    [{ regex: "a^b" }, /\^ or \$ in its middle/],
    [{ regex: "\\0" }, /no text matches it/],
    [{ regex: "(?<=a)b" }, /it has a lookbehind/],
    [{ regex: "(?i:a)" }, /it has flags/],
    [{ regex: "(".repeat(70) + ")".repeat(70) }, /nested deeper than 64/],
    [{ regex: "(".repeat(20_000) + ")".repeat(20_000) }, /nested deeper than 64/],
    [{ regex: "a".repeat(70_000) }, /too long/],
    [{ regex: `${"(".repeat(40)}a${"){2,}".repeat(40)}` }, /too long/],
  ])("that are malformed, or cannot be enforced, are refused: %j", async (grammar, message) => {
    await expectFailure(write(grammar as Grammar), "ERR_VALUE", message);
  });

  it("that cannot be compiled fail their call, with the request's index, and no other", async () => {
    const learner = await learning;
    const request = (regex: string) => ({ tokens: prompt, grammar: { regex }, maxNewTokens: 5 });
    const other = learner.generate([request("a{5}")]);
    await expectFailure(
      learner.generate([request("a{5}"), request("[\\x01]")]),
      "ERR_VALUE",
      /generate request 1: the grammar cannot be used: no text fits it/,
    );
    expect((await other)[0]!.text).toBe("aaaaa");
    const schema = { type: "string", format: "uri", maxLength: 30 }; // the length would be ignored
    await expectFailure(write({ jsonSchema: schema }), "ERR_VALUE", /maxLength/);
    await expectFailure(write({ ebnf: "root ::= root" }), "ERR_VALUE", /no text fits/);
    await expectFailure(write({ literal: "a".repeat(70_000) }), "ERR_VALUE", /longer than/);
  });

  it("that contain themselves are rejected", () => {
    const circle: Record<string, unknown> = {};
    circle.items = circle;
    expect(() => grammarText({ jsonSchema: { type: "array", items: circle } }, "grammar")).toThrow(
      /deeper than 64/,
    );
    expect(() => grammarText({ jsonSchema: { const: circle } }, "grammar")).toThrow(
      /cannot be written as JSON/,
    );
  });

  it("that are nested too deeply are rejected before they are compiled", () => {
    let schema: object = {};
    for (let i = 0; i < 5000; i++) schema = { type: "array", items: schema };
    expect(() => grammarText({ jsonSchema: schema as never }, "grammar")).toThrow(/deeper than 64/);
  });
});

describe("a forced beginning", () => {
  it("is generated as given, with the model's log probabilities, and continued", async () => {
    const learner = await learning;
    const forced = learner.encode('{"a": ');
    const grammar = { jsonSchema: { type: "object", properties: { a: { enum: [1, 22] } } } };
    const [written] = await write(grammar, 1, 0, { forced });
    expect(written!.text).toMatch(/^\{"a": (1|22)\}$/);
    expect(written!.tokens.slice(0, forced.length)).toEqual(forced);
    const [scored] = await learner.logProbs([{ prompt, response: written!.tokens }]);
    for (const [i, logProb] of written!.logProbs.entries()) expect(logProb).toBeCloseTo(scored![i]!, 4);
    const [free] = await learner.generate([
      { tokens: prompt, forced, maxNewTokens: forced.length + 3, seed: 4 },
    ]);
    expect(free!.tokens.slice(0, forced.length)).toEqual(forced);
    const [short] = await learner.generate([{ tokens: prompt, forced, maxNewTokens: 2 }]);
    expect([short!.tokens, short!.finishReason]).toEqual([forced.slice(0, 2), "length"]);
    await expectFailure(
      write(grammar, 1, 0, { forced: learner.encode("[") }),
      "ERR_VALUE",
      /does not fit the grammar/,
    );
  });
});
