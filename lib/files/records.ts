/**
 * Append-only record files: one JSON object per line, each with a checksum.
 *
 *   {"checksum":"9ab3…","record":{…}}        CRC-32 of the record's JSON text, eight hex digits
 *   {"checksum":"…","record":{…},"more":true}   it counts only together with the next line
 *
 * What a crash leaves of a last write is dropped: an unfinished last line that starts like a record,
 * or records with sectors of zeros, which did not reach the disk; with them all lines that count only
 * together. Any other damage is an error that names the line.
 */

import {
  chmodSync,
  closeSync,
  existsSync,
  fstatSync,
  openSync,
  readSync,
  realpathSync,
  rmSync,
  statSync,
} from "node:fs";
import { dirname } from "node:path";
import { crc32 } from "node:zlib";
import type { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { slices } from "../base/slices.ts";
import { firstIssue } from "../base/validation.ts";
import { AppendOnlyFile, type FileStart, onDisk, removeIfPossible } from "./disk.ts";
import { type Lock, lockNow } from "./lock.ts";

function checksum(text: string | Uint8Array): string {
  return crc32(text).toString(16).padStart(8, "0");
}

/** The text before the record: ASCII, of constant length. */
function opening(checksum: string): string {
  return `{"checksum":"${checksum}","record":`;
}

const openingBytes = opening("00000000").length;

/**
 * The text after a record, before the line break. JSON of a record and `}` never ends with `more`.
 */
const endings = { last: "}", more: ',"more":true}' } as const;

function lineOf(record: unknown, more = false): Uint8Array {
  const text = JSON.stringify(record);
  return Buffer.from(`${opening(checksum(text))}${text}${more ? endings.more : endings.last}\n`);
}

export class RecordWriter {
  #file: AppendOnlyFile;
  readonly #lock: Lock | undefined;
  /** While the file is replaced: the lines appended since that began. */
  #appended: Uint8Array[] | undefined;
  #replacing: Promise<void> = Promise.resolve();
  #replacements = 0;
  #closed = false;

  /**
   * Opens `path` for appending, truncated to `start` if given. The caller makes sure that no other
   * process writes to it. Throws ERR_RUN when it is shorter, ERR_IO.
   */
  constructor(path: string, start?: number | FileStart, lock?: Lock) {
    this.#file = new AppendOnlyFile(path, start);
    this.#lock = lock;
  }

  /**
   * Opens `path`, or creates it, for appending, and locks it (`path`.lock). What a crash left of the
   * last write is removed.
   *
   * @param isPrivate whether a new file can be read by its owner only
   * @param unsynced whether several writes may follow the last sync: what comes after a sector of
   *   zeros is then removed too
   * @throws NlacError ERR_RUN for a file with anything but records, which is not changed, and for
   *   one that another process appends to; ERR_IO
   */
  static resume(path: string, { unsynced = false, isPrivate = false } = {}): RecordWriter {
    const lock = lockRecords(path);
    try {
      if (existsSync(path)) return new RecordWriter(path, recordedBytes(path, unsynced), lock);
      if (isPrivate) onDisk(path, () => closeSync(openSync(path, "a", 0o600)));
      return new RecordWriter(path, 0, lock);
    } catch (error) {
      lock?.release();
      throw error;
    }
  }

  append(record: unknown): void {
    this.#append(lineOf(record), (line) => this.#file.append(line));
  }

  /**
   * Appends all of the records, with one write, and flushes the file. If that fails, or the process
   * is killed meanwhile, none of them remains.
   */
  appendDurably(...records: unknown[]): void {
    const lines = records.map((record, i) => lineOf(record, i < records.length - 1));
    this.#append(Buffer.concat(lines), (lines) => this.#file.appendDurably(lines));
  }

  #append(lines: Uint8Array, write: (lines: Uint8Array) => void): void {
    write(lines);
    this.#appended?.push(lines);
  }

  /** Flushes the file to disk. Returns its length in bytes. */
  sync(): number {
    return this.#file.sync();
  }

  /** Throws ERR_IO if the file was deleted, replaced or shortened since it was opened. */
  requireUnchanged(): void {
    this.#file.requireUnchanged();
  }

  /** As `AppendOnlyFile.seal`. */
  seal(): { bytes: number; sha256: string } {
    return this.#file.seal();
  }

  get path(): string {
    return this.#file.path;
  }

  /** Length of the file in bytes. */
  get bytes(): number {
    return this.#file.bytes;
  }

  /** How often the content was replaced: offsets of records are those of other records then. */
  get replacements(): number {
    return this.#replacements;
  }

  /**
   * Closes the file. A replacement in progress ends with ERR_ABORTED and leaves the file as it was.
   */
  close(): void {
    this.#closed = true;
    this.#file.close();
    this.#lock?.release();
  }

  /**
   * Replaces the file's content by `records`, followed by what is appended meanwhile; it is then on
   * disk. The event loop gets turns between the records. A second replacement waits for the first.
   *
   * @param records called when the replacement begins; may read the file up to its present length
   * @throws NlacError ERR_IO, ERR_ABORTED if the file is closed; the file is then unchanged, or
   *   replaced if only the last sync failed
   */
  replace(records: () => Iterable<unknown>): Promise<void> {
    const replaced = this.#replacing.then(() => this.#replace(records));
    this.#replacing = replaced.catch(() => undefined);
    return replaced;
  }

  async #replace(records: () => Iterable<unknown>): Promise<void> {
    this.#requireOpen();
    const turn = slices();
    const appended: Uint8Array[] = [];
    this.#appended = appended;
    const written = this.#newPartial();
    try {
      for (const record of records()) {
        written.append(lineOf(record));
        await turn();
        this.#requireOpen();
      }
      await written.syncInBackground();
      this.#requireOpen();
      // From here on in one turn: nothing is appended in between.
      for (const line of appended) written.append(line);
      this.#putInPlace(written);
    } catch (error) {
      if (this.#file !== written) remove(written);
      throw error;
    } finally {
      this.#appended = undefined;
    }
  }

  /** As `replace`, at once: for the start of a process, before others wait for the event loop. */
  replaceNow(records: Iterable<unknown>): void {
    const written = this.#newPartial();
    try {
      for (const record of records) written.append(lineOf(record));
      this.#putInPlace(written);
    } catch (error) {
      if (this.#file !== written) remove(written);
      throw error;
    }
  }

  /** With the permissions of the file, which it will replace. */
  #newPartial(): AppendOnlyFile {
    const partial = `${this.path}.partial`;
    onDisk(partial, () => rmSync(partial, { force: true }));
    const earlier = onDisk(this.path, () => statSync(this.path, { throwIfNoEntry: false }));
    if (earlier !== undefined)
      onDisk(partial, () => {
        closeSync(openSync(partial, "wx", 0o600));
        chmodSync(partial, earlier.mode & 0o777);
      });
    return new AppendOnlyFile(partial);
  }

  #putInPlace(written: AppendOnlyFile): void {
    written.sync();
    const earlier = this.#file;
    written.moveTo(earlier.path);
    // Whatever fails now: the earlier file has no name any more, and what it gets would be lost.
    this.#file = written;
    this.#replacements++;
    earlier.close();
    written.sync();
  }

  #requireOpen(): void {
    if (this.#closed) throw new NlacError("ERR_ABORTED", `${this.path} was closed.`);
  }
}

