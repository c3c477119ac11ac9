/** A task of tau-bench: a customer, what the customer wants, and the right calls. */

import { readFileSync } from "node:fs";
import { NlacError } from "../../base/errors.ts";
import { dumps } from "./text.ts";
import { type Dict, parseJson, type Value } from "./values.ts";

/** A tool call. */
export interface TauBenchCall {
  name: string;
  /** A JSON object as text, so that 54.0 does not become 54. */
  arguments: string;
}

/** A task of tau-bench. */
export interface TauBenchTask {
  /** Unique among the domain's tasks, for example "test-12". */
  id: string;
  userId: string;
  /** What the customer knows and wants; only the simulated user sees it. */
  instruction: string;
  /**
   * The ground truth: an episode succeeds if its database ends as a fresh one after these calls.
   */
  actions: readonly TauBenchCall[];
  /** What the agent must have said to the user. */
  outputs: readonly string[];
}

/**
 * Reads a JSON file, preserving how numbers are written. Throws ERR_IO, and ERR_CONFIG for invalid
 * JSON.
 */
export function readJsonFile(path: string): Value {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (error) {
    throw new NlacError("ERR_IO", `tauBench: cannot read ${path}: ${(error as Error).message}`, {
      cause: error,
    });
  }
  try {
    return parseJson(text);
  } catch (error) {
    throw new NlacError("ERR_CONFIG", `tauBench: ${path} is ${(error as Error).message}.`, { cause: error });
  }
}

/**
 * Reads tasks in the format of the data's own `tasks_*.json`: a list of objects with `user_id`,
 * `instruction`, `actions` (each with `name` and `kwargs`) and `outputs`. Their names are `id`, or
 * else `split` and their position.
 *
 * @throws NlacError ERR_IO, ERR_CONFIG
 */
export function readTasks(path: string, split: string): TauBenchTask[] {
  const value = readJsonFile(path);
  if (!Array.isArray(value)) throw wrong(path, "must be a list of tasks");
  return value.map((task, i) => readTask(task, `${split}-${i}`, `${path}: task ${i}`));
}

function readTask(value: Value, name: string, place: string): TauBenchTask {
  const task = asDict(value, place);
  const calls = asList(task, "actions", place);
  const outputs = asList(task, "outputs", place);
  if (!outputs.every((output) => typeof output === "string")) throw wrong(place, '"outputs" must be strings');
  return {
    id: task.has("id") ? asText(task, "id", place) : name,
    userId: asText(task, "user_id", place),
    instruction: asText(task, "instruction", place),
    actions: calls.map((call) => {
      const action = asDict(call, `${place}: an action`);
      return {
        name: asText(action, "name", place),
        arguments: dumps(asDict(action.get("kwargs") ?? null, `${place}: "kwargs"`)),
      };
    }),
    outputs,
  };
}

function asDict(value: Value, place: string): Dict {
  if (value instanceof Map) return value;
  throw wrong(place, "must be an object");
}

function asList(dict: Dict, key: string, place: string): Value[] {
  const value = dict.get(key);
  if (Array.isArray(value)) return value;
  throw wrong(place, `"${key}" must be a list`);
}

function asText(dict: Dict, key: string, place: string): string {
  const value = dict.get(key);
  if (typeof value === "string") return value;
  throw wrong(place, `"${key}" must be a string`);
}

function wrong(place: string, what: string): NlacError {
  return new NlacError("ERR_CONFIG", `tauBench: ${place} ${what}.`);
}
