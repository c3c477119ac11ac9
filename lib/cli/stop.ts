/** Turns Ctrl-C, SIGTERM and uncaught errors into an abort signal for work that can stop cleanly. */

import { messageOf, NlacError } from "../base/errors.ts";

/**
 * Milliseconds in which further signals count as the first one. npm and npx forward the signal of
 * Ctrl-C to a process that has already received it from the terminal.
 */
const repeatMs = 1000;
/** Milliseconds after an uncaught error in which work can stop; what it waits for may never come. */
const stopMs = 600_000;

/** ERR_ENVIRONMENT: an error that nothing caught. */
export class UncaughtError extends NlacError {
  constructor(cause: unknown) {
    super(
      "ERR_ENVIRONMENT",
      `An error was not caught, often that of a promise that an environment does not await: ${messageOf(cause)}`,
      { cause },
    );
  }
}

/**
 * Runs `work`. The first Ctrl-C or SIGTERM fires its signal; another one, `repeatMs` later or more,
 * ends the process at once. The first error that nothing catches fires it too.
 * @param note prints a line for the user
 * @param where when the work will stop, as in "at the next safe point"
 * @throws UncaughtError after `work`, if there was such an error
 */
export async function stoppable<T>(
  note: (line: string) => void,
  where: string,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  let first = 0;
  let uncaught: UncaughtError | undefined;
  const stop = (signal: NodeJS.Signals) => {
    if (controller.signal.aborted) {
      if (performance.now() - first < repeatMs) return;
      process.exit(signal === "SIGINT" ? 130 : 143);
    }
    first = performance.now();
    note(`${signal}: stopping ${where} (again to quit at once) …`);
    controller.abort(new NlacError("ERR_ABORTED", `stopped by ${signal}`));
  };
  const fail = (error: unknown) => {
    if (uncaught !== undefined) return;
    uncaught = new UncaughtError(error);
    note(`${(error instanceof Error && error.stack) || uncaught.message}\nstopping ${where} …`);
    controller.abort(new NlacError("ERR_ABORTED", "stopped by an error that was not caught"));
    setTimeout(() => process.exit(1), stopMs).unref();
  };
  process.on("SIGINT", stop);
  process.on("SIGTERM", stop);
  process.on("uncaughtException", fail); // rejections too
  try {
    const result = await work(controller.signal);
    if (uncaught !== undefined) throw uncaught;
    return result;
  } catch (error) {
    throw uncaught ?? error;
  } finally {
    process.off("SIGINT", stop);
    process.off("SIGTERM", stop);
    process.off("uncaughtException", fail);
  }
}
