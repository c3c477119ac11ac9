/**
 * Stops a training when the file `stop` appears in its run directory: for jobs whose processes the
 * user cannot signal. The file is removed, so that the run can be continued.
 */

import { existsSync, rmSync } from "node:fs";
import { join } from "node:path";
import { NlacError } from "../base/errors.ts";

/** Milliseconds between two checks. */
const everyMs = 1000;

export class StopFile {
  /** Fires when the file appears, or with the given signal. */
  readonly signal: AbortSignal;
  readonly #timer: NodeJS.Timeout;

  /** @param onStop called when the file appears */
  constructor(run: string, signal: AbortSignal | undefined, onStop: () => void) {
    const path = join(run, "stop");
    const controller = new AbortController();
    this.signal = signal === undefined ? controller.signal : AbortSignal.any([signal, controller.signal]);
    this.#timer = setInterval(() => {
      if (!existsSync(path)) return;
      this.close();
      onStop();
      controller.abort(new NlacError("ERR_ABORTED", `stopped by ${path}`));
      try {
        rmSync(path, { force: true });
      } catch {
        // It may be a directory. An error here would end the process before it saves a checkpoint.
      }
    }, everyMs).unref();
  }

  /** Stops checking. */
  close(): void {
    clearInterval(this.#timer);
  }
}
