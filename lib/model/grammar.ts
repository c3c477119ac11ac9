/**
 * What a text must be: grammars as callers write them, checked. The core holds texts to them (native/core/generate/grammar.h).
 * A schema that says more than texts can be held to is refused, not watered down: every text that ends by itself is valid.
 * Two exceptions are too common to be refused. Where `properties` stands beside an `additionalProperties` that is not false, a
 * key of `properties` may come a second time, spelled with escapes ("\u0061" for "a"), and there has only the value that other
 * keys have. And formats are held to by their spelling alone: a date may be the 30th of February, a time in the 60th second.
 */

import { isDeepStrictEqual } from "node:util";
import { NlacError } from "../base/errors.ts";
import { shown } from "../base/validation.ts";

export type Grammar =
  /**
   * The value that a JSON Schema describes, on one line, with a space after every comma and colon, its keys in the order
   * of the schema. Where `additionalProperties` does not say otherwise, objects have no keys that `properties` does not name.
   * A `format` beside a `pattern` is taken for a note.
   */
  | { jsonSchema: Readonly<Record<string, unknown>> | boolean }
  /** Any JSON object, on one line. */
  | { json: true }
  /**
   * What all of the text matches, in JavaScript's spelling with the flags s and u; no assertions but ^ and $ at the ends, no
   * references back.
   */
  | { regex: string }
  /** What the rule `root` derives, in xgrammar's EBNF, which is much like llama.cpp's GBNF. */
  | { ebnf: string }
  /** This very text. */
  | { literal: string }
  /** One after another. */
  | { sequence: readonly Grammar[] }
  /** One of them. */
  | { anyOf: readonly Grammar[] };

/** Deepest nesting of grammars and of schemas, the core's too. */
const maxDepth = 64;

/**
 * A grammar as the core reads it.
 *
 * @throws NlacError ERR_VALUE, opening with `where`, for one that is malformed, or that texts cannot be held to
 */
