/** The types of a function's parameters, and values that a model wrote as plain text. */

import { isObject } from "../base/validation.ts";
import type { ToolSchema } from "../contract/environment.ts";
import { jsonWord } from "./literals.ts";

type Kind = "string" | "number" | "boolean" | "null" | "object" | "array";

/** What a parameter may be. */
export interface ParameterType {
  /** Whether it may be a string. */
  text: boolean;
  /** What else it may be. */
  others: ReadonlySet<Kind>;
  /** In words. */
  named: string;
}

const kinds: Readonly<Record<string, Kind>> = {
  ...{ string: "string", number: "number", integer: "number", boolean: "boolean" },
  ...{ null: "null", object: "object", array: "array" },
};
const named: Readonly<Record<Kind, string>> = {
  ...{ string: "a text", number: "a number", boolean: "true or false" },
  ...{ null: "null", object: "a JSON object", array: "a JSON list" },
};
/** Longest chain of references and alternatives. */
const maxDepth = 16;

/** The types of parameters by name; undefined for a parameter that the function does not have. */
export function parametersOf({ parameters: root }: ToolSchema): (key: string) => ParameterType | undefined {
  const { properties, additionalProperties: more } = resolved(root, root);
  return (key) => {
    const known = isObject(properties) && Object.hasOwn(properties, key);
    if (!known && (more === undefined || more === false)) return undefined;
    return parameterType(known ? properties[key] : more, root);
  };
}

/** The type of a schema inside of `root`. Without a type in the schema it is text, as in vLLM. */
export function parameterType(schema: unknown, root: Readonly<Record<string, unknown>>): ParameterType {
  const all = kindsOf(schema, root, 0);
  if (all.size === 0) all.add("string");
  const others = new Set([...all].filter((kind) => kind !== "string"));
  const words = [...all].map((kind) => named[kind]);
  return { text: all.has("string"), others, named: words.join(" or ") };
}

/** A schema with its reference into the document followed. */
export function resolved(
  schema: unknown,
  root: Readonly<Record<string, unknown>>,
): Readonly<Record<string, unknown>> {
  let found = schema;
  for (let steps = 0; steps < maxDepth && isObject(found) && typeof found.$ref === "string"; steps++) {
    const path = /^#\/(\$defs|definitions)\/([^/]+)$/.exec(found.$ref);
    const members = path === null ? undefined : root[path[1]!];
    const name = path?.[2]?.replaceAll("~1", "/").replaceAll("~0", "~") ?? "";
    found = found.$ref === "#" ? root : isObject(members) ? members[name] : undefined;
  }
  return isObject(found) ? found : {};
}

function kindsOf(schema: unknown, root: Readonly<Record<string, unknown>>, depth: number): Set<Kind> {
  const found = resolved(schema, root);
  const kindsIn = (schemas: readonly unknown[]) =>
    schemas.flatMap((one) => (depth < maxDepth ? [...kindsOf(one, root, depth + 1)] : []));
  const { type, enum: values, const: only } = found;
  const names: unknown[] = Array.isArray(type) ? type : [type];
  const typed = names.flatMap((name) => kinds[String(name)] ?? []);
  if (typed.length > 0) return new Set(typed);
  if (Array.isArray(values)) return new Set(values.map(kindOf));
  if (only !== undefined) return new Set([kindOf(only)]);
  for (const keyword of ["anyOf", "oneOf", "allOf"])
    if (Array.isArray(found[keyword])) return new Set(kindsIn(found[keyword]));
  if (found.properties !== undefined) return new Set<Kind>(["object"]);
  return new Set<Kind>(found.items === undefined && found.prefixItems === undefined ? [] : ["array"]);
}

function kindOf(value: unknown): Kind {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  return kinds[typeof value] ?? "string";
}

/**
 * A value of plain text as JSON, with the spelling of its numbers; undefined if it has none of the
 * types. If it can be read as another type that is allowed, it is not a string.
 */
export function readText(raw: string, { text, others }: ParameterType): string | undefined {
  const spelled = text ? raw : raw.trim();
  const json = jsonWord(spelled) ?? spelled;
  if (others.size > 0 && !/^\s|\s$/.test(json) && others.has(kindOfJson(json) as Kind)) return json;
  return text ? JSON.stringify(raw) : undefined;
}

/** The kind of a JSON text; undefined if it is not valid. */
function kindOfJson(json: string): Kind | undefined {
  try {
    return kindOf(JSON.parse(json));
  } catch {
    return undefined;
  }
}
