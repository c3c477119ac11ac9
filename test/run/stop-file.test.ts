import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { StopFile } from "../../lib/run/stop-file.ts";
import { inDirectory } from "../support/tiny.ts";

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
});
afterEach(() => {
  vi.useRealTimers();
});

describe("a file named stop", () => {
  it("fires the signal once, and is removed so that the run can continue", () =>
    inDirectory((run) => {
      const onStop = vi.fn();
      const stop = new StopFile(run, undefined, onStop);
      vi.advanceTimersByTime(5000);
      expect([stop.signal.aborted, onStop.mock.calls.length]).toEqual([false, 0]);
      writeFileSync(join(run, "stop"), "");
      vi.advanceTimersByTime(1000);
      expect(stop.signal.aborted).toBe(true);
      expect(stop.signal.reason).toMatchObject({
        code: "ERR_ABORTED",
        message: `stopped by ${join(run, "stop")}`,
      });
      expect(existsSync(join(run, "stop"))).toBe(false);
      writeFileSync(join(run, "stop"), "");
      vi.advanceTimersByTime(5000);
      expect(onStop).toHaveBeenCalledTimes(1);
    }));

  it("stops the run also if it cannot be removed", () =>
    inDirectory((run) => {
      const stop = new StopFile(run, undefined, () => {});
      mkdirSync(join(run, "stop"));
      vi.advanceTimersByTime(1000);
      expect(stop.signal.aborted).toBe(true);
    }));

  it("is not looked for after close", () =>
    inDirectory((run) => {
      const stop = new StopFile(run, undefined, () => {});
      stop.close();
      writeFileSync(join(run, "stop"), "");
      vi.advanceTimersByTime(5000);
      expect(stop.signal.aborted).toBe(false);
      expect(existsSync(join(run, "stop"))).toBe(true);
    }));

  it("is one of two ways to stop: the caller's signal is the other", () =>
    inDirectory((run) => {
      const controller = new AbortController();
      const stop = new StopFile(run, controller.signal, () => {});
      controller.abort(new Error("Ctrl-C"));
      expect(stop.signal.reason).toEqual(new Error("Ctrl-C"));
      stop.close();
    }));
});
