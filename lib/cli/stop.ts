/** Turns Ctrl-C and SIGTERM into an abort signal for work that can stop cleanly. */

import { NlacError } from "../base/errors.ts";

/**
 * Runs `work`. The first Ctrl-C or SIGTERM fires its signal; the second ends the process at once.
 * @param note prints a line for the user
 * @param where when the work will stop, as in "at the next safe point"
 */
export async function stoppable<T>(
  note: (line: string) => void,
  where: string,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  const stop = (signal: NodeJS.Signals) => {
    if (controller.signal.aborted) process.exit(signal === "SIGINT" ? 130 : 143);
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
