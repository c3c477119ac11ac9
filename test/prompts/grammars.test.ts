import fc from "fast-check";
import { afterAll, describe, expect, it } from "vitest";
import type { Learner } from "../../lib/learner/learner.ts";
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
