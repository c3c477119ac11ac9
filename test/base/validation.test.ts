import { describe, expect, it } from "vitest";
import { z } from "zod";
import { NlacError } from "../../lib/base/errors.ts";
import {
  checkBoolean,
  checkChoice,
  checkConfig,
  checkInteger,
  checkKeys,
  checkNumber,
  checkSeed,
  inOption,
  shown,
} from "../../lib/base/validation.ts";

function failure(call: () => unknown): { code: string; message: string } {
  try {
    call();
  } catch (error) {
    if (error instanceof NlacError) return { code: error.code, message: error.message };
    throw error;
  }
  throw new Error("It was accepted.");
}

describe("checks of arguments", () => {
  it("return what is in range, its ends included", () => {
    expect(checkNumber(0.5, "x", 0.5, 1)).toBe(0.5);
    expect(checkInteger(3, "x", 1, 3)).toBe(3);
    expect(checkBoolean(false, "x")).toBe(false);
    expect(checkChoice("b", "x", ["a", "b"])).toBe("b");
    expect(checkSeed(5, "seed")).toBe(5n);
    expect(checkSeed((1n << 64n) - 1n, "seed")).toBe((1n << 64n) - 1n);
  });

  it.each<[string, () => unknown, string]>([
    ["NaN", () => checkNumber(Number.NaN, "x", 0), "x must be a finite number of at least 0; it is NaN."],
    [
      "infinity",
      () => checkNumber(1 / 0, "x", 0),
      "x must be a finite number of at least 0; it is Infinity.",
    ],
    ["a number as text", () => checkNumber("1", "x", 0, 2), 'x must be a number from 0 to 2; it is "1".'],
    ["zero", () => checkNumber(0, "x", Number.MIN_VALUE), "x must be a finite number above 0; it is 0."],
    ["a fraction", () => checkInteger(1.5, "x", 0), "x must be an integer of at least 0; it is 1.5."],
    ["too large", () => checkInteger(4, "x", 1, 3), "x must be an integer from 1 to 3; it is 4."],
    ["a list", () => checkBoolean([], "x"), "x must be true or false; it is a value of type array."],
    ["another text", () => checkChoice("c", "x", ["a", "b"]), 'x must be "a" or "b"; it is "c".'],
  ])("reject %s, by name and value", (_, call, message) => {
    expect(failure(call)).toEqual({ code: "ERR_VALUE", message });
  });

  it("reject seeds that 64 bits do not hold exactly", () => {
    for (const seed of [-1, 0.5, 2 ** 53, -1n, 1n << 64n, "1", null])
      expect(failure(() => checkSeed(seed, "seed")).code).toBe("ERR_VALUE");
  });

  it("name an unknown key and the known ones", () => {
    expect(() => checkKeys({ a: 1, b: undefined }, "Options", ["a", "b"], "ERR_VALUE")).not.toThrow();
    expect(failure(() => checkKeys({ sed: 1 }, "Options", ["seed", "device"], "ERR_CONFIG"))).toEqual({
      code: "ERR_CONFIG",
      message: 'Options has no "sed"; it takes seed, device.',
    });
  });
});

describe("messages", () => {
  it("shorten long texts and do not print objects", () => {
    expect(shown("x".repeat(100))).toBe(JSON.stringify(`${"x".repeat(60)}…`));
    expect(shown(new Map())).toBe("a value of type Map");
    expect(shown(Object.create(null))).toBe("a value of type object");
    expect(shown(7n)).toBe("7n");
  });

  it("name the option that was read, and keep the code", () => {
    const broken = () => {
      throw new NlacError("ERR_DEVICE", "There is no GPU.");
    };
    expect(failure(() => inOption("a.b", broken))).toEqual({
      code: "ERR_DEVICE",
      message: "a.b: There is no GPU.",
    });
    expect(() => inOption("a", () => JSON.parse("{"))).toThrow(SyntaxError);
  });

  it("name every bad field of a configuration", () => {
    const schema = z.strictObject({ size: z.int().min(1).default(2), name: z.string() });
    expect(checkConfig(schema, { name: "n" })).toEqual({ size: 2, name: "n" });
    const { code, message } = failure(() => checkConfig(schema, { size: 0, names: "n" }));
    expect(code).toBe("ERR_CONFIG");
    for (const field of ["size", "name", "names"]) expect(message).toContain(field);
  });

  it("say which kinds of values a field can have", () => {
    const schema = z.strictObject({
      support: z.union([z.enum(["full", "sampled"]), z.strictObject({ topK: z.int() })]),
    });
    expect(failure(() => checkConfig(schema, { support: "al" })).message).toBe(
      '✖ Invalid input: expected one of "full"|"sampled", or expected object, received string\n  → at support',
    );
    expect(failure(() => checkConfig(schema, { support: { topK: "4" } })).message).toContain(
      "or topK: expected number, received string",
    );
  });
});
