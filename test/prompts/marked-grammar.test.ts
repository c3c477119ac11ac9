import { Ajv2020 } from "ajv/dist/2020.js";
import { expect, it } from "vitest";
import type { ToolSchema } from "../../lib/contract/environment.ts";
import { callGrammar } from "../../lib/prompts/call-grammar.ts";
import { parseCalls } from "../../lib/prompts/calls.ts";
import type { CallForm } from "../../lib/tokens/call-form.ts";
import { tinyConfig, tinyLearner } from "../support/tiny.ts";

/** As Gemma 4's chat template writes calls. */
const form: CallForm = {
  ...{
    beforeThought: "",
    separator: "\n",
    before: "<|tool_call>call:",
    between: "{",
    after: "}<tool_call|>",
  },
  ...{ joint: undefined, end: undefined },
  each: {
    ...{ beforeKey: "", beforeValue: ":", afterValue: "", separator: ",", bare: false, quote: '<|"|>' },
    words: { true: "true", false: "false", null: "None" },
  },
};

const tool = (parameters: Record<string, unknown>): ToolSchema => ({
  name: "f",
  description: "",
  parameters,
});

const schema = {
  type: "object",
  properties: {
    text: { type: "string" },
    list: { type: "array", items: { anyOf: [{ type: "integer" }, { enum: ["a", "b"] }] } },
    free: {},
    maybe: { type: ["boolean", "null"] },
    pair: {
      type: "object",
      properties: { y: { type: "number" }, X: { const: [1, null, { k: "v" }] } },
      required: ["y"],
      additionalProperties: false,
    },
    map: { type: "object", additionalProperties: { type: "boolean" } },
  },
  required: ["list", "pair"],
  additionalProperties: false,
};

it("calls in Gemma 4's notation match their schema, for a model of random weights", async () => {
  const isValid = new Ajv2020({ allowUnionTypes: true }).compile(schema);
  await using learner = await tinyLearner({}, { ...tinyConfig, max_position_embeddings: 4096 });
  const grammar = callGrammar([tool(schema)], form);
  let complete = 0;
  for (let seed = 0; seed < 12; seed++) {
    const [written] = await learner.generate([
      { tokens: [65], grammar, temperature: 1.5, maxNewTokens: 1500, seed },
    ]);
    if (written!.finishReason === "length") continue;
    complete++;
    const parsed = parseCalls(written!.text, [tool(schema)]);
    expect([written!.text, parsed.ok]).toEqual([written!.text, true]);
    const given = parsed.ok && parsed.calls[0]!.tool.arguments;
    expect([given, isValid(given), isValid.errors]).toEqual([given, true, null]);
  }
  expect(complete).toBeGreaterThan(3);
});

it.each([
  [{ type: "string", pattern: "a+" }, 'with "pattern"'],
  [{ type: "array", items: {}, minItems: 1 }, 'with "minItems"'],
  [{ type: "array", items: { type: "number", minimum: 1 } }, 'with "minimum"'],
  [{ enum: ['a<|"|>b'] }, "with a value that contains"],
  [{ $ref: "#" }, "nested deeper than"],
  [{ type: "object", properties: { a: {} }, additionalProperties: true }, 'with "additionalProperties"'],
])("a parameter %j is refused", (parameter, reason) => {
  const parameters = { type: "object", properties: { p: parameter } };
  expect(() => callGrammar([tool(parameters)], form)).toThrow(
    expect.objectContaining({ code: "ERR_VALUE", message: expect.stringContaining(reason) }),
  );
});
