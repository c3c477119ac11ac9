/** Modules that are not nlac's own, in TypeScript or JavaScript: recipes, comparisons, environments. */

import { pathToFileURL } from "node:url";
import { createJiti } from "jiti";
import { NlacError } from "./errors.ts";

/**
 * What the file at `path` exports: its default, or everything.
 * @throws NlacError ERR_CONFIG that names the file
 */
export async function loadModule(path: string): Promise<unknown> {
  // Such a module imports "nlac": let that be this very package, wherever the module lies.
  const entry = new URL(import.meta.url.endsWith(".ts") ? "../index.ts" : "./index.js", import.meta.url);
  const nlac: unknown = await import(entry.href);
  const jiti = createJiti(import.meta.url, { virtualModules: { nlac } });
  try {
    const module = await jiti.import<{ default?: unknown }>(pathToFileURL(path).href);
    return module.default ?? module;
  } catch (error) {
    // On one line: a syntax error's message says on a second one where it is.
    const reason = (error instanceof Error ? error.message : String(error)).trim().replaceAll(/\s+/g, " ");
    throw new NlacError("ERR_CONFIG", `${path} cannot be loaded: ${reason}`, { cause: error });
  }
}
