/** Calls into the addon. */

import { fromNative } from "../base/errors.ts";

/** Calls `call`. Converts the addon's errors to NlacError. */
export function callNative<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    throw fromNative(error);
  }
}
