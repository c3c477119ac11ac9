/**
 * Opens the service that plays a person in an environment: a model behind an API, a model in this
 * process, a recording, or a script.
 */

import { NlacError } from "../base/errors.ts";
import { type Message, nothingUsed } from "../contract/environment.ts";
import {
  type ChatService,
  type CompletionOptions,
  chatService,
  type ServiceOptions,
} from "./chat-service.ts";
import { type LocalServiceOptions, localService } from "./local.ts";
import { playRecording, recordService } from "./recording.ts";

/** A person played by code: returns the reply to the messages. */
export type Script = (messages: readonly Message[], options?: CompletionOptions) => string | Promise<string>;

/** Records requests and replies. */
export interface RecordOption {
  /**
   * File to record to; an existing file is appended to, and requests in it are answered from it.
   * See recording.ts.
   */
  record?: string;
}

/** Plays replies from a file that `record` wrote: offline and reproducible. */
export interface RecordingOptions {
  recording: string;
}

/** Where the completions of a service come from. */
export type ServiceSource =
  | (ServiceOptions & RecordOption)
  | (LocalServiceOptions & RecordOption)
  | RecordingOptions
  | ChatService
  | Script;

/**
 * Opens a service without sending a request or loading a model; only recordings are read. An
 * existing service is returned as it is.
 *
 * @throws NlacError ERR_CONFIG for invalid options or a recording that does not fit, ERR_IO
 */
export function openService(source: ServiceSource): ChatService {
  if (typeof source === "function") return scriptService(source);
  if (typeof source !== "object" || source === null) {
    throw new NlacError("ERR_CONFIG", "A service needs a model, a local model, a recording or a script.");
  }
  if ("complete" in source) return source;
  if ("recording" in source) {
    const { recording, ...others } = source;
    const other = Object.keys(others)[0];
    if (other !== undefined) {
      throw new NlacError(
        "ERR_CONFIG",
        `A recording is played as recorded, so the option "${other}" has no effect: remove it.`,
      );
    }
    return playRecording(recording);
  }
  const { record, ...options } = source;
  const service = "local" in options ? localService(options) : chatService(options);
  return record === undefined ? service : recordService(service, record);
}

function scriptService(script: Script): ChatService {
  let requests = 0;
  return {
    model: "script",
    async complete(messages, options) {
      requests++;
      return script(messages, options);
    },
    usage: () => ({ ...nothingUsed, requests }),
  };
}
