/** Locations of the package and of the user's cache. */

import { homedir } from "node:os";
import { isAbsolute, join, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { version } from "../base/version.ts";

export type Env = Readonly<Record<string, string | undefined>>;

/** The directory of package.json: two levels above lib/native and dist/native. */
export function packageRoot(): string {
  return fileURLToPath(new URL("../..", import.meta.url)).replace(/\/$/, "");
}

/** $XDG_CACHE_HOME/nlac. The XDG specification ignores a relative path. */
export function cacheRoot(env: Env = process.env): string {
  const base = env.XDG_CACHE_HOME;
  return join(base && isAbsolute(base) ? base : join(env.HOME || homedir(), ".cache"), "nlac");
}

/**
 * The directory in which the addon is compiled: build/ of a checkout. For an installed package it
 * is in the cache: node_modules may be read-only, and `npm ci` deletes it.
 */
export function buildRoot(root: string = packageRoot(), env: Env = process.env): string {
  if (!root.split(sep).includes("node_modules")) return join(root, "build");
  return join(cacheRoot(env), "builds", `${version}-${process.platform}-${process.arch}`);
}
