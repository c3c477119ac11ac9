/** Ctrl-C and SIGTERM as a signal for what can stop in good order. */

import { NlacError } from "../base/errors.ts";

/**
 * Does `work`, whose signal the first Ctrl-C or SIGTERM fires; the second ends the process at once.
 * @param note shows a line to the person who waits
 * @param where at which point the work will stop
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
