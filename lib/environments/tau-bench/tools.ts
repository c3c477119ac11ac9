/** The type of a tool, and the binding of arguments to its parameters. */

import type { Database } from "./database.ts";
import { PythonError } from "./python.ts";
import { repr } from "./text.ts";
import type { Dict, Value } from "./values.ts";

export interface Tool {
  readonly name: string;
  /** In order. All are required, and no others are accepted. */
  readonly parameters: readonly string[];
  /**
   * Returns the observation; null is Python's None, where the original ends without a return.
   * Throws PythonError; changes made before stay, as in the original.
   */
  run(database: Database, ...args: Value[]): string | null;
}

export function tool(name: string, parameters: string, run: Tool["run"]): Tool {
  return { name, parameters: parameters.split(" ").filter((parameter) => parameter !== ""), run };
}

/** The arguments in the parameters' order. Throws PythonError if one is missing or unknown. */
export function bind({ name, parameters }: Tool, args: Dict): Value[] {
  const invoke = `${name.replace(/(?:^|_)(.)/g, (_, letter: string) => letter.toUpperCase())}.invoke()`;
  // The database is the reference's own first parameter.
  if (args.has("data")) throw new PythonError(`${invoke} got multiple values for keyword argument 'data'`);
  for (const key of args.keys()) {
    if (!parameters.includes(key)) {
      throw new PythonError(`${invoke} got an unexpected keyword argument ${repr(key)}`);
    }
  }
  const missing = parameters.filter((parameter) => !args.has(parameter)).map(repr);
  if (missing.length > 0) {
    const last = missing.length > 2 ? ", and " : " and ";
    const names = [missing.slice(0, -1).join(", "), missing.at(-1)].filter((part) => part !== "").join(last);
    const plural = missing.length > 1 ? "s" : "";
    throw new PythonError(
      `${invoke} missing ${missing.length} required positional argument${plural}: ${names}`,
    );
  }
  return parameters.map((parameter) => args.get(parameter)!);
}
