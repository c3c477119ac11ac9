import { afterEach, describe, expect, it } from "vitest";
import { Reader } from "../../lib/serve/reader.ts";
import { callingTokenizer } from "../support/calling-model.ts";

const open: Reader[] = [];
afterEach(async () => {
  for (const reader of open.splice(0)) await reader.close();
});

/** A reader, and the names of the requests that it has read, in this order. */
function start() {
  const reader = new Reader(callingTokenizer(), { maxTexts: 256, maxPositions: 100_000 });
  open.push(reader);
  const read: string[] = [];
  const ask = async (name: string, connection: string, bytes: number, signal?: AbortSignal) => {
    const content = "x".repeat(bytes);
    const body = new Uint8Array(Buffer.from(JSON.stringify({ model: "m", prompt: content })));
    await reader.completion(body, { client: ["address", connection], ...(signal && { signal }) });
    read.push(name);
  };
  return { read, ask };
}

describe("large requests", () => {
  it("of a client that sends many do not delay another client's", async () => {
    const { read, ask } = start();
    const all = [1, 2, 3, 4, 5].map((i) => ask(`a${i}`, "a", 10_000));
    all.push(ask("b", "b", 20_000));
    await Promise.all(all);
    expect(read).toEqual(["a1", "b", "a2", "a3", "a4", "a5"]);
  });

  it("whose client has disconnected are not read", async () => {
    const { read, ask } = start();
    const leave = new AbortController();
    const first = ask("first", "a", 10_000);
    const gone = ask("gone", "a", 10_000, leave.signal);
    const left = expect(gone).rejects.toMatchObject({ status: 400, code: "disconnected" });
    const last = ask("last", "a", 20_000);
    leave.abort();
    await left;
    expect(read).toEqual([]);
    await expect(ask("late", "a", 10_000, leave.signal)).rejects.toMatchObject({ code: "disconnected" });
    await Promise.all([first, last]);
    expect(read).toEqual(["first", "last"]);
  });
});
