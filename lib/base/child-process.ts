/** Runs modules of the package and other programs in processes of their own. */

import type { ChildProcess } from "node:child_process";
import { extname } from "node:path";
import { fileURLToPath } from "node:url";

/**
 * Node's arguments that run a module of the package.
 *
 * @param name its path without extension, relative to `from`
 * @param from the caller's `import.meta.url`
 */
export function moduleArguments(name: string, from: string): string[] {
  return [...loaderArguments(from), fileURLToPath(new URL(`${name}${extensionOf(from)}`, from))];
}

/** Node's arguments that load modules such as `from`: TypeScript, in tests, is loaded through jiti. */
export function loaderArguments(from: string): string[] {
  return extensionOf(from) === ".js" ? [] : ["--import", "jiti/register"];
}

/** ".js" in the package, ".ts" in a checkout's tests. */
export function extensionOf(url: string): string {
  return extname(new URL(url).pathname);
}

/** Environment variables that limit the threads of nlac and of other libraries. */
export function threadVariables(threads: number): Record<string, string> {
  const count = String(threads);
  return { NLAC_THREADS: count, OMP_NUM_THREADS: count, MKL_NUM_THREADS: count };
}

/** Why a process has failed, as in "ended by SIGKILL"; undefined once it has succeeded. */
export function failureOfChild(child: ChildProcess): Promise<string | undefined> {
  return new Promise((resolve) => {
    child.on("error", (error) => resolve(error.message));
    child.on("close", (code, signal) =>
      resolve(code === 0 ? undefined : `ended by ${signal ?? `exit ${code}`}`),
    );
  });
}
