/**
 * Checks grammars for generation; native/core/generate/grammar.h applies them. A schema that cannot
 * be enforced completely is refused, so that every completion that is not truncated is valid. There
 * are two exceptions. Beside an `additionalProperties` that is not false, a key of `properties` may
 * occur a second time, spelled with escapes ("\u0061" for "a"); its value then only has to match
 * `additionalProperties`. And the spelling of email, hostname, duration and uri is enforced, but no
 * limit of their lengths.
 */

import { isDeepStrictEqual } from "node:util";
import { NlacError } from "../base/errors.ts";
import { isObject, shown } from "../base/validation.ts";
import { Exclusion, valuesOf } from "./exclusion.ts";
import { corePattern, type PatternUse } from "./pattern.ts";

export type Grammar =
  /**
   * A value that matches a JSON Schema, on one line, with a space after every comma and colon, and
   * keys in the schema's order. Objects have only the keys in `properties` unless
   * `additionalProperties` says otherwise. A `format` next to a `pattern` is ignored. Strings with a
   * `pattern` have no character that JSON escapes.
   */
  | { jsonSchema: Readonly<Record<string, unknown>> | boolean }
  /** Any JSON object, on one line. */
  | { json: true }
  /**
   * A regular expression that the whole text matches, in JavaScript's syntax with the flags s and
   * u. No assertions other than ^ and $ at the ends of alternatives, no back references, no \p.
   */
  | { regex: string }
  /**
   * Text that the rule `root` derives, in xgrammar's EBNF, which is similar to llama.cpp's GBNF.
   */
  | { ebnf: string }
  /** Exactly this text. */
  | { literal: string }
  /** Grammars in sequence. */
  | { sequence: readonly Grammar[] }
  /** One of several grammars. */
  | { anyOf: readonly Grammar[] };

/** Maximum nesting of grammars and of schemas; the same as in the core. */
const maxDepth = 64;

/**
 * A grammar in the core's form.
 *
 * @throws NlacError ERR_VALUE, prefixed with `where`, if it is invalid or cannot be enforced
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
      return { jsonSchema: JSON.stringify(checkedSchema(value, inner, 0, new Exclusion(value))) };
    case "json":
      if (value !== true) throw new NlacError("ERR_VALUE", `${inner} must be true; it is ${shown(value)}.`);
      return { json: true };
    case "regex":
    case "ebnf":
    case "literal":
      if (typeof value !== "string" || value.includes("\0"))
        throw new NlacError("ERR_VALUE", `${inner} must be a text without null characters.`);
      return { [kind]: kind === "regex" ? rewritten(value, { in: "text" }, inner) : value };
    case "sequence":
    case "anyOf":
      if (!Array.isArray(value) || value.length === 0)
        throw new NlacError("ERR_VALUE", `${inner} must be a list of at least one grammar.`);
      return { [kind]: value.map((part, i) => checked(part, `${inner}[${i}]`, depth + 1)) };
    default:
      throw new NlacError("ERR_VALUE", `${where} has no kind ${JSON.stringify(kind)} of grammar.`);
  }
}

/** A regular expression in the core's form. */
function rewritten(pattern: string, use: PatternUse, where: string): string {
  try {
    return corePattern(pattern, use);
  } catch (error) {
    const what = error instanceof SyntaxError ? "is not a regular expression" : "cannot be enforced";
    throw new NlacError("ERR_VALUE", `${where} ${what}: ${(error as Error).message}.`, { cause: error });
  }
}

/** With one of these, xgrammar ignores the other keywords of the schema. */
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

/** Keywords that restrict values, by the type that they apply to; "any": all types. */
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
 * Formats that xgrammar enforces as specified. Its json-pointer may produce invalid JSON, and it
 * ignores other formats.
 */
const formats: readonly unknown[] = ["duration", "uuid", "uri", "uri-reference", "uri-template"];

/** Formats without a syntax: they restrict no value. */
const notes: readonly unknown[] = ["password", "binary", "path"];
/** Patterns of formats that xgrammar does not know, or knows otherwise than other validators. */
const formatPatterns = patternsOfFormats();

