/** Locations of the package and of the user's cache. */

import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { isAbsolute, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { getOrAdd } from "../base/get-or-add.ts";
import { platformName } from "../base/platform.ts";
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

/** What the addon is compiled from, relative to the package. */
export const nativeSources = [
  ...["native/core", "native/binding", "native/loader", "native/cuda", "cmake", "CMakeLists.txt"],
] as const;

/**
 * The directory in which the addon is compiled: build/ of a checkout. For an installed package it
 * is in the cache, by the package's sources: node_modules may be read-only, and `npm ci` deletes
 * it.
 */
export function buildRoot(root: string = packageRoot(), env: Env = process.env): string {
  if (!root.split(sep).includes("node_modules")) return join(root, "build");
  const name = `${version}-${sourceDigest(root)}-${platformName()}`;
  return join(cacheRoot(env), "builds", name);
}

const digests = new Map<string, string>();

/** The first 12 hex digits of the SHA-256 of the native sources; computed once per process. */
function sourceDigest(root: string): string {
  return getOrAdd(digests, root, () => {
    const hash = createHash("sha256");
    const add = (path: string): void => {
      const found = statSync(path, { throwIfNoEntry: false });
      if (found?.isDirectory()) for (const name of readdirSync(path).sort()) add(join(path, name));
      else if (found) hash.update(`${relative(root, path)}\0${found.size}\0`).update(readFileSync(path));
    };
    for (const source of nativeSources) add(join(root, source));
    return hash.digest("hex").slice(0, 12);
  });
}
