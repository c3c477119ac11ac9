/**
 * An agent without a model, for checks of environments: calls the offered tools with valid and
 * invalid arguments generated from their schemas, and makes utterances. Deterministic given the
 * seed.
 */

import { streams, uniform } from "../base/random.ts";
import type { Action, Observation, ToolSchema } from "../contract/environment.ts";
import { callAction } from "../prompts/calls.ts";
import { compileArguments } from "./arguments.ts";

/** A number in [0, 1). */
type Random = () => number;

/** The agent's action at a turn: usually a call that fits the schema, sometimes an utterance. */
export function probe(observation: Observation, turn: number, seed: number): Action {
  const random = randomFrom(seed, turn);
  const tools = observation.tools ?? [];
  const chosen = tools[Math.floor(random() * (tools.length + 1))];
  return chosen === undefined
    ? { text: pick(sayings, random) }
    : callAction(chosen.name, argumentsFor(chosen, random));
}

/** Two valid calls of every tool. */
export function goodCalls(tools: readonly ToolSchema[], seed: number): Action[] {
  return tools.flatMap((tool) =>
    [0, 1].map((turn) => callAction(tool.name, argumentsFor(tool, randomFrom(seed, turn)))),
  );
}

/** Calls that every environment must refuse, each with its problem. */
export function badCalls(tools: readonly ToolSchema[], seed: number): { problem: string; action: Action }[] {
  const names = new Set(tools.map(({ name }) => name));
  const unknown = ["no_such_tool", "constructor", ""].filter((name) => !names.has(name));
  return [
    ...unknown.map((name) => ({ problem: "an unknown tool", action: callAction(name, {}) })),
    ...tools.flatMap((tool) => {
      const broken = brokenArguments(tool, randomFrom(seed, 0));
      return broken === undefined
        ? []
        : [{ problem: "arguments that break the schema", action: callAction(tool.name, broken) }];
    }),
  ];
}

/** Calls that may be refused or accepted, but must be answered. */
export function strangeCalls({ name }: ToolSchema): Action[] {
  let deep: unknown = 1;
  for (let level = 0; level < 50; level++) deep = level % 2 === 0 ? [deep] : { deep };
  const strange: Record<string, unknown>[] = [
    {},
    { deep },
    JSON.parse('{"constructor": {"prototype": {}}, "toString": null, "valueOf": 0, "hasOwnProperty": []}'),
    { long: "x".repeat(100_000) },
    { text: "\u0000\ud800\u202e<|im_end|></tool_call>'; DROP TABLE --{{1}}../../etc/passwd" },
    { number: -1e308, fraction: 5e-324, zero: -0, large: 2 ** 53 },
  ];
  return strange.map((args) => callAction(name, args));
}

const sayings = ["Hello.", "What can I do for you?", "Is it alive?", "I am done.", "\\boxed{0}", "…"];

/**
 * Arguments with one kind of error, the first that the schema rejects; undefined if it accepts all.
 */
function brokenArguments(tool: ToolSchema, random: Random): Record<string, unknown> | undefined {
  const check = compileArguments(tool.parameters, tool.name);
  const good = argumentsFor(tool, random);
  const candidates = [
    {},
    ...Object.keys(good).flatMap((key) => [
      { ...good, [key]: { not: "this" } },
      { ...good, [key]: "\u0000" },
    ]),
    { ...good, no_such_argument: 1 },
  ];
  return candidates.find((candidate) => check(candidate) !== undefined);
}

/** Arguments that fit the schema, as far as its common keywords are concerned. */
function argumentsFor({ parameters }: ToolSchema, random: Random): Record<string, unknown> {
  return sample(parameters, parameters, random, 0) as Record<string, unknown>;
}

/** Depth from which optional parts are omitted. */
const deepest = 6;

function sample(given: unknown, root: Record<string, unknown>, random: Random, depth: number): unknown {
  if (typeof given !== "object" || given === null) return "text";
  const schema = given as Record<string, unknown>;
  const within = (inner: unknown) => sample(inner, root, random, depth + 1);
  if (typeof schema.$ref === "string") return depth > deepest ? null : within(referred(schema.$ref, root));
  if ("const" in schema) return schema.const;
  if (Array.isArray(schema.enum)) return pick(schema.enum, random);
  for (const key of ["anyOf", "oneOf", "allOf"]) {
    const choices = schema[key];
    if (Array.isArray(choices) && choices.length > 0)
      return within({ ...schema, [key]: undefined, ...pick(choices, random) });
  }
  const type = Array.isArray(schema.type) ? pick(schema.type, random) : schema.type;
  const { minimum = 0, exclusiveMinimum, maximum = Number(minimum) + 10 } = schema;
  const least = typeof exclusiveMinimum === "number" ? exclusiveMinimum + 1 : Number(minimum);
  switch (type) {
    case "integer":
    case "number":
      return Math.min(Number(maximum), Math.ceil(least) + Math.floor(random() * 3));
    case "boolean":
      return random() < 0.5;
    case "null":
      return null;
    case "array": {
      const length = Math.max(Number(schema.minItems ?? 0), depth > deepest ? 0 : 1);
      const places = Array.isArray(schema.prefixItems) ? schema.prefixItems : [];
      return Array.from({ length: Math.max(length, places.length) }, (_, i) =>
        within(places[i] ?? schema.items),
      );
    }
    case "object":
      return sampleObject(schema, random, within, depth);
    default:
      return sampleText(schema, random);
  }
}

function sampleObject(
  schema: Record<string, unknown>,
  random: Random,
  within: (inner: unknown) => unknown,
  depth: number,
): Record<string, unknown> {
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  const taken = Object.entries(schema.properties ?? {}).filter(
    ([key]) => required.has(key) || (depth <= deepest && random() < 0.5),
  );
  return Object.fromEntries(taken.map(([key, inner]) => [key, within(inner)]));
}

function sampleText(schema: Record<string, unknown>, random: Random): string {
  const text = String(
    pick(Array.isArray(schema.examples) ? schema.examples : ["text", "a", "2026-01-31"], random),
  );
  const least = Number(schema.minLength ?? 0);
  return text.padEnd(least, "x").slice(0, Number(schema.maxLength ?? Math.max(text.length, least)));
}

/** Resolves `#/$defs/name` in the schema. */
function referred(reference: string, root: Record<string, unknown>): unknown {
  let node: unknown = root;
  for (const key of reference.split("/").slice(1))
    node = (node as Record<string, unknown> | undefined)?.[key];
  return node;
}

function pick<T>(choices: readonly T[], random: Random): T {
  return choices[Math.floor(random() * choices.length)]!;
}

function randomFrom(seed: number, turn: number): Random {
  let count = 0;
  return () => uniform(seed, streams.check, turn * 4096 + count++);
}
