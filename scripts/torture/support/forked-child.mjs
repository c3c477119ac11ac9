// Children of campaigns that get their attacks as messages, one after another.
import { fork } from "node:child_process";
import { readFileSync } from "node:fs";

/** Starts a script of this folder. Resolves to the child when it has sent its first message. */
export async function startChild(script, args = [], options = {}) {
  const child = fork(new URL(script, import.meta.url), args, {
    stdio: ["ignore", "ignore", "ignore", "ipc"],
    ...options,
  });
  await new Promise((resolve, reject) => {
    child.once("message", resolve);
    child.once("exit", () => reject(new Error("the child does not start")));
  });
  child.removeAllListeners("exit");
  return child;
}

/**
 * Processor time that a process has used so far, in seconds; Linux counts it in hundredths. Throws
 * when it has ended.
 */
export function processorSeconds(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1).split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}
