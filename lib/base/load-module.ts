/** Loads modules of the user, in TypeScript or JavaScript: recipes, comparisons, environments. */

import { pathToFileURL } from "node:url";
import { createJiti } from "jiti";
import { extensionOf } from "./child-process.ts";
import { messageOf, NlacError } from "./errors.ts";

/**
 * The default export of the file at `path`, or all its exports.
 * @throws NlacError ERR_CONFIG that names the file
 */
export async function loadModule(path: string): Promise<unknown> {
  const module = await importModule(path);
  return module.default ?? module;
}

/**
 * The default export of the file at `path`; undefined if it has none.
 * @throws NlacError ERR_CONFIG that names the file
 */
export async function loadDefault(path: string): Promise<unknown> {
  const module = await importModule(path);
  // jiti returns the module itself for a `default` that it does not have.
  return "default" in module ? module.default : undefined;
}

async function importModule(path: string): Promise<{ default?: unknown }> {
  // The module's imports of "nlac" resolve to this package, wherever the module is.
  const jiti = createJiti(import.meta.url, { virtualModules: await entryPoints() });
  try {
    return await jiti.import<{ default?: unknown }>(pathToFileURL(path).href);
  } catch (error) {
    // The message of a syntax error has several lines; report it on one.
    const reason = messageOf(error).trim().replaceAll(/\s+/g, " ");
    throw new NlacError("ERR_CONFIG", `${path} cannot be loaded: ${reason}`, { cause: error });
  }
}

/** The entry points of the package, as package.json exports them, and their files below lib/. */
const entries = {
  nlac: "index",
  "nlac/environments": "environments/index",
  "nlac/models": "models",
  "nlac/serving": "serving",
  "nlac/ops": "ops/index",
  "nlac/compare": "compare/index",
};

/**
 * The modules that a user's file gets when it imports "nlac": this package, wherever the file is.
 */
async function entryPoints(): Promise<Record<string, unknown>> {
  const extension = extensionOf(import.meta.url);
  const loaded: Record<string, unknown> = {};
  // One after another: jiti, which runs the sources, gives a module that another import is still
  // evaluating as it is then, without its exports.
  for (const [name, file] of Object.entries(entries))
    loaded[name] = await import(new URL(`../${file}${extension}`, import.meta.url).href);
  return loaded;
}
