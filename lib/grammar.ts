/**
 * What a text must be: grammars as callers write them, checked. The core holds texts to them (native/core/generate/grammar.h).
 * A schema that says more than texts can be held to is refused, not watered down: every text that ends by itself is valid.
 */

import { shown } from "./checks.ts";
import { NlacError } from "./errors.ts";

export type Grammar =
  /**
   * The value that a JSON Schema describes, on one line, with a space after every comma and colon, its keys in the order
   * of the schema. Where `additionalProperties` does not say otherwise, objects have no keys that `properties` does not name.
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
      checkSchema(value, inner, 0);
      return { jsonSchema: JSON.stringify(value) };
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
const alone = ["$ref", "const", "enum", "anyOf", "oneOf", "allOf"] as const;
const keywordsOf = {
  string: ["minLength", "maxLength", "pattern"],
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

function checkSchema(schema: unknown, where: string, depth: number): void {
  const wrong = (what: string) => new NlacError("ERR_VALUE", `${where} ${what}.`);
  if (typeof schema === "boolean") return;
  if (!isObject(schema)) throw wrong(`must be a JSON Schema; it is ${shown(schema)}`);
  if (depth > maxDepth) throw wrong(`is nested deeper than ${maxDepth} levels`);
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

  const inner = (value: unknown, path: string) => checkSchema(value, `${where}.${path}`, depth + 1);
  for (const keyword of given(["properties", "$defs", "definitions"])) {
    const members = schema[keyword];
    if (!isObject(members)) throw wrong(`must have an object as its "${keyword}"`);
    for (const [name, member] of Object.entries(members)) inner(member, `${keyword}.${name}`);
  }
  for (const keyword of given(["anyOf", "oneOf", "allOf", "prefixItems"])) {
    const members = schema[keyword];
    if (!Array.isArray(members)) throw wrong(`must have a list as its "${keyword}"`);
    for (const [i, member] of members.entries()) inner(member, `${keyword}[${i}]`);
  }
  for (const keyword of given(["items", "additionalProperties"])) inner(schema[keyword], keyword);
  if (schema.pattern === undefined || !types.includes("string")) return;
  if (typeof schema.pattern !== "string") throw wrong('must have a text as its "pattern"');
  checkRegex(schema.pattern, `${where}.pattern`);
  // The library matches what stands between the quotes, where these are written as two characters.
  if (/"|\\\\/.test(schema.pattern))
    throw wrong("has a pattern with a quote or a backslash, which texts cannot be held to");
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
