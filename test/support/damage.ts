/** Kinds of damage to a file of records, and how its error names it. */

import { appendFileSync, mkdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { RecordWriter } from "../../lib/files/records.ts";

/** Bytes with line breaks and zeros in no sector's shape. */
const garbage = Buffer.from(Array.from({ length: 3000 }, (_, i) => (i * i * 31 + 7 * i) % 251));

export const damages: readonly [name: string, harm: (path: string) => void, message: RegExp][] = [
  [
    "a changed byte in the middle",
    (path) => {
      const content = readFileSync(path);
      content[Math.floor(content.length / 2)]! ^= 1;
      writeFileSync(path, content);
    },
    /line \d+ is damaged/,
  ],
  ["binary garbage in place of it", (path) => writeFileSync(path, garbage), /line 1 is/],
  ["binary garbage after it", (path) => appendFileSync(path, garbage), /line \d+ is/],
  [
    "binary garbage without a line break after it",
    (path) =>
      appendFileSync(
        path,
        garbage.filter((byte) => byte !== 10),
      ),
    /line \d+ is not a record/,
  ],
  [
    "a row of another type",
    (path) => {
      const writer = new RecordWriter(path);
      writer.append({ update: 1, trajectory: [0] });
      writer.close();
    },
    /line \d+(:| is not an episode)/,
  ],
  [
    "a number in place of a row",
    (path) => {
      const writer = new RecordWriter(path, 0);
      writer.append(5);
      writer.close();
    },
    /line 1(:| is not an episode)/,
  ],
  [
    "a directory in place of it",
    (path) => {
      rmSync(path);
      mkdirSync(path);
    },
    /EISDIR|is not a regular file/,
  ],
];

/** Removes the last `bytes` of a file. */
export function cut(path: string, bytes: number): void {
  truncateSync(path, readFileSync(path).length - bytes);
}
