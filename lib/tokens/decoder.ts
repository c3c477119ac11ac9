/**
 * From ids to text, one at a time: a character is returned when its last byte is known. `decode` of
 * a tokenizer is the same text at once.
 */

import { isUtf8 } from "node:buffer";
import { NlacError } from "../base/errors.ts";
import { isObject } from "../base/validation.ts";
import { bytesOfToken } from "./bpe.ts";
import { byteOfToken } from "./fallback.ts";

/** Decodes ids one at a time. */
export interface StreamDecoder {
  /** The text that is certain after another id; may be empty. */
  add(id: number): string;
  /** The rest. Incomplete characters become U+FFFD. */
  end(): string;
}

type BytesAt = (id: number) => Uint8Array | undefined;

/** What the tokens of a vocabulary are in text. */
export interface TokenTexts {
  /** The bytes of a token, which may be part of a character. */
  bytesOf(token: string): Uint8Array;
  /**
   * `bytesAt`: the bytes of an id, undefined for unused ids. `isByte`: whether its token is a byte.
   */
  stream(bytesAt: BytesAt, isByte: (id: number) => boolean): StreamDecoder;
  /** The text of the stream at once. */
  decode(ids: Iterable<number>, bytesAt: BytesAt, isByte: (id: number) => boolean): string;
  /** Whether a token represents a byte, and not its own text. */
  isByte(token: string): boolean;
  /** Whether a space at the start of a text is dropped. */
  dropsFirstSpace: boolean;
}

const utf8 = new TextEncoder();
const lossy = new TextDecoder("utf-8", { ignoreBOM: true });

/** Byte-level tokens: the bytes of all tokens are one stream of UTF-8. */
export const byteLevelTexts: TokenTexts = {
  bytesOf: bytesOfToken,
  isByte: () => true,
  dropsFirstSpace: false,
  stream(bytesAt) {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return {
      add: (id) => {
        const bytes = bytesAt(id);
        return bytes === undefined ? "" : decoder.decode(bytes, { stream: true });
      },
      end: () => decoder.decode(),
    };
  },
  decode(ids, bytesAt) {
    const parts: Uint8Array[] = [];
    for (const id of ids) {
      const bytes = bytesAt(id);
      if (bytes !== undefined) parts.push(bytes);
    }
    return lossy.decode(Buffer.concat(parts));
  },
};

/**
 * Tokens of text, and of bytes between them. As in the reference, adjacent bytes are one text: if
 * any of them is not UTF-8, each becomes U+FFFD. They are therefore held until another token
 * follows.
 */
function fallbackTexts(replacements: readonly Replacement[], fallsBack: boolean, drops: boolean): TokenTexts {
  const textOf = (token: string) =>
    replacements.reduce((text, { from, to }) => text.replaceAll(from, () => to), token);
  const byteOf = (token: string) => (fallsBack ? byteOfToken(textOf(token)) : undefined);
  return {
    bytesOf(token) {
      const byte = byteOf(token);
      return byte === undefined ? utf8.encode(textOf(token)) : Uint8Array.of(byte);
    },
    isByte: (token) => byteOf(token) !== undefined,
    dropsFirstSpace: drops,
    decode(ids, bytesAt, isByte) {
      const stream = this.stream(bytesAt, isByte);
      let text = "";
      for (const id of ids) text += stream.add(id);
      return text + stream.end();
    },
    stream(bytesAt, isByte) {
      let held: number[] = [];
      const end = (): string => {
        if (held.length === 0) return "";
        const bytes = Uint8Array.from(held);
        held = [];
        return isUtf8(bytes) ? lossy.decode(bytes) : "\ufffd".repeat(bytes.length);
      };
      return {
        add(id) {
          const bytes = bytesAt(id);
          if (bytes === undefined) return "";
          if (isByte(id)) {
            held.push(bytes[0]!);
            return "";
          }
          return end() + lossy.decode(bytes);
        },
        end,
      };
    },
  };
}

interface Replacement {
  from: string;
  to: string;
}

/**
 * The decoder of a vocabulary of characters: a sequence of Replace, ByteFallback, Fuse and Strip in
 * this order, each of which may be absent. Strip drops one space at the start, and needs Fuse.
 *
 * @throws NlacError ERR_MODEL_FORMAT for other decoders
 */
export function compileDecoder(rule: unknown): TokenTexts {
  const refuse = (): never => {
    const shown = JSON.stringify(rule) ?? "(none)";
    throw new NlacError(
      "ERR_MODEL_FORMAT",
      `The tokenizer's decoder is ${shown.slice(0, 200)}; supported are ByteLevel, and sequences of Replace, ` +
        "ByteFallback, Fuse and Strip of one space at the start.",
    );
  };
  const steps: unknown[] =
    isObject(rule) && rule.type === "Sequence" && Array.isArray(rule.decoders) ? rule.decoders : refuse();
  const order = ["Replace", "ByteFallback", "Fuse", "Strip"];
  const replacements: Replacement[] = [];
  const seen: string[] = [];
  for (const step of steps) {
    if (!isObject(step)) refuse();
    const { type, pattern, content, start, stop } = step as Record<string, unknown>;
    const place = order.indexOf(String(type));
    const before = seen.length === 0 ? -1 : order.indexOf(seen.at(-1)!);
    if (place < 0 || place < before || (place === before && type !== "Replace")) refuse();
    seen.push(String(type));
    if (type === "Replace") {
      const from = isObject(pattern) ? pattern.String : undefined;
      // One character for another: a token does not grow.
      if (typeof from !== "string" || typeof content !== "string") refuse();
      if (Array.from(from as string).length !== 1 || Array.from(content as string).length > 1) refuse();
      replacements.push({ from: from as string, to: content as string });
    }
    if (type === "Strip" && (content !== " " || start !== 1 || stop !== 0)) refuse();
  }
  const drops = seen.includes("Strip");
  if (drops && !seen.includes("Fuse")) refuse();
  return fallbackTexts(replacements, seen.includes("ByteFallback"), drops);
}
