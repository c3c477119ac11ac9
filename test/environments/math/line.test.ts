import { EventEmitter } from "node:events";
import { expect, it, vi } from "vitest";
import { gradeEpisode, gradeMath, maxWaiting } from "../../../lib/environments/math/grade.ts";
import { judge } from "../../../lib/environments/math/judge.ts";

vi.mock("../../../lib/environments/math/judge.ts", { spy: true });

// A thread that immediately accepts every answer.
vi.mock("node:worker_threads", () => ({
  Worker: class extends EventEmitter {
    constructor() {
      super();
      this.postMessage();
    }
    ref() {}
    unref() {}
    postMessage() {
      setImmediate(() => this.emit("message", true));
    }
  },
}));

it("queues up to a limit of requests that need the thread, rejects more, and accepts others later", async () => {
  const ask = () => gradeMath("\\sqrt{8}", "2\\sqrt{2}");
  const first = Array.from({ length: maxWaiting }, ask);
  for (let i = 0; i < 3; i++)
    await expect(ask()).rejects.toMatchObject({ code: "ERR_BUSY", message: expect.stringContaining("4096") });
  const read = vi.mocked(judge).mock.calls.length;
  expect(await gradeMath("1/2", "0.5")).toBe(true); // which needs no thread
  expect(vi.mocked(judge)).toHaveBeenCalledTimes(read + 1); // and is parsed once, however many are queued
  const episode = gradeEpisode("\\sqrt{8}", "2\\sqrt{2}"); // is never rejected
  await first[1];
  const next = ask();
  expect(await Promise.all([...first, next, episode])).toEqual(Array(maxWaiting + 2).fill(true));
});
