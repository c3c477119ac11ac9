/**
 * Location of the real benchmark data, if present: `$NLAC_DATA`, else `shared/data` in the project.
 */

import { existsSync } from "node:fs";
import { join } from "node:path";

const directory = process.env.NLAC_DATA ?? join(import.meta.dirname, "../../../shared/data");

/**
 * The path of a data file. Logs its absence and returns undefined, so that a skipped test is
 * visible.
 */
export function dataFile(name: string): string | undefined {
  const path = join(directory, name);
  if (existsSync(path)) return path;
  console.warn(`SKIPPED: ${path} is not there; set NLAC_DATA to test against real data.`);
  return undefined;
}
