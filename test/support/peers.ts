/** The Python of scripts/peers.sh, whose packages tests compare with. */

import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { cacheRoot } from "../../lib/native/paths.ts";

/** Where scripts/peers.sh puts what it downloads. */
export const peersDirectory = join(cacheRoot(), "peers");
const python = join(peersDirectory, "bin", "python");

/**
 * Its path; undefined, with a warning that names `what` is skipped, if it cannot import all of
 * `modules`.
 */
export function peersPython(modules: readonly string[], what: string): string | undefined {
  const found = existsSync(python) && spawnSync(python, ["-c", `import ${modules.join(", ")}`]).status === 0;
  if (!found) console.warn(`SKIPPED: ${what} (run scripts/peers.sh)`);
  return found ? python : undefined;
}
