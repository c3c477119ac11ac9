/** Trees, archives and a server for the tests of setup. */

import { execFileSync, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { crc32 } from "node:zlib";
import { afterEach, expect } from "vitest";
import type { Reporter } from "../../lib/display/reporter.ts";
import { TORCH_VERSION } from "../../lib/native/libtorch.ts";
import type { Wheel } from "../../lib/native/wheels.ts";

const cleanups: (() => void | Promise<void>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

export function temporaryDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), "nlac-test-"));
  cleanups.push(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/**
 * A pipe at `path`. Its writer comes after two seconds and writes nothing: opening the pipe as a file
 * takes as long.
 */
export function pipe(path: string): void {
  execFileSync("mkfifo", [path]);
  const writer = spawn("sh", ["-c", 'sleep 2; : > "$0"', path]);
  cleanups.push(() => void writer.kill("SIGKILL"));
}

export function write(path: string, text: string | Uint8Array = ""): string {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
  return path;
}

const NVIDIA = {
  cpu: ["nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcupti.so.13"],
  cuda: [
    "torch/lib/libc10_cuda.so",
    "torch/lib/libtorch_cuda.so",
    "nvidia/cu13/lib/libcublas.so.13",
    "nvidia/cudnn/lib/libcudnn.so.9",
    "nvidia/nccl/lib/libnccl.so.2",
    "nvidia/cusparselt/lib/libcusparseLt.so.0",
  ],
};

/** A site-packages that looks like one with torch in it: the right names, nothing inside. */
export function fakeTorch(
  site: string,
  options: { version?: string; cuda?: string | null; runtime?: boolean; gpu?: boolean } = {},
): string {
  const { version = `${TORCH_VERSION}+cu130`, cuda = "13.0", runtime = true, gpu = false } = options;
  for (const file of fakeTorchFiles(runtime, gpu)) write(join(site, file));
  write(join(site, "torch/version.py"), versionPy(version, cuda));
  return site;
}

export function fakeTorchFiles(runtime: boolean, gpu: boolean): string[] {
  return [
    "torch/lib/libtorch_cpu.so",
    "torch/lib/libc10.so",
    "torch/include/torch/csrc/api/include/torch/torch.h",
    ...(runtime ? NVIDIA.cpu : []),
    ...(gpu ? NVIDIA.cuda : []),
  ];
}

export function versionPy(version: string, cuda: string | null): string {
  const value = cuda === null ? "None" : `'${cuda}'`;
  return `from typing import Optional\n\n__version__ = '${version}'\ndebug = False\ncuda: Optional[str] = ${value}\n`;
}

export interface Member {
  name: string;
  data: string | Uint8Array;
  /** Unix mode with its file type. Default: a plain file, 0644. */
  mode?: number;
  /** A wrong size for the archive's directory. */
  claimedSize?: number;
}

/** A zip archive whose members are stored, built by hand so that it can also be hostile. */
export function zip(members: readonly Member[]): Buffer {
  const local: Buffer[] = [];
  const central: Buffer[] = [];
  let offset = 0;
  for (const member of members) {
    const name = Buffer.from(member.name);
    const data = Buffer.from(member.data);
    const size = member.claimedSize ?? data.length;
    const common = Buffer.alloc(26);
    common.writeUInt16LE(20, 0);
    common.writeUInt16LE(0x0800, 2); // names are UTF-8
    common.writeUInt32LE(crc32(data), 10);
    common.writeUInt32LE(data.length, 14);
    common.writeUInt32LE(size, 18);
    common.writeUInt16LE(name.length, 22);
    const header = Buffer.concat([Buffer.from("PK\x03\x04"), common, name, data]);
    const entry = Buffer.alloc(14);
    entry.writeUInt32LE(((member.mode ?? 0o100644) << 16) >>> 0, 6);
    entry.writeUInt32LE(offset, 10);
    central.push(Buffer.concat([Buffer.from("PK\x01\x02\x14\x03"), common, entry, name]));
    local.push(header);
    offset += header.length;
  }
  const directory = Buffer.concat(central);
  const end = Buffer.alloc(18);
  end.writeUInt16LE(members.length, 4);
  end.writeUInt16LE(members.length, 6);
  end.writeUInt32LE(directory.length, 8);
  end.writeUInt32LE(offset, 12);
  return Buffer.concat([...local, directory, Buffer.from("PK\x05\x06"), end]);
}

export function sha256(data: Uint8Array): string {
  return createHash("sha256").update(data).digest("hex");
}

export interface FakeWheel extends Wheel {
  data: Buffer;
}

/** A wheel of these files, with their checksums in its RECORD. */
export function fakeWheel(name: string, version: string, files: readonly Member[]): FakeWheel {
  const stem = `${name.replaceAll("-", "_")}-${version}`;
  const data = zip([...files, { name: `${stem}.dist-info/RECORD`, data: fakeRecord(files) }]);
  return { name, version, file: `${stem}-py3-none-any.whl`, sha256: sha256(data), bytes: data.length, data };
}

export function fakeRecord(files: readonly Member[]): string {
  const line = ({ name, data }: Member) =>
    `${name},sha256=${createHash("sha256").update(data).digest("base64url")},${Buffer.from(data).length}\n`;
  return files.map(line).join("");
}

export type Handler = (request: IncomingMessage, response: ServerResponse) => void;

/** Serves on a free local port until the test ends; `requests` lists what was asked for. */
export async function serve(
  handler: Handler,
): Promise<{ url: string; requests: string[]; close: () => Promise<void> }> {
  const requests: string[] = [];
  const server = createServer((request, response) => {
    requests.push(`${request.method} ${request.url} ${request.headers.range ?? ""}`.trim());
    handler(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () =>
    new Promise<void>((resolve) => {
      server.closeAllConnections();
      server.close(() => resolve());
    });
  cleanups.push(close);
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, requests, close };
}

/** A package index of these wheels, by PEP 691 or, with `html`, by PEP 503. */
export function index(wheels: readonly FakeWheel[], html = false): Handler {
  return (request, response) => {
    const path = request.url ?? "";
    const file = wheels.find((wheel) => path === `/files/${wheel.file}`);
    if (file) return respondWithRange(file.data)(request, response);
    const wheel = wheels.find((candidate) => path === `/simple/${candidate.name}/`);
    if (!wheel) return response.writeHead(404).end();
    const address = `../../files/${wheel.file}`;
    if (html) {
      response.writeHead(200, { "content-type": "text/html" });
      return response.end(
        `<html><body><a href="${address}#sha256=x" data-y="z">${wheel.file}</a></body></html>`,
      );
    }
    response.writeHead(200, { "content-type": "application/vnd.pypi.simple.v1+json" });
    return response.end(JSON.stringify({ files: [{ filename: wheel.file, url: address }] }));
  };
}

export function respondWithRange(data: Buffer): Handler {
  return (request, response) => {
    const [, from, to] = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "") ?? [];
    if (from === undefined) return response.writeHead(200, { "content-length": data.length }).end(data);
    const start = Number(from);
    if (start >= data.length) return response.writeHead(416).end();
    const piece = data.subarray(start, to ? Number(to) + 1 : data.length);
    const range = `bytes ${start}-${start + piece.length - 1}/${data.length}`;
    response.writeHead(206, { "content-length": piece.length, "content-range": range });
    return response.end(piece);
  };
}

export function recorder(): Reporter & { lines: string[] } {
  const lines: string[] = [];
  return { lines, line: (text) => void lines.push(text), progress: () => {} };
}

/** The promise must reject with this code, and a message that matches. */
export async function expectFailure(promise: Promise<unknown>, code: string, message = /./): Promise<void> {
  const error = await promise.then(
    () => undefined,
    (reason: unknown) => reason as Error & { code?: string },
  );
  expect(error?.code).toBe(code);
  expect(error?.message).toMatch(message);
}
