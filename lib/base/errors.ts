/**
 * Every error nlac throws on purpose: a class with a stable `code`. The C++ core names the same codes, and
 * the binding hands them over; `fromNative` turns what arrives into these classes.
 */

import { getSystemErrorMap } from "node:util";

export type ErrorCode =
  | "ERR_VALUE" // an argument out of its range
  | "ERR_SHAPE" // lengths or shapes that do not fit together
  | "ERR_INDEX" // an index out of bounds
  | "ERR_PRIORITY" // a priority that is NaN, infinite or negative
  | "ERR_EMPTY" // sampling from an empty sampler or buffer
  | "ERR_DEVICE" // a device that is not there, or tensors on different ones
  | "ERR_LIBTORCH_NOT_FOUND" // libtorch 2.11.0 is nowhere to be found
  | "ERR_LIBTORCH_VERSION" // another version was found where one was asked for by name
  | "ERR_ADDON_NOT_FOUND" // the native addon was not built or does not load
  | "ERR_MODEL_NOT_FOUND" // no such model name, directory or file
  | "ERR_MODEL_FORMAT" // weights, configuration or tokenizer that cannot be used
  | "ERR_TOKENIZER" // text or template that the tokenizer refuses
  | "ERR_CONFIG" // a recipe or option that does not validate
  | "ERR_ENVIRONMENT" // an environment broke its contract or failed
  | "ERR_SERVICE" // an LLM service failed
  | "ERR_BUDGET" // what an LLM service may take was taken
  | "ERR_RUN" // a run directory that cannot be used
  | "ERR_CHECKPOINT" // a checkpoint that is missing, torn or does not fit
  | "ERR_NOT_FINITE" // ten steps in a row were not finite
  | "ERR_IO" // a file that cannot be read or written
  | "ERR_DOWNLOAD" // a download that failed or whose checksum is wrong
  | "ERR_OUT_OF_MEMORY"
  | "ERR_BUSY" // more is waiting than a caller that will not wait can have
  | "ERR_DISPOSED" // use after dispose()
  | "ERR_ABORTED" // an AbortSignal fired
  | "ERR_INTERNAL"; // a fault of nlac's own; please report it

export class NlacError extends Error {
  readonly code: ErrorCode;
  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = "NlacError";
    this.code = code;
  }
}

/** Wraps what the addon threw or rejected with: an Error carrying a `code` of the core. */
export function fromNative(error: unknown): NlacError {
  if (error instanceof NlacError) return error;
  const code = (error as { code?: unknown } | null)?.code;
  const message = error instanceof Error ? error.message : String(error);
  return new NlacError(
    typeof code === "string" && code.startsWith("ERR_") ? (code as ErrorCode) : "ERR_INTERNAL",
    message,
    {
      cause: error,
    },
  );
}

/**
 * What the file system refused (a permission, a full disk, a path through a file) as ERR_IO that names the file; any
 * other error comes back as it was. `path` is the file where Node does not name one: writing to a descriptor.
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

/** `signal.throwIfAborted` with nlac's own error. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted)
    throw new NlacError("ERR_ABORTED", "The operation was aborted.", { cause: signal.reason });
}

/** Whether `error` says that a service's budget is spent: then nothing that needs the service can go on. */
export function isBudgetSpent(error: unknown): boolean {
  return error instanceof NlacError && error.code === "ERR_BUDGET";
}