/** Closes and removes a file that was not finished. */
function remove(file: AppendOnlyFile): void {
  file.close();
  removeIfPossible(file.path);
}

/**
 * Locks a file of records for this process. Devices and pipes are not locked.
 * @throws NlacError ERR_RUN when another process appends to it, ERR_IO
 */
export function lockRecords(path: string): Lock | undefined {
  const found = onDisk(path, () => statSync(path, { throwIfNoEntry: false }));
  if (found !== undefined && !found.isFile()) return undefined;
  if (found === undefined && !existsSync(dirname(path)))
    throw new NlacError("ERR_IO", `${path} cannot be written: there is no directory ${dirname(path)}.`);
  const file = found === undefined ? path : realpathSync(path);
  return lockNow(`${file}.lock`, path, "ERR_RUN");
}

/**
 * The records of a file in order, one in memory at a time.
 *
 * @param options.chunkBytes bytes per read
 * @param options.bytes length up to which the file is read. Default: all of it
 * @throws NlacError ERR_RUN with the line number for damage other than an unfinished end; ERR_IO
 */
export function* readRecords<T>(
  path: string,
  { chunkBytes = 2 ** 20, bytes = Number.POSITIVE_INFINITY } = {},
): Generator<T> {
  if (bytes <= 0) return;
  for (const { record, end } of readPlacedRecords(path, { chunkBytes })) {
    yield record as T;
    if (end >= bytes) return;
  }
}

