/**
 * Unicode's White_Space, as the Rust library `tokenizers` knows spaces. JavaScript's `\s` and `trim`
 * lack U+0085 and have U+FEFF.
 */

const space = /\p{White_Space}/u;

/** Where the spaces that end at `end` start, not before `least`. */
export function spacesBefore(text: string, end: number, least = 0): number {
  let start = end;
  while (start > least && space.test(text[start - 1]!)) start--;
  return start;
}

/** Where the spaces that start at `start` end. */
export function spacesAfter(text: string, start: number): number {
  let end = start;
  while (end < text.length && space.test(text[end]!)) end++;
  return end;
}
