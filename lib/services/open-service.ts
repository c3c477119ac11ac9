/**
 * Opens whoever plays a person of an environment: a model behind an API, a model in this process, a recording of one,
 * or a script.
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

/** A person by rules: the reply to the messages. */
export type Script = (messages: readonly Message[], options?: CompletionOptions) => string | Promise<string>;

/** Keeps what is asked and replied. */
export interface RecordOption {
  /** A file to record to, or to go on with: what is in it already is not asked again. recording.ts says more. */
  record?: string;
}

/** Replies from a file that `record` wrote: offline, and always the same. */
export interface RecordingOptions {
  recording: string;
}

export type ServiceSource =
  | (ServiceOptions & RecordOption)
  | (LocalServiceOptions & RecordOption)
  | RecordingOptions
  | ChatService
  | Script;

/**
 * Opens a service; nothing is asked or loaded yet, and only recordings are read. A service that was made elsewhere
 * comes back as it is.
 *
 * @throws NlacError ERR_CONFIG for options that do not validate or a recording that does not fit, ERR_IO
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
      throw new NlacError("ERR_CONFIG", `A recording is played as it is: it takes no option "${other}".`);
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
