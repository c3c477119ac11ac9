import fc from "fast-check";
import { describe, expect, it, vi } from "vitest";
import { parseWithinLimits } from "../../lib/serve/json-limits.ts";
import { inPieces, lazy } from "../../lib/serve/json-response.ts";
import { turnsBetween } from "../support/event-loop-turns.ts";

async function jsonInSlices(value: object): Promise<string> {
  let text = "";
  for await (const piece of inPieces(value)) text += piece;
  return text;
}

describe("a JSON answer in slices", () => {
  it("is the text that JSON.stringify writes", async () => {
    await fc.assert(
      fc.asyncProperty(fc.object({ withNullPrototype: false }), async (value) => {
        expect(JSON.parse(await jsonInSlices(value))).toEqual(JSON.parse(JSON.stringify(value)));
      }),
    );
    const value = { empty: [], none: {}, left: undefined, number: Number.NaN, list: [undefined, "é\ud800"] };
    expect(await jsonInSlices(value)).toBe(JSON.stringify(value));
  });

  it("gives the event loop turns while it is written, however short it is", async () => {
    const make = vi.fn(() => 1);
    const list = lazy(Array.from({ length: 20 }), make);
    const { turns } = await turnsBetween(make, () => jsonInSlices({ list }));
    expect(turns).toBeGreaterThanOrEqual(15);
  });

  it("has lists whose items are made when they are written", async () => {
    const made: number[] = [];
    const list = lazy([1, 2, 3], (item, i) => {
      made.push(i);
      return { item };
    });
    expect(made).toEqual([]);
    expect(await jsonInSlices({ list, empty: lazy([], () => 0) })).toBe(
      '{"list":[{"item":1},{"item":2},{"item":3}],"empty":[]}',
    );
    expect(made).toEqual([0, 1, 2]);
  });
});

describe("JSON within limits", () => {
  const parse = (text: string) => parseWithinLimits(Buffer.from(text));

  it("is what JSON.parse reads, whatever is in its texts", () => {
    fc.assert(
      fc.property(fc.json(), (text) => {
        expect(parse(text)).toEqual(JSON.parse(text));
      }),
    );
    const brackets = JSON.stringify({ '["\\': '{[,"'.repeat(2_000_000) });
    expect(parse(brackets)).toEqual(JSON.parse(brackets));
  });

  it("is refused beyond them, and where it is not JSON", () => {
    expect(() => parse("[".repeat(257))).toThrow(/deeper than 256/);
    expect(() => parse(`[${"0,".repeat(1_000_000)}0]`)).toThrow(/more than 1000000 values/);
    for (const text of ["", "{", '"', '"\\', "[1]]", "\ufeff[", "{}{}"])
      expect(() => parse(text)).toThrow(/not JSON/);
    expect(() => parseWithinLimits(Uint8Array.from([0x22, 0xc0, 0x22]))).toThrow(/not JSON/);
  });
});
