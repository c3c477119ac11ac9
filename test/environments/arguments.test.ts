import fc from "fast-check";
import { describe, expect, it, vi } from "vitest";
import { z } from "zod";
import { type CheckArguments, compileArguments } from "../../lib/environments/arguments.ts";

const object = (properties: object, more: object = {}) => ({ type: "object", properties, ...more });
const check = (schema: Record<string, unknown>, args: Record<string, unknown>) =>
  compileArguments(schema, "find")(args);

describe("problems are reported with their place", () => {
  const items = object({ items: { type: "array", items: { type: "string" } } });
  it.each([
    [items, { items: ["a", "b"] }, undefined],
    [items, { items: [1] }, "arguments.items[0] must be string"],
    [items, { items: "a" }, "arguments.items must be array"],
    [object({ a: {} }, { required: ["a"] }), {}, "arguments must have required property 'a'"],
    [object({ a: object({ b: { type: "integer" } }) }), { a: { b: 1.5 } }, "arguments.a.b must be integer"],
    [object({ "a b/c": { type: "null" } }), { "a b/c": 1 }, 'arguments["a b/c"] must be null'],
    [object({}, { additionalProperties: false }), { x: 1 }, 'arguments must not have the property "x"'],
    [object({ a: { enum: ["x", 2] } }), { a: "y" }, 'arguments.a must be one of "x", 2'],
    [object({ a: { const: "x" } }), { a: "y" }, 'arguments.a must be "x"'],
    [
      object({ a: { $ref: "#/$defs/n" } }, { $defs: { n: { minimum: 3 } } }),
      { a: 1 },
      "arguments.a must be >= 3",
    ],
    [
      { ...object({ a: { $ref: "#/definitions/n" } }), definitions: { n: { type: "string" } } },
      { a: 1 },
      "arguments.a must be string",
    ],
  ])("%j takes %j: %s", (schema, args, problem) => {
    expect(check(schema, args as Record<string, unknown>)).toBe(problem);
  });

  it("several problems are reported at once, up to a limit", () => {
    const schema = object({ a: { type: "string" }, b: { type: "number" } }, { required: ["c"] });
    expect(check(schema, { a: 1, b: "x" })).toBe(
      "arguments must have required property 'c'; arguments.a must be string; arguments.b must be number",
    );
    expect(check(items, { items: [1, 2, 3, 4, 5, 6, 7] })).toMatch(/items\[4\] must be string; and 2 more$/);
  });
});

it("schemas of zod and of older drafts are read by their own rules", () => {
  const schema = z.toJSONSchema(z.object({ day: z.iso.date(), who: z.tuple([z.string(), z.int()]) }));
  expect(check(schema, { day: "2026-01-31", who: ["a", 1] })).toBeUndefined();
  expect(check(schema, { day: "soon", who: ["a", 1] })).toMatch(/^arguments.day must match pattern/);
  expect(check(schema, { day: "2026-01-31", who: [1, 1] })).toBe("arguments.who[0] must be string");
  // In draft 7 a list of `items` applies by position; in 2020-12 it is not a schema.
  const places = object({ pair: { type: "array", items: [{ type: "string" }, { type: "integer" }] } });
  const draft7 = { $schema: "http://json-schema.org/draft-07/schema#", ...places };
  expect(check(draft7, { pair: ["a", "b"] })).toBe("arguments.pair[1] must be integer");
  expect(() => compileArguments(places, "find")).toThrow(expect.objectContaining({ code: "ERR_VALUE" }));
});

it("what a schema defines is not known to others", () => {
  expect(check({ ...object({ a: { type: "string" } }), $id: "one" }, { a: "x" })).toBeUndefined();
  const other = object({ a: { $ref: "one" } });
  expect(() => compileArguments(other, "find")).toThrow(expect.objectContaining({ code: "ERR_VALUE" }));
  // Another schema of the same name is no conflict.
  const named = { ...object({ a: { type: "number" } }), $id: "one" };
  expect(check(named, { a: "x" })).toBe("arguments.a must be number");
});

it("nothing is coerced or filled in, and formats are not enforced", () => {
  const schema = object({ n: { type: "integer", default: 3 }, mail: { type: "string", format: "email" } });
  const args = { mail: "no mail" };
  expect(check(schema, args)).toBeUndefined();
  expect(args).toEqual({ mail: "no mail" });
  expect(check(schema, { n: "3" })).toBe("arguments.n must be integer");
});

