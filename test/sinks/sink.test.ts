import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { PermanentError, type ReportedRow, type Sink, SinkQueue } from "../../lib/sinks/sink.ts";

const run = { id: "id", name: "n", directory: "/runs/n", recipe: {} };
const row = (step: number): ReportedRow => ({ number: step, step, time: 0, values: { a: step } });
/** Limits that only a sink that hangs or keeps failing reaches. */
const fast = { pauseMs: 1, closeMs: 60_000, timeoutMs: 60_000 };

/** Records the steps it gets; fails as often as `failures` says. */
function recorder(failures = 0, error: Error = new Error("down")) {
  const calls: (number[] | string)[] = [];
  let left = failures;
  const sink: Sink = {
    name: "recorder",
    start: () => {
      if (left-- > 0) throw error;
      calls.push("start");
    },
    metrics: async (rows) => void calls.push(rows.map(({ step }) => step)),
    event: ({ kind }) => void calls.push(kind),
  };
  return { sink, calls };
}

test("entries are sent in order and in batches, after the caller's work, and start comes first once", async () => {
  const { sink, calls } = recorder();
  const queue = new SinkQueue(sink, run, { ...fast, maxBatch: 2 });
  for (const step of [1, 2, 3]) queue.metrics(row(step));
  queue.event({ kind: "collapsed", time: 0, message: "" });
  queue.metrics(row(4));
  expect(calls).toEqual([]);
  expect(await queue.close()).toBeUndefined();
  expect(calls).toEqual(["start", [1, 2], [3], "collapsed", [4]]);
  queue.metrics(row(5)); // after the end: counted, not sent
  await sleep(5);
  expect(calls).toHaveLength(5);
});

test("a failing sink is tried again, then loses entries, which are counted with the reason", async () => {
  const twice = recorder(2);
  const recovers = new SinkQueue(twice.sink, run, fast);
  recovers.metrics(row(1));
  expect(await recovers.close()).toBeUndefined();
  expect(twice.calls).toEqual(["start", [1]]);

  const never = new SinkQueue(recorder(Number.POSITIVE_INFINITY).sink, run, { ...fast, closeMs: 200 });
  never.metrics(row(1));
  expect(await never.close()).toBe("report to recorder: 1 of 1 entries were not sent (last error: down)");

  // What the server refuses is not repeated.
  let attempts = 0;
  const refuses: Sink = {
    name: "refuses",
    metrics: () => {
      attempts++;
      throw new PermanentError("400");
    },
  };
  const refused = new SinkQueue(refuses, run, fast);
  refused.metrics(row(1));
  expect(await refused.close()).toMatch(/1 of 1 .*400/);
  expect(attempts).toBe(1);
});

test("the queue is bounded: the oldest rows are dropped, events stay", async () => {
  let open = () => {};
  const gate = new Promise<void>((resolve) => {
    open = resolve;
  });
  let started = () => {};
  const sending = new Promise<void>((resolve) => {
    started = resolve;
  });
  const { sink, calls } = recorder();
  const slow: Sink = {
    ...sink,
    start: () => {
      started();
      return gate;
    },
  };
  const queue = new SinkQueue(slow, run, { ...fast, maxQueued: 3, maxBatch: 1 });
  queue.metrics(row(0));
  await sending;
  queue.event({ kind: "collapsed", time: 0, message: "" });
  for (let step = 1; step <= 10_000; step++) queue.metrics(row(step));
  open();
  expect(await queue.close()).toBe("report to recorder: 9998 of 10002 entries were not sent");
  expect(calls).toEqual([[0], "collapsed", [9999], [10_000]]);
});

test("a sink that hangs, or blocks forever, ends with the run within the limit", async () => {
  const hangs: Sink = { name: "hangs", metrics: () => new Promise(() => {}) };
  // Far above the test's own timeout.
  const queue = new SinkQueue(hangs, run, { ...fast, closeMs: 200, timeoutMs: 600_000 });
  queue.metrics(row(1));
  expect(await queue.close()).toMatch(/^report to hangs: 1 of 1 entries were not sent/);
});

test("adding an entry does not call the sink", async () => {
  let calls = 0;
  const sink: Sink = {
    name: "down",
    metrics: () => {
      calls++;
      throw new Error("down");
    },
  };
  const queue = new SinkQueue(sink, run, { ...fast, closeMs: 200 });
  for (let step = 0; step < 1000; step++) queue.metrics(row(step));
  expect(calls).toBe(0);
  await queue.close();
  expect(calls).toBeGreaterThan(0);
});

test("an episode that cannot be prepared is counted, and does not throw", async () => {
  const sink: Sink = {
    name: "bad",
    prepare: () => {
      throw new Error("no");
    },
    episodes: () => {},
  };
  const queue = new SinkQueue(sink, run, fast);
  queue.episode({} as never, 0);
  expect(await queue.close()).toMatch(/1 of 1 .*no/);
});
