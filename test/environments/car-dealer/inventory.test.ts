import { createHash } from "node:crypto";
import { describe, expect, it } from "vitest";
import { buyers } from "../../../lib/environments/car-dealer/buyer-profiles.ts";
import { features, inventories, search } from "../../../lib/environments/car-dealer/inventory.ts";
import { splits } from "../../support/negotiations.ts";

describe("the cars", () => {
  it("are the same everywhere", () => {
    expect(splits.map((split) => inventories[split].cars.length)).toEqual([47, 47, 45]);
    expect(
      createHash("sha256")
        .update(JSON.stringify([inventories, buyers]))
        .digest("hex"),
    ).toBe("e0884f06d18d1d4143added1b30a644a94c337306b40de61253a3b763e15f00a");
  });

  it("differ between the splits in brands, types and numbers", () => {
    for (const part of ["brands", "types"] as const) {
      const all = splits.flatMap((split) => inventories[split][part]);
      expect(new Set(all).size).toBe(all.length);
    }
    const numbers = splits.flatMap((split) => inventories[split].cars.map(({ id }) => id));
    expect(new Set(numbers).size).toBe(numbers.length);
    for (const split of splits) {
      const { brands, types, cars } = inventories[split];
      for (const car of cars) {
        expect(brands).toContain(car.brand);
        expect(types).toContain(car.type);
        expect(car.marketPrice).toBeGreaterThan(15_000);
        expect(car.marketPrice % 100).toBe(0);
        for (const feature of car.features) expect(features).toContain(feature);
      }
      // Some brands lack a type, and a search for it finds nothing.
      const found = brands.map((brand) =>
        types.map((type) => search(inventories[split], { brand, type }).length),
      );
      expect(found.flat().some((count) => count === 0)).toBe(true);
    }
  });

  it("are found by their properties, case-insensitively", () => {
    const { cars } = inventories.train;
    expect(search(inventories.train, { brand: "toyota", type: " suv " })).toEqual(
      cars.filter(({ brand, type }) => brand === "Toyota" && type === "SUV"),
    );
    expect(search(inventories.train, { features: ["Sunroof", "heated seats"] })).toEqual(
      cars.filter((car) => car.features.includes("sunroof") && car.features.includes("heated seats")),
    );
    expect(search(inventories.train, { brand: "Kia" })).toEqual([]);
  });
});