export function grammarText(grammar: Grammar, where: string): string {
  try {
    return JSON.stringify(checked(grammar, where, 0));
  } catch (error) {
    if (error instanceof NlacError) throw error;
    throw new NlacError("ERR_VALUE", `${where} cannot be written as JSON: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

function checked(grammar: unknown, where: string, depth: number): object {
  const entries = isObject(grammar) ? Object.entries(grammar) : [];
  const [only] = entries;
  if (only === undefined || entries.length > 1)
    throw new NlacError("ERR_VALUE", `${where} must be an object of one key, as { regex: "…" }.`);
  if (depth > maxDepth)
    throw new NlacError("ERR_VALUE", `${where} is nested deeper than ${maxDepth} levels.`);
  const [kind, value] = only;
  const inner = `${where}.${kind}`;
  switch (kind) {
    case "jsonSchema":
      return { jsonSchema: JSON.stringify(checkedSchema(value, inner, 0)) };
    case "json":
      if (value !== true) throw new NlacError("ERR_VALUE", `${inner} must be true; it is ${shown(value)}.`);
      return { json: true };
    case "regex":
    case "ebnf":
    case "literal":
      if (typeof value !== "string" || value.includes("\0"))
        throw new NlacError("ERR_VALUE", `${inner} must be a text without null characters.`);
      if (kind === "regex") checkRegex(value, inner);
      return { [kind]: value };
    case "sequence":
    case "anyOf":
      if (!Array.isArray(value) || value.length === 0)
        throw new NlacError("ERR_VALUE", `${inner} must be a list of at least one grammar.`);
      return { [kind]: value.map((part, i) => checked(part, `${inner}[${i}]`, depth + 1)) };
    default:
      throw new NlacError("ERR_VALUE", `${where} has no kind ${JSON.stringify(kind)} of grammar.`);
  }
}

function checkRegex(pattern: string, where: string): void {
  try {
    new RegExp(pattern, "u");
  } catch (error) {
    throw new NlacError("ERR_VALUE", `${where} is no regular expression: ${(error as Error).message}.`, {
      cause: error,
    });
  }
}

/** Keywords that a schema is held to by one of these stand alone: beside it the others would not be looked at. */
export const alone = ["$ref", "const", "enum", "anyOf", "oneOf", "allOf"] as const;
const keywordsOf = {
  string: ["minLength", "maxLength", "pattern", "format"],
  integer: ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
  number: ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
  boolean: [],
  null: [],
  array: ["items", "prefixItems", "minItems", "maxItems"],
  object: ["properties", "required", "additionalProperties", "minProperties", "maxProperties"],
} as const satisfies Record<string, readonly string[]>;
type TypeName = keyof typeof keywordsOf;

/** Keywords that allow or forbid values, by the types whose values they speak of; of "any" by all. */
const assertions: Record<TypeName | "any", readonly string[]> = {
  ...keywordsOf,
  integer: [...keywordsOf.integer, "multipleOf"],
  number: [...keywordsOf.number, "multipleOf"],
  array: [
    ...keywordsOf.array,
    "additionalItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "uniqueItems",
  ],
  object: [
    ...keywordsOf.object,
    "patternProperties",
    "propertyNames",
    "unevaluatedProperties",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
  ],
  any: ["type", ...alone, "not", "if", "then", "else", "$dynamicRef", "$recursiveRef"],
};

/**
 * Formats that the library holds texts to. With its email and its pointers to JSON they may not be JSON, with its addresses and
 * hostnames not what others take for those, and any further format it passes over.
 */
const formats: readonly unknown[] = [
  "date",
  "time",
  "date-time",
  "duration",
  "uuid",
  "uri",
  "uri-reference",
  "uri-template",
];

/** The schema as the library is to read it. */
function checkedSchema(asked: unknown, where: string, depth: number): unknown {
  const wrong = (what: string) => new NlacError("ERR_VALUE", `${where} ${what}.`);
  if (typeof asked === "boolean") return asked;
  if (!isObject(asked)) throw wrong(`must be a JSON Schema; it is ${shown(asked)}`);
  if (depth > maxDepth) throw wrong(`is nested deeper than ${maxDepth} levels`);
  const schema = { ...asked };
  // The library would hold to the format instead of the pattern.
  if (schema.pattern !== undefined) delete schema.format;
  // Names are texts anyway; zod says so of every record.
  if (isDeepStrictEqual(schema.propertyNames, { type: "string" })) delete schema.propertyNames;
  const given = (keywords: readonly string[]) => keywords.filter((keyword) => schema[keyword] !== undefined);

  const types = typesOf(schema);
  if (types === undefined) throw wrong(`has a "type" that is none: ${shown(schema.type)}`);
  const [leader] = given(alone);
  const isValues = leader === "const" || leader === "enum";
  const spoken = [...new Set([...assertions.any, ...types.flatMap((type) => assertions[type])])];
  const own = types.flatMap((type): readonly string[] => keywordsOf[type]);
  const held = leader === undefined ? ["type", ...own] : isValues ? [leader, "type"] : [leader];
  const loose = given(spoken).find((keyword) => !held.includes(keyword));
  if (loose !== undefined && leader !== undefined)
    throw wrong(`has "${loose}" beside "${leader}", and texts can be held to only one of them`);
  if (loose !== undefined) throw wrong(`has "${loose}", which texts cannot be held to`);
  if (leader === undefined && schema.type === undefined && given(spoken).length > 0)
    throw wrong('needs a "type"');
  if (isValues) {
    // The type is not looked at beside values, so they must have it.
    const values = leader === "const" ? [schema.const] : schema.enum;
    if (!Array.isArray(values) || values.length === 0)
      throw wrong('must have a list of values as its "enum"');
    const other = values.find((value) => !types.some((type) => isOf(type, value)));
    if (other !== undefined) throw wrong(`has a value that is not of its "type": ${shown(other)}`);
  }

  // Elsewhere might stand what is looked at by nobody.
  if (schema.$ref !== undefined && !/^#(\/(\$defs|definitions)\/[^/]+)?$/.test(String(schema.$ref)))
    throw wrong(`refers to ${shown(schema.$ref)}; it must be "#", "#/$defs/NAME" or "#/definitions/NAME"`);

  const inner = (value: unknown, path: string) => checkedSchema(value, `${where}.${path}`, depth + 1);
  for (const keyword of given(["properties", "$defs", "definitions"])) {
    const members = schema[keyword];
    if (!isObject(members)) throw wrong(`must have an object as its "${keyword}"`);
    schema[keyword] = Object.fromEntries(
      Object.entries(members).map(([name, member]) => [name, inner(member, `${keyword}.${name}`)]),
    );
  }
  for (const keyword of given(["anyOf", "oneOf", "allOf", "prefixItems"])) {
    const members = schema[keyword];
    if (!Array.isArray(members)) throw wrong(`must have a list as its "${keyword}"`);
    schema[keyword] = members.map((member, i) => inner(member, `${keyword}[${i}]`));
  }
  for (const keyword of given(["items", "additionalProperties"]))
    schema[keyword] = inner(schema[keyword], keyword);
  if (types.includes("object")) checkKeys(schema, wrong);
  if (types.includes("string")) checkString(schema, where, wrong);
  return schema;
}

type Wrong = (what: string) => NlacError;

function checkKeys({ properties, ...schema }: Record<string, unknown>, wrong: Wrong): void {
  const { required = [], additionalProperties = false, minProperties = 0 } = schema;
  if (!Array.isArray(required)) throw wrong('must have a list as its "required"');
  // The library would pass over such names.
  const unknown = required.find(
    (name) => !isObject(properties) || typeof name !== "string" || !Object.hasOwn(properties, name),
  );
  if (unknown !== undefined) throw wrong(`requires ${shown(unknown)}, which "properties" does not name`);
  // The library would count a key that comes again.
  if (additionalProperties !== false && (minProperties as number) > 1)
    throw wrong('has a "minProperties" above 1 beside "additionalProperties", which texts cannot be held to');
}

function checkString(schema: Record<string, unknown>, where: string, wrong: Wrong): void {
  const { pattern, format } = schema;
  if (format !== undefined && !formats.includes(format))
    throw wrong(`has the format ${shown(format)}, which texts cannot be held to; say it as a "pattern"`);
  if (pattern === undefined) return;
  if (typeof pattern !== "string") throw wrong('must have a text as its "pattern"');
  checkRegex(pattern, `${where}.pattern`);
  // The library matches what stands between the quotes, where these are written as two characters.
  if (/"|\\\\/.test(pattern))
    throw wrong('has a "pattern" with a quote or a backslash, which texts cannot be held to');
}

/** The types whose values a schema speaks of: all where it names none, undefined where it names another. */
function typesOf({ type }: Record<string, unknown>): TypeName[] | undefined {
  const all = Object.keys(keywordsOf) as TypeName[];
  if (type === undefined) return all;
  const named: unknown[] = Array.isArray(type) ? type : [type];
  const known = all.filter((name) => named.includes(name));
  return known.length > 0 && known.length === named.length ? known : undefined;
}

function isOf(type: TypeName, value: unknown): boolean {
  switch (type) {
    case "null":
      return value === null;
    case "array":
      return Array.isArray(value);
    case "object":
      return isObject(value);
    case "integer":
      return Number.isInteger(value);
    default:
      return typeof value === type;
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
