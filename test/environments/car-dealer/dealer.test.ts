import { describe, expect, it } from "vitest";
import { streams, uniform } from "../../../lib/base/random.ts";
import { bestSale, buyers, saleReward } from "../../../lib/environments/car-dealer/buyer-profiles.ts";
import { carDealer, scriptedDealer } from "../../../lib/environments/car-dealer/index.ts";
import { inventories } from "../../../lib/environments/car-dealer/inventory.ts";
import type { ScriptedPolicy } from "../../../lib/environments/check.ts";
import { calling, play, said, saying } from "../../support/negotiations.ts";

describe("players", () => {
  /** Searches at random, and offers any shown car at about its price. */
  const randomDealer =
    (seed: number): ScriptedPolicy =>
    ({ observation, history }) => {
      let counter = history.length * 8;
      const random = () => uniform(seed, streams.policy, counter++);
      const brands = /brands: ([^.]+)\./.exec(observation.messages[0]!.content)![1]!.split(", ");
      const last = history.at(-1);
      const shown =
        last?.result.observation[0]?.role === "tool" ? JSON.parse(said(last.result)).cars : undefined;
      if (shown === undefined) {
        return calling("search_car_by_brand", { car_brand: brands[Math.floor(random() * brands.length)]! });
      }
      const car = shown[Math.floor(random() * shown.length)];
      if (car === undefined) return saying("What do you want?");
      return saying("Take it!", {
        car_id: car.car_id,
        price: Math.round(car.market_price * (0.9 + 0.15 * random())),
      });
    };

  const splits = [
    ["test", "train", "train"],
    ["validation", "test", "validation"],
    ["test", "test", "test"],
  ] as const;

  /** Valid sales and mean reward of five negotiations per buyer, on the three splits. */
  async function results(policy: (seed: number) => ScriptedPolicy) {
    const rows = [];
    for (const [testSplit, split] of splits) {
      const tasks = await carDealer({ testSplit }).tasks(split);
      const games = [];
      for (let game = 0; game < 5; game++) {
        for (const [i, { buyer }] of tasks.entries()) {
          const seed = i + 1000 * game;
          games.push(await play({ testSplit }, buyer, policy(seed), seed));
        }
      }
      const mean = games.reduce((sum, { reward }) => sum + reward, 0) / games.length;
      rows.push([games.filter(({ success }) => success).length, games.length, mean.toFixed(3)]);
    }
    return rows;
  }

  // The table in docs/environments/car-dealer.md.
  it.each<[string, (seed: number) => ScriptedPolicy, (number | string)[][]]>([
    [
      "that follow the rules sell to every buyer",
      () => scriptedDealer(),
      [
        [600, 600, "0.871"],
        [150, 150, "0.810"],
        [150, 150, "0.948"],
      ],
    ],
    [
      "that offer random cars sell to about every second buyer",
      randomDealer,
      [
        [302, 600, "0.357"],
        [58, 150, "0.256"],
        [70, 150, "0.334"],
      ],
    ],
    [
      "that do nothing sell nothing",
      () => () => carDealer().idle!,
      [
        [0, 600, "0.000"],
        [0, 150, "0.000"],
        [0, 150, "0.000"],
      ],
    ],
  ])(
    "%s",
    async (_, policy, expected) => {
      expect(await results(policy)).toEqual(expected);
    },
    60_000,
  );

  it("could at best earn little more than those that follow the rules", () => {
    const best = splits.map(([, , name]) => {
      const rewards = buyers[name].map((buyer) =>
        saleReward(buyer, bestSale(buyer, inventories[name].cars)!),
      );
      return (rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length).toFixed(3);
    });
    expect(best).toEqual(["0.893", "0.831", "0.971"]);
  });
});
