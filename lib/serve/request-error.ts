/**
 * Errors of requests in OpenAI's format, and how other errors become responses: without the server's
 * paths, which only its log has.
 */

import { counted } from "../base/counted.ts";
import { type ErrorCode, NlacError } from "../base/errors.ts";

/** Maximum length of an error's message, which may quote the request. */
const maxMessage = 1000;

/** A response with an error status. */
export class RequestError extends Error {
  readonly status: 400 | 401 | 403 | 404 | 408 | 413 | 415 | 429 | 500 | 503;
  readonly code: string | null;
  readonly parameter: string | null;

  constructor(
    status: RequestError["status"],
    message: string,
    code: string | null = null,
    parameter: string | null = null,
    options?: ErrorOptions,
  ) {
    super(message.length > maxMessage ? `${message.slice(0, maxMessage)}…` : message, options);
    this.status = status;
    this.code = code;
    this.parameter = parameter;
  }

  /** OpenAI's name for errors of this status. */
  get type(): string {
    if (this.status === 429) return "rate_limit_error";
    return this.status >= 500 ? "server_error" : "invalid_request_error";
  }

  /** The body in OpenAI's format. */
  get body() {
    const { message, type, code, parameter: param } = this;
    return { error: { message, type, param, code } };
  }
}

export function badRequest(
  message: string,
  parameter: string | null = null,
  code = parameter === null ? "invalid_request" : "invalid_value",
) {
  return new RequestError(400, message, code, parameter);
}

export function noEpisode(name: string): RequestError {
  return new RequestError(
    404,
    `There is no episode ${name}: no request with this x-episode-id was answered, or the episode was deleted, ` +
      "or lost when a server without --train stopped.",
    "episode_not_found",
  );
}

/** The error of a request for a turn that an episode of `turns` turns does not have. */
export function noTurn(turns: number): RequestError {
  return badRequest(`The episode has ${counted(turns, "turn")}; the first is turn 0.`, "turn");
}

/** Throws a RequestError of status 400 for an episode that is held out of training. */
export function requireTrained(episode: string, split: "test" | undefined): void {
  if (split === "test")
    throw badRequest(
      `Episode ${episode} is of the split "test": nothing is learned from it.`,
      null,
      "held_out",
    );
}

/** What failed, in words without the server's paths, which messages of these errors may contain. */
const failures: Partial<Record<ErrorCode, string>> = {
  ERR_IO: "The server cannot read or write one of its files.",
  ERR_RUN: "The server cannot use its run directory.",
  ERR_CHECKPOINT: "The server cannot use a checkpoint.",
  ERR_MODEL_NOT_FOUND: "The server cannot find the files of a model.",
  ERR_MODEL_FORMAT: "The server cannot use the files of a model.",
  ERR_DISPOSED: "The server has released the model.",
};

/** The code of an error, and a message about it for clients. */
export function failureOf(error: unknown): { code: ErrorCode; message: string } {
  const code = error instanceof NlacError ? error.code : "ERR_INTERNAL";
  const what = failures[code] ?? "The server failed.";
  return { code, message: `${what} Read its log for ${code}, then send the request again.` };
}

/**
 * Any error as a response. Failures of the server do not reveal details: these are in the response's
 * `cause`, which is logged.
 */
export function asRequestError(error: unknown): RequestError {
  if (error instanceof RequestError) return error;
  if (error instanceof NlacError) {
    const { code, message } = error;
    if (code === "ERR_VALUE" || code === "ERR_TOKENIZER" || code === "ERR_CONFIG")
      return badRequest(message, null, code);
    if (code === "ERR_OUT_OF_MEMORY" || code === "ERR_ABORTED") return new RequestError(503, message, code);
  }
  const { code, message } = failureOf(error);
  return new RequestError(500, message, code, null, { cause: error });
}

/** A failure of the server for its log: a stack, and those of its causes. */
export function loggedFailure(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const own = error.stack ?? error.message;
  if (error.cause === undefined) return own;
  // The response's own stack says only where the failure was converted.
  const cause = loggedFailure(error.cause);
  return error instanceof RequestError ? cause : `${own}\ncaused by: ${cause}`;
}
