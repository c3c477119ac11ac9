/**
 * Installs some members of a wheel, read by HTTP ranges: nlac needs a quarter of torch's wheel. The
 * wheel's RECORD has a pinned SHA-256 and lists the SHA-256 of every other member.
 */

import { createHash } from "node:crypto";
import { createWriteStream, mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { Readable, Transform } from "node:stream";
import { buffer } from "node:stream/consumers";
import { pipeline } from "node:stream/promises";
import yauzl, { type Entry, type ZipFile } from "yauzl";
import { NlacError } from "../base/errors.ts";
import { fetchRange, type RangeOptions } from "./download.ts";
import { memberPath } from "./unzip.ts";
import { distInfo, type Wheel } from "./wheels.ts";

export interface WheelPartsOptions extends RangeOptions {
  url: string;
  wheel: Wheel;
  /** Names of members; a name that ends with "/" stands for all members below it. */
  members: readonly string[];
  directory: string;
  /** Called with the number of bytes received so far. */
  onProgress?: (received: number) => void;
}

/** Bytes of one request. */
const WINDOW = 8 << 20;

/**
 * Writes the members below `directory`, checked against the wheel's RECORD. Throws ERR_DOWNLOAD,
 * also if the server does not support ranges.
 */
export async function installWheelParts(options: WheelPartsOptions): Promise<void> {
  const { wheel, members, directory } = options;
  const refuse = (reason: string, cause?: unknown) =>
    new NlacError("ERR_DOWNLOAD", `${wheel.file}: ${reason}`, { cause });
  try {
    const zip = await yauzl.fromRandomAccessReaderPromise(new RangeReader(options), wheel.bytes, {
      validateEntrySizes: true,
      strictFileNames: true,
      autoClose: false,
    });
    try {
      const entries: Entry[] = [];
      for await (const entry of zip.eachEntry()) entries.push(entry);
      // By position, so that neighbours share a request.
      const wanted = entries
        .filter(({ fileName }) => members.some((name) => isPartOf(fileName, name)))
        .sort((a, b) => a.relativeOffsetOfLocalHeader - b.relativeOffsetOfLocalHeader);
      const lacking = members.find((name) => !wanted.some(({ fileName }) => isPartOf(fileName, name)));
      if (lacking !== undefined) throw refuse(`it has no ${lacking}`);
      const sums = await readRecord(zip, entries, wheel);
      for (const entry of wanted) {
        const path = memberPath(entry);
        if (path === undefined) throw refuse(`the member ${JSON.stringify(entry.fileName)} is refused`);
        const target = join(directory, path);
        mkdirSync(dirname(target), { recursive: true });
        if ((await write(zip, entry, target)) !== sums.get(entry.fileName))
          throw refuse(`${entry.fileName} differs from its record`);
      }
    } finally {
      zip.close();
    }
  } catch (error) {
    throw error instanceof NlacError ? error : refuse((error as Error).message, error);
  }
}

const isPartOf = (name: string, pattern: string) =>
  pattern.endsWith("/") ? name.startsWith(pattern) && !name.endsWith("/") : name === pattern;

/** The base64url SHA-256 of every member, by name. */
async function readRecord(zip: ZipFile, entries: Entry[], wheel: Wheel): Promise<Map<string, string>> {
  const name = `${distInfo(wheel)}/RECORD`;
  const entry = entries.find(({ fileName }) => fileName === name);
  if (entry === undefined) throw new NlacError("ERR_DOWNLOAD", `${wheel.file}: it has no ${name}`);
  const record = await buffer(await zip.openReadStreamPromise(entry));
  const actual = createHash("sha256").update(record).digest("hex");
  if (actual !== wheel.parts?.record)
    throw new NlacError(
      "ERR_DOWNLOAD",
      `${wheel.file}: SHA-256 of RECORD is ${actual}, expected ${wheel.parts?.record}`,
    );
  const lines = record.toString("utf8").matchAll(/^"?(.+?)"?,sha256=([\w-]+),\d+\r?$/gm);
  return new Map([...lines].map(([, member, sum]) => [member!, sum!]));
}

/** Writes one member. Returns its SHA-256 in base64url. */
async function write(zip: ZipFile, entry: Entry, target: string): Promise<string> {
  const mode = (entry.externalFileAttributes >>> 16) & 0o111 ? 0o755 : 0o644;
  const hash = createHash("sha256");
  const source = await zip.openReadStreamPromise(entry);
  if (entry.uncompressedSize < WINDOW) {
    const data = await buffer(source);
    writeFileSync(target, data, { mode });
    return hash.update(data).digest("base64url");
  }
  const hashing = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      hash.update(chunk);
      done(null, chunk);
    },
  });
  await pipeline(source, hashing, createWriteStream(target, { mode }));
  return hash.digest("base64url");
}

/**
 * Reads a remote file in windows. The last window is kept, the next of a long read is prefetched.
 */
class RangeReader extends yauzl.RandomAccessReader {
  readonly #options: WheelPartsOptions;
  #window: { start: number; bytes: Buffer } = { start: 0, bytes: Buffer.alloc(0) };
  #received = 0;

  constructor(options: WheelPartsOptions) {
    super();
    this.#options = options;
  }

  override _readStreamForRange(start: number, end: number): Readable {
    return Readable.from(this.#pieces(start, end));
  }

  override read(
    target: Buffer,
    offset: number,
    length: number,
    position: number,
    done: (error: Error | null) => void,
  ): void {
    (async () => {
      let filled = 0;
      for await (const piece of this.#pieces(position, position + length))
        filled += piece.copy(target, offset + filled);
    })().then(() => done(null), done);
  }

  async *#pieces(start: number, end: number): AsyncGenerator<Buffer> {
    let next: Promise<{ start: number; bytes: Buffer }> | undefined;
    for (let at = start; at < end; ) {
      const held = () => at - this.#window.start;
      if (held() < 0 || held() >= this.#window.bytes.length) {
        this.#window = await (next ?? this.#fetch(at));
        const following = this.#window.start + this.#window.bytes.length;
        next = following < end ? this.#fetch(following) : undefined;
        next?.catch(() => {}); // reported when it is awaited
      }
      const piece = this.#window.bytes.subarray(held(), held() + end - at);
      at += piece.length;
      yield piece;
    }
  }

  async #fetch(start: number): Promise<{ start: number; bytes: Buffer }> {
    const { url, wheel, onProgress } = this.#options;
    const bytes = await fetchRange(
      url,
      start,
      Math.min(start + WINDOW, wheel.bytes),
      wheel.bytes,
      this.#options,
    );
    this.#received += bytes.length;
    onProgress?.(this.#received);
    return { start, bytes };
  }
}