/** A record, and the byte offsets of its line in the file. */
export interface PlacedRecord {
  record: unknown;
  start: number;
  end: number;
}

/**
 * As `readRecords`, of records that fit `schema`. Throws ERR_RUN that names the line and the field
 * also for another record.
 */
export function* readRecordsOf<T>(path: string, schema: z.ZodType<T>): Generator<T> {
  let line = 0;
  for (const record of readRecords(path)) yield recordOf(schema, record, lineAt(path, ++line));
}

/** `record` as `schema` has it. Throws ERR_RUN that names `where` and the field. */
export function recordOf<T>(schema: z.ZodType<T>, record: unknown, where: string): T {
  const parsed = schema.safeParse(record);
  if (parsed.success) return parsed.data;
  throw new NlacError("ERR_RUN", `${where}: ${firstIssue(parsed.error)}.`);
}

/** A line in messages; the first is 1, at byte `from`. */
export function lineAt(path: string, line: number, from = 0): string {
  return `${path}: line ${line}${from > 0 ? ` after byte ${from}` : ""}`;
}

/**
 * Whether the last line of a file of records is unfinished. A process that ended as it should
 * leaves no such line. Throws ERR_IO.
 */
export function endsUnfinished(path: string): boolean {
  return onDisk(path, () => {
    const fd = openSync(path, "r");
    try {
      const last = Buffer.alloc(1);
      const { size } = fstatSync(fd);
      return size > 0 && readSync(fd, last, 0, 1, size - 1) === 1 && last[0] !== newline;
    } finally {
      closeSync(fd);
    }
  });
}

/** Number of complete lines, damaged ones included. Throws ERR_IO. */
export function countLines(path: string): number {
  return onDisk(path, () => {
    const fd = openSync(path, "r");
    try {
      const chunk = Buffer.alloc(2 ** 20);
      let lines = 0;
      for (let bytes = readSync(fd, chunk); bytes > 0; bytes = readSync(fd, chunk))
        for (let i = 0; i < bytes; i++) if (chunk[i] === newline) lines++;
      return lines;
    } finally {
      closeSync(fd);
    }
  });
}

const newline = 0x0a;

/**
 * Bytes of `path` up to the end of its last whole record. `unsynced`: see `RecordWriter.resume`.
 * Throws as `readRecords`.
 */
export function recordedBytes(path: string, unsynced = false): number {
  let whole = 0;
  for (const { end } of readPlacedRecords(path, { unsynced })) whole = end;
  return whole;
}

/**
 * As `readRecords`, with the places of the records, from byte `from` on, where one begins. Of records
 * that count together, it returns all or none. `unsynced`: see `RecordWriter.resume`.
 */
