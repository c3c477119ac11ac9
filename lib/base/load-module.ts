/** Loads modules of the user, in TypeScript or JavaScript: recipes, comparisons, environments. */

import { pathToFileURL } from "node:url";
import { createJiti } from "jiti";
import { NlacError } from "./errors.ts";

/**
 * The default export of the file at `path`, or all its exports.
 * @throws NlacError ERR_CONFIG that names the file
 */
export async function loadModule(path: string): Promise<unknown> {
  // The module's import of "nlac" resolves to this package, wherever the module is.
  const entry = new URL(import.meta.url.endsWith(".ts") ? "../index.ts" : "./index.js", import.meta.url);
  const nlac: unknown = await import(entry.href);
  const jiti = createJiti(import.meta.url, { virtualModules: { nlac } });
  try {
    const module = await jiti.import<{ default?: unknown }>(pathToFileURL(path).href);
    return module.default ?? module;
  } catch (error) {
    // On one line: the message of a syntax error has several.
    const reason = (error instanceof Error ? error.message : String(error)).trim().replaceAll(/\s+/g, " ");
    throw new NlacError("ERR_CONFIG", `${path} cannot be loaded: ${reason}`, { cause: error });
  }
}
