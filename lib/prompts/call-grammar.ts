/** Grammars of calls, for generation that must end in a call which fits its function's schema. */

import { NlacError } from "../base/errors.ts";
import { isObject } from "../base/validation.ts";
import type { ToolSchema } from "../contract/environment.ts";
import { alone, type Grammar, grammarText } from "../model/grammar.ts";
import { corePattern } from "../model/pattern.ts";
import { type CallForm, type EachArgument, probeIds, sortedByKey } from "../tokens/call-form.ts";
import { parameterType, resolved } from "./call-arguments.ts";
import { functionTags } from "./call-markup.ts";
import { markedValue } from "./marked-grammar.ts";

type Schema = Readonly<Record<string, unknown>>;
type WrittenForm = Pick<CallForm, "before" | "between" | "after" | "each">;

const jsonForm: WrittenForm = {
  ...{ before: '{"name": "', between: '", "arguments": ', after: "}" },
  each: undefined,
};

const nothing: Grammar = { literal: "" };

/**
 * A grammar of one call of one of `tools`. A schema's title is its tool's name, so that the core's
 * errors name the tool.
 * @throws NlacError ERR_VALUE that names the tool whose schema cannot be enforced
 */
export function callGrammar(tools: readonly ToolSchema[], form: WrittenForm = jsonForm): Grammar {
  const calls = tools.map((tool): Grammar => {
    const { name, parameters } = tool;
    const quoted = JSON.stringify(name);
    const standsAlone = alone.some((keyword) => parameters[keyword] !== undefined);
    const schema = standsAlone ? parameters : { type: "object", ...parameters };
    const args: Grammar = { jsonSchema: { ...schema, title: name } };
    grammarText(args, `the tool ${quoted}`);
    const head = withAnyId(quoted.slice(1, -1) + form.between);
    return { sequence: [...head, form.each === undefined ? args : eachArgument(tool, form.each)] };
  });
  return { sequence: [...withAnyId(form.before), { anyOf: calls }, ...withAnyId(form.after)] };
}

/** A text of the form, in which the model chooses the ids of calls. */
function withAnyId(text: string): Grammar[] {
  const [first = "", ...rest] = text.split(probeIds);
  return [{ literal: first }, ...rest.flatMap((literal) => [{ regex: "[A-Za-z0-9]{9}" }, { literal }])];
}

/**
 * Arguments one by one, in the schema's order; between separators the required ones come first, or
 * all are sorted if the form is.
 */
function eachArgument({ name, parameters: root }: ToolSchema, form: EachArgument): Grammar {
  const { properties = {}, required = [], minProperties, maxProperties } = resolved(root, root);
  const wrong = (what: string) => new NlacError("ERR_VALUE", `the tool ${JSON.stringify(name)} ${what}.`);
  if (!isObject(properties) || minProperties !== undefined || maxProperties !== undefined)
    throw wrong(
      "must list its arguments, without limits of their number, because they are written one by one",
    );
  const needed = new Set(Array.isArray(required) ? (required as unknown[]) : []);
  const members = Object.entries(properties);
  const all = (form.quote === undefined ? members : sortedByKey(members)).map(([key, schema]) => {
    const wrongHere = (what: string) => wrong(`has a parameter ${JSON.stringify(key)} ${what}`);
    const value = (): Grammar => {
      if (form.quote !== undefined)
        return markedValue(schema, root, { quote: form.quote, words: form.words }, wrongHere);
      return form.bare ? bareValue(schema, root, form, wrongHere) : json(schema, root, name);
    };
    const sequence = [
      { literal: `${form.beforeKey}${key}${form.beforeValue}` },
      ...[value(), { literal: form.afterValue }],
    ];
    return { isNeeded: needed.has(key), grammar: { sequence } satisfies Grammar };
  });
  if (form.separator === "")
    return inOrder(all.map(({ isNeeded, grammar }) => (isNeeded ? grammar : optional(grammar))));
  const separated = (grammar: Grammar): Grammar => ({ sequence: [{ literal: form.separator }, grammar] });
  const ordered =
    form.quote === undefined
      ? [...all.filter(({ isNeeded }) => isNeeded), ...all.filter(({ isNeeded }) => !isNeeded)]
      : all;
  const after = (from: number) =>
    ordered
      .slice(from)
      .map(({ isNeeded, grammar }) => (isNeeded ? separated(grammar) : optional(separated(grammar))));
  // The first argument that is written; at the latest the first that is required.
  const first = ordered.findIndex(({ isNeeded }) => isNeeded);
  const starts = ordered.slice(0, first < 0 ? ordered.length : first + 1);
  const written = starts.map(({ grammar }, i) => inOrder([grammar, ...after(i + 1)]));
  return { anyOf: first < 0 ? [nothing, ...written] : written };
}

