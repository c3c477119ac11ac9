/** Negotiations of Car Dealer, action by action. */

import type { Action, Episode, StepResult } from "../../lib/contract/environment.ts";
import { type Buyer, buyers } from "../../lib/environments/car-dealer/buyer-profiles.ts";
import { type CarDealerOptions, carDealer } from "../../lib/environments/car-dealer/index.ts";
import { type Car, inventories, type Split } from "../../lib/environments/car-dealer/inventory.ts";
import type { ScriptedPolicy } from "../../lib/environments/check.ts";

export const splits: readonly Split[] = ["train", "validation", "test"];

export function calling(name: string, args: Record<string, unknown> = {}): Action {
  const tool = { name, arguments: args };
  return { text: JSON.stringify(tool), tool };
}

export const saying = (content: string, offer: { car_id?: number; price?: number } = {}) =>
  calling("respond", { content, ...offer });

export const offering = ({ id }: Car, price: number) => saying("Take this one.", { car_id: id, price });

export const said = (result: StepResult): string => result.observation[0]!.content;

/** The first buyer of a kind, and the inventory's cars. */
export function buyerOf(split: Split, kind: number): { buyer: Buyer; cars: readonly Car[] } {
  const buyer = buyers[split].find(({ id }) => id === `${split}-${kind}-1`)!;
  return { buyer, cars: inventories[split].cars };
}

/** An episode with that buyer, and a function that shows a car so that it may be offered. */
export async function meet(buyer: Buyer, options: CarDealerOptions = {}) {
  const testSplit = buyer.split === "validation" ? "validation" : "test";
  const episode = await carDealer({ testSplit, ...options }).start({ buyer: buyer.id }, { seed: 0 });
  return {
    episode,
    step: (action: Action) => episode.step(action),
    offer: (car: Car, price: number) => offer(episode, car, price),
  };
}

/** Finds the car by one search that shows it, and offers it. */
export async function offer(episode: Episode, car: Car, price: number): Promise<StepResult> {
  await episode.step(calling("search_car_by_brand_type", { car_brand: car.brand, car_type: car.type }));
  return episode.step(offering(car, price));
}

export async function play(options: CarDealerOptions, buyer: string, policy: ScriptedPolicy, seed = 0) {
  const episode = await carDealer(options).start({ buyer }, { seed });
  const history = [];
  for (;;) {
    const action = policy({ observation: episode.observation, history });
    const result = await episode.step(action);
    history.push({ action, result });
    if (result.terminated)
      return { history, reward: result.reward, success: result.info.success as boolean, last: result };
  }
}
