import type * as Fs from "node:fs";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { beforeEach, expect, test, vi } from "vitest";
import { RecordWriter, readRecords } from "../../lib/files/records.ts";

/** Bytes that the disk still takes. */
const disk = vi.hoisted(() => ({ room: Number.POSITIVE_INFINITY }));

vi.mock("node:fs", async (original) => {
  const fs = await original<typeof Fs>();
  return {
    ...fs,
    writeSync: (fd: number, data: Uint8Array, offset: number) => {
      const taken = Math.min(disk.room, data.length - offset);
      if (taken === 0)
        throw Object.assign(new Error("ENOSPC"), { code: "ENOSPC", errno: -28, syscall: "write" });
      disk.room -= taken;
      return fs.writeSync(fd, data, offset, taken);
    },
  };
});

beforeEach(() => {
  disk.room = Number.POSITIVE_INFINITY;
});

const records = [{ first: 1 }, { second: "zwei" }, { third: 3 }];
const line = (record: unknown) => `{"checksum":"00000000","record":${JSON.stringify(record)}}\n`.length;

test("a full disk at any byte loses only the record being written", () => {
  for (let room = 0; room < line(records[1]); room++) {
    const path = join(mkdtempSync(join(tmpdir(), "nlac-full-disk-")), "records.jsonl");
    const writer = new RecordWriter(path);
    writer.append(records[0]);
    disk.room = room;
    // However often it is tried.
    for (let i = 0; i < 2; i++)
      expect(() => writer.append(records[1])).toThrow(
        expect.objectContaining({ code: "ERR_IO", message: expect.stringContaining(path) }),
      );
    expect([...readRecords(path)]).toEqual([records[0]]);
    expect(writer.sync()).toBe(line(records[0]));

    disk.room = Number.POSITIVE_INFINITY;
    writer.append(records[2]);
    expect(writer.sync()).toBe(readFileSync(path).length);
    writer.close();
    expect([...readRecords(path)]).toEqual([records[0], records[2]]);
  }
});
