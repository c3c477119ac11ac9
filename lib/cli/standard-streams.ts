/** Standard output and standard error of the program, on disks that are full and pipes that are closed. */

import { fstatSync, writeSync } from "node:fs";
import { fromFileSystem } from "../base/errors.ts";

/**
 * Makes the program end with ERR_IO if its output cannot be written, and continue if its notes
 * cannot: a full disk or a closed terminal must not end a training. A reader that closes early
 * (`nlac view | head`) is not an error.
 */
export function watchStandardStreams(): void {
  const { stdout, stderr } = process;
  stderr.on("error", () => {});
  stdout.on("error", (error: NodeJS.ErrnoException) => {
    if (error.code === "EPIPE") process.exit(0);
    const { message } = fromFileSystem(error, "standard output") as Error;
    stderr.write(`nlac: ERR_IO: ${message}\n`);
    process.exit(1);
  });
  if (fstatSync(stdout.fd).isFile()) stdout._write = writeWhole;
}

/** Node's own function takes a write that a full disk made only in part for a whole one. */
function writeWhole(chunk: Buffer, _encoding: string, done: (error?: Error) => void): void {
  try {
    for (let at = 0; at < chunk.length; ) at += writeSync(process.stdout.fd, chunk, at);
  } catch (error) {
    done(error as Error);
    return;
  }
  done();
}
