import { expect, it } from "vitest";
import { overlay } from "../../lib/base/overlay.ts";

class Counter {
  #count = 0;
  step = 1;

  add(): number {
    this.#count += this.step;
    return this.#count;
  }
}

it("replaces members, and runs the other methods on the object, private fields included", () => {
  const counter = new Counter();
  const changed = overlay(counter, { step: 10, name: "mine" });
  expect([changed.step, changed.name]).toEqual([10, "mine"]);
  // A method sees the object's own members, not the changes.
  expect(changed.add()).toBe(1);
  expect(counter.add()).toBe(2);
  expect("name" in changed && "add" in changed && !("other" in changed)).toBe(true);
});

it("sees later changes of the object", () => {
  const counter = new Counter();
  const changed = overlay(counter, { name: "mine" });
  counter.step = 5;
  expect(changed.step).toBe(5);
  expect(changed.add()).toBe(5);
});
