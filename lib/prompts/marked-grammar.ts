/**
 * Grammars of values in the notation of Gemma 4's calls (tokens/call-form.ts), in xgrammar's EBNF. A
 * schema that cannot be enforced completely in it is refused.
 */

import type { NlacError } from "../base/errors.ts";
import { isObject } from "../base/validation.ts";
import type { Grammar } from "../model/grammar.ts";
import { notation, sortedByKey, type Words } from "../tokens/call-form.ts";
import { resolved } from "./call-arguments.ts";

type Schema = Readonly<Record<string, unknown>>;

export interface Marked {
  quote: string;
  words: Words;
}

/** Deepest nesting of a schema, references followed. */
const maxDepth = 16;
/** Numbers that a double holds: longer ones would be refused as too large. */
const integer = '"-"? ("0" | [1-9] [0-9]{0,14})';
const number = `${integer} ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?`;
/** Keywords of a schema that the grammar enforces, and keywords that restrict no value. */
const known: ReadonlySet<string> = new Set([
  ...["type", "enum", "const", "anyOf", "oneOf", "$ref", "properties", "required", "additionalProperties"],
  ...["items", "$defs", "definitions", "title", "description", "default", "examples", "$schema", "$comment"],
  ...["$id", "deprecated", "readOnly", "writeOnly", "nullable"],
]);

/**
 * A value that matches `schema`, which is part of `root`.
 * @param wrong makes the error for a schema that cannot be enforced
 */
export function markedValue(
  schema: unknown,
  root: Schema,
  form: Marked,
  wrong: (what: string) => NlacError,
): Grammar {
  const { type, minimum, maximum, exclusiveMinimum, exclusiveMaximum } = resolved(schema, root);
  const limits = { minimum, maximum, exclusiveMinimum, exclusiveMaximum };
  // Numbers are as in JSON.
  if ((type === "number" || type === "integer") && Object.values(limits).some((limit) => limit !== undefined))
    return { jsonSchema: resolved(schema, root) };
  return { ebnf: new Rules(root, form, wrong).text(schema) };
}

/** Collects rules, the first of which is the root. */
class Rules {
  readonly #root: Schema;
  readonly #form: Marked;
  readonly #wrong: (what: string) => NlacError;
  readonly #rules = new Map<string, string>();

  constructor(root: Schema, form: Marked, wrong: (what: string) => NlacError) {
    this.#root = root;
    this.#form = form;
    this.#wrong = wrong;
  }

