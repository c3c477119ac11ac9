/** Binds the arguments of a call to a tool's parameters, with Python's errors. */

import { PythonError } from "./python.ts";
import { repr } from "./text.ts";
import type { Dict, Value } from "./values.ts";

/** The arguments in the parameters' order. Throws PythonError if one is missing or unknown. */
export function bindArguments(
  { name, parameters }: { name: string; parameters: readonly string[] },
  args: Dict,
): Value[] {
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
