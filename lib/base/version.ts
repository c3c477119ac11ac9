/** The package's version, from its package.json (one level above lib/ and dist/). */

import { readFileSync } from "node:fs";

export const version: string = (
  JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as { version: string }
).version;
