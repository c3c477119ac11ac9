/**
 * Tries to take locks: node --import jiti/register lock-child.ts LOCK… . Says "ready"; at each line
 * of its input tries the next lock and says "won" or "lost". Ends, with its locks, when its input
 * ends.
 */

import { createInterface } from "node:readline";
import { lockNow } from "../../lib/files/lock.ts";

const paths = process.argv.slice(2);
let next = 0;
console.log("ready");
for await (const _ of createInterface({ input: process.stdin })) {
  try {
    lockNow(paths[next++]!, "it", "ERR_RUN");
    console.log("won");
  } catch (error) {
    console.log((error as { code?: string }).code === "ERR_RUN" ? "lost" : String(error));
  }
}
