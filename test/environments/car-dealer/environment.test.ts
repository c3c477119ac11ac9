import { describe, expect, it } from "vitest";
import { NlacError } from "../../../lib/base/errors.ts";
import { needsText, openingText } from "../../../lib/environments/car-dealer/buyer.ts";
import { bestSale } from "../../../lib/environments/car-dealer/buyer-profiles.ts";
import { carDealer, scriptedDealer } from "../../../lib/environments/car-dealer/index.ts";
import { features, inventories } from "../../../lib/environments/car-dealer/inventory.ts";
import { checkEnvironment } from "../../../lib/environments/check.ts";
import { collectTrajectories } from "../../../lib/playing/collect.ts";
import { buyerOf, calling, meet, offering, play, said, saying } from "../../support/negotiations.ts";
import { ScriptedModel } from "../../support/scripted-model.ts";

describe("carDealer", () => {
  it("satisfies the contract", async () => {
    expect(await checkEnvironment(carDealer(), scriptedDealer(), { tasks: 1 })).toEqual([]);
    expect(
      await checkEnvironment(carDealer({ testSplit: "validation", actionFormat: "call" }), undefined, {
        tasks: 1,
      }),
    ).toEqual([]);
    expect(await checkEnvironment(carDealer({ turns: 1 }), () => saying("Hello"), { tasks: 1 })).toEqual([]);
  });

  it("opens with the database's words and the buyer's ideal car, without budget and needs", async () => {
    const { buyer } = buyerOf("train", 1);
    const { episode } = await meet(buyer);
    const { messages, tools } = episode.observation;
    expect(messages.map(({ role }) => role)).toEqual(["system", "user"]);
    expect(messages[1]!.content).toBe(openingText(buyer));
    for (const word of [...inventories.train.brands, ...inventories.train.types, ...features]) {
      expect(messages[0]!.content).toContain(word);
    }
    expect(tools!.map(({ name }) => name)).toContain("respond");
    expect(JSON.stringify(messages)).not.toContain(buyer.budget.toLocaleString("en-US"));
    expect(JSON.stringify(messages)).not.toContain("It must");
  });

  it.each([[false], [true]])(
    "sells: the reward is that of the formula; the end reveals what was hidden: %s",
    async (revealAtEnd) => {
      const { buyer, cars } = buyerOf("train", 1);
      const best = bestSale(buyer, cars)!;
      const { offer } = await meet(buyer, revealAtEnd ? { revealAtEnd } : {});
      const price = Math.floor(Math.min(best.price, 0.93 * buyer.maxBudgets * buyer.budget));
      const deal = price >= 0.9 * best.car.marketPrice ? price : best.price;
      let result = await offer(best.car, deal);
      for (let i = 0; !result.terminated && i < 8; i++) result = await offer(best.car, deal);
      expect(result).toMatchObject({
        terminated: true,
        reward: deal ** 2 / (buyer.budget * best.car.marketPrice),
        info: { success: true, decision: "buy", car: best.car.id, price: deal, budget: buyer.budget },
      });
      expect(said(result)).toBe(`Agreed: I take it for $${deal.toLocaleString("en-US")}.`);
      const dollars = (price: number) => `$${price.toLocaleString("en-US")}`;
      const sold = `[The negotiation is over. Car ${best.car.id} was sold for ${dollars(deal)}.`;
      const hidden = ` ${needsText(buyer)} The budget was ${dollars(buyer.budget)}; the best sale would have been car ${best.car.id} for ${dollars(best.price)}.`;
      expect(result.observation[1]!.content).toBe(`${sold}${revealAtEnd ? hidden : ""}]`);
    },
  );

  it("allows one database call per turn, and offers only of cars that a search has shown", async () => {
    const { buyer, cars } = buyerOf("train", 1);
    const { step } = await meet(buyer);
    expect(await step(offering(cars[0]!, 30_000))).toMatchObject({
      info: { toolError: true },
      terminated: false,
    });
    expect(await step(calling("no_op"))).toMatchObject({ observation: [{ role: "tool" }], reward: 0 });
    const second = await step(calling("search_car_by_type", { car_type: "SUV" }));
    expect(second).toMatchObject({ info: { toolError: true }, observation: [{ role: "tool" }] });
    expect(said(second)).toMatch(/^Error: only one database call a turn/);
    expect(await step(saying("What do you need?"))).toMatchObject({ observation: [{ role: "user" }] });
    const shown = await step(calling("search_car_by_brand", { car_brand: cars[0]!.brand }));
    expect(JSON.parse(said(shown)).cars[0].car_id).toBe(cars[0]!.id);
    expect((await step(offering(cars[0]!, 30_000))).info.toolError).toBeUndefined();
    expect(await step(offering(cars.at(-1)!, 30_000))).toMatchObject({ info: { toolError: true } });
  });

  it("treats idle actions as valid ones", async () => {
    const { buyer, cars } = buyerOf("train", 1);
    const idle = carDealer().idle!;
    const { step } = await meet(buyer);
    for (let action = 0; action < 20; action++)
      expect((await step(idle)).info).not.toHaveProperty("toolError");
    const other = await meet(buyer);
    await other.step(calling("search_car_by_brand", { car_brand: cars[0]!.brand }));
    expect((await other.step(idle)).info).not.toHaveProperty("toolError");
  });

  it("ends after ten replies, or twenty actions", async () => {
    const { buyer } = buyerOf("train", 1);
    const talk = await play({}, buyer.id, () => saying("Nice weather."));
    expect([talk.history.length, talk.reward, talk.success]).toEqual([10, 0, false]);
    const idle = carDealer().idle!;
    const nothing = await play({}, buyer.id, () => idle);
    expect([nothing.history.length, nothing.reward, nothing.success]).toEqual([20, 0, false]);
    const both = await play({ turns: 3 }, buyer.id, ({ history }) =>
      history.length % 2 === 0 ? idle : saying("Nice weather."),
    );
    expect(both.history).toHaveLength(6);
    expect(both.last.observation.at(-1)!.content).toContain("No car was sold");
  });

  it("gives nothing for a discount above 10 %, even if the buyer agrees", async () => {
    const { buyer, cars } = buyerOf("train", 1);
    const { car } = bestSale(buyer, cars)!;
    const { offer } = await meet(buyer);
    const gift = Math.floor(0.89 * Math.min(car.marketPrice, buyer.budget));
    const result = await offer(car, gift);
    expect(result).toMatchObject({ terminated: true, reward: 0, info: { success: false, decision: "buy" } });
    expect(result.observation[1]!.content).toContain("not valid: discount above the limit");
  });

  it("treats a turn without a call as said to the buyer", async () => {
    const { buyer } = buyerOf("train", 1);
    const { step } = await meet(buyer, { actionFormat: "call" });
    expect(said(await step({ text: "What do you need?" }))).toBe(needsText(buyer));
    expect(await step({ text: " " })).toMatchObject({ info: { toolError: true } });
  });

  it("is played by policies, several at once, and a service's fault ends only one episode", async () => {
    let asked = 0;
    const environment = carDealer({
      turns: 2,
      buyer: () => {
        if (asked++ === 0) throw new NlacError("ERR_SERVICE", "gone");
        return '{"decision": "continue", "utterance": "Hm."}';
      },
    });
    const action = '{"name": "respond", "arguments": {"content": "Hello"}}';
    const model = new ScriptedModel(() => `Thought:\nx\nAction:\n${action}`);
    const trajectories = await collectTrajectories({
      model,
      environment,
      episodes: (await environment.tasks("train")).slice(0, 3).map((task, id) => ({ id, task })),
      seed: 0,
      maxActionTokens: 200,
      maxPromptTokens: 50_000,
      temperature: 1,
    });
    expect(trajectories.map(({ outcome }) => outcome)).toEqual(["service-fault", "done", "done"]);
    expect(trajectories.map(({ turns }) => turns.length)).toEqual([1, 2, 2]);
  });

  it("rejects a step after the end and an unknown buyer", async () => {
    const episode = await carDealer({ turns: 1 }).start({ buyer: "train-1-1" }, { seed: 0 });
    await episode.step(saying("Hello"));
    await expect(episode.step(saying("Hello"))).rejects.toMatchObject({ code: "ERR_ENVIRONMENT" });
    await expect(carDealer().start({ buyer: "nobody" }, { seed: 0 })).rejects.toMatchObject({
      code: "ERR_ENVIRONMENT",
    });
  });

  it.each([{ turns: 0 }, { byer: "x" }, { buyer: 3 }, { testSplit: "dev" }, { actionFormat: "text" }])(
    "rejects the options %j",
    (options) => {
      expect(() => carDealer(options as never)).toThrowError(expect.objectContaining({ code: "ERR_CONFIG" }));
    },
  );
});
