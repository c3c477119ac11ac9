import { appendFileSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { RecordWriter, readRecords } from "../../lib/files/records.ts";

const fresh = () => join(mkdtempSync(join(tmpdir(), "nlac-records-")), "records.jsonl");

function write(path: string, records: unknown[]): void {
  const writer = new RecordWriter(path);
  for (const record of records) writer.append(record);
  writer.sync();
  writer.close();
}

test("any JSON value comes back as it was written", () => {
  fc.assert(
    fc.property(fc.array(fc.jsonValue(), { maxLength: 5 }), (records) => {
      const path = fresh();
      write(path, records);
      expect([...readRecords(path)]).toEqual(JSON.parse(JSON.stringify(records)));
    }),
    { numRuns: 100 },
  );
});

test("every line is JSON that other programs can read", () => {
  const path = fresh();
  write(path, [{ a: 'quote " and \n newline' }]);
  const line = JSON.parse(readFileSync(path, "utf8").trimEnd()) as { checksum: string; record: unknown };
  expect(line.record).toEqual({ a: 'quote " and \n newline' });
  expect(line.checksum).toMatch(/^[0-9a-f]{8}$/);
});

test("a last line cut at any byte is dropped, the lines before it stay", () => {
  const path = fresh();
  write(path, [{ first: 1 }, { second: "zwei" }]);
  const whole = readFileSync(path);
  const secondStarts = whole.indexOf("\n") + 1;
  for (let length = secondStarts; length < whole.length; length++) {
    writeFileSync(path, whole.subarray(0, length));
    expect([...readRecords(path)]).toEqual([{ first: 1 }]);
  }
});

test("records that were appended together stay or are dropped together, wherever the file is cut", () => {
  const path = fresh();
  write(path, [{ first: 1 }]);
  const writer = RecordWriter.resume(path);
  const start = writer.bytes;
  // The end of a record may look like the mark of a line that has more.
  const together = [{ a: 1 }, { b: "zwei", more: true }, { c: 3 }];
  writer.appendDurably(...together);
  const end = writer.bytes;
  writer.append({ next: 4, more: true });
  writer.close();
  expect([...readRecords(path)]).toEqual([{ first: 1 }, ...together, { next: 4, more: true }]);
  const whole = readFileSync(path);
  for (const line of whole.toString().trimEnd().split("\n")) JSON.parse(line);
  for (let length = start; length < end; length++) {
    writeFileSync(path, whole.subarray(0, length));
    expect([...readRecords(path)]).toEqual([{ first: 1 }]);
    if (length % 10 !== 0) continue;
    const again = RecordWriter.resume(path);
    expect(again.bytes).toBe(start);
    again.append({ other: 5 });
    again.close();
    expect([...readRecords(path)]).toEqual([{ first: 1 }, { other: 5 }]);
  }
  writeFileSync(path, whole.subarray(0, end));
  expect([...readRecords(path)]).toHaveLength(4);
  // Damage in one of them is an error, also in its mark.
  for (let at = start; at < whole.indexOf("\n", start); at++) {
    const damaged = Buffer.from(whole);
    damaged[at] = damaged[at]! ^ 0x01;
    writeFileSync(path, damaged);
    expect(() => [...readRecords(path)]).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
  }
});

test("any flipped bit elsewhere is an error that names the line", () => {
  const path = fresh();
  write(path, [{ first: 1 }, { second: 2 }, { third: 3 }]);
  const whole = readFileSync(path);
  const start = whole.indexOf("\n") + 1;
  const end = whole.indexOf("\n", start);
  for (let at = start; at < end; at++) {
    const damaged = Buffer.from(whole);
    damaged[at] = damaged[at]! ^ 0x01;
    writeFileSync(path, damaged);
    expect(() => [...readRecords(path)]).toThrow(
      expect.objectContaining({ code: "ERR_RUN", message: expect.stringContaining("line 2") }),
    );
  }
});

test("a writer opened at a checkpoint's length cuts off what came after", () => {
  const path = fresh();
  const writer = new RecordWriter(path);
  writer.append({ kept: true });
  const bytes = writer.sync();
  writer.append({ kept: false });
  writer.close();
  appendFileSync(path, '{"checksum":"to');
  const again = new RecordWriter(path, bytes);
  again.append({ kept: "new" });
  again.close();
  expect([...readRecords(path)]).toEqual([{ kept: true }, { kept: "new" }]);
});

test("a file shorter than at the checkpoint is refused", () => {
  const path = fresh();
  write(path, [{ a: 1 }]);
  expect(() => new RecordWriter(path, 10_000)).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
});

test("records are whole for any chunk size, even if it splits multi-byte characters", () => {
  const path = fresh();
  const records = [{ text: "ä€😀" }, { text: "" }, { text: "\n\u2028é".repeat(20) }, ["😀", null]];
  write(path, records);
  const whole = readFileSync(path);
  for (let chunkBytes = 1; chunkBytes <= whole.length + 1; chunkBytes++) {
    expect([...readRecords(path, { chunkBytes })]).toEqual(records);
  }
  writeFileSync(path, whole.subarray(0, -3));
  for (const chunkBytes of [1, 7, 64]) {
    expect([...readRecords(path, { chunkBytes })]).toEqual(records.slice(0, -1));
  }
});

test("a file is read lazily: damage is reported where it is reached", () => {
  const path = fresh();
  write(path, [{ first: 1 }, { second: 2 }, { third: 3 }]);
  writeFileSync(path, readFileSync(path, "utf8").replace("third", "thurd"));
  for (const chunkBytes of [1, 50, 1000]) {
    const records = readRecords(path, { chunkBytes });
    expect([records.next().value, records.next().value]).toEqual([{ first: 1 }, { second: 2 }]);
    expect(() => records.next()).toThrow(
      expect.objectContaining({ code: "ERR_RUN", message: expect.stringContaining(`${path}: line 3`) }),
    );
  }
});

test.each([
  ["one line that is no record", '{"dear": "config"}'],
  ["two lines", "line one\nline two"],
  ["a record's beginning with another checksum", '{"checksum":"xyz'],
  ["text behind records", undefined],
])("a file with %s is refused and not changed", (_, content) => {
  const path = fresh();
  if (content === undefined) write(path, [{ first: 1 }]);
  appendFileSync(path, content ?? "notes");
  const before = readFileSync(path);
  expect(() => RecordWriter.resume(path)).toThrow(expect.objectContaining({ code: "ERR_RUN" }));
  expect(() => [...readRecords(path)]).toThrow(/is not a record|is damaged/);
  expect(readFileSync(path)).toEqual(before);
});

test("a writer resumes without a record that was cut at any byte", () => {
  const path = fresh();
  write(path, [{ first: 1 }, { second: "zwei" }]);
  const whole = readFileSync(path);
  for (let length = 0; length < whole.length; length++) {
    writeFileSync(path, whole.subarray(0, length));
    const writer = RecordWriter.resume(path);
    writer.append("new");
    writer.close();
    const kept = length > whole.indexOf("\n") ? [{ first: 1 }] : [];
    expect([...readRecords(path)]).toEqual([...kept, "new"]);
  }
});

describe("sectors of zeros, which a crash leaves where a write did not reach the disk,", () => {
  const long = { text: "x".repeat(1400) };
  const zeroed = (path: string, from: number, to: number) =>
    writeFileSync(path, readFileSync(path).fill(0, from, to));

  test("are dropped with the last record, wherever they are in it", () => {
    const path = fresh();
    write(path, [{ first: 1 }, long]);
    const whole = readFileSync(path);
    const begin = whole.indexOf("\n") + 1;
    const edges = [begin, 512, 1024, whole.length];
    for (const [i, from] of edges.slice(0, -1).entries())
      for (const to of edges.slice(i + 1)) {
        writeFileSync(path, whole);
        zeroed(path, from, to);
        expect([...readRecords(path, { chunkBytes: 100 })]).toEqual([{ first: 1 }]);
        const writer = RecordWriter.resume(path);
        expect(writer.bytes).toBe(begin);
        writer.append("new");
        writer.close();
        expect([...readRecords(path)]).toEqual([{ first: 1 }, "new"]);
      }
  });

  test("are dropped with all records of their write", () => {
    const path = fresh();
    const writer = new RecordWriter(path);
    writer.appendDurably({ first: 1 });
    writer.appendDurably(long, { second: 2 }, { third: 3 });
    writer.close();
    zeroed(path, 512, 1024);
    expect([...readRecords(path)]).toEqual([{ first: 1 }]);
  });

  test("are damage before a later write, unless that need not be on disk either", () => {
    const path = fresh();
    write(path, [{ first: 1 }, long, { third: 3 }]);
    zeroed(path, 512, 1024);
    const damage = expect.objectContaining({ code: "ERR_RUN", message: expect.stringContaining("line 2") });
    expect(() => [...readRecords(path)]).toThrow(damage);
    expect(() => RecordWriter.resume(path)).toThrow(damage);
    appendFileSync(path, '{"checks'); // an unfinished line follows
    expect(() => [...readRecords(path)]).toThrow(damage);
    RecordWriter.resume(path, { unsynced: true }).close();
    expect([...readRecords(path)]).toEqual([{ first: 1 }]);
  });

  test("are damage unless whole sectors are zeros", () => {
    const path = fresh();
    write(path, [{ first: 1 }, long]);
    const whole = readFileSync(path);
    for (const [from, to] of [
      [700, 701],
      [512, 1023],
      [513, 1024],
      [whole.length - 2, whole.length - 1],
    ]) {
      writeFileSync(path, whole);
      zeroed(path, from!, to!);
      expect(() => [...readRecords(path)]).toThrow(/line 2 is damaged/);
    }
  });
});

test("bytes that are not UTF-8 are damage, though they may decode to the same text", () => {
  const path = fresh();
  write(path, [{ text: "\ufffd" }]);
  const whole = readFileSync(path);
  const at = whole.indexOf("\ufffd");
  writeFileSync(path, Buffer.concat([whole.subarray(0, at), Buffer.of(0xff), whole.subarray(at + 3)]));
  expect(() => [...readRecords(path)]).toThrow(/line 1 is damaged/);
});

test("a file that cannot be opened, read or written is an error that names it", () => {
  const named = (path: string) =>
    expect.objectContaining({ code: "ERR_IO", message: expect.stringContaining(path) });
  const missing = fresh();
  expect(() => [...readRecords(missing)]).toThrow(named(missing));
  expect(() => [...readRecords(tmpdir())]).toThrow(named(tmpdir())); // opens, and cannot be read
  const file = fresh();
  write(file, []);
  const below = join(file, "records.jsonl");
  expect(() => new RecordWriter(below)).toThrow(named(below));
  const full = new RecordWriter("/dev/full");
  expect(() => full.append({})).toThrow(/\/dev\/full cannot be used: no space left on device \(ENOSPC\)/);
  full.close();
});
