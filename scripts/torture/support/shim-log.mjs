// Reads the log of fault-shim.c.
import { readFileSync } from "node:fs";
import { operationKinds as kinds } from "./sandbox.mjs";

const headerBytes = 32;

/**
 * The operations of a log, in order: { kind, path, second, created, truncated, offset, data }.
 * `second` is the target of a rename or link; `offset` is where a write begins, or the size after
 * an ftruncate.
 */
export function readShimLog(path) {
  const bytes = readFileSync(path);
  const operations = [];
  for (let at = 0; at < bytes.length; ) {
    const [kind, pathBytes, secondBytes, flags] = [0, 4, 8, 12].map((offset) =>
      bytes.readUInt32LE(at + offset),
    );
    const offset = Number(bytes.readBigUInt64LE(at + 16));
    const dataBytes = kinds[kind] === "write" ? Number(bytes.readBigUInt64LE(at + 24)) : 0;
    at += headerBytes;
    const take = (length) => {
      at += length;
      return bytes.subarray(at - length, at);
    };
    operations.push({
      kind: kinds[kind],
      path: take(pathBytes).toString(),
      second: take(secondBytes).toString(),
      created: (flags & 1) !== 0,
      truncated: (flags & 2) !== 0,
      offset,
      data: take(dataBytes),
    });
  }
  return operations;
}
