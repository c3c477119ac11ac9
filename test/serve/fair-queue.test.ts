import { describe, expect, it } from "vitest";
import { FairQueue, type Waiting } from "../../lib/serve/fair-queue.ts";

interface Named extends Waiting {
  name: string;
}

const asked = (name: string, connection: string, cost = 1, address = "address"): Named => ({
  ...{ name, cost, client: [address, connection] },
});

function order(queue: FairQueue<Named>, count: number): string[] {
  return Array.from({ length: count }, () => queue.next()?.name ?? "none");
}

describe("waiting requests", () => {
  it("come first if their client has used less time, by address and then by connection", () => {
    const queue = new FairQueue<Named>();
    queue.spend(["busy", "x"], 100);
    queue.spend(["address", "b"], 10);
    for (const one of [asked("other", "y", 1, "busy"), asked("b", "b"), asked("a", "a", 9)]) queue.add(one);
    expect(order(queue, 3)).toEqual(["a", "b", "other"]);
    expect(queue.next()).toBeUndefined();
  });

  it("of one client are taken by their cost, equal ones in order of arrival", () => {
    const queue = new FairQueue<Named>();
    for (const one of [asked("large", "a", 5), asked("first", "a"), asked("second", "a")]) queue.add(one);
    expect(order(queue, 3)).toEqual(["first", "second", "large"]);
  });

  it("are served in the end, however many others arrive", () => {
    const queue = new FairQueue<Named>();
    queue.spend(["address", "old"], 1000);
    queue.add(asked("old", "old", 100));
    const taken: string[] = [];
    for (let i = 0; i < 4; i++) {
      queue.add(asked(`new ${i}`, `${i}`));
      taken.push(...order(queue, 1));
    }
    expect(taken).toEqual(["new 0", "new 1", "new 2", "old"]);
  });

  it("are compared by the time of the 1000 clients that used some last", () => {
    const first = (names: string[]) => {
      const queue = new FairQueue<Named>();
      const spend = (name: string, ms: number) => queue.spend([name], ms);
      spend("first", 100);
      for (let i = 0; i < 999; i++) spend(`${i}`, 1);
      for (const name of names) spend(name, 1);
      queue.add({ name: "0", cost: 1, client: ["0"] });
      queue.add({ name: "first", cost: 1, client: ["first"] });
      return queue.next()!.name;
    };
    expect(first([])).toBe("0");
    // "first" is forgotten, and counts as one that has used none.
    expect(first(["new"])).toBe("first");
    // It has used some again: "0" is forgotten.
    expect(first(["first", "new"])).toBe("0");
  });

  it("may leave", () => {
    const queue = new FairQueue<Named>();
    const [gone, stays] = [asked("gone", "a"), asked("stays", "a")];
    queue.add(gone);
    queue.add(stays);
    expect(queue.remove(gone)).toBe(gone);
    expect(queue.remove(gone)).toBeUndefined();
    expect(order(queue, 2)).toEqual(["stays", "none"]);
  });
});