export function* readPlacedRecords(
  path: string,
  { chunkBytes = 2 ** 20, unsynced = false, from = 0 },
): Generator<PlacedRecord> {
  const fd = onDisk(path, () => openSync(path, "r"));
  try {
    const chunk = Buffer.alloc(chunkBytes);
    let begun: Buffer[] = []; // the part of the line in earlier chunks
    let together: PlacedRecord[] = [];
    let lines = 0;
    let read = from;
    let offset = from; // of the line
    // After a line that lacks sectors, and whether the next one belongs to the same write.
    let torn: { fault: NlacError; goesOn: boolean } | undefined;
    for (;;) {
      const bytes = chunk.subarray(
        0,
        // A pipe has no positions.
        onDisk(path, () => readSync(fd, chunk, 0, chunkBytes, from > 0 ? read : null)),
      );
      if (bytes.length === 0) break;
      let start = 0;
      for (let end = bytes.indexOf("\n"); end >= 0; end = bytes.indexOf("\n", start)) {
        const line = Buffer.concat([...begun, bytes.subarray(start, end)]);
        begun = [];
        start = end + 1;
        lines++;
        const begin = offset;
        offset = read + start;
        if (torn !== undefined) {
          if (!torn.goesOn) throw torn.fault;
          torn.goesOn = unsynced || hasMore(line);
          continue;
        }
        try {
          together.push({ record: parseLine(line, lineAt(path, lines, from)), start: begin, end: offset });
        } catch (error) {
          if (!lacksSectors(Buffer.concat([line, Buffer.from("\n")]), begin)) throw error;
          torn = { fault: error as NlacError, goesOn: unsynced || hasMore(line) };
          continue;
        }
        if (hasMore(line)) continue;
        yield* together;
        together = [];
      }
      begun.push(Buffer.from(bytes.subarray(start)));
      read += bytes.length;
    }
    // A complete file ends with a newline; the rest of an interrupted write may follow.
    const rest = Buffer.concat(begun);
    if (torn !== undefined && !torn.goesOn && rest.length > 0) throw torn.fault;
    if (torn === undefined && !beginsAsRecord(rest) && !lacksSectors(rest, offset))
      throw new NlacError("ERR_RUN", `${lineAt(path, lines + 1, from)} is not a record.`);
  } finally {
    closeSync(fd);
  }
}

/** Whether an unfinished line starts like a record, as far as it goes. */
export function beginsAsRecord(line: Buffer): boolean {
  const begins = line.toString("latin1", 0, openingBytes);
  const digits = /^\{"checksum":"([0-9a-f]*)/.exec(begins)?.[1] ?? "";
  return opening(digits.padEnd(8, "0")).startsWith(begins);
}

/** The smallest unit that a disk writes at once, in bytes. */
const sectorBytes = 512;

/**
 * Whether whole sectors of a line are zeros, as a crash leaves sectors that did not reach the disk.
 * Other zeros are damage: the result is then false.
 *
 * @param offset of the line in its file
 */
function lacksSectors(line: Buffer, offset: number): boolean {
  let lacking = false;
  for (let start = 0; start < line.length; ) {
    const end = start + sectorBytes - ((offset + start) % sectorBytes);
    const sector = line.subarray(start, end);
    const zeros = sector.every((byte) => byte === 0);
    if (!zeros && sector.includes(0)) return false;
    lacking ||= zeros;
    start = end;
  }
  return lacking;
}

/** Whether the record of a line counts only together with the next one. */
function hasMore(line: Buffer): boolean {
  return line.toString("latin1", line.length - endings.more.length) === endings.more;
}

/**
 * The record of a line, given without its line break. The checksum is verified on bytes, before
 * they are decoded. Throws ERR_RUN that names `where`.
 */
export function parseLine(line: Buffer, where: string): unknown {
  const ending = hasMore(line) ? endings.more : endings.last;
  const record = line.subarray(openingBytes, -ending.length);
  const begins = line.toString("latin1", 0, openingBytes) === opening(checksum(record));
  if (!begins || line.at(-1) !== "}".charCodeAt(0)) {
    throw new NlacError("ERR_RUN", `${where} is damaged (wrong checksum).`);
  }
  try {
    return JSON.parse(record.toString("utf8"));
  } catch (error) {
    throw new NlacError("ERR_RUN", `${where} is not a record.`, { cause: error });
  }
}
