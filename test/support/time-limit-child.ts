/** Works for 0.1 s of processor time under a limit of 1 s. Says when it starts, and its result. */

import { writeSync } from "node:fs";
import { withTimeLimit } from "../../lib/base/time-limit.ts";

function busy(ms: number): void {
  const from = process.cpuUsage();
  for (;;) {
    const { user, system } = process.cpuUsage(from);
    if (user + system >= ms * 1000) return;
  }
}

const result = withTimeLimit(1000, () => {
  writeSync(1, "started\n");
  busy(100);
  return "finished";
});
writeSync(1, result);
