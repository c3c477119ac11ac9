import { expect, test } from "vitest";
import { Tasks, tasksConfig } from "../../lib/agents/tasks.ts";

function make(options: object = {}, count = 3) {
  let now = 0;
  const names = Array.from({ length: count }, (_, i) => ({ kind: i }));
  const tasks = new Tasks(names, tasksConfig.parse(options), () => now);
  return { tasks, wait: (seconds: number) => (now += seconds * 1000) };
}

test("leases tasks in turn, and one that was not rewarded in time again", () => {
  const { tasks, wait } = make({ leaseSeconds: 60, maxAttempts: 2 });
  const first = tasks.next()!;
  expect(first).toMatchObject({ id: 0, task: { kind: 0 }, attempt: 1, lease_seconds: 60 });
  const second = tasks.next()!;
  expect(second.id).toBe(1);
  wait(40);
  expect(tasks.renew(second.episode)).toBe(true);
  wait(30); // the first has ended
  expect(tasks.renew(first.episode)).toBe(false);
  const again = tasks.next()!;
  expect(again).toMatchObject({ id: 0, attempt: 2 });
  expect(again.episode).not.toBe(first.episode);
  tasks.finish(second.episode, true);
  tasks.finish(second.episode, true);
  tasks.finish("an episode without a lease", true);
  expect(tasks.leased).toBe(1);
  wait(70); // a second time without a reward: passed over
  expect(tasks.next()!.id).toBe(2);
  expect([tasks.expired, tasks.passedOver]).toEqual([2, 1]);
});

test("a returned task is leased next", () => {
  const { tasks } = make();
  const { episode } = tasks.next()!;
  expect(tasks.release(episode)).toBe(true);
  expect(tasks.release(episode)).toBe(false);
  expect(tasks.next()).toMatchObject({ id: 0, attempt: 1 });
});

test("by variance, tasks that sometimes succeed are leased more often", () => {
  const { tasks } = make({ order: "variance" });
  const counts = [0, 0, 0];
  for (let i = 0; i < 600; i++) {
    const { id, episode } = tasks.next()!;
    counts[id]!++;
    tasks.finish(episode, id === 0 || (id === 1 && i % 2 === 0));
  }
  // Even leases would be 200.
  expect(counts[1]).toBeGreaterThan(400);
  expect(make({}, 0).tasks.next()).toBeUndefined();
});

test("a group of which a task is passed over is closed: the rest of it is not leased", () => {
  const { tasks, wait } = make({ leaseSeconds: 60, maxAttempts: 1, groupSize: 3 });
  const [first, second] = [tasks.next()!, tasks.next()!];
  expect(second.group).toBe(first.group);
  wait(40);
  expect(tasks.renew(second.episode)).toBe(true);
  wait(30); // the first has ended, and the third was not leased yet
  const next = tasks.next()!;
  expect(next.id).toBe(1);
  expect(next.group).not.toBe(first.group);
  expect(tasks.release(second.episode)).toBe(true);
  for (let i = 0; i < 2; i++) expect(tasks.next()!.group).toBe(next.group);
  expect(tasks.next()!.id).toBe(2);
  expect([tasks.expired, tasks.passedOver]).toEqual([1, 1]);
});

test("a task whose lease ended is not leased again if its episode is rewarded late", () => {
  const { tasks, wait } = make({ leaseSeconds: 60, maxAttempts: 3, groupSize: 2 }, 2);
  const [late, other] = [tasks.next()!, tasks.next()!];
  tasks.finish(other.episode, true);
  wait(70);
  expect(tasks.leased).toBe(0);
  tasks.finish(late.episode, true);
  expect(tasks.next()).toMatchObject({ id: 1, attempt: 1 });

  // Rewarded while it is leased again: that lease goes on, and is the last one.
  const second = tasks.next()!;
  wait(70);
  const again = [tasks.next()!, tasks.next()!];
  expect(again).toMatchObject([
    { id: 1, attempt: 2 },
    { id: 1, attempt: 2 },
  ]);
  tasks.finish(second.episode, false);
  tasks.finish(again[0]!.episode, false);
  wait(70);
  expect(tasks.next()).toMatchObject({ id: 0, attempt: 1 });
  expect(tasks.passedOver).toBe(0);
});

test("leases are limited in number, and so is what is remembered of a task that is returned again and again", () => {
  const { tasks, wait } = make({ leaseSeconds: 60 });
  const first = tasks.next()!;
  let last = first;
  for (let i = 0; i < 100; i++) {
    expect(tasks.release(last.episode)).toBe(true);
    last = tasks.next()!;
    expect(last).toMatchObject({ id: 0, attempt: 1 });
  }
  // The first of 100 leases was forgotten: its reward does not end the last one.
  tasks.release(last.episode);
  tasks.finish(first.episode, true);
  expect(tasks.next()).toMatchObject({ id: 0 });
  let leased = 1;
  for (; !tasks.isFull; leased++) tasks.next();
  expect(leased).toBe(16_384);
  wait(70);
  expect(tasks.isFull).toBe(false);
});
