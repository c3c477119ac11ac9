import { describe, expect, it } from "vitest";
import {
  allowedDiscount,
  type Buyer,
  bestSale,
  buyers,
  objection,
  saleReward,
} from "../../../lib/environments/car-dealer/buyer-profiles.ts";
import { type Car, inventories, type Split } from "../../../lib/environments/car-dealer/inventory.ts";
import { splits } from "../../support/negotiations.ts";

describe("the buyers", () => {
  it("come in fixed numbers of each kind, and each can be sold a car", () => {
    expect(splits.map((split) => buyers[split].length)).toEqual([120, 30, 30]);
    const ids = splits.flatMap((split) => buyers[split].map(({ id }) => id));
    expect(new Set(ids).size).toBe(180);
    for (const split of splits) {
      const { cars } = inventories[split];
      for (const buyer of buyers[split]) {
        const possible = cars.filter((car) => bestSale(buyer, [car]) !== undefined);
        expect(possible.length).toBeGreaterThanOrEqual(buyer.distrustful ? 2 : 1);
        const best = bestSale(buyer, cars)!;
        expect(objection(buyer, best, Number.NaN)).toBeUndefined();
        expect(allowedDiscount(best)).toBe(true);
      }
    }
  });

  it("of validation are of training kinds, those of the test of other kinds", () => {
    const kinds = (split: Split) => {
      const all = buyers[split].map(
        ({ needs, maxBudgets, bargains, distrustful, patience, maxCars, minBudgets }) =>
          JSON.stringify({ needs, maxBudgets, bargains, distrustful, patience, maxCars, minBudgets }),
      );
      return [...new Set(all)];
    };
    expect(kinds("validation")).toEqual(kinds("train"));
    expect(kinds("train")).toHaveLength(3);
    expect(kinds("test")).toHaveLength(3);
    expect(kinds("test").filter((kind) => kinds("train").includes(kind))).toEqual([]);
  });

  it("have a best sale that no other price in whole dollars exceeds", () => {
    for (const split of splits) {
      const { cars } = inventories[split];
      for (const buyer of buyers[split].filter((_, i) => i % 7 === 0)) {
        const reward = saleReward(buyer, bestSale(buyer, cars)!);
        for (const car of cars) {
          for (let price = Math.ceil(0.9 * car.marketPrice); price <= car.marketPrice; price += 50) {
            if (objection(buyer, { car, price }, Number.NaN) !== undefined) continue;
            expect(saleReward(buyer, { car, price })).toBeLessThanOrEqual(reward);
          }
        }
      }
    }
  });
});

describe("rewards and objections", () => {
  const car: Car = {
    id: 1,
    brand: "Audi",
    type: "sedan",
    features: ["sunroof", "remote start"],
    marketPrice: 32_000,
  };
  const buyer = (change: Partial<Buyer>): Buyer => ({
    id: "x",
    split: "train",
    needs: { brand: false, type: false, features: 0 },
    maxBudgets: 1,
    ideal: { brand: "Audi", type: "sedan", features: ["sunroof", "heated seats"] },
    budget: 30_000,
    ...change,
  });

  it("divides the square of the price by budget and market price", () => {
    // 28,800² = 829,440,000; by 30,000 × 32,000 = 960,000,000.
    expect(saleReward(buyer({}), { car, price: 28_800 })).toBe(0.864);
    expect(saleReward(buyer({ budget: 32_000 }), { car, price: 32_000 })).toBe(1);
    expect(saleReward(buyer({ budget: 40_000 }), { car, price: 32_000 })).toBe(0.8);
  });

  it.each([
    [{}, 30_000, undefined],
    [{}, 30_001, "over budget"],
    [{ maxBudgets: 1.05 }, 31_500, undefined],
    [{ maxBudgets: 1.05 }, 31_501, "over budget"],
    [{ budget: 50_000 }, 32_000, undefined],
    [{ budget: 50_000 }, 32_001, "above market price"],
    [{ budget: 50_000, bargains: true as const }, 31_681, "no discount"],
    [{ budget: 50_000, bargains: true as const }, 31_680, undefined],
    [{ budget: 40_000, minBudgets: 0.8 }, 32_000, undefined],
    [{ budget: 40_001, minBudgets: 0.8 }, 32_000, "too cheap a car"],
    [{ distrustful: true as const }, 29_000, "first car"],
    [{ needs: { brand: true, type: true, features: 0 } }, 30_000, undefined],
    [{ needs: { brand: false, type: false, features: 1 } }, 30_000, undefined],
    [{ needs: { brand: false, type: false, features: 2 } }, 30_000, "features"],
    [
      {
        needs: { brand: true, type: false, features: 0 },
        ideal: { brand: "BMW", type: "sedan", features: [] },
      },
      30_000,
      "brand",
    ],
    [
      {
        needs: { brand: true, type: true, features: 0 },
        ideal: { brand: "Audi", type: "SUV", features: [] },
      },
      30_000,
      "type",
    ],
  ])("of %j to %d: %s", (change, price, against) => {
    expect(objection(buyer(change), { car, price }, car.id)).toBe(against);
  });

  it("allows at most 10 % off", () => {
    expect(allowedDiscount({ car, price: 28_800 })).toBe(true);
    expect(allowedDiscount({ car, price: 28_799.99 })).toBe(false);
  });
});
