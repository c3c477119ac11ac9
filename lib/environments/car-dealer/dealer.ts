/**
 * A scripted dealer for demonstrations and as a reference: finds out what the buyer needs and can
 * pay, searches for it, and offers the car with the highest reward. It parses the phrases of
 * buyer.ts.
 */

import type { Action, Message } from "../../contract/environment.ts";
import { callAction } from "../../prompts/calls.ts";
import type { ScriptedPolicy } from "../check.ts";
import { dollars } from "./buyer.ts";
import { maxOverBudget, slightlyOverBudget } from "./buyer-profiles.ts";
import { type Car, features, type Inventory, inventories, maxDiscount } from "./inventory.ts";

/** Facts about the buyer and the cars, from the conversation so far. */
interface Knowledge {
  inventory: Pick<Inventory, "brands" | "types">;
  /** Of the ideal car. */
  brand: string;
  type: string;
  features: readonly string[];
  /**
   * Whether brand and type are needed, and how many of the features. Undefined until the buyer says
   * so.
   */
  needs?: { brand: boolean; type: boolean; features: number };
  /** Dollars. Undefined until the buyer says so. */
  budget?: number;
  /** Highest price, as a multiple of the budget. */
  maxBudgets: number;
  /** Whether this turn's database call has been made. */
  searched: boolean;
  /** Searches made so far, as JSON. */
  searches: Set<string>;
  /** By car number. */
  cars: Map<number, Car>;
  /** Cars that the buyer refuses at any price. */
  refused: Set<number>;
  /** Highest price to ask for each car, in dollars, given the buyer's replies. */
  caps: Map<number, number>;
}

/** Discount on the market price at the first request for one. */
const firstDiscount = 0.02;

/** Takes no options: everything it knows comes from the conversation. */
export function scriptedDealer(): ScriptedPolicy {
  return ({ observation, history }) => {
    const known = learn(observation.messages.at(-1)!.content);
    for (const { action, result } of history) hear(known, action, result.observation[0]!);
    return (known.searched ? undefined : nextSearch(known)) ?? nextReply(known);
  };
}

function learn(opening: string): Knowledge {
  const all = Object.values(inventories);
  const inventory =
    all.find(({ brands }) => brands.some((brand) => opening.includes(` ${brand} `))) ?? all[0]!;
  return {
    inventory,
    brand: inventory.brands.find((brand) => opening.includes(` ${brand} `)) ?? "",
    type: inventory.types.find((type) => opening.includes(` ${type} with`)) ?? "",
    features: features.filter((feature) => opening.includes(feature)),
    maxBudgets: 1,
    searched: false,
    searches: new Set(),
    cars: new Map(),
    refused: new Set(),
    caps: new Map(),
  };
}

/** Updates `known` from an action and its answer. */
function hear(known: Knowledge, { tool }: Action, { content }: Message): void {
  if (tool === undefined || content.startsWith("Error:")) return;
  known.searched = tool.name !== "respond";
  if (known.searched) {
    known.searches.add(JSON.stringify(tool));
    if (tool.name !== "no_op") hearCars(known, content);
    return;
  }
  const [, , number, what] = /It must (have at least (one|two) of|be an? ([^.]+))/.exec(content) ?? [];
  if (number !== undefined) known.needs = { brand: false, type: false, features: number === "one" ? 1 : 2 };
  if (what !== undefined) {
    known.needs = { brand: what.includes(known.brand), type: what.includes(known.type), features: 0 };
  }
  const [, budget, leeway] = /My budget is (\$[\d,]+)(.*)/.exec(content) ?? [];
  if (budget !== undefined) {
    known.budget = amount(budget);
    if (leeway!.includes("slightly over")) known.maxBudgets = slightlyOverBudget;
    if (leeway!.includes("flexible")) known.maxBudgets = maxOverBudget;
  }
  const car = known.cars.get(Number(tool.arguments.car_id));
  if (car !== undefined) hearOpinion(known, car, content);
}

function hearCars(known: Knowledge, content: string): void {
  const found = JSON.parse(content) as {
    cars: { car_id: number; brand: string; type: string; features: string[]; market_price: number }[];
  };
  for (const { car_id: id, market_price: marketPrice, ...car } of found.cars) {
    known.cars.set(id, { ...car, id, marketPrice });
  }
}

