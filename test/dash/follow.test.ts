import { appendFileSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, expect, test } from "vitest";
import { RecordFollower } from "../../lib/dash/follow.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { pipe, temporaryDirectory } from "../support/files-and-servers.ts";

let path = "";
beforeEach(() => {
  path = join(temporaryDirectory(), "records.jsonl");
});

interface Numbered {
  n: number;
  text?: string;
}

const follower = () => new RecordFollower(path, (record) => (record as Numbered).n);

function append(...records: Numbered[]): void {
  const writer = new RecordWriter(path);
  for (const record of records) writer.append(record);
  writer.close();
}

test("new records are read by offset, and each can be read in full", async () => {
  const followed = follower();
  expect(await followed.poll()).toBe(false);
  append({ n: 1, text: "größer" });
  expect(await followed.poll()).toBe(true);
  expect(await followed.poll()).toBe(false);
  append({ n: 2, text: "x".repeat(3 * 2 ** 20) }, { n: 3 });
  expect(await followed.poll()).toBe(true);
  expect(followed.items).toEqual([1, 2, 3]);
  expect(await followed.record(0)).toEqual({ n: 1, text: "größer" });
  expect(await followed.record(2)).toEqual({ n: 3 });
  await expect(followed.record(3)).rejects.toMatchObject({ code: "ERR_RUN" });
});

test("a record that is being written is read when it is complete", async () => {
  append({ n: 1 }, { n: 2 });
  const whole = readFileSync(path);
  writeFileSync(path, whole.subarray(0, whole.length - 5));
  const followed = follower();
  await followed.poll();
  expect(followed.items).toEqual([1]);
  appendFileSync(path, whole.subarray(whole.length - 5));
  await followed.poll();
  expect(followed.items).toEqual([1, 2]);
  expect(followed.generation).toBe(0);
});

test.each([
  ["shorter", 0],
  ["longer than before", 8],
])("a file that was truncated and is now %s is read again", async (_, further) => {
  append({ n: 1 });
  const kept = readFileSync(path).length;
  append({ n: 2 }, { n: 3 });
  const followed = follower();
  await followed.poll();
  truncateSync(path, kept);
  append(...Array.from({ length: further }, (_, i) => ({ n: 20 + i, text: "other" })));
  expect(await followed.poll()).toBe(true);
  expect(followed.generation).toBe(1);
  expect(followed.items).toEqual([1, ...Array.from({ length: further }, (_, i) => 20 + i)]);
  rmSync(path);
  expect(await followed.poll()).toBe(true);
  expect(followed.items).toEqual([]);
});

test("a pipe is an error, and is not waited for", async () => {
  pipe(path);
  await expect(follower().poll()).rejects.toMatchObject({ code: "ERR_IO" });
});

test("a damaged record is named, and those before it stay", async () => {
  append({ n: 1 }, { n: 2 });
  writeFileSync(path, readFileSync(path, "utf8").replace('"n":2', '"n":5'));
  const followed = follower();
  await followed.poll();
  expect(followed.items).toEqual([1]);
  expect(followed.fault).toMatch(/line 2 is damaged/);
});