function patternsOfFormats(): Readonly<Record<string, string>> {
  const dotted = (part: string) => `${part}(\\.${part})*`;
  const label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  const byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  const group = "[\\da-fA-F]{1,4}";
  /** Addresses with :: between groups, by the number of groups before it. */
  const shortened = [1, 2, 3, 4, 5, 6].map((count) => `(${group}:){1,${count}}(:${group}){1,${7 - count}}`);
  const addresses = [`(${group}:){7}${group}`, `(${group}:){1,7}:`, `::(${group}:){0,6}${group}`, "::"];
  const days = [
    "\\d{4}-(0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])",
    "\\d{4}-(0[469]|11)-(0[1-9]|[12]\\d|30)",
    "\\d{4}-02-(0[1-9]|1\\d|2[0-8])",
    "(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29",
  ];
  const date = `(${days.join("|")})`;
  const minute = "([01]\\d|2[0-3]):[0-5]\\d";
  const time = `${minute}:[0-5]\\d(\\.\\d+)?(Z|[+-]${minute})`;
  return {
    ...{ date: `^${date}$`, time: `^${time}$`, "date-time": `^${date}T${time}$` },
    email: `^${dotted("[\\w+-]+")}@(${label}\\.)+[A-Za-z]{2,24}$`,
    hostname: `^${dotted(label)}$`,
    ipv4: `^(${byte}\\.){3}${byte}$`,
    ipv6: `^(${[...shortened, ...addresses].join("|")})$`,
    uuid4: "^[\\da-f]{8}-[\\da-f]{4}-4[\\da-f]{3}-[89ab][\\da-f]{3}-[\\da-f]{12}$",
  };
}

