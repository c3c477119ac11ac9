/**
 * Limits on JSON text that are checked before it is parsed: a parsed value can take many times the
 * memory of its text, and deep nesting exhausts the stack of code that traverses it.
 */

import { badRequest } from "./request-error.ts";

/** Maximum number of values, for example of ids in all prompts. */
const maxValues = 1_000_000;
/** Maximum nesting of lists and objects. */
export const maxDepth = 256;

const [quote, backslash, comma] = [0x22, 0x5c, 0x2c];
const [openList, closeList, openObject, closeObject] = [0x5b, 0x5d, 0x7b, 0x7d];

/**
 * The value of a JSON text in UTF-8.
 *
 * @throws RequestError of status 400 for a text that is not JSON or exceeds the limits
 */
export function parseWithinLimits(bytes: Uint8Array): unknown {
  checkLimits(bytes);
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch {
    throw badRequest("The request's body is not JSON.", null, "invalid_json");
  }
}

function checkLimits(bytes: Uint8Array): void {
  let values = 1;
  let depth = 0;
  for (let i = 0; i < bytes.length; i++) {
    switch (bytes[i]) {
      case quote:
        for (i++; i < bytes.length && bytes[i] !== quote; i++) if (bytes[i] === backslash) i++;
        break;
      case comma:
        values++;
        break;
      case openList:
      case openObject:
        values++;
        depth++;
        if (depth > maxDepth)
          throw badRequest(`The request is nested deeper than ${maxDepth} levels.`, null, "too_deep");
        break;
      case closeList:
      case closeObject:
        depth--;
        break;
    }
    if (values > maxValues)
      throw badRequest(`The request has more than ${maxValues} values.`, null, "too_many_values");
  }
}
