// Reads the log of fault-shim.c.
import { readFileSync } from "node:fs";
import { operationKinds } from "./sandbox.mjs";

const kinds = [...operationKinds, "cancel", "print"];
const headerBytes = 32;

/**
 * The operations of a log, in order: { kind, path, second, created, truncated, offset, data }.
 * `second` is the target of a rename or link; `offset` is where a write begins, or the size after
 * an ftruncate. And the lines that were printed: { line, after }, the number of operations before.
 * The last operation of a killed process may not have happened.
 */
export function readShimLog(path) {
  const bytes = readFileSync(path);
  const operations = [];
  const printed = [];
  let text = "";
  for (let at = 0; at + headerBytes <= bytes.length; ) {
    const [number, pathBytes, secondBytes, flags] = [0, 4, 8, 12].map((offset) =>
      bytes.readUInt32LE(at + offset),
    );
    const kind = kinds[number];
    const offset = Number(bytes.readBigUInt64LE(at + 16));
    const hasData = kind === "write" || kind === "print";
    const dataBytes = hasData ? Number(bytes.readBigUInt64LE(at + 24)) : 0;
    at += headerBytes;
    // A kill may have cut the last record: its operation did not begin.
    if (at + pathBytes + secondBytes + dataBytes > bytes.length) break;
    const take = (length) => {
      at += length;
      return bytes.subarray(at - length, at);
    };
    const operation = {
      kind,
      path: take(pathBytes).toString(),
      second: take(secondBytes).toString(),
      created: (flags & 1) !== 0,
      truncated: (flags & 2) !== 0,
      offset,
      data: take(dataBytes),
    };
    if (kind === "cancel") operations.pop();
    else if (kind === "print") {
      const lines = (text + operation.data).split("\n");
      text = lines.pop();
      for (const line of lines) printed.push({ line, after: operations.length });
    } else operations.push(operation);
  }
  return { operations, printed };
}
