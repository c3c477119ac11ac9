/**
 * nlac's error class, with a stable `code`. The C++ core uses the same codes; `fromNative` converts
 * its errors.
 */

import { getSystemErrorMap } from "node:util";

export type ErrorCode =
  | "ERR_VALUE" // an argument out of its range
  | "ERR_SHAPE" // lengths or shapes that do not fit together
  | "ERR_INDEX" // an index out of bounds
  | "ERR_PRIORITY" // a priority that is NaN, infinite or negative
  | "ERR_EMPTY" // sampling from an empty sampler or buffer
  | "ERR_DEVICE" // a device that does not exist, or tensors on different devices
  | "ERR_LIBTORCH_NOT_FOUND" // libtorch 2.11.0 was not found
  | "ERR_LIBTORCH_VERSION" // the libtorch that the user named has another version
  | "ERR_ADDON_NOT_FOUND" // the native addon was not built or does not load
  | "ERR_MODEL_NOT_FOUND" // no such model name, directory or file
  | "ERR_MODEL_FORMAT" // weights, configuration or tokenizer that cannot be used
  | "ERR_TOKENIZER" // text or template that the tokenizer refuses
  | "ERR_CONFIG" // a recipe or option that does not validate
  | "ERR_ENVIRONMENT" // an environment broke its contract or failed
  | "ERR_SERVICE" // an LLM service failed
  | "ERR_BUDGET" // the budget of an LLM service is spent
  | "ERR_RUN" // a run directory that cannot be used
  | "ERR_CHECKPOINT" // a checkpoint that is missing, damaged or of another run
  | "ERR_NOT_FINITE" // ten steps in a row were not finite
  | "ERR_IO" // a file that cannot be read or written
  | "ERR_DOWNLOAD" // a download that failed or whose checksum is wrong
  | "ERR_OUT_OF_MEMORY"
  | "ERR_BUSY" // the queue is full, and the caller does not want to wait
  | "ERR_DISPOSED" // use after dispose()
  | "ERR_ABORTED" // an AbortSignal fired
  | "ERR_PEER" // another rank of a distributed training has ended or does not answer
  | "ERR_ROLLOUTS" // no inference server of `rollouts` can be used
  | "ERR_INTERNAL"; // a bug in nlac; please report it

/** An error with a stable code. */
export class NlacError extends Error {
  readonly code: ErrorCode;
  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = "NlacError";
    this.code = code;
  }
}

/**
 * ERR_CONFIG because this machine lacks something, such as a benchmark's files or an API key. The
 * same configuration may be right elsewhere.
 */
export class NotHere extends NlacError {
  constructor(message: string, options?: ErrorOptions) {
    super("ERR_CONFIG", message, options);
  }
}

/** Converts an error of the addon, an Error with a `code` of the core. */
export function fromNative(error: unknown): NlacError {
  if (error instanceof NlacError) return error;
  const code = (error as { code?: unknown } | null)?.code;
  return new NlacError(
    typeof code === "string" && code.startsWith("ERR_") ? (code as ErrorCode) : "ERR_INTERNAL",
    messageOf(error),
    { cause: error },
  );
}

/**
 * Converts a file system error (no permission, a full disk, …) to ERR_IO that names the file.
 * Returns other errors unchanged. `path` is used if Node's error has no path, as for descriptors.
 */
export function fromFileSystem(error: unknown, path?: string): unknown {
  if (!(error instanceof Error)) return error;
  const { code, errno, path: named = path } = error as NodeJS.ErrnoException;
  if (errno === undefined || named === undefined) return error;
  const [, reason] = getSystemErrorMap().get(errno) ?? [];
  return new NlacError("ERR_IO", `${named} cannot be used: ${reason ?? error.message} (${code}).`, {
    cause: error,
  });
}

/**
 * The message of anything that user code may throw. For a failed `fetch` it includes the cause, as
 * in "fetch failed: connect ECONNREFUSED 127.0.0.1:80".
 */
export function messageOf(error: unknown): string {
  try {
    if (!(error instanceof Error)) return String(error);
    const { message, cause } = error as { message: unknown; cause?: { message?: string; code?: string } };
    const reason = message === "fetch failed" ? cause?.message || cause?.code : undefined;
    return reason === undefined ? String(message) : `${message}: ${reason}`;
  } catch {
    return "an error without a readable message";
  }
}

/** Whether an error says that a signal was fired. */
export function isAborted(error: unknown): boolean {
  return error instanceof NlacError && error.code === "ERR_ABORTED";
}

/** As `signal.throwIfAborted`, with NlacError. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted)
    throw new NlacError("ERR_ABORTED", "The operation was aborted.", { cause: signal.reason });
}

/** Whether `error` says that a service's budget is spent, so that nothing else can use it. */
export function isBudgetSpent(error: unknown): error is NlacError {
  return error instanceof NlacError && error.code === "ERR_BUDGET";
}