function optional(grammar: Grammar): Grammar {
  return { anyOf: [grammar, nothing] };
}

function inOrder(sequence: readonly Grammar[]): Grammar {
  return sequence.length === 0 ? nothing : { sequence };
}

/** A value as JSON. Definitions of the function's schema are part of it. */
function json(schema: unknown, root: Schema, title: string): Grammar {
  if (typeof schema === "boolean") return { jsonSchema: schema };
  const { $defs, definitions } = root;
  const shared = {
    ...($defs === undefined ? {} : { $defs }),
    ...(definitions === undefined ? {} : { definitions }),
  };
  return { jsonSchema: { ...(schema as Schema), ...shared, title } };
}

/** A value of which strings are plain text that contains none of the form's tags. */
function bareValue(
  schema: unknown,
  root: Schema,
  { words }: Pick<EachArgument, "words">,
  wrong: (what: string) => NlacError,
): Grammar {
  const { text, others } = parameterType(schema, root);
  const found = resolved(schema, root);
  const isWord = [...others].every((kind) => kind === "null" || kind === "boolean");
  if (!text && isWord && isPlain(found) && found.anyOf === undefined && found.oneOf === undefined) {
    const spelled = others.has("boolean") ? [words.true, words.false] : [];
    return {
      anyOf: [...spelled, ...(others.has("null") ? [words.null] : [])].map((literal) => ({ literal })),
    };
  }
  if (!text) return json(schema, root, "a parameter");
  const { enum: values, const: only, pattern, format, minLength, maxLength } = found;
  const listed = Array.isArray(values) ? (values as unknown[]) : only === undefined ? undefined : [only];
  if (listed !== undefined) {
    const texts = listed.map((value) => (typeof value === "string" ? value : JSON.stringify(value)));
    if (texts.some((one) => functionTags.some((tag) => one.includes(tag))))
      throw wrong("with a value that contains a tag");
    return { anyOf: texts.map((literal) => ({ literal })) };
  }
  const isLimited = [pattern, format, minLength, maxLength].some((limit) => limit !== undefined);
  // Text may look like another type, so it is free only if every such value is allowed.
  const alternatives = ["anyOf", "oneOf", "allOf"].flatMap((keyword) => (found[keyword] as unknown[]) ?? []);
  if (others.size > 0 && (isLimited || !isWord || alternatives.some((one) => !isPlain(one))))
    throw wrong("that may be text with limits or of another type, which cannot be enforced in tags");
  const [alternative] = alternatives;
  if (others.size === 0 && alternatives.length > 0)
    if (alternatives.length === 1) return bareValue(alternative, root, { words }, wrong);
    else return { anyOf: alternatives.map((one) => bareValue(one, root, { words }, wrong)) };
  if (format !== undefined && pattern === undefined)
    throw wrong(
      `with the format ${JSON.stringify(format)}, which cannot be enforced in tags; use a "pattern"`,
    );
  if (typeof pattern === "string") {
    const limits = { minLength: Number(minLength ?? 0), maxLength: Number(maxLength ?? Infinity) };
    try {
      return { regex: corePattern(pattern, { in: "tags", ...limits }) };
    } catch (error) {
      throw wrong(`with a pattern that cannot be enforced in tags: ${(error as Error).message}`);
    }
  }
  if (minLength === undefined && maxLength === undefined) return { ebnf: freeText };
  return { regex: `[^<]{${Number(minLength ?? 0)},${maxLength === undefined ? "" : Number(maxLength)}}` };
}

/** Whether a schema has nothing but a type. */
function isPlain(schema: unknown): boolean {
  const restricting = ["pattern", "format", "minLength", "maxLength", "enum", "const", "$ref"];
  return isObject(schema) && restricting.every((keyword) => schema[keyword] === undefined);
}

/** Any text without the tags. */
const freeText = `root ::= TagDispatch(loop_after_dispatch=false, excludes=(${functionTags
  .map((tag) => JSON.stringify(tag))
  .join(", ")}))`;
