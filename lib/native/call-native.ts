/** Calls into the addon. */

import { fromNative } from "../base/errors.ts";

/** What `call` returns; what the addon throws becomes an NlacError. */
export function callNative<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    throw fromNative(error);
  }
}
