/**
 * Downloads a file over HTTP(S). Resumes after a broken connection or an earlier run. The file gets
 * its final name only if its checksum is correct.
 */

import { createHash } from "node:crypto";
import {
  closeSync,
  createReadStream,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  writeSync,
} from "node:fs";
import { type ClientRequest, get as httpGet, type IncomingMessage } from "node:http";
import { get as httpsGet } from "node:https";
import { dirname } from "node:path";
import { finished, pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { rootCertificates } from "node:tls";
import { HttpsProxyAgent } from "https-proxy-agent";
import { getProxyForUrl } from "proxy-from-env";
import { fromFileSystem, NlacError } from "../base/errors.ts";
import { hashFile } from "../files/checksums.ts";
import { renameSynced } from "../files/disk.ts";

export interface RangeOptions {
  /** Maximum attempts in a row without a new byte. Default 5. */
  attempts?: number;
  /** Timeout for the next bytes, in milliseconds. Default 30 000. */
  stallMs?: number;
  /** Delay before the first retry, in milliseconds; doubles each time. Default 500. */
  retryMs?: number;
}

export interface DownloadOptions extends RangeOptions {
  url: string;
  /** Final path. During the download the file is `path`.part. */
  path: string;
  /** The file's SHA-256 (64 digits), or the SHA-1 of its git blob (40 digits). */
  checksum: string;
  /** Authorization header. Sent only to the URL's own host, not to redirects. */
  authorization?: string;
  /** Size, if known; a longer reply is an error. */
  bytes?: number;
  onProgress?: (received: number, total: number | undefined) => void;
}

/**
 * Downloads the file unless `path` exists with the right checksum. Throws ERR_DOWNLOAD; the cause
 * of an HTTP error has its `status`.
 */
export async function download(options: DownloadOptions): Promise<void> {
  const { path, checksum } = options;
  const [kind, hash] = checksum.length === 40 ? ["git's name", gitName] : ["SHA-256", hashFile];
  if (existsSync(path)) {
    if ((await hash(path)) === checksum) return;
    rmSync(path);
  }
  mkdirSync(dirname(path), { recursive: true });
  const part = `${path}.part`;
  const resumed = sizeOf(part) > 0;
  await receive(options, part);
  let actual = await hash(part);
  if (actual !== checksum && resumed) {
    // The bytes of the earlier run may belong to another file: try again from the start.
    rmSync(part);
    await receive(options, part);
    actual = await hash(part);
  }
  if (actual !== checksum) {
    rmSync(part);
    throw new NlacError(
      "ERR_DOWNLOAD",
      `${redact(options.url)}: ${kind} is ${actual}, expected ${checksum}. The file was discarded.`,
    );
  }
  renameSynced(part, path);
}

/**
 * The bytes [start, end) of a file of `size` bytes. Throws ERR_DOWNLOAD, also if the server does
 * not support ranges or the file has another size.
 */
export async function fetchRange(
  url: string,
  start: number,
  end: number,
  size: number,
  options: RangeOptions = {},
): Promise<Buffer> {
  const { attempts = 5, stallMs = 30_000, retryMs = 500 } = options;
  for (let attempt = 1; ; attempt++) {
    try {
      const { reply } = await request(url, { range: `bytes=${start}-${end - 1}` }, stallMs);
      const range = `bytes ${start}-${end - 1}/${size}`;
      if (reply.statusCode !== 206 || reply.headers["content-range"] !== range) {
        reply.destroy();
        const status = reply.statusCode ?? 0;
        throw httpError(url, status, status > 206 ? `HTTP ${status}` : "the server does not support ranges");
      }
      const bytes = await readReply(reply, url, end - start);
      if (bytes.length === end - start) return bytes;
      throw new Error(`received ${bytes.length} of ${end - start} bytes`);
    } catch (error) {
      if (error instanceof NlacError) throw error;
      if (attempt >= attempts)
        throw new NlacError("ERR_DOWNLOAD", `${redact(url)}: ${(error as Error).message}`, { cause: error });
      await sleep(retryMs * 2 ** (attempt - 1));
    }
  }
}

/** A small reply and its final URL. Throws ERR_DOWNLOAD, or Node's error of a broken connection. */
export async function fetchReply(
  url: string,
  headers: Record<string, string>,
  stallMs = 30_000,
): Promise<{ reply: Response; url: string }> {
  const { reply, url: final } = await request(url, headers, stallMs);
  const bytes = await readReply(reply, url, maxReply);
  const body = bytes.length === 0 ? null : bytes;
  const fields = Object.entries(reply.headersDistinct).flatMap(([name, values = []]) =>
    values.map((value): [string, string] => [name, value]),
  );
  return { reply: new Response(body, { status: reply.statusCode!, headers: fields }), url: final };
}

/** The text of a small reply. Throws as `fetchReply`, and ERR_DOWNLOAD for an HTTP error. */
export async function fetchText(
  url: string,
  accept: string,
  stallMs = 30_000,
): Promise<{ text: string; type: string; url: string }> {
  const { reply, url: final } = await fetchReply(url, { accept }, stallMs);
  if (reply.status !== 200) throw new NlacError("ERR_DOWNLOAD", `${redact(url)}: HTTP ${reply.status}`);
  return { text: await reply.text(), type: reply.headers.get("content-type") ?? "", url: final };
}

/** Most bytes of a reply that is held in memory: a page of a list of files. */
const maxReply = 64 << 20;

/** The body of a reply. Throws ERR_DOWNLOAD if it has more than `maxBytes`. */
async function readReply(reply: IncomingMessage, url: string, maxBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of reply as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    // Leaving the loop closes the connection.
    if (bytes > maxBytes)
      throw new NlacError("ERR_DOWNLOAD", `${redact(url)}: the reply has more than ${maxBytes} bytes.`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** Removes a user name and password from a URL, for messages. */
export function redact(url: string): string {
  return url.replace(/^([a-z]+:\/\/)[^/?#]*@/i, "$1");
}

/** The SHA-1 of the file as a git blob. */
async function gitName(path: string): Promise<string> {
  const hash = createHash("sha1").update(`blob ${sizeOf(path)}\0`);
  await pipeline(createReadStream(path, { highWaterMark: 1 << 20 }), hash);
  return hash.digest("hex");
}

async function receive(options: DownloadOptions, part: string): Promise<void> {
  const { attempts = 5, retryMs = 500 } = options;
  let failures = 0;
  // A server without ranges starts again: only bytes beyond all earlier ones are new.
  let most = sizeOf(part);
  for (;;) {
    try {
      if (await receiveOnce(options, part)) return;
    } catch (error) {
      if (error instanceof NlacError) throw error;
      failures = sizeOf(part) > most ? 1 : failures + 1;
      most = Math.max(most, sizeOf(part));
      if (failures >= attempts)
        throw new NlacError("ERR_DOWNLOAD", `${redact(options.url)}: ${(error as Error).message}`, {
          cause: error,
        });
      await sleep(retryMs * 2 ** (failures - 1));
    }
  }
}

/** Sends one request. Returns false if the download must start again from the beginning. */
async function receiveOnce(options: DownloadOptions, part: string): Promise<boolean> {
  const { stallMs = 30_000, onProgress } = options;
  const have = sizeOf(part);
  if (have > 0 && have === options.bytes) return true;
  const headers = {
    ...(have > 0 ? { range: `bytes=${have}-` } : {}),
    ...(options.authorization === undefined ? {} : { authorization: options.authorization }),
  };
  const { reply } = await request(options.url, headers, stallMs);
  const status = reply.statusCode ?? 0;
  if (status === 416 && have > 0) {
    reply.destroy();
    rmSync(part);
    return false;
  }
  if (status !== 200 && status !== 206) {
    reply.destroy();
    throw httpError(options.url, status, `HTTP ${status}`);
  }
  const offset = status === 206 ? have : 0;
  if (status === 206 && !reply.headers["content-range"]?.startsWith(`bytes ${have}-`)) {
    reply.destroy();
    rmSync(part);
    return false;
  }
  const length =
    reply.headers["content-length"] === undefined ? undefined : Number(reply.headers["content-length"]);
  const total = options.bytes ?? (length === undefined ? undefined : offset + length);
  let received = offset;
  const file = openSync(part, offset > 0 ? "a" : "w");
  try {
    // Not through a pipeline or an iterator, which drop what they have read when the connection breaks.
    reply.on("data", (chunk: Buffer) => {
      received += chunk.length;
      try {
        // A reply that is too long is of another file: the stored bytes are invalid too.
        if (total !== undefined && received > total) {
          rmSync(part, { force: true });
          throw new NlacError(
            "ERR_DOWNLOAD",
            `${redact(options.url)}: longer than the expected ${total} bytes.`,
          );
        }
        for (let at = 0; at < chunk.length; ) at += writeSync(file, chunk, at);
        onProgress?.(received, total);
      } catch (error) {
        reply.removeAllListeners("data").destroy(fromFileSystem(error, part) as Error);
      }
    });
    await finished(reply);
  } finally {
    closeSync(file);
  }
  if (total !== undefined && received < total) throw new Error(`ended after ${received} of ${total} bytes`);
  return true;
}

/** A plain error, which is retried, if the server may recover; else ERR_DOWNLOAD. */
function httpError(url: string, status: number, reason: string): Error {
  if (status >= 500 || status === 408 || status === 429) return new Error(reason);
  return new NlacError("ERR_DOWNLOAD", `${redact(url)}: ${reason}`, { cause: { status } });
}

/** Follows redirects. Rejects if the connection breaks or stalls. */
async function request(
  url: string,
  headers: Record<string, string>,
  stallMs: number,
): Promise<{ reply: IncomingMessage; url: string }> {
  let address = new URL(url);
  const own = address.origin;
  const { authorization: _, ...forOthers } = headers;
  for (let hop = 0; hop < 6; hop++) {
    const reply = await requestOnce(address, address.origin === own ? headers : forOthers, stallMs);
    const location = reply.headers.location;
    if (location === undefined || ![301, 302, 303, 307, 308].includes(reply.statusCode ?? 0))
      return { reply, url: address.href };
    reply.resume();
    const next = new URL(location, address);
    if (address.protocol === "https:" && next.protocol !== "https:")
      throw new NlacError("ERR_DOWNLOAD", `${redact(url)}: redirected from https to ${next.protocol}//`);
    address = next;
  }
  throw new NlacError("ERR_DOWNLOAD", `${redact(url)}: too many redirects`);
}

function requestOnce(url: URL, headers: Record<string, string>, stallMs: number): Promise<IncomingMessage> {
  if (url.protocol !== "https:" && url.protocol !== "http:")
    throw new NlacError("ERR_DOWNLOAD", `${redact(url.href)}: not an http(s) address`);
  const ca = authorities();
  const own = { headers: { "user-agent": "nlac", ...headers }, agent: proxyFor(url, ca) };
  return new Promise((resolve, reject) => {
    const sent: ClientRequest =
      url.protocol === "https:" ? httpsGet(url, { ...own, ca }, resolve) : httpGet(url, own, resolve);
    sent.on("error", reject);
    sent.setTimeout(stallMs, () => sent.destroy(new Error(`no data for ${stallMs / 1000} s`)));
  });
}

/**
 * The proxy for `url` by HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY; undefined if there is none.
 * Throws ERR_DOWNLOAD if it is not an http(s) address.
 */
function proxyFor(url: URL, ca: string[] | undefined): HttpsProxyAgent<string> | undefined {
  const proxy = getProxyForUrl(url.href);
  if (proxy === "") return undefined;
  if (!URL.canParse(proxy) || !/^https?:/.test(proxy))
    throw new NlacError(
      "ERR_DOWNLOAD",
      `The proxy for ${url.origin} is not an http(s) address: set HTTPS_PROXY and HTTP_PROXY to http://HOST:PORT, ` +
        "or NO_PROXY to the hosts that need none.",
    );
  return new HttpsProxyAgent(proxy, { ca });
}

/**
 * Node's certificates plus those of NODE_EXTRA_CA_CERTS, and of pip or OpenSSL, which a mirror or a
 * proxy may need. Undefined, Node's default, if none is configured for pip or OpenSSL.
 */
function authorities(): string[] | undefined {
  const { NODE_EXTRA_CA_CERTS: extra, PIP_CERT, SSL_CERT_FILE } = process.env;
  const file = PIP_CERT || SSL_CERT_FILE;
  if (!file || !existsSync(file)) return undefined;
  // A list replaces Node's default, also what NODE_EXTRA_CA_CERTS added to it.
  const files = extra && extra !== file && existsSync(extra) ? [extra, file] : [file];
  return [...rootCertificates, ...files.map((path) => readFileSync(path, "utf8"))];
}

function sizeOf(path: string): number {
  return existsSync(path) ? statSync(path).size : 0;
}