/** The schema in the form that xgrammar needs. */
function checkedSchema(asked: unknown, where: string, depth: number, exclusion: Exclusion): unknown {
  const wrong = (what: string) => new NlacError("ERR_VALUE", `${where} ${what}.`);
  if (typeof asked === "boolean") return asked;
  if (!isObject(asked)) throw wrong(`must be a JSON Schema; it is ${shown(asked)}`);
  if (depth > maxDepth) throw wrong(`is nested deeper than ${maxDepth} levels`);
  const schema = plain(asked, exclusion);
  const given = (keywords: readonly string[]) => keywords.filter((keyword) => schema[keyword] !== undefined);

  // A value of another type would be valid too, but is not meant.
  if (schema.type === undefined && given(alone).length === 0) schema.type = impliedType(given);
  if (schema.type === undefined) delete schema.type;

  const types = typesOf(schema);
  if (types === undefined) throw wrong(`has a "type" that is none: ${shown(schema.type)}`);
  const [leader] = given(alone);
  const isValues = leader === "const" || leader === "enum";
  const spoken = [...new Set([...assertions.any, ...types.flatMap((type) => assertions[type])])];
  const own = types.flatMap((type): readonly string[] => keywordsOf[type]);
  const held = leader === undefined ? ["type", ...own] : isValues ? [leader, "type"] : [leader];
  const loose = given(spoken).find((keyword) => !held.includes(keyword));
  if (loose !== undefined && leader !== undefined)
    throw wrong(`has "${loose}" beside "${leader}", and only one of them can be enforced`);
  if (loose !== undefined) throw wrong(`has "${loose}", which cannot be enforced`);
  if (leader === undefined && schema.type === undefined && given(spoken).length > 0)
    throw wrong('needs a "type"');
  if (isValues) {
    // xgrammar ignores the type next to values, so the values must have it.
    const values = leader === "const" ? [schema.const] : schema.enum;
    if (!Array.isArray(values) || values.length === 0)
      throw wrong('must have a list of values as its "enum"');
    const other = values.find((value) => !types.some((type) => isOf(type, value)));
    if (other !== undefined) throw wrong(`has a value that is not of its "type": ${shown(other)}`);
  }

  // References elsewhere would not be checked.
  if (schema.$ref !== undefined && !/^#(\/(\$defs|definitions)\/[^/]+)?$/.test(String(schema.$ref)))
    throw wrong(`refers to ${shown(schema.$ref)}; it must be "#", "#/$defs/NAME" or "#/definitions/NAME"`);

  if (schema.$ref !== undefined && exclusion.target(schema) === undefined)
    throw wrong(`refers to ${shown(schema.$ref)}, which is not a schema`);
  if (Array.isArray(schema.allOf) && schema.allOf.length > 1)
    throw wrong('has an "allOf" of several schemas, which cannot be enforced together');

  const inner = (value: unknown, path: string) =>
    checkedSchema(value, `${where}.${path}`, depth + 1, exclusion);
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
  if (schema.oneOf !== undefined) {
    const members = asked.oneOf as unknown[];
    for (const [j, other] of members.entries())
      for (const [i, one] of members.slice(0, j).entries())
        if (!exclusion.between(one, other))
          throw wrong(
            `has a "oneOf" whose alternatives ${i} and ${j} may match the same value; use "anyOf", or a required key with another "const" in each`,
          );
    schema.anyOf = schema.oneOf;
    delete schema.oneOf;
  }
  if (types.includes("object")) checkKeys(schema, wrong);
  if (types.includes("string")) checkString(schema, where, wrong);
  return schema;
}

/** The schema in fewer keywords. */
function plain(asked: Readonly<Record<string, unknown>>, exclusion: Exclusion): Record<string, unknown> {
  const schema = { ...asked };
  const { format, items, additionalItems, propertyNames, properties, additionalProperties = true } = schema;
  // xgrammar would enforce the format instead of the pattern.
  if (schema.pattern !== undefined || notes.includes(format)) delete schema.format;
  else if (typeof format === "string" && Object.hasOwn(formatPatterns, format)) {
    schema.pattern = formatPatterns[format];
    delete schema.format;
  }
  // No text of these formats is empty; pydantic adds this to a URL.
  if ((schema.format === "uri" || schema.format === "uuid") && schema.minLength === 1)
    delete schema.minLength;
  if (schema.uniqueItems === false) delete schema.uniqueItems;
  if (schema.type === "integer" && schema.multipleOf === 1) delete schema.multipleOf;
  // Tuples before draft 2020-12. Without a tuple, additionalItems says nothing.
  delete schema.additionalItems;
  if (Array.isArray(items)) {
    schema.prefixItems = items;
    schema.items = additionalItems ?? false;
  }
  // Names are always strings; zod adds this to every record.
  if (isDeepStrictEqual(propertyNames, { type: "string" })) delete schema.propertyNames;
  const names = valuesOf(exclusion.target(propertyNames) ?? {});
  if (names?.every((name) => typeof name === "string") && properties === undefined) {
    schema.properties = Object.fromEntries(names.map((name) => [name, additionalProperties]));
    schema.additionalProperties = false;
    delete schema.propertyNames;
  }
  if (schema.type === "integer")
    for (const [keyword, whole] of wholeLimits)
      if (typeof schema[keyword] === "number") schema[keyword] = whole(schema[keyword]);
  return schema;
}

/** xgrammar counts in 64 bits. */
const largest = 9.2e18;
/** Limits of integers, with what makes them whole and small enough. */
const wholeLimits = [
  ["minimum", (limit: number) => Math.max(Math.ceil(limit), -largest)],
  ["maximum", (limit: number) => Math.min(Math.floor(limit), largest)],
  ["exclusiveMinimum", (limit: number) => Math.max(Math.floor(limit), -largest)],
  ["exclusiveMaximum", (limit: number) => Math.min(Math.ceil(limit), largest)],
] as const;

/** The one type that has the keywords of a schema. */
function impliedType(given: (keywords: readonly string[]) => string[]): TypeName | undefined {
  const types = (["string", "number", "array", "object"] as const).filter(
    (type) => given(assertions[type]).length > 0,
  );
  return types.length === 1 ? types[0] : undefined;
}

type Wrong = (what: string) => NlacError;

function checkKeys({ properties, ...schema }: Record<string, unknown>, wrong: Wrong): void {
  const { required = [], additionalProperties = false, minProperties = 0 } = schema;
  if (!Array.isArray(required)) throw wrong('must have a list as its "required"');
  // xgrammar would ignore such names.
  const unknown = required.find(
    (name) => !isObject(properties) || typeof name !== "string" || !Object.hasOwn(properties, name),
  );
  if (unknown !== undefined) throw wrong(`requires ${shown(unknown)}, which "properties" does not name`);
  // xgrammar would count a repeated key twice.
  if (additionalProperties !== false && (minProperties as number) > 1)
    throw wrong('has a "minProperties" above 1 beside "additionalProperties", which cannot be enforced');
}

function checkString(schema: Record<string, unknown>, where: string, wrong: Wrong): void {
  const { pattern, format } = schema;
  if (format !== undefined && !formats.includes(format))
    throw wrong(`has the format ${shown(format)}, which cannot be enforced; use a "pattern"`);
  if (pattern === undefined) return;
  if (typeof pattern !== "string") throw wrong('must have a text as its "pattern"');
  const { minLength, maxLength } = schema;
  const limits = { minLength: Number(minLength ?? 0), maxLength: Number(maxLength ?? Infinity) };
  schema.pattern = rewritten(pattern, { in: "json", ...limits }, `${where}.pattern`);
  // The pattern has them, and xgrammar would ignore them.
  delete schema.minLength;
  delete schema.maxLength;
}

/** The types that a schema allows: all if it names none, undefined if one is unknown. */
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
