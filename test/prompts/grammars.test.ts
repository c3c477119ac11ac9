import fc from "fast-check";
import { afterAll, describe, expect, it } from "vitest";
import type { Learner } from "../../lib/learner/learner.ts";
import { callGrammar } from "../../lib/prompts/call-grammar.ts";
import { actionGrammar, parseAction } from "../../lib/prompts/policy.ts";
import { tinyConfig, tinyLearner } from "../support/tiny.ts";

const learning: Promise<Learner> = tinyLearner({}, { ...tinyConfig, max_position_embeddings: 2048 });
afterAll(async () => (await learning).dispose());

const tools = [
  {
    name: 'say "hi"',
    description: "",
    parameters: { type: "object", properties: { to: { enum: ["a", "b"] } }, required: ["to"] },
  },
  {
    name: "count",
    description: "",
    parameters: {
      properties: { n: { $ref: "#/$defs/n" } },
      required: ["n"],
      $defs: { n: { type: "integer" } },
    },
  },
  {
    name: "turn",
    description: "",
    parameters: {
      oneOf: ["left", "right"].map((side) => ({
        type: "object",
        properties: { side: { const: side } },
        required: ["side"],
      })),
    },
  },
];

describe("actions constrained to their tools' schemas", () => {
  it("can be parsed for any model", { timeout: 120_000 }, async () => {
    const learner = await learning;
    const grammar = actionGrammar(tools, "tool")!;
    let read = 0;
    await fc.assert(
      fc.asyncProperty(fc.nat(1e6), async (seed) => {
        const [written] = await learner.generate([
          { tokens: [65], grammar, temperature: 1.5, maxNewTokens: 1500, seed },
        ]);
        if (written!.finishReason === "length") return;
        const action = parseAction(written!.text, "tool");
        expect([written!.text, action.ok]).toEqual([written!.text, true]);
        if (!action.ok) return;
        read++;
        const { name, arguments: given } = action.action.tool!;
        const fits: Record<string, boolean> = {
          count: Number.isInteger(given.n),
          turn: given.side === "left" || given.side === "right",
          [tools[0]!.name]: given.to === "a" || given.to === "b",
        };
        expect(fits[name]).toBe(true);
      }),
      { numRuns: 30 },
    );
    expect(read).toBeGreaterThan(10);
  });

  it("are rejected with the name of the tool whose schema cannot be enforced", () => {
    const wrong = { name: "sort", description: "", parameters: { properties: { by: { not: {} } } } };
    expect(() => actionGrammar([...tools, wrong], "tool")).toThrow(
      /^the tool "sort"\.jsonSchema\.properties\.by has "not"/,
    );
  });

  it("are only those of the format that is a call and nothing else", () => {
    for (const format of ["text", "call", "solution"] as const)
      expect(actionGrammar(tools, format)).toBeUndefined();
    expect(actionGrammar([], "tool")).toBeUndefined();
  });
});

describe("a text between tags", () => {
  it("matches its pattern and the limits of its length, and contains no tag", async () => {
    const learner = await learning;
    const words = { true: "true", false: "false", null: "null" };
    const each = { beforeKey: "<", beforeValue: ">", afterValue: "</>", separator: "", bare: true, words };
    const form = { before: "", between: ":", after: ";", each: { ...each, quote: undefined } };
    const at = { type: "string", pattern: "^@[^a]+$", minLength: 3, maxLength: 12 };
    const parameters = { type: "object", properties: { at }, required: ["at"] };
    const grammar = callGrammar([{ name: "f", description: "", parameters }], form);
    const written = await learner.generate(
      Array.from({ length: 24 }, (_, seed) => ({
        tokens: [1],
        grammar,
        maxNewTokens: 200,
        temperature: 2,
        seed,
      })),
    );
    for (const { text, finishReason } of written) expect([finishReason, text]).toEqual(["stop", text]);
    for (const { text } of written) expect(text).toMatch(/^f:<at>@[^a<]{2,11}<\/>;$/u);
    const letter = { ...parameters, properties: { at: { type: "string", pattern: "^<$" } } };
    expect(() => callGrammar([{ name: "f", description: "", parameters: letter }], form)).toThrow(
      /the tool "f" has a parameter "at" with a pattern .* no text without < matches it/,
    );
  });
});
