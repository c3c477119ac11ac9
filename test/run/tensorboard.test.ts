import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, statSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { crc32c, EventWriter } from "../../lib/run/tensorboard.ts";

test("CRC-32C agrees with the vectors of RFC 3720, B.4", () => {
  expect(crc32c(new Uint8Array(32))).toBe(0x8a9136aa);
  expect(crc32c(new Uint8Array(32).fill(0xff))).toBe(0x62a8ab43);
  expect(crc32c(Uint8Array.from({ length: 32 }, (_, i) => i))).toBe(0x46dd794e);
  expect(crc32c(Uint8Array.from({ length: 32 }, (_, i) => 31 - i))).toBe(0x113fdb5c);
});

function writeSome(): string {
  const directory = mkdtempSync(join(tmpdir(), "nlac-events-"));
  const path = join(directory, "events.out.tfevents.1.nlac");
  const first = new EventWriter(path);
  first.scalars(1, { "loss/l1": 2.5, "loss/l2": 0.125 });
  const bytes = statSync(path).size;
  first.scalars(2, { "loss/l1": 99 });
  first.close();
  // Resumed from a checkpoint made after step 1.
  const second = new EventWriter(path, bytes);
  second.scalars(2, { "loss/l1": 1.5 });
  second.scalars(300, { "loss/l1": -1 });
  second.close();
  return directory;
}

test("every record's length and checksums are in place", () => {
  const data = readFileSync(join(writeSome(), "events.out.tfevents.1.nlac"));
  const mask = (crc: number) => (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
  let records = 0;
  for (let at = 0; at < data.length; records++) {
    const length = Number(data.readBigUInt64LE(at));
    expect(data.readUInt32LE(at + 8)).toBe(mask(crc32c(data.subarray(at, at + 8))));
    expect(data.readUInt32LE(at + 12 + length)).toBe(mask(crc32c(data.subarray(at + 12, at + 12 + length))));
    at += length + 16;
  }
  expect(records).toBe(4);
});

test("a file shorter than at the checkpoint, or on a full disk, is an error that names it", () => {
  const path = join(writeSome(), "events.out.tfevents.1.nlac");
  expect(() => new EventWriter(path, 100_000)).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
  expect(() => new EventWriter("/dev/full")).toThrow(
    expect.objectContaining({ code: "ERR_IO", message: expect.stringContaining("/dev/full") }),
  );
});

const python = join(
  process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache"),
  "nlac",
  "peers",
  "bin",
  "python",
);
const hasTensorboard = (() => {
  if (!existsSync(python)) return false;
  try {
    execFileSync(python, ["-c", "import tensorboard"], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
})();
if (!hasTensorboard)
  console.warn("SKIPPED: reading events with Python's tensorboard (run scripts/peers.sh tensorboard)");

test.runIf(hasTensorboard)("Python's tensorboard reads the scalars back", () => {
  const script = `
import json, sys
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
rows = []
for event in EventFileLoader(sys.argv[1] + "/events.out.tfevents.1.nlac").Load():
    for value in event.summary.value:
        rows.append([event.step, value.tag, value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value])
print(json.dumps(rows))
`;
  const rows = JSON.parse(
    execFileSync(python, ["-c", script, writeSome()], { encoding: "utf8" }),
  ) as unknown[];
  expect(rows).toEqual([
    [1, "loss/l1", 2.5],
    [1, "loss/l2", 0.125],
    [2, "loss/l1", 1.5],
    [300, "loss/l1", -1],
  ]);
});
