import { expect, test } from "vitest";
import { delimited, integer } from "../../lib/files/protobuf.ts";

// The bytes of these fields, from the documentation of protocol buffers' encoding.
test("integers are varints after the field's number", () => {
  expect([...integer(1, 150)]).toEqual([0x08, 0x96, 0x01]);
  expect([...integer(1, 0)]).toEqual([0x08, 0]);
  expect([...integer(16, 1)]).toEqual([0x80, 0x01, 1]);
});

test("integers above 32 bits keep all of theirs", () => {
  const value = 2 ** 52 + 2 ** 33 + 5;
  const read = [...integer(2, value)].slice(1).reduceRight((sum, byte) => sum * 128 + (byte & 127), 0);
  expect(read).toBe(value);
});

test("texts and messages have their length in bytes", () => {
  expect([...delimited(2, "testing")]).toEqual([0x12, 0x07, ...Buffer.from("testing")]);
  expect([...delimited(1, "ä")]).toEqual([0x0a, 2, 0xc3, 0xa4]);
  expect([...delimited(3, integer(1, 150))]).toEqual([0x1a, 0x03, 0x08, 0x96, 0x01]);
  expect(delimited(1, new Uint8Array(300)).length).toBe(303);
});
