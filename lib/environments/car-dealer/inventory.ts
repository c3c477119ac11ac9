/**
 * The dealership's cars. Brands and types differ between the splits. Cars are generated from fixed
 * random numbers, so that they are the same everywhere. Prices are fictitious.
 */

import { streams, uniform } from "../../base/random.ts";

export type Split = "train" | "validation" | "test";

export interface Car {
  id: number;
  brand: string;
  type: string;
  features: readonly string[];
  /** Price without a discount, in dollars. */
  marketPrice: number;
}

export interface Inventory {
  brands: readonly string[];
  types: readonly string[];
  cars: readonly Car[];
}

/** Largest discount, as a share of the market price. */
export const maxDiscount = 0.1;
/** Discounts that the database suggests for every car. */
export const suggestedDiscounts: readonly number[] = [0.02, 0.05, maxDiscount];
/** Most cars shown by a search. */
export const maxShown = 8;

export const features = [
  "adaptive cruise control",
  "all-wheel drive",
  "backup camera",
  "blind spot monitoring",
  "heated seats",
  "leather seats",
  "navigation system",
  "remote start",
  "sunroof",
  "wireless charging",
] as const;

interface Range {
  /** Number of the first car. */
  first: number;
  /** Price factors, relative to other cars of the type. */
  brands: Readonly<Record<string, number>>;
  /** Price in dollars of a plain car of an average brand. */
  types: Readonly<Record<string, number>>;
}

const ranges: Readonly<Record<Split, Range>> = {
  train: {
    first: 101,
    brands: { Audi: 1.35, BMW: 1.4, Ford: 0.95, Honda: 0.95, Toyota: 1 },
    types: { coupe: 34_000, sedan: 26_000, SUV: 33_000, truck: 37_000 },
  },
  validation: {
    first: 201,
    brands: { Hyundai: 0.9, Lexus: 1.35, Mazda: 0.95, "Mercedes-Benz": 1.5, Volkswagen: 1 },
    types: { convertible: 38_000, crossover: 30_000, hatchback: 22_000, minivan: 35_000 },
  },
  test: {
    first: 301,
    brands: { Chevrolet: 0.95, Kia: 0.9, Nissan: 0.95, Subaru: 1, Volvo: 1.3 },
    types: { "electric car": 40_000, hybrid: 30_000, roadster: 43_000, "station wagon": 29_000 },
  },
};

/** Share of the combinations of brand and type that are in stock. */
const inStock = 0.8;

function makeInventory(split: Split): Inventory {
  const { first, brands, types } = ranges[split];
  let counter = first * 1000;
  const random = () => uniform(0, streams.world, counter++);
  const cars: Car[] = [];
  for (const [brand, level] of Object.entries(brands)) {
    for (const [type, base] of Object.entries(types)) {
      if (random() >= inStock) continue;
      const count = 2 + Math.floor(random() * 3);
      for (let i = 0; i < count; i++) {
        const own = features.filter(() => random() < 0.4);
        const price = base * level * (0.9 + 0.2 * random() + 0.03 * own.length);
        cars.push({
          id: first + cars.length,
          brand,
          type,
          features: own,
          marketPrice: Math.round(price / 100) * 100,
        });
      }
    }
  }
  return { brands: Object.keys(brands), types: Object.keys(types), cars };
}

export const inventories: Readonly<Record<Split, Inventory>> = {
  train: makeInventory("train"),
  validation: makeInventory("validation"),
  test: makeInventory("test"),
};

/** Cars with the given brand, type and all given features; case-insensitive. */
export function search(
  { cars }: Inventory,
  wanted: { brand?: string; type?: string; features?: readonly string[] },
): Car[] {
  const same = (a: string, b: string) => a.toLowerCase() === b.trim().toLowerCase();
  return cars.filter(
    (car) =>
      (wanted.brand === undefined || same(car.brand, wanted.brand)) &&
      (wanted.type === undefined || same(car.type, wanted.type)) &&
      (wanted.features ?? []).every((feature) => car.features.some((own) => same(own, feature))),
  );
}