  text(schema: unknown): string {
    const value = this.#value(schema, 0);
    const all = [...this.#rules].map(([name, body]) => `${name} ::= ${body}`);
    return [`root ::= ${value}`, ...all].join("\n");
  }

  #value(given: unknown, depth: number): string {
    if (given === false) throw this.#wrong("that no value matches");
    if (depth > maxDepth) throw this.#wrong(`nested deeper than ${maxDepth} levels`);
    const schema = resolved(given, this.#root);
    const unknown = Object.keys(schema).find((key) => !known.has(key));
    if (unknown !== undefined)
      throw this.#wrong(`with ${JSON.stringify(unknown)}, which cannot be enforced between marks`);
    const { enum: values, const: only, anyOf, oneOf, type } = schema;
    const listed = Array.isArray(values) ? (values as unknown[]) : only === undefined ? undefined : [only];
    if (listed !== undefined) return either(listed.map((value) => this.#literal(value)));
    const alternatives = [anyOf, oneOf].find((one) => Array.isArray(one)) as unknown[] | undefined;
    if (alternatives !== undefined) return either(alternatives.map((one) => this.#value(one, depth + 1)));
    const types = Array.isArray(type) ? (type as unknown[]) : [type ?? typeIn(schema)];
    return either(types.map((name) => this.#ofType(name, schema, depth)));
  }

  #ofType(type: unknown, schema: Schema, depth: number): string {
    const { words } = this.#form;
    switch (type) {
      case "string":
        return this.#string();
      case "number":
        return this.#rule("number", () => number);
      case "integer":
        return this.#rule("integer", () => integer);
      case "boolean":
        return either([words.true, words.false].map((word) => JSON.stringify(word)));
      case "null":
        return JSON.stringify(words.null);
      case "array":
        return list(
          "[",
          "]",
          schema.items === undefined ? this.#any() : this.#value(schema.items, depth + 1),
        );
      case "object":
        return this.#object(schema, depth);
      case undefined:
        return this.#any();
      default:
        throw this.#wrong(`of the type ${JSON.stringify(type)}`);
    }
  }

  #object(schema: Schema, depth: number): string {
    const { properties = {}, required = [], additionalProperties: more } = schema;
    if (!isObject(properties) || !Array.isArray(required)) throw this.#wrong("with malformed properties");
    const open = more !== undefined && more !== false;
    const members = sortedByKey(Object.entries(properties));
    if (members.length === 0 && (open || schema.properties === undefined))
      return list(
        "{",
        "}",
        `${this.#key()} ":" ${isObject(more) ? this.#value(more, depth + 1) : this.#any()}`,
      );
    if (open) throw this.#wrong('with "additionalProperties" beside "properties"');
    const all = members.map(([key, member]) => ({
      isNeeded: (required as unknown[]).includes(key),
      text: `${JSON.stringify(`${key}:`)} ${this.#value(member, depth + 1)}`,
    }));
    const first = all.findIndex(({ isNeeded }) => isNeeded);
    const later = (from: number) =>
      all.slice(from).map(({ isNeeded, text }) => (isNeeded ? ` "," ${text}` : ` ("," ${text})?`));
    const starts = all.slice(0, first < 0 ? all.length : first + 1);
    const written = starts.map(({ text }, i) => `${text}${later(i + 1).join("")}`);
    return `"{" ${either(first < 0 ? [...written, '""'] : written)} "}"`;
  }

  /** Text without the mark: each rule has read as many of its characters as its number says. */
  #string(): string {
    const { quote } = this.#form;
    const marks = [...quote];
    const body = (read: number) => {
      const next = (character: string) => {
        const text = quote.slice(0, read) + character;
        let kept = Math.min(text.length, quote.length);
        while (!text.endsWith(quote.slice(0, kept))) kept--;
        return kept;
      };
      const known = [...new Set(marks)];
      const branches = known
        .filter((mark) => next(mark) < quote.length)
        .map((mark) => `${JSON.stringify(mark)} text${next(mark)}`);
      const others = `[^${known.map((mark) => mark.replace(/[\\\]^-]/, "\\$&")).join("")}] text0`;
      return ['""', ...branches, others].join(" | ");
    };
    for (const [read] of marks.entries()) this.#rule(`text${read}`, () => body(read));
    return this.#rule("string", () => `${JSON.stringify(quote)} text0 ${JSON.stringify(quote)}`);
  }

  #any(): string {
    this.#string();
    return this.#rule("any", () => {
      const { words } = this.#form;
      const spelled = [words.true, words.false, words.null].map((word) => JSON.stringify(word));
      const member = `${this.#key()} ":" any`;
      return either([
        ...["string", this.#rule("number", () => number), ...spelled],
        ...[list("[", "]", "any"), list("{", "}", member)],
      ]);
    });
  }

  #key(): string {
    return this.#rule("key", () => '[^:,{}\\[\\]<>"\\n]+');
  }

  #literal(value: unknown): string {
    const { quote } = this.#form;
    const spellsMark = JSON.stringify(value).includes(JSON.stringify(quote).slice(1, -1));
    if (spellsMark) throw this.#wrong(`with a value that contains ${quote}`);
    return JSON.stringify(notation(JSON.stringify(value), this.#form, (text) => text).join(""));
  }

  #rule(name: string, body: () => string): string {
    if (!this.#rules.has(name)) {
      this.#rules.set(name, ""); // for rules that name themselves
      this.#rules.set(name, body());
    }
    return name;
  }
}

function either(alternatives: readonly string[]): string {
  return alternatives.length === 1 ? alternatives[0]! : `(${alternatives.join(" | ")})`;
}

function list(open: string, close: string, item: string): string {
  return `"${open}" (${item} ("," ${item})*)? "${close}"`;
}

/** The type that a schema without one implies; undefined for any. */
function typeIn({ properties, items }: Schema): string | undefined {
  if (properties !== undefined) return "object";
  return items === undefined ? undefined : "array";
}
