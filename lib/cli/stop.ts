/** Turns Ctrl-C and SIGTERM into an abort signal for work that can stop cleanly. */

import { NlacError } from "../base/errors.ts";

/**
 * Milliseconds in which further signals count as the first one. npm and npx forward the signal of
 * Ctrl-C to a process that has already received it from the terminal.
 */
const repeatMs = 1000;

/**
 * Runs `work`. The first Ctrl-C or SIGTERM fires its signal; another one, `repeatMs` later or more,
 * ends the process at once.
 * @param note prints a line for the user
 * @param where when the work will stop, as in "at the next safe point"
 */
export async function stoppable<T>(
  note: (line: string) => void,
  where: string,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  let first = 0;
  const stop = (signal: NodeJS.Signals) => {
    if (controller.signal.aborted) {
      if (performance.now() - first < repeatMs) return;
      process.exit(signal === "SIGINT" ? 130 : 143);
    }
    first = performance.now();
    note(`${signal}: stopping ${where} (again to quit at once) …`);
    controller.abort(new NlacError("ERR_ABORTED", `stopped by ${signal}`));
  };
  process.on("SIGINT", stop);
  process.on("SIGTERM", stop);
  try {
    return await work(controller.signal);
  } finally {
    process.off("SIGINT", stop);
    process.off("SIGTERM", stop);
  }
}
