import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { DeviceShare } from "../../lib/agents/device-share.ts";

/** Requests of `ms` milliseconds each, the first token at once. */
async function requests(share: DeviceShare, count: number, ms = 0) {
  for (let i = 0; i < count; i++) {
    const visit = await share.enter();
    visit.firstToken();
    if (ms > 0) await sleep(ms);
    visit.leave();
  }
}

test("training waits for a gap between requests, and requests wait for one job", async () => {
  const share = new DeviceShare({ maxFirstTokenMs: 1000 });
  const order: string[] = [];
  const first = await share.enter();
  const job = share.alone(0, undefined, async () => {
    order.push("job begins");
    await sleep(5);
    order.push("job ends");
  });
  await sleep(5);
  order.push("request ends");
  first.leave();
  await sleep(1);
  const second = share.enter().then((visit) => {
    order.push("next request");
    visit.leave();
  });
  await Promise.all([job, second]);
  expect(order).toEqual(["request ends", "job begins", "job ends", "next request"]);
  expect(share.trainingShare).toBeGreaterThan(0);
});

test("without a gap, a job runs only if the bound leaves time for it", async () => {
  const withTraffic = async (maxFirstTokenMs: number) => {
    const share = new DeviceShare({ maxFirstTokenMs });
    await requests(share, 4, 10);
    let stop = false;
    let ran = false;
    // Two clients whose requests overlap, so that there is no gap.
    const client = async () => {
      while (!stop) await requests(share, 1, 10);
    };
    const clients = [client(), sleep(5).then(client)];
    await sleep(5);
    const aborting = new AbortController();
    const job = share.alone(1, aborting.signal, async () => {
      ran = true;
    });
    await sleep(200);
    const ranInTraffic = ran;
    stop = true;
    aborting.abort();
    await Promise.allSettled([job, ...clients]);
    return ranInTraffic;
  };
  expect(await withTraffic(10_000)).toBe(true);
  expect(await withTraffic(10)).toBe(false);
});

test("a request that never ends does not keep others waiting for training", async () => {
  const share = new DeviceShare({ maxFirstTokenMs: 40 });
  await requests(share, 4);
  const endless = await share.enter();
  const aborting = new AbortController();
  const job = share.alone(0, aborting.signal, async () => "ran");
  const other = await share.enter(); // while `endless` still runs
  aborting.abort();
  await expect(job).rejects.toMatchObject({ code: "ERR_ABORTED" });
  other.leave();
  endless.leave();
  expect(await share.alone(0, undefined, async () => "ran")).toBe("ran");
});

test("measures the 99th percentile of the time to the first token", async () => {
  let now = 0;
  const share = new DeviceShare({ maxFirstTokenMs: 100, now: () => now });
  expect(share.firstTokenMs).toBeUndefined();
  for (let i = 1; i <= 100; i++) {
    const visit = await share.enter();
    now += i;
    visit.firstToken();
    visit.firstToken();
    visit.leave();
    visit.leave();
  }
  expect(share.firstTokenMs).toBe(100);
});

test("under endless overlapping requests a job runs after the time that it may wait", async () => {
  const share = new DeviceShare({ maxFirstTokenMs: 1 });
  let stop = false;
  const client = async () => {
    while (!stop) await requests(share, 1, 20);
  };
  const clients = [client(), sleep(10).then(client)];
  await sleep(50);
  const started = performance.now();
  expect(await share.alone(1, undefined, async () => "ran", 100)).toBe("ran");
  expect(performance.now() - started).toBeGreaterThanOrEqual(90);
  expect(share.overdue).toBe(1);
  await requests(share, 2); // they are admitted again
  await share.quiet(undefined, 50);
  stop = true;
  await Promise.all(clients);
});