describe("hostile schemas", () => {
  const nested = (depth: number): object => (depth === 0 ? {} : { properties: { a: nested(depth - 1) } });
  const cyclic: Record<string, unknown> = object({});
  (cyclic.properties as Record<string, unknown>).a = cyclic;
  it.each([
    [{ type: "string" }, /type must be "object"/],
    [{ type: "object", properties: 3 }, /must be object/],
    [{ type: "object", required: "a" }, /must be array/],
    [object({ a: { maximum: "1); evil(" } }), /must be number/],
    [object({ a: { pattern: "(" } }), /./],
    [object({ a: { $ref: "https://example.com/schema.json" } }), /resolve reference/],
    [{ type: "object", ...nested(200) }, /deeper than 64/],
    [cyclic, /deeper than 64/],
  ])("%# are rejected", (schema, reason) => {
    expect(() => compileArguments(schema as Record<string, unknown>, "find")).toThrow(
      expect.objectContaining({ code: "ERR_VALUE", message: expect.stringMatching(reason) }),
    );
  });

  it("a pattern that backtracks without end is rejected", () => {
    const schema = object({ a: { type: "string", pattern: "^(a+)+$" }, b: { type: "string" } });
    const checked = compileArguments(schema, "find");
    expect(checked({ a: `${"a".repeat(50)}b` })).toBe("arguments take too long to be checked");
    expect(checked({ a: "aa", b: 1 })).toBe("arguments.b must be string");
  });

  it("so are alternatives that multiply", () => {
    const $defs: Record<string, object> = { d0: { type: "string" } };
    for (let i = 1; i <= 40; i++)
      $defs[`d${i}`] = { anyOf: [{ $ref: `#/$defs/d${i - 1}` }, { $ref: `#/$defs/d${i - 1}` }] };
    const schema = object({ a: { $ref: "#/$defs/d40" } }, { $defs });
    expect(check(schema, { a: 1 })).toBe("arguments take too long to be checked");
  });

  it("a schema cannot turn its check into a promise", async () => {
    const rejected = vi.fn();
    process.on("unhandledRejection", rejected);
    try {
      const schema = object({ a: { type: "string" } }, { $async: true });
      expect(check(schema, { a: 1 })).toBe("arguments.a must be string");
      expect(check(schema, { a: "x" })).toBeUndefined();
      await new Promise((resolve) => setTimeout(resolve, 10));
      expect(rejected).not.toHaveBeenCalled();
    } finally {
      process.off("unhandledRejection", rejected);
    }
    const inside = object({ a: { $async: true, type: "string" } });
    expect(() => check(inside, {})).toThrow("async schema in sync schema");
  });

  it("no text of a schema is run as code", () => {
    const spells = fc.constantFrom(
      '"+evil()+"',
      "'+evil()+'",
      "`$" + "{evil()}`",
      "*/evil();/*",
      "//\nevil()",
      "\u2028evil()",
      '"];evil();["',
      "$" + "{evil()}",
      "\\",
      "__proto__",
      "constructor",
      "#/$defs/x",
    );
    const evil = globalThis as { evil?: () => void };
    let ran = false;
    let compiled = 0;
    evil.evil = () => {
      ran = true;
    };
    try {
      fc.assert(
        fc.property(
          fc.array(spells, { minLength: 7, maxLength: 7 }),
          fc.anything(),
          ([a, b, c, d, e, f, g], value) => {
            const schema = {
              type: "object",
              title: a,
              $comment: b,
              $id: `https://example.com/${encodeURIComponent(c!)}`,
              properties: {
                [d!]: { enum: [a, b], description: c },
                [e!]: { const: { [f!]: g } },
                x: { pattern: f!.replaceAll(/[\\()[\]*+?{}|]/g, "."), format: a, [g!]: true },
              },
              patternProperties: { [g!.replaceAll(/[\\()[\]*+?{}|]/g, ".")]: { type: "string" } },
              required: [a, d],
              dependentRequired: { [b!]: [c] },
              $defs: { [a!]: { not: { const: d } } },
            };
            let checked: CheckArguments;
            try {
              checked = compileArguments(schema, a!);
            } catch (error) {
              expect(error).toMatchObject({ code: "ERR_VALUE" }); // an `enum` that holds a value twice, say
              return;
            }
            checked({ [a!]: value, [d!]: value, x: value });
            compiled++;
          },
        ),
        { numRuns: 100 },
      );
    } finally {
      delete evil.evil;
    }
    expect(ran).toBe(false);
    expect(compiled).toBeGreaterThan(10);
  });
});

it("hostile arguments get an answer and have no side effect", () => {
  const schema = object(
    {
      a: {
        type: "array",
        uniqueItems: true,
        items: { anyOf: [{ type: "string", maxLength: 5 }, { type: "object" }] },
      },
    },
    { required: ["toString"], additionalProperties: { type: "integer" } },
  );
  const checked = compileArguments(schema, "find");
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 8 }), fc.string(), (value, key) => {
      const args = JSON.parse(JSON.stringify({ a: value, [key]: value, ["__proto__"]: value })) as Record<
        string,
        unknown
      >;
      const before = JSON.stringify(args);
      const problem = checked(args);
      // Inherited names do not count: `toString` is missing unless it is given.
      if (key !== "toString") expect(problem).toContain("'toString'");
      expect(JSON.stringify(args)).toBe(before);
    }),
  );
  expect(Object.keys(Object.prototype)).toEqual([]);
  let deep: unknown = {};
  for (let i = 0; i < 100_000; i++) deep = { a: deep };
  const recursive = object({ a: { $ref: "#" } });
  expect(compileArguments(recursive, "find")(deep as Record<string, unknown>)).toBe(
    "arguments are nested too deeply",
  );
  expect(checked({ a: ["x".repeat(5_000_000)] })).toContain("arguments.a[0]");
});
