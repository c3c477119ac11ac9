/**
 * Checks grammars for generation; native/core/generate/grammar.h applies them. A schema that cannot
 * be enforced completely is refused, so that every completion that is not truncated is valid. There
 * are two exceptions. Beside an `additionalProperties` that is not false, a key of `properties` may
 * occur a second time, spelled with escapes ("\u0061" for "a"); its value then only has to match
 * `additionalProperties`. And formats are checked by syntax only: a date may be February 30th.
 */

import { isDeepStrictEqual } from "node:util";
import { NlacError } from "../base/errors.ts";
import { isObject, shown } from "../base/validation.ts";

export type Grammar =
  /**
   * A value that matches a JSON Schema, on one line, with a space after every comma and colon, and
   * keys in the schema's order. Objects have only the keys in `properties` unless
   * `additionalProperties` says otherwise. A `format` next to a `pattern` is ignored.
   */
  | { jsonSchema: Readonly<Record<string, unknown>> | boolean }
  /** Any JSON object, on one line. */
  | { json: true }
  /**
   * A regular expression that the whole text matches, in JavaScript's syntax with the flags s and
   * u. No assertions other than ^ and $ at the ends, no back references.
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
    throw new NlacError("ERR_VALUE", `${where} is not a regular expression: ${(error as Error).message}.`, {
      cause: error,
    });
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
 * Formats that xgrammar enforces as specified. Its email and json-pointer may produce invalid JSON,
 * its addresses and hostnames differ from other validators, and it ignores other formats.
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

/** The schema in the form that xgrammar needs. */
function checkedSchema(asked: unknown, where: string, depth: number): unknown {
  const wrong = (what: string) => new NlacError("ERR_VALUE", `${where} ${what}.`);
  if (typeof asked === "boolean") return asked;
  if (!isObject(asked)) throw wrong(`must be a JSON Schema; it is ${shown(asked)}`);
  if (depth > maxDepth) throw wrong(`is nested deeper than ${maxDepth} levels`);
  const schema = { ...asked };
  // xgrammar would enforce the format instead of the pattern.
  if (schema.pattern !== undefined) delete schema.format;
  // Names are always strings; zod adds this to every record.
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
  checkRegex(pattern, `${where}.pattern`);
  // xgrammar matches the encoded string, in which these characters are escaped.
  if (/"|\\\\/.test(pattern))
    throw wrong('has a "pattern" with a quote or a backslash, which cannot be enforced');
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
