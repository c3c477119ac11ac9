/**
 * Turns Ctrl-C, SIGTERM, uncaught errors and promises that nothing can settle into an abort signal for
 * work that can stop cleanly.
 */

import { messageOf, NlacError } from "../base/errors.ts";

/**
 * Milliseconds in which further signals count as the first one. npm and npx forward the signal of
 * Ctrl-C to a process that has already received it from the terminal.
 */
const repeatMs = 1000;
/** Milliseconds after an uncaught error in which work can stop; what it waits for may never come. */
const stopMs = 600_000;

/** ERR_ENVIRONMENT: an error that nothing caught, or an environment that never answers. */
export class EnvironmentFailure extends NlacError {
  constructor(message: string, cause?: unknown) {
    super("ERR_ENVIRONMENT", message, { cause });
  }
}

/**
 * Runs `work`. The first Ctrl-C or SIGTERM fires its signal; another one, `repeatMs` later or more,
 * ends the process at once. The first error that nothing catches fires it too, and so does an empty
 * event loop: Node would end the process then, without a message.
 * @param note prints a line for the user
 * @param where when the work will stop, as in "at the next safe point"
 * @throws EnvironmentFailure after `work`, if one of these two happened
 */
export async function stoppable<T>(
  note: (line: string) => void,
  where: string,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController();
  let first = 0;
  let failure: EnvironmentFailure | undefined;
  const stop = (signal: NodeJS.Signals) => {
    if (controller.signal.aborted) {
      if (performance.now() - first < repeatMs) return;
      process.exit(signal === "SIGINT" ? 130 : 143);
    }
    first = performance.now();
    note(`${signal}: stopping ${where} (again to quit at once) …`);
    controller.abort(new NlacError("ERR_ABORTED", `stopped by ${signal}`));
  };
  const fail = (error: EnvironmentFailure, text: string) => {
    if (failure !== undefined) return;
    failure = error;
    note(`${text}\nstopping ${where} …`);
    controller.abort(new NlacError("ERR_ABORTED", "stopped by a failure"));
    setTimeout(() => process.exit(1), stopMs).unref();
  };
  const caught = (cause: unknown) => {
    const error = new EnvironmentFailure(
      `An error was not caught, often that of a promise that an environment does not await: ${messageOf(cause)}`,
      cause,
    );
    fail(error, (cause instanceof Error && cause.stack) || error.message);
  };
  const stuck = () => {
    const error = new EnvironmentFailure(
      "An environment never answers: its start or step waits for a promise that nothing can settle any more. " +
        "Find it with `npx nlac env check`.",
    );
    fail(error, error.message);
  };
  process.on("SIGINT", stop);
  process.on("SIGTERM", stop);
  process.on("uncaughtException", caught); // rejections too
  process.on("beforeExit", stuck);
  try {
    const result = await work(controller.signal);
    if (failure !== undefined) throw failure;
    return result;
  } catch (error) {
    throw failure ?? error;
  } finally {
    process.off("SIGINT", stop);
    process.off("SIGTERM", stop);
    process.off("uncaughtException", caught);
    process.off("beforeExit", stuck);
  }
}
