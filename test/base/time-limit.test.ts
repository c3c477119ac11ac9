import { spawn } from "node:child_process";
import { once } from "node:events";
import { describe, expect, it, vi } from "vitest";
import { inSlices, slices } from "../../lib/base/slices.ts";
import { isOverTimeLimit, withTimeLimit } from "../../lib/base/time-limit.ts";

function errorOf(call: () => unknown): unknown {
  try {
    call();
  } catch (error) {
    return error;
  }
  return undefined;
}

describe("withTimeLimit", () => {
  it("returns the result, and passes on what the work throws", () => {
    expect(withTimeLimit(1000, () => [1, 2])).toEqual([1, 2]);
    const thrown = errorOf(() =>
      withTimeLimit(1000, () => {
        throw new RangeError("mine");
      }),
    );
    expect(thrown).toBeInstanceOf(RangeError);
    expect(isOverTimeLimit(thrown)).toBe(false);
  });

  it("stops an endless loop, and a regular expression that backtracks without end", () => {
    const endless = () => {
      for (;;);
    };
    expect(isOverTimeLimit(errorOf(() => withTimeLimit(20, endless)))).toBe(true);
    const hostile = () => /^(a+)+$/.test(`${"a".repeat(40)}b`);
    expect(isOverTimeLimit(errorOf(() => withTimeLimit(20, hostile)))).toBe(true);
  });

  it("can be nested: the outer work continues after the inner one", () => {
    const nested = () => {
      const inner = errorOf(() =>
        withTimeLimit(10, () => {
          for (;;);
        }),
      );
      return [isOverTimeLimit(inner), withTimeLimit(1000, () => "inner"), "outer"];
    };
    expect(withTimeLimit(5000, nested)).toEqual([true, "inner", "outer"]);
  });

  it("does not count the time in which the process is suspended", async () => {
    const child = spawn(process.execPath, ["--import", "jiti/register", "test/support/time-limit-child.ts"], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    let said = "";
    child.stdout.on("data", (data) => {
      if (said === "") {
        child.kill("SIGSTOP");
        setTimeout(() => child.kill("SIGCONT"), 1200);
      }
      said += data;
    });
    await once(child, "close");
    // Once more than it was called without the suspension, or twice on a busy machine.
    expect(said).toMatch(/^(started\n){2,3}finished$/);
  });
});

describe("slices", () => {
  it("give the event loop a turn after some milliseconds, and none before", async () => {
    let now = 0;
    const clock = vi.spyOn(performance, "now").mockImplementation(() => now);
    try {
      let turned = false;
      setImmediate(() => {
        turned = true;
      });
      const turn = slices();
      for (let pass = 0; pass < 3; pass++) {
        now += 1;
        await turn();
      }
      expect(turned).toBe(false);
      now += 5;
      await turn();
      expect(turned).toBe(true);
    } finally {
      clock.mockRestore();
    }
  });

  it("give all items in order", async () => {
    const items: number[] = [];
    for await (const item of inSlices([3, 1, 2])) items.push(item);
    expect(items).toEqual([3, 1, 2]);
  });
});
