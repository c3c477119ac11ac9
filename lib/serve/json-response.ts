/** Large JSON answers, written in slices so that they do not stall the event loop. */

import type { Context } from "hono";
import { stream } from "hono/streaming";
import { nextSlice, sliceMs } from "../base/slices.ts";

/** Characters that are sent in one piece. */
export const pieceLength = 2 ** 16;

/** A list whose items are made when they are written. */
export function lazy<T, U>(items: readonly T[], make: (item: T, i: number) => U): Iterable<U> {
  return {
    *[Symbol.iterator]() {
      for (const [i, item] of items.entries()) yield make(item, i);
    },
  };
}

/**
 * `value` as the answer. Lists in it may be lazy; their items and the items of plain lists may not.
 */
export async function sendJson(c: Context, value: object): Promise<Response> {
  const pieces = inPieces(value);
  const first = await pieces.next();
  const second = await pieces.next();
  c.header("content-type", "application/json");
  if (second.done) return c.body(first.value ?? "");
  return stream(c, async (out) => {
    await out.write(first.value!);
    await out.write(second.value);
    for await (const piece of pieces) {
      if (out.aborted) return;
      await out.write(piece);
    }
  });
}

/** The JSON text of `value` in pieces, with turns of the event loop between them. Lists may be lazy. */
export async function* inPieces(value: object): AsyncGenerator<string> {
  let text = "";
  // As `slices`, but without an await for each part, which takes two thirds as long as the writing.
  let begun = performance.now();
  for (const part of parts(value)) {
    text += part;
    if (text.length >= pieceLength) {
      yield text;
      text = "";
    }
    if (performance.now() - begun < sliceMs) continue;
    await nextSlice();
    begun = performance.now();
  }
  if (text !== "") yield text;
}

/** Parts of the JSON text, each short. */
function* parts(value: unknown): Generator<string> {
  if (typeof value !== "object" || value === null) {
    yield JSON.stringify(value) ?? "null";
    return;
  }
  const isList = Symbol.iterator in value;
  const items = isList ? (value as Iterable<unknown>) : Object.entries(value);
  let separator = isList ? "[" : "{";
  for (const item of items) {
    if (isList) yield separator;
    else {
      const [key, inner] = item as [string, unknown];
      if (inner === undefined) continue;
      yield `${separator}${JSON.stringify(key)}:`;
    }
    separator = ",";
    yield* parts(isList ? item : (item as [string, unknown])[1]);
  }
  if (separator !== ",") yield separator;
  yield isList ? "]" : "}";
}
