/**
 * The buyers: what each says to want, what each really needs, and what each pays. The kinds are
 * those of the paper (HOPE, appendix I.1); the individual buyers are generated from fixed random
 * numbers, so that each can be sold a car.
 */

import { streams, uniform } from "../../base/random.ts";
import { type Car, features, inventories, maxDiscount, type Split } from "./inventory.ts";

export interface BuyerKind {
  /** Which properties of the ideal car a car must have. */
  needs: { brand: boolean; type: boolean; features: number };
  /** Highest accepted price, as a multiple of the budget. */
  maxBudgets: number;
  /** Wants a discount of at least 1 %. */
  bargains?: true;
  /** Never takes the first car offered. */
  distrustful?: true;
  /** Number of the dealer's replies after which the buyer leaves. */
  patience?: number;
  /** Leaves when more than this many different cars were offered. */
  maxCars?: number;
  /** Takes no car below this share of the budget. */
  minBudgets?: number;
}

/** Highest price that any buyer pays, as a multiple of the budget. */
export const maxOverBudget = 1.1;
export const slightlyOverBudget = 1.05;
const smallestDiscount = 0.01;

const knownKinds: readonly BuyerKind[] = [
  { needs: { brand: true, type: true, features: 0 }, maxBudgets: slightlyOverBudget, bargains: true },
  { needs: { brand: false, type: false, features: 1 }, maxBudgets: 1, patience: 6 },
  { needs: { brand: true, type: true, features: 0 }, maxBudgets: maxOverBudget, distrustful: true },
];

const testKinds: readonly BuyerKind[] = [
  { needs: { brand: true, type: false, features: 0 }, maxBudgets: maxOverBudget, patience: 6 },
  { needs: { brand: false, type: false, features: 2 }, maxBudgets: 1, distrustful: true },
  {
    needs: { brand: false, type: true, features: 0 },
    maxBudgets: 1,
    minBudgets: 0.8,
    maxCars: 3,
    patience: 8,
  },
];

export interface Buyer extends BuyerKind {
  id: string;
  split: Split;
  ideal: { brand: string; type: string; features: readonly string[] };
  /** Dollars. */
  budget: number;
}

export interface Offer {
  car: Car;
  /** Dollars. */
  price: number;
}

export type Objection =
  | "brand"
  | "type"
  | "features"
  | "too cheap a car"
  | "over budget"
  | "above market price"
  | "first car"
  | "no discount";

/**
 * Why the buyer cannot take the offer; undefined if nothing speaks against it.
 * @param firstCar number of the first car offered in the negotiation
 */
export function objection(buyer: Buyer, { car, price }: Offer, firstCar: number): Objection | undefined {
  const { needs, ideal } = buyer;
  if (needs.brand && car.brand !== ideal.brand) return "brand";
  if (needs.type && car.type !== ideal.type) return "type";
  const matching = car.features.filter((feature) => ideal.features.includes(feature)).length;
  if (matching < needs.features) return "features";
  if (car.marketPrice < (buyer.minBudgets ?? 0) * buyer.budget) return "too cheap a car";
  if (buyer.distrustful && car.id === firstCar) return "first car";
  if (price > car.marketPrice) return "above market price";
  if (price > maxPrice(buyer)) return "over budget";
  if (buyer.bargains && price > (1 - smallestDiscount) * car.marketPrice) return "no discount";
  return undefined;
}

/** Whole dollars. */
export function maxPrice(buyer: Buyer): number {
  return Math.round(buyer.maxBudgets * buyer.budget);
}

export function allowedDiscount({ car, price }: Offer): boolean {
  return price >= (1 - maxDiscount) * car.marketPrice;
}

/** The reward of a sale: (purchase cost)² / (budget × market price). HOPE, appendix D. */
export function saleReward({ budget }: Buyer, { car, price }: Offer): number {
  return price ** 2 / (budget * car.marketPrice);
}

/** The sale with the highest reward among `cars`; undefined if none is possible. */
export function bestSale(buyer: Buyer, cars: readonly Car[]): Offer | undefined {
  let best: Offer | undefined;
  for (const car of cars) {
    const asked = buyer.bargains ? Math.floor((1 - smallestDiscount) * car.marketPrice) : car.marketPrice;
    const offer = { car, price: Math.min(asked, maxPrice(buyer)) };
    if (objection(buyer, offer, Number.NaN) !== undefined || !allowedDiscount(offer)) continue;
    if (best === undefined || saleReward(buyer, offer) > saleReward(buyer, best)) best = offer;
  }
  return best;
}

/** Number of buyers of each kind. */
const counts: Readonly<Record<Split, number>> = { train: 40, validation: 10, test: 10 };
const seeds: Readonly<Record<Split, number>> = { train: 1, validation: 2, test: 3 };

function makeBuyers(split: Split): Buyer[] {
  const { brands, types, cars } = inventories[split];
  let counter = 0;
  const random = () => uniform(seeds[split], streams.world, counter++);
  const anyOf = <T>(values: readonly T[]): T => values[Math.floor(random() * values.length)]!;
  const buyers: Buyer[] = [];
  const kinds = split === "test" ? testKinds : knownKinds;
  for (const [number, kind] of kinds.entries()) {
    for (let made = 0; made < counts[split]; ) {
      const wanted = features.filter(() => random() < 0.4);
      const price = anyOf(cars).marketPrice * (0.95 + 0.35 * random());
      const buyer: Buyer = {
        ...kind,
        id: `${split}-${number + 1}-${made + 1}`,
        split,
        ideal: { brand: anyOf(brands), type: anyOf(types), features: wanted },
        budget: Math.round(price / 500) * 500,
      };
      // A buyer who refuses the first car needs a second one.
      const possible = cars.filter((car) => bestSale(buyer, [car]) !== undefined).length;
      if (wanted.length < 2 || possible < (kind.distrustful ? 2 : 1)) continue;
      buyers.push(buyer);
      made++;
    }
  }
  return buyers;
}

export const buyers: Readonly<Record<Split, readonly Buyer[]>> = {
  train: makeBuyers("train"),
  validation: makeBuyers("validation"),
  test: makeBuyers("test"),
};
