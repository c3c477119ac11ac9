import { expect, test } from "vitest";
import { parametersOf, parameterType, readText } from "../../lib/prompts/call-arguments.ts";

const root = { $defs: { count: { type: "integer" }, "a/b": { enum: ["x", null] } } };
const read = (schema: unknown, text: string) => readText(text, parameterType(schema, root));

test("the types of a schema: its own, of its values, of a reference or of its alternatives", () => {
  const named = (schema: unknown) => parameterType(schema, root).named;
  expect(named({ type: ["number", "null"] })).toBe("a number or null");
  expect(named({ const: true })).toBe("true or false");
  expect(named({ $ref: "#/$defs/count" })).toBe("a number");
  expect(named({ $ref: "#/$defs/a~1b" })).toBe("a text or null");
  expect(named({ anyOf: [{ type: "string" }, { items: {} }] })).toBe("a text or a JSON list");
  expect(named({ properties: {} })).toBe("a JSON object");
  expect(named({})).toBe("a text");
  expect(named({ $ref: "#" })).toBe("a text");
  const endless = { anyOf: [{ $ref: "#" }] };
  expect(parameterType(endless, endless).named).toBe("a text");
});

test("text becomes a value of another type if that is allowed, with its spelling", () => {
  expect(read({ type: "number" }, " 250.0\n")).toBe("250.0");
  expect(read({ type: ["string", "number"] }, "250.0")).toBe("250.0");
  expect(read({ type: ["string", "number"] }, " 250.0")).toBe('" 250.0"');
  expect(read({ type: "string" }, "250.0")).toBe('"250.0"');
  expect(read({ type: "array" }, "[1, 2]")).toBe("[1, 2]");
  expect(read({ type: "number" }, "many")).toBe(undefined);
  expect(read({ type: "object" }, "[1]")).toBe(undefined);
});

test("Python's literals are JSON's, except as text", () => {
  expect(["True", "False"].map((text) => read({ type: "boolean" }, text))).toEqual(["true", "false"]);
  expect(read({ type: ["null", "string"] }, "None")).toBe("null");
  expect(read({ type: "string" }, "None")).toBe('"None"');
});

test("a parameter that the function does not have is unknown, unless it takes others", () => {
  const tool = (parameters: Record<string, unknown>) => ({ name: "f", description: "", parameters });
  const properties = { n: { type: "number" } };
  const closed = parametersOf(tool({ properties, additionalProperties: false }));
  expect([closed("n")?.named, closed("m"), closed("toString")]).toEqual(["a number", undefined, undefined]);
  const open = parametersOf(tool({ properties, additionalProperties: { type: "boolean" } }));
  expect(open("m")?.named).toBe("true or false");
});
