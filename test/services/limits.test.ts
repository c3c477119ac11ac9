import fc from "fast-check";
import { expect, it } from "vitest";
import { Places } from "../../lib/services/limits.ts";

const tick = () => new Promise(setImmediate);

it("admits as many as there are places, by number, and loses no place to cancelled requests", async () => {
  const request = fc.record({ ticks: fc.nat(4), fails: fc.boolean(), leaves: fc.option(fc.nat(6)) });
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 4 }),
      fc.array(request, { maxLength: 30 }),
      async (most, all) => {
        const places = new Places(most);
        let within = 0;
        let largest = 0;
        const entered: number[] = [];
        const asked = all.map(async ({ ticks, fails, leaves }, i) => {
          const controller = new AbortController();
          const number = places.number();
          const done = places.within(number, controller.signal, async () => {
            largest = Math.max(largest, ++within);
            entered.push(i);
            for (let t = 0; t < ticks; t++) await tick();
            within--;
            if (fails) throw new Error("failed");
          });
          const settled = done.catch(() => undefined);
          for (let t = 0; t < (leaves ?? 0); t++) await tick();
          if (leaves !== null) controller.abort();
          await settled;
        });
        await Promise.all(asked);
        expect(largest).toBeLessThanOrEqual(most);
        // Requests of the same time are admitted by number, except those cancelled before.
        expect(entered).toEqual([...entered].sort((a, b) => a - b));
        for (const [i, { leaves }] of all.entries()) if (leaves === null) expect(entered).toContain(i);
        // Every place is free again.
        let free = 0;
        const rest = Array.from({ length: most }, () =>
          places.within(places.number(), undefined, async () => void free++),
        );
        await Promise.all(rest);
        expect([free, within]).toEqual([most, 0]);
      },
    ),
  );
});

it("admits a retry before later requests", async () => {
  const places = new Places(1);
  const [first, ...others] = [places.number(), places.number(), places.number()];
  const entered: number[] = [];
  const enter = (number: number) =>
    places.within(number, undefined, async () => {
      entered.push(number);
      await tick();
    });
  const waiting = [enter(first!), ...others.map(enter)];
  await Promise.all([...waiting, enter(first!)]);
  expect(entered).toEqual([0, 0, 1, 2]);
});
