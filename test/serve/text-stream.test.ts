import fc from "fast-check";
import { Hono } from "hono";
import { expect, it, vi } from "vitest";
import { lazy } from "../../lib/serve/json-response.ts";
import { streamTexts } from "../../lib/serve/text-stream.ts";
import { TextStream } from "../../lib/tokens/text-stream.ts";
import { byteTokenizer } from "../support/scripted-model.ts";

const tokenizer = byteTokenizer();
const { specialIds } = tokenizer;

/**
 * The text of a generation that ends with the token which completes a stop string, and that token's
 * number.
 */
function wholeText(tokens: readonly number[], stop: readonly string[]): { text: string; written: number } {
  for (let written = 1; written <= tokens.length; written++) {
    const text = tokenizer.decode(tokens.slice(0, written), { skipSpecial: true });
    const cuts = stop.map((stop) => text.indexOf(stop)).filter((at) => at >= 0);
    if (cuts.length > 0) return { text: text.slice(0, Math.min(...cuts)), written };
  }
  return { text: tokenizer.decode(tokens, { skipSpecial: true }), written: tokens.length };
}

const byte = fc.integer({ min: 0, max: 255 });
/**
 * Beginnings and ends of characters, whole ones, a byte order mark's, and control tokens among
 * them.
 */
const hostile = fc.constantFrom(0xf0, 0x9f, 0x98, 0x80, 0xc3, 0xa9, 0xef, 0xbb, 0xbf, 0x41, ...specialIds);
const letter = fc.constantFrom(97, 98);
const tokens = fc.array(fc.oneof(byte, hostile, letter), { maxLength: 30 });
const few = fc.array(fc.oneof({ weight: 4, arbitrary: letter }, hostile), { maxLength: 20 });
const stops = fc.constantFrom([], ["ab", "bba"], ["aab"], ["é"], ["b\u{1f600}", "ba"]);

it("returns exactly the final text, except for what it holds back until the end", () => {
  fc.assert(
    fc.property(fc.oneof(tokens, few), stops, (tokens, stop) => {
      const { text, written } = wholeText(tokens, stop);
      const stream = new TextStream(tokenizer, stop);
      const pieces = tokens.slice(0, written).map((token) => stream.add(token));
      expect(pieces.join("")).toBe(stream.sent);
      expect(text.startsWith(stream.sent)).toBe(true);
      // Held back is at most a character that is not whole, and the beginning of a stop string.
      const longest = Math.max(1, ...stop.map(({ length }) => length));
      expect(text.length - stream.sent.length).toBeLessThanOrEqual(longest + 2);
    }),
    { numRuns: 3000 },
  );
});

it("a long event is sent in pieces, so that it does not hold up the event loop", async () => {
  const app = new Hono();
  const values = Array.from({ length: 100_000 }, (_, i) => `value ${i}`);
  app.get("/", (c) =>
    streamTexts({ learner: { tokenizer }, log: () => {} }, c, { model: "m", stop: [] }, 1, async () => [], {
      begin: () => [],
      end: () => [{ values: lazy(values, (value) => value), next: "a\nb" }],
      usage: () => ({}),
    }),
  );
  const reply = await app.request("/", {}, { outgoing: { destroy: () => {} } });
  const pieces: string[] = [];
  const decoder = new TextDecoder();
  for await (const piece of reply.body!) pieces.push(decoder.decode(piece, { stream: true }));
  expect(Math.max(...pieces.map(({ length }) => length))).toBeLessThan(200_000);
  const [event, end, none] = pieces.join("").split("\n\n");
  expect(JSON.parse(event!.replace(/^data: /, ""))).toEqual({ values, next: "a\nb" });
  expect([end, none]).toEqual(["data: [DONE]", ""]);
});

it("a client that reads nothing for a minute is disconnected", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval"] });
  try {
    const app = new Hono();
    app.get("/", (c) =>
      streamTexts({ learner: { tokenizer }, log: () => {} }, c, { model: "m", stop: [] }, 1, async () => [], {
        begin: () => [],
        end: () => Array.from({ length: 20 }, () => ({ text: "x".repeat(100_000) })),
        usage: () => ({}),
      }),
    );
    const destroy = vi.fn();
    const reply = await app.request("/", {}, { outgoing: { destroy } });
    for (let i = 0; i < 100; i++) await new Promise((resolve) => setImmediate(resolve));
    await vi.advanceTimersByTimeAsync(59_000);
    expect(destroy).not.toHaveBeenCalled();
    await vi.advanceTimersByTimeAsync(2000);
    expect(destroy).toHaveBeenCalledTimes(1);
    await reply.body!.cancel();
  } finally {
    vi.useRealTimers();
  }
});
