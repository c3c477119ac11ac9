/** Locations of the package and of the user's cache. */

import { homedir } from "node:os";
import { isAbsolute, join } from "node:path";
import { fileURLToPath } from "node:url";

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
