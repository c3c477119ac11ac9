/**
 * Recordings of a service: one request and its reply per line, so that the same episodes can be
 * played again offline.
 *
 * The key of a request is the SHA-256 of the model, the messages, maxTokens, the temperature and,
 * if that is above 0, the seed. Each key has one reply. While recording, a request whose key is in
 * the file is answered from it, even if another episode added it concurrently. So the order of
 * requests does not matter, repeated episodes equal the recorded ones, and an interrupted recording
 * can be continued. Requests that should get different replies need different seeds.
 *
 * The file format is that of lib/files/records.ts. The first record names the service. A last line
 * that a crash left unfinished is dropped; other damage is an error. Only one process may record to
 * a file at a time: it is locked.
 */

import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { z } from "zod";
import { NlacError, throwIfAborted } from "../base/errors.ts";
import { type Message, nothingUsed } from "../contract/environment.ts";
import { lockRecords, RecordWriter, readRecords, recordedBytes } from "../files/records.ts";
import { asHeard, type ChatService, type CompletionOptions } from "./chat-service.ts";

const settings = { maxTokens: z.number().optional(), temperature: z.number().optional() };
const headerSchema = z.strictObject({
  format: z.literal(1),
  model: z.string(),
  defaults: z.strictObject(settings),
});
const askedSchema = z.strictObject({
  model: z.string(),
  messages: z.array(z.strictObject({ role: z.string(), content: z.string() })),
  ...settings,
  seed: z.number().optional(),
});
const replySchema = z.object({
  reply: z.string(),
  /** True if the reply was truncated at maxTokens. */
  cut: z.literal(true).optional(),
});
const entrySchema = z.strictObject({ key: z.string(), request: askedSchema, ...replySchema.shape });

type Header = z.output<typeof headerSchema>;
/** Everything that a reply depends on. */
type Asked = z.output<typeof askedSchema>;
type Reply = z.output<typeof replySchema>;

/** An open recording, shared by the services that record to its file. */
interface OpenRecording {
  header: Header;
  replies: Map<string, Reply>;
  writer: RecordWriter;
  users: number;
}

const open = new Map<string, OpenRecording>();

/**
 * Returns `service` with all replies recorded to `file`, each flushed to disk before it is
 * returned. Throws ERR_CONFIG if the file is not a recording or of another service, ERR_RUN if
 * another process records to it, ERR_IO.
 */
export function recordService(service: ChatService, file: string): ChatService {
  const path = resolve(file);
  const header: Header = { format: 1, model: service.model, defaults: service.defaults ?? {} };
  const known = open.get(path);
  if (known !== undefined) requireSame(known.header, header, file);
  const recording = known ?? openRecording(path, header);
  open.set(path, recording);
  recording.users++;
  let closed = false;
  return {
    model: service.model,
    defaults: header.defaults,
    usage: () => service.usage(),
    async complete(messages, options = {}) {
      throwIfAborted(options.signal);
      if (closed) throw new NlacError("ERR_DISPOSED", `The recording to ${file} is closed.`);
      const request = askedOf(header, messages, options);
      const key = keyOf(request);
      const known = recording.replies.get(key);
      if (known !== undefined) return read(known, options);
      let cut: Reply["cut"];
      const onCut = () => {
        cut = true;
      };
      const given = { reply: await service.complete(messages, { ...options, onCut }), cut };
      const first = recording.replies.get(key);
      if (first !== undefined) return read(first, options);
      if (closed) throw new NlacError("ERR_DISPOSED", `The recording to ${file} is closed.`);
      recording.writer.appendDurably({ key, request, ...given });
      recording.replies.set(key, given);
      return read(given, options);
    },
    async close() {
      if (closed) return;
      closed = true;
      if (--recording.users === 0) {
        open.delete(path);
        recording.writer.close();
      }
      await service.close?.();
    },
  };
}

/** Whether the first record of `file` is that of a service's recording. Throws ERR_IO. */
export function isRecording(file: string): boolean {
  for (const record of records(file)) return headerSchema.safeParse(record).success;
  return false;
}

/** Plays the recording in `file`. Throws ERR_CONFIG if there is none, ERR_IO if it is damaged. */
export function playRecording(file: string): ChatService {
  const recorded = existsSync(file) ? readRecording(file) : undefined;
  if (recorded === undefined) {
    throw new NlacError(
      "ERR_CONFIG",
      `There is no recording in ${file}. Record one with a service's option "record".`,
    );
  }
  const { header, replies } = recorded;
  let requests = 0;
  return {
    model: header.model,
    defaults: header.defaults,
    // Recorded replies cost nothing.
    usage: () => ({ ...nothingUsed, requests }),
    async complete(messages, options = {}) {
      throwIfAborted(options.signal);
      requests++;
      const request = askedOf(header, messages, options);
      const reply = replies.get(keyOf(request));
      if (reply === undefined) {
        throw new NlacError("ERR_SERVICE", `${file} has no reply to a request. ${nearest(file, request)}`);
      }
      return read(reply, options);
    },
  };
}