/** Updates `known` from the buyer's opinion of an offered car. */
function hearOpinion(known: Knowledge, car: Car, content: string): void {
  if (/^(?:I never take the first car|That is not the car for me)/.test(content)) known.refused.add(car.id);
  if (content.startsWith("That is too plain")) {
    for (const { id, marketPrice } of known.cars.values()) {
      if (marketPrice <= car.marketPrice) known.refused.add(id);
    }
  }
  if (content.startsWith("I do not buy without a discount")) {
    known.caps.set(car.id, (1 - firstDiscount) * car.marketPrice);
  }
  const [, counterOffer] = /I would pay (\$[\d,]+) now/.exec(content) ?? [];
  if (counterOffer !== undefined) {
    known.caps.set(car.id, Math.max(amount(counterOffer), (1 - maxDiscount) * car.marketPrice));
  }
}

function amount(text: string): number {
  return Number(text.replace(/[$,]/g, ""));
}

/** A new search that may find a car that fits the needs. */
function nextSearch(known: Knowledge): Action | undefined {
  const { brand, type, needs, inventory } = known;
  const pairs = (car_brand: string, car_type: string) =>
    ["search_car_by_brand_type", { car_brand, car_type }] as const;
  const wanted = [
    ...(needs === undefined || needs.brand || needs.type ? [pairs(brand, type)] : []),
    ...(needs?.brand && !needs.type ? inventory.types.map((other) => pairs(brand, other)) : []),
    ...(needs?.type && !needs.brand ? inventory.brands.map((other) => pairs(other, type)) : []),
    ...featureLists(known).map(
      (features_list) => ["search_car_that_have_features", { features_list }] as const,
    ),
  ];
  return wanted
    .map(([name, args]) => callAction(name, args, "I look for what the buyer needs."))
    .find(({ tool }) => !known.searches.has(JSON.stringify(tool)));
}

/** All combinations of as many wanted features as are needed. */
function featureLists({ needs, features }: Knowledge): string[][] {
  if (needs?.features === 1) return features.map((feature) => [feature]);
  if (needs?.features !== 2) return [];
  return features.flatMap((feature, i) => features.slice(i + 1).map((other) => [feature, other]));
}

function nextReply(known: Knowledge): Action {
  if (known.needs === undefined) {
    return respond("What must the car have? What matters most to you?", "First I must know what is needed.");
  }
  if (known.budget === undefined) {
    return respond("That is good to know. What is your budget?", "Next I must know what can be paid.");
  }
  const offer = bestOffer(known, known.needs, known.budget);
  if (offer === undefined) {
    return respond("Please give me a moment: I look for more cars.", "No car that I have seen will do.");
  }
  const { car, price } = offer;
  return respond(
    `I have just the car for you: the ${car.brand} ${car.type} with ${car.features.join(", ")}, for ${dollars(price)}.`,
    "Of the cars that suit the buyer, this one pays best.",
    { car_id: car.id, price },
  );
}

/** The offer with the highest reward, given what is known. */
function bestOffer(
  known: Knowledge,
  needs: NonNullable<Knowledge["needs"]>,
  budget: number,
): { car: Car; price: number } | undefined {
  let best: { car: Car; price: number } | undefined;
  const worth = ({ car, price }: { car: Car; price: number }) => price ** 2 / car.marketPrice;
  for (const car of known.cars.values()) {
    const matching = car.features.filter((own) => known.features.includes(own)).length;
    if (known.refused.has(car.id) || matching < needs.features) continue;
    if ((needs.brand && car.brand !== known.brand) || (needs.type && car.type !== known.type)) continue;
    const asked = known.caps.get(car.id) ?? car.marketPrice;
    const price = Math.floor(Math.min(asked, known.maxBudgets * budget));
    if (price < (1 - maxDiscount) * car.marketPrice) continue;
    if (best === undefined || worth({ car, price }) > worth(best)) best = { car, price };
  }
  return best;
}

export function respond(
  content: string,
  thought: string,
  offer: { car_id?: number; price?: number } = {},
): Action {
  return callAction("respond", { content, ...offer }, thought);
}
