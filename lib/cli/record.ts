/** The file that an evaluation records its episodes to. */

import { existsSync } from "node:fs";
import { NlacError } from "../base/errors.ts";
import { lockRecords, RecordWriter } from "../files/records.ts";

/**
 * Opens the record. A new one may exist if it is empty: an evaluation that was stopped before its
 * first episode leaves an empty file.
 */
export function openRecord(path: string, resume: boolean): RecordWriter {
  if (resume && !existsSync(path))
    throw new NlacError("ERR_IO", `${path} does not exist. Start without --resume.`);
  const writer = resume ? RecordWriter.resume(path) : new RecordWriter(path, undefined, lockRecords(path));
  if (resume || writer.sync() === 0) return writer;
  writer.close();
  throw new NlacError("ERR_IO", `${path} already exists. Continue it with --resume, or name another file.`);
}
