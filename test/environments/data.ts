/** Where the real benchmark data lies, if it is there: `$NLAC_DATA`, else `shared/data` beside the project. */

import { existsSync } from "node:fs";
import { join } from "node:path";

const directory = process.env.NLAC_DATA ?? join(import.meta.dirname, "../../../shared/data");

/** The path of a data file, or undefined after saying so on the console: a skipped test must be seen. */
export function dataFile(name: string): string | undefined {
  const path = join(directory, name);
  if (existsSync(path)) return path;
  console.warn(`SKIPPED: ${path} is not there; set NLAC_DATA to test against real data.`);
  return undefined;
}