function read({ reply, cut }: Reply, { onCut }: CompletionOptions): string {
  if (cut) onCut?.();
  return reply;
}

function openRecording(path: string, header: Header): OpenRecording {
  const lock = lockRecords(path);
  try {
    const recorded = existsSync(path) ? readRecording(path) : undefined;
    if (recorded !== undefined) requireSame(recorded.header, header, path);
    const writer = new RecordWriter(path, recorded === undefined ? 0 : recordedBytes(path), lock);
    if (recorded === undefined) writer.append(header);
    return { header, replies: new Map(), ...recorded, writer, users: 0 };
  } catch (error) {
    lock?.release();
    throw error;
  }
}

/** Throws ERR_CONFIG unless the recording in `file` is of the service with `header`. */
function requireSame(recorded: Header, header: Header, file: string): void {
  if (keyOf(recorded) === keyOf(header)) return;
  throw new NlacError(
    "ERR_CONFIG",
    `${file} is a recording of ${described(recorded)}, not of ${described(header)}: record to another file.`,
  );
}

/** Undefined for a file without records. */
function readRecording(path: string): Pick<OpenRecording, "header" | "replies"> | undefined {
  const replies: OpenRecording["replies"] = new Map();
  let header: Header | undefined;
  for (const record of records(path)) {
    if (header === undefined) {
      header = checked(headerSchema, record, path);
      continue;
    }
    const { key, reply, cut } = checked(entrySchema, record, path);
    if (!replies.has(key)) replies.set(key, { reply, cut });
  }
  return header === undefined ? undefined : { header, replies };
}

function* records(path: string): Generator<unknown> {
  try {
    yield* readRecords(path);
  } catch (error) {
    if (!(error instanceof NlacError) || error.code !== "ERR_RUN") throw error;
    throw new NlacError("ERR_IO", `The recording cannot be played: ${error.message}`, { cause: error });
  }
}

function checked<T>(schema: z.ZodType<T>, record: unknown, path: string): T {
  const parsed = schema.safeParse(record);
  if (!parsed.success) throw new NlacError("ERR_CONFIG", `${path} is not the recording of a service.`);
  return parsed.data;
}

function askedOf(
  { model, defaults }: Header,
  messages: readonly Message[],
  { maxTokens = defaults.maxTokens, temperature = defaults.temperature, seed }: CompletionOptions,
): Asked {
  return {
    model,
    messages: messages.map(asHeard),
    ...(maxTokens === undefined ? {} : { maxTokens }),
    ...(temperature === undefined ? {} : { temperature }),
    ...(seed === undefined || temperature === 0 ? {} : { seed }),
  };
}

/** Hash of a value whose keys are always in the same order. */
function keyOf(value: Asked | Header): string {
  return createHash("sha256").update(JSON.stringify(value)).digest("hex");
}

function described({ model, defaults }: Header): string {
  return `${model} ${JSON.stringify(defaults)}`;
}

/** The most similar recorded request and where the two differ, in words. */
function nearest(path: string, request: Asked): string {
  let best: { entry: Asked; messages: number; characters: number } | undefined;
  for (const record of records(path)) {
    const parsed = entrySchema.safeParse(record);
    if (!parsed.success) continue; // the header
    const entry = parsed.data.request;
    const parting = request.messages.findIndex(
      (message, i) =>
        message.role !== entry.messages[i]?.role || message.content !== entry.messages[i]?.content,
    );
    const messages = parting < 0 ? request.messages.length : parting;
    const characters = commonPrefix(
      request.messages[messages]?.content ?? "",
      entry.messages[messages]?.content ?? "",
    );
    if (
      best === undefined ||
      messages > best.messages ||
      (messages === best.messages && characters > best.characters)
    ) {
      best = { entry, messages, characters };
    }
  }
  if (best === undefined) return "Nothing was recorded in it.";
  const { entry, messages, characters } = best;
  const { messages: _, ...asked } = request;
  if (messages === request.messages.length && messages === entry.messages.length) {
    const { messages: _, ...recorded } = entry;
    return `Its messages were recorded with ${JSON.stringify(recorded)}, but asked with ${JSON.stringify(asked)}.`;
  }
  const excerpt = (message: Asked["messages"][number] | undefined) => {
    if (message === undefined) return "nothing";
    const text = message.content.slice(Math.max(0, characters - 40), characters + 40);
    return `${message.role}: ${JSON.stringify(text)}`;
  };
  return (
    `The nearest recorded one agrees in ${messages} of its ${request.messages.length} messages; then it has ` +
    `${excerpt(entry.messages[messages])} where this request has ${excerpt(request.messages[messages])}.`
  );
}

function commonPrefix(a: string, b: string): number {
  let length = 0;
  while (length < Math.min(a.length, b.length) && a[length] === b[length]) length++;
  return length;
}
