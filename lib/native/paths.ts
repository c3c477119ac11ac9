/** Where nlac's own files lie: the package, and the user's cache. */

import { homedir } from "node:os";
import { isAbsolute, join } from "node:path";
import { fileURLToPath } from "node:url";

export type Env = Readonly<Record<string, string | undefined>>;

/** The directory of package.json: two levels up, from lib/native as from dist/native. */
export function packageRoot(): string {
  return fileURLToPath(new URL("../..", import.meta.url)).replace(/\/$/, "");
}

/** $XDG_CACHE_HOME/nlac; the specification says that a relative XDG_CACHE_HOME counts as unset. */
export function cacheRoot(env: Env = process.env): string {
  const base = env.XDG_CACHE_HOME;
  return join(base && isAbsolute(base) ? base : join(env.HOME || homedir(), ".cache"), "nlac");
}
