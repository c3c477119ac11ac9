/**
 * The dealer's tools: search the database, or say something to the buyer, optionally with an offer.
 */

import { getOrAdd } from "../../base/get-or-add.ts";
import { shown } from "../../base/validation.ts";
import type { ToolSchema } from "../../contract/environment.ts";
import { type CheckArguments, compileArguments } from "../arguments.ts";
import { type Car, features, type Inventory, maxShown, search, suggestedDiscounts } from "./inventory.ts";

/** Longest utterance, in characters. */
const maxReplyLength = 1000;
/** Dollars; above every price. */
const highestPrice = 1e6;

const brand = { type: "string", description: "A brand of the database." };
const type = { type: "string", description: "A type of the database." };

/** The rules list the brands, types and features. */
export const dealerTools: readonly ToolSchema[] = [
  tool("search_car_by_brand_type", "Find the cars of a brand that are of a type.", {
    car_brand: brand,
    car_type: type,
  }),
  tool("search_car_by_brand", "Find the cars of a brand.", { car_brand: brand }),
  tool("search_car_by_type", "Find the cars of a type.", { car_type: type }),
  tool("search_car_that_have_features", "Find the cars that have at least all these features.", {
    features_list: {
      type: "array",
      items: { type: "string", maxLength: maxReplyLength },
      minItems: 1,
      maxItems: features.length,
      description: "Features of the database.",
    },
  }),
  tool("no_op", "Search for nothing.", {}),
  tool(
    "respond",
    "Say something to the buyer. To offer a car, give also its car_id and the price; both or neither.",
    {
      content: { type: "string", minLength: 1, maxLength: maxReplyLength, description: "What you say." },
      car_id: {
        type: "integer",
        description: "Number of the offered car, which a search must have shown.",
      },
      price: {
        type: "number",
        exclusiveMinimum: 0,
        maximum: highestPrice,
        description: "The price asked for it, in dollars.",
      },
    },
    ["content"],
  ),
];

function tool(
  name: string,
  description: string,
  properties: Record<string, unknown>,
  required = Object.keys(properties),
): ToolSchema {
  return {
    name,
    description,
    parameters: { type: "object", properties, required, additionalProperties: false },
  };
}

export type Call =
  | { kind: "search"; cars: Car[] }
  | { kind: "no_op" }
  | { kind: "respond"; content: string; carId?: number; price?: number }
  | { kind: "refused"; reason: string };

/** Compiled on first use, since compiling is slow. */
const checks = new Map<string, CheckArguments>();

/** Reads a tool call. Problems are returned in words; nothing is thrown. */
export function readCall(inventory: Inventory, name: string, args: Record<string, unknown>): Call {
  const tool = dealerTools.find((candidate) => candidate.name === name);
  if (tool === undefined) {
    const names = dealerTools.map((known) => known.name).join(", ");
    return { kind: "refused", reason: `there is no tool ${shown(name)}, only ${names}` };
  }
  const check = getOrAdd(checks, name, () => compileArguments(tool.parameters, name));
  const problem = check(args);
  if (problem !== undefined) return { kind: "refused", reason: problem };
  if (name === "no_op") return { kind: "no_op" };
  if (name === "respond") return respond(args as { content: string; car_id?: number; price?: number });
  const { car_brand, car_type, features_list } = args as {
    car_brand?: string;
    car_type?: string;
    features_list?: string[];
  };
  const wanted = {
    ...(car_brand === undefined ? {} : { brand: car_brand }),
    ...(car_type === undefined ? {} : { type: car_type }),
    ...(features_list === undefined ? {} : { features: features_list }),
  };
  return { kind: "search", cars: search(inventory, wanted) };
}

function respond({ content, car_id, price }: { content: string; car_id?: number; price?: number }): Call {
  if (content.trim() === "") return { kind: "refused", reason: "content is empty" };
  if (car_id === undefined && price === undefined) return { kind: "respond", content };
  if (car_id === undefined || price === undefined) {
    return { kind: "refused", reason: "an offer needs both car_id and price" };
  }
  return { kind: "respond", content, carId: car_id, price };
}

/** The database's answer: the number of matching cars, and the first of them. */
export function searchResult(cars: readonly Car[]): string {
  return JSON.stringify({
    found: cars.length,
    cars: shownCars(cars).map(({ id, brand, type, features, marketPrice }) => ({
      car_id: id,
      brand,
      type,
      features,
      market_price: marketPrice,
      suggested_discounts: suggestedDiscounts.map((discount) => `${Math.round(100 * discount)}%`),
    })),
  });
}

/** The cars that the answer to a search shows. */
export function shownCars(cars: readonly Car[]): readonly Car[] {
  return cars.slice(0, maxShown);
}
