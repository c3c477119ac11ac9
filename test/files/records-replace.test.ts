import { chmodSync, existsSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { RecordWriter, readRecords } from "../../lib/files/records.ts";
import { inDirectory } from "../support/tiny.ts";

const rows = (count: number, text = "x".repeat(2000)) =>
  Array.from({ length: count }, (_, i) => ({ i, text }));

/** Counts turns of the event loop until `work` is done. */
async function turnsDuring(work: Promise<unknown>): Promise<number> {
  let turns = 0;
  let done = false;
  const count = () => {
    turns++;
    if (!done) setImmediate(count);
  };
  setImmediate(count);
  await work;
  done = true;
  return turns;
}

it("replaces records while others are appended, and gives the event loop turns", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "rows.jsonl");
    const writer = RecordWriter.resume(path);
    for (const row of rows(20_000)) writer.append(row);
    const { bytes } = writer;
    const before = () => readRecords<{ i: number }>(path, { bytes });
    function* even() {
      for (const row of before()) if (row.i % 2 === 0) yield row;
    }
    const replaced = writer.replace(even);
    const second = writer.replace(() => [...readRecords(path), { i: "last" }]);
    let appended = 0;
    const appending = setInterval(() => writer.appendDurably({ i: `appended ${appended++}` }), 1);
    const turns = await turnsDuring(replaced);
    // 40 MB are read and 20 MB written, in slices of 5 ms.
    expect(turns).toBeGreaterThan(10);
    await second;
    clearInterval(appending);
    writer.close();
    expect(appended).toBeGreaterThan(0);
    const left = [...readRecords<{ i: unknown }>(path)].map(({ i }) => i);
    const added = left.filter((i) => String(i).startsWith("appended"));
    expect(left.filter((i) => typeof i === "number")).toEqual(
      Array.from({ length: 10_000 }, (_, i) => 2 * i),
    );
    expect(added).toEqual(Array.from({ length: appended }, (_, i) => `appended ${i}`));
    expect(left).toContain("last");
  }));

it("keeps the file's permissions; a private file is its owner's alone", () =>
  inDirectory(async (directory) => {
    const mode = (name: string) => statSync(join(directory, name)).mode & 0o777;
    const umask = process.umask(0o022);
    try {
      const writer = RecordWriter.resume(join(directory, "rows.jsonl"), { isPrivate: true });
      writer.append({ i: 0 });
      expect(mode("rows.jsonl")).toBe(0o600);
      await writer.replace(() => rows(2));
      expect(mode("rows.jsonl")).toBe(0o600);
      chmodSync(join(directory, "rows.jsonl"), 0o664); // as a group that shares it
      writer.replaceNow(rows(2));
      expect(mode("rows.jsonl")).toBe(0o664);
      writer.close();
      RecordWriter.resume(join(directory, "public.jsonl")).close();
      expect(mode("public.jsonl")).toBe(0o644);
    } finally {
      process.umask(umask);
    }
  }));

it("leaves the file as it was if it is closed, or if a record cannot be made", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "rows.jsonl");
    const writer = RecordWriter.resume(path);
    for (const row of rows(5)) writer.append(row);
    const before = readFileSync(path, "utf8");
    const failing = () => {
      throw new Error("no record");
    };
    await expect(writer.replace(failing)).rejects.toThrow("no record");
    expect(existsSync(`${path}.partial`)).toBe(false);
    const failingNow = function* () {
      yield { i: 0 };
      failing();
    };
    expect(() => writer.replaceNow(failingNow())).toThrow("no record");
    expect(existsSync(`${path}.partial`)).toBe(false);
    writer.append({ i: "later" });
    const closing = writer.replace(() => rows(100));
    writer.close();
    await expect(closing).rejects.toMatchObject({ code: "ERR_ABORTED" });
    expect(readFileSync(path, "utf8").startsWith(before)).toBe(true);
    expect([...readRecords<{ i: unknown }>(path)].at(-1)).toEqual({ i: "later" });
    for (const left of ["lock", "partial"]) expect(existsSync(`${path}.${left}`)).toBe(false);
  }));
