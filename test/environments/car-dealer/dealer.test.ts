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

  async function results(
    testSplit: "test" | "validation",
    split: "train" | "test",
    policy: (i: number) => ScriptedPolicy,
  ) {
    const tasks = await carDealer({ testSplit }).tasks(split);
    const games = [];
    for (const [i, { buyer }] of tasks.entries()) games.push(await play({ testSplit }, buyer, policy(i), i));
    const mean = games.reduce((sum, { reward }) => sum + reward, 0) / games.length;
    return { sold: games.filter(({ success }) => success).length, mean, games };
  }

  it("that follow the rules sell to every buyer, close to the best price", async () => {
    for (const [testSplit, split, name] of [
      ["test", "train", "train"],
      ["validation", "test", "validation"],
      ["test", "test", "test"],
    ] as const) {
      const { sold, mean } = await results(testSplit, split, () => scriptedDealer());
      const best = buyers[name].map((buyer) => saleReward(buyer, bestSale(buyer, inventories[name].cars)!));
      expect(sold).toBe(buyers[name].length);
      expect(mean).toBeGreaterThan((0.95 * best.reduce((sum, reward) => sum + reward, 0)) / best.length);
    }
  });

  it("that do nothing sell nothing", async () => {
    const idle = carDealer().idle!;
    for (const split of ["train", "test"] as const) {
      expect(await results("test", split, () => () => idle)).toMatchObject({ sold: 0, mean: 0 });
    }
  });

  it("that offer random cars sell to some", async () => {
    const { sold, mean } = await results("test", "train", randomDealer);
    expect(sold).toBeGreaterThan(10);
    expect(sold).toBeLessThan(90);
    expect(mean).toBeLessThan(0.6);
  });
});
