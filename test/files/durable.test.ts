import type * as Fs from "node:fs";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { beforeEach, expect, test, vi } from "vitest";
import { silentProgress } from "../../lib/display/progress.ts";
import { RecordWriter, readRecords } from "../../lib/files/records.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import { openService } from "../../lib/services/open-service.ts";
import { playRecording, recordService } from "../../lib/services/recording.ts";
import { byteTokenizer } from "../support/scripted-model.ts";

/** Paths that were synced, in order, and how many syncs from now fails. */
const disk = vi.hoisted(() => ({ synced: [] as string[], failing: 0 }));

vi.mock("node:fs", async (original) => {
  const { watchedDisk } = await import("../support/watched-disk.ts");
  return watchedDisk(await original<typeof Fs>(), {
    beforeSync() {
      if (--disk.failing === 0)
        throw Object.assign(new Error("EIO"), { code: "EIO", errno: -5, syscall: "fsync" });
    },
    synced: (path) => disk.synced.push(path),
  });
});

const root = () => mkdtempSync(join(tmpdir(), "nlac-durable-"));
beforeEach(() => {
  disk.synced.length = 0;
  disk.failing = 0;
});

test("the name of a new record file is synced, not only its contents", () => {
  const path = join(root(), "records.jsonl");
  const writer = new RecordWriter(path);
  writer.append({ a: 1 });
  writer.sync();
  writer.close();
  expect(disk.synced).toEqual([path, dirname(path)]);
});

test("the names of a run directory and of its new parents are synced", () => {
  const above = root();
  const path = join(above, "runs", "first");
  const options = { signal: new AbortController().signal, progress: silentProgress, description: {} };
  RunDirectory.create(path, options).close();
  for (const directory of [path, join(above, "runs"), above]) expect(disk.synced).toContain(directory);
});

test("the names of a tokenizer's files are synced", async () => {
  const path = root();
  await byteTokenizer().save(path);
  expect(disk.synced).toContain(path);
});

test("a record whose sync failed is removed, and can be written again", () => {
  const path = join(root(), "records.jsonl");
  const writer = new RecordWriter(path);
  writer.appendDurably({ a: 1 });
  disk.failing = 1;
  expect(() => writer.appendDurably({ b: 2 })).toThrow(
    expect.objectContaining({ code: "ERR_IO", message: expect.stringContaining(path) }),
  );
  expect(readFileSync(path, "utf8").trim().split("\n")).toHaveLength(1);
  writer.appendDurably({ b: 2 });
  writer.close();
  expect([...readRecords(path)]).toEqual([{ a: 1 }, { b: 2 }]);
});

test("a file that was replaced is the one that is appended to, also if the sync of its name failed", async () => {
  for (const replace of ["replace", "replaceNow"] as const) {
    const path = join(root(), "records.jsonl");
    const writer = RecordWriter.resume(path);
    writer.appendDurably({ a: 1 });
    disk.failing = 3; // after the new content and its temporary name
    await expect(async () =>
      replace === "replace" ? writer.replace(() => [{ b: 2 }]) : writer.replaceNow([{ b: 2 }]),
    ).rejects.toMatchObject({ code: "ERR_IO" });
    writer.appendDurably({ c: 3 });
    writer.requireUnchanged();
    writer.close();
    expect([...readRecords(path)]).toEqual([{ b: 2 }, { c: 3 }]);
  }
});

test("a service's reply whose sync failed is not in the recording, where it would hide the next one", async () => {
  const path = join(root(), "service.jsonl");
  let replies = 0;
  const service = recordService(
    openService(() => `reply ${++replies}`),
    path,
  );
  const ask = () => service.complete([{ role: "user", content: "Hello" }]);
  disk.failing = 1;
  await expect(ask()).rejects.toMatchObject({ code: "ERR_IO" });
  expect(await ask()).toBe("reply 2");
  await service.close!();
  expect(await playRecording(path).complete([{ role: "user", content: "Hello" }])).toBe("reply 2");
});
