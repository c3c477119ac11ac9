/** Whether alternatives of a schema exclude each other, so that `oneOf` means the same as `anyOf`. */

import { isDeepStrictEqual } from "node:util";
import { isObject } from "../base/validation.ts";

type Schema = Readonly<Record<string, unknown>>;

/** Maximum nesting of schemas that are compared, and of references. */
const maxDepth = 16;
/** Maximum number of comparisons for one document. */
const maxComparisons = 250_000;
const typeNames = ["string", "number", "boolean", "null", "array", "object"];

export class Exclusion {
  readonly #document: unknown;
  #comparisons = 0;

  /** @param document what references refer into */
  constructor(document: unknown) {
    this.#document = document;
  }

  /**
   * Whether no generated value matches both schemas: generated objects have only the keys of
   * `properties`, unless `additionalProperties` says otherwise. False if it is not certain.
   */
  between(one: unknown, other: unknown, depth = 0): boolean {
    const [a, b] = [this.target(one), this.target(other)];
    if (a === undefined || b === undefined) return false;
    if (depth > maxDepth || ++this.#comparisons > maxComparisons) return false;
    const inner = (x: unknown, y: unknown) => this.between(x, y, depth + 1);
    for (const [united, rest] of [[a, b] as const, [b, a] as const])
      for (const members of [united.anyOf, united.oneOf])
        if (Array.isArray(members)) return members.every((member) => inner(member, rest));
    const [values, others] = [valuesOf(a), valuesOf(b)];
    if (values && others) return !values.some((x) => others.some((y) => isDeepStrictEqual(x, y)));
    const [types, otherTypes] = [values?.map(typeOf) ?? typesOf(a), others?.map(typeOf) ?? typesOf(b)];
    const shared = types.filter((type) => otherTypes.includes(type));
    if (shared.length === 0) return true;
    if (shared.some((type) => type !== "object") || values || others) return false;
    return (lacksKeyOf(a, b) && lacksKeyOf(b, a)) || differ(a, b, inner);
  }

  /** The schema with its references followed; undefined if that is not possible. */
  target(schema: unknown): Schema | undefined {
    let found = schema;
    for (let steps = 0; isObject(found) && found.$ref !== undefined; steps++) {
      if (steps > maxDepth) return undefined;
      const [whole, keyword, name] = /^#(?:\/(\$defs|definitions)\/([^/]+))?$/.exec(String(found.$ref)) ?? [];
      const document = isObject(this.#document) ? this.#document : {};
      const members = document[keyword ?? ""];
      if (whole === "#") found = document;
      else found = isObject(members) && Object.hasOwn(members, name!) ? members[name!] : undefined;
    }
    return isObject(found) ? found : undefined;
  }
}

/** The values that a schema lists; undefined if it lists none. */
export function valuesOf({ const: only, enum: values }: Schema): unknown[] | undefined {
  if (only !== undefined) return [only];
  return Array.isArray(values) ? values : undefined;
}

function typesOf({ type }: Schema): string[] {
  const named: unknown[] = type === undefined ? typeNames : Array.isArray(type) ? type : [type];
  return named.map((name) => (name === "integer" ? "number" : String(name)));
}

function typeOf(value: unknown): string {
  return value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
}

function requiredIn({ required }: Schema): unknown[] {
  return Array.isArray(required) ? required : [];
}

function propertiesIn({ properties }: Schema): Schema {
  return isObject(properties) ? properties : {};
}

/** Whether objects of `a` never have a key that `b` requires. */
function lacksKeyOf(a: Schema, b: Schema): boolean {
  const isClosed = (a.additionalProperties ?? false) === false;
  return isClosed && requiredIn(b).some((key) => !Object.hasOwn(propertiesIn(a), String(key)));
}

/** Whether both require a key whose values exclude each other. */
function differ(a: Schema, b: Schema, inner: (x: unknown, y: unknown) => boolean): boolean {
  const [left, right] = [propertiesIn(a), propertiesIn(b)];
  return requiredIn(a).some((name) => {
    const key = String(name);
    const isShared = requiredIn(b).includes(name) && Object.hasOwn(left, key) && Object.hasOwn(right, key);
    return isShared && inner(left[key], right[key]);
  });
}
