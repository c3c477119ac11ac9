/**
 * Car Dealer with tools (Abdulhai et al., 2023; in the setting of HOPE: Wang and Choudhury, 2025,
 * appendix I). The agent is the dealer, who searches a database of cars and negotiates with a buyer
 * whose demands emerge gradually.
 *
 * A negotiation has 10 turns, each with at most one database call and one utterance to the buyer.
 * It ends when the buyer takes an offer, leaves, or the turns are used up. The reward of a valid
 * sale is (purchase cost)² / (budget × market price). A sale is valid if the car is in the
 * inventory, the discount is at most 10 %, and the buyer has no objection. Everything else gives 0.
 */

import { z } from "zod";
import { NlacError, throwIfAborted } from "../../base/errors.ts";
import { checkConfig } from "../../base/validation.ts";
import type {
  Action,
  Environment,
  Episode,
  Message,
  StartOptions,
  StepResult,
} from "../../contract/environment.ts";
import { callAction } from "../../prompts/calls.ts";
import type { ServiceSource } from "../../services/open-service.ts";
import { checkSplit, episodeOver } from "../errors.ts";
import { openServiceOption } from "../open-service-option.ts";
import {
  dollars,
  type Exchange,
  needsText,
  openingText,
  type Person,
  scriptedBuyer,
  serviceBuyer,
} from "./buyer.ts";
import {
  allowedDiscount,
  type Buyer,
  bestSale,
  buyers,
  maxOverBudget,
  maxPrice,
  type Offer,
  objection,
  saleReward,
} from "./buyer-profiles.ts";
import { demonstrate } from "./demonstrate.ts";
import { type Car, features, inventories, maxDiscount, maxShown } from "./inventory.ts";
import { dealerTools, readCall, searchResult, shownCars } from "./tools.ts";

const carDealerOptions = z.strictObject({
  /**
   * The buyer's player. "scripted" (default): rules, free and deterministic. Or a language model:
   * anything that `openService` opens.
   */
  buyer: z.custom<"scripted" | ServiceSource>().default("scripted"),
  /**
   * What `tasks("test")` returns. "test" (default): unseen kinds of buyers and unseen cars.
   * "validation": known kinds of buyers and unseen cars.
   */
  testSplit: z.enum(["test", "validation"]).default("test"),
  /** Turns of a negotiation, each with up to two actions. Default 10, as in the paper. */
  turns: z.int().min(1).max(100).default(10),
  /**
   * Reveals at the end what was hidden: what the buyer needed and could pay, the best possible
   * sale, and why a sale is not valid. Only NLAC's backup reads an episode's last observation, so
   * this is an advantage over the other methods. Default false.
   */
  revealAtEnd: z.boolean().default(false),
  /**
   * How actions are written: "tool" (default), or "call", where a turn without a call is said to
   * the buyer.
   */
  actionFormat: z.enum(["tool", "call"]).default("tool"),
});

/** Options of `environments.carDealer`. */
export type CarDealerOptions = z.input<typeof carDealerOptions>;

/** A task of Car Dealer. */
export interface CarDealerTask {
  /** Name of the buyer. */
  buyer: string;
}

const buyerById = new Map(
  Object.values(buyers)
    .flat()
    .map((buyer) => [buyer.id, buyer]),
);

/** The environment of Car Dealer. Throws ERR_CONFIG for invalid options. */
export function carDealer(options: CarDealerOptions = {}): Environment<CarDealerTask> {
  const {
    turns,
    testSplit,
    actionFormat,
    revealAtEnd,
    buyer: source,
  } = checkConfig(carDealerOptions, options);
  const service = source === "scripted" ? undefined : openServiceOption("carDealer.buyer", source);
  const person = service === undefined ? scriptedBuyer : serviceBuyer(service);
  const maxTurns = 2 * turns;

  async function startWith(
    who: Person,
    task: CarDealerTask,
    { seed, signal }: StartOptions,
  ): Promise<Episode> {
    throwIfAborted(signal);
    const buyer = buyerById.get(task.buyer);
    if (buyer === undefined) {
      throw new NlacError("ERR_ENVIRONMENT", `carDealer: there is no buyer ${JSON.stringify(task.buyer)}.`);
    }
    const inventory = inventories[buyer.split];
    const exchanges: Exchange[] = [];
    const looked = new Map<number, Car>();
    let firstCar: number | undefined;
    let searched = false;
    let actions = 0;
    let over = false;
    let why: string | undefined = "No car was sold.";

    /** Carries out an action; `ending` is set if the negotiation is over. */
    const act = async (action: Action): Promise<{ said: Message; info: object; ending?: Ending }> => {
      const call =
        action.tool === undefined
          ? readCall(inventory, "respond", { content: action.text })
          : readCall(inventory, action.tool.name, action.tool.arguments);
      if (call.kind === "refused") return refused(call.reason);
      if (call.kind === "no_op") {
        searched = true;
        return { said: { role: "tool", content: "Nothing was searched." }, info: { found: 0 } };
      }
      if (call.kind === "search") {
        if (searched) return refused("only one database call a turn: respond to the buyer");
        searched = true;
        for (const car of shownCars(call.cars)) looked.set(car.id, car);
        return {
          said: { role: "tool", content: searchResult(call.cars) },
          info: { found: call.cars.length },
        };
      }
      const { content, carId, price } = call;
      const car = carId === undefined ? undefined : looked.get(carId);
      if (carId !== undefined && car === undefined) {
        return refused(`no search has shown a car ${carId}, so it cannot be offered`);
      }
      const offer = car === undefined ? undefined : { car, price: price! };
      const first = firstCar ?? car?.id ?? Number.NaN;
      const { decision, utterance } = await who.answer({
        buyer,
        seed,
        exchanges,
        content,
        ...(offer === undefined ? {} : { offer }),
        firstCar: first,
        ...(signal === undefined ? {} : { signal }),
      });
      firstCar ??= car?.id;
      searched = false;
      exchanges.push({ content, ...(offer === undefined ? {} : { offer }), utterance });
      const said: Message = { role: "user", content: utterance };
      const info = { decision, replies: exchanges.length };
      if (decision === "buy" && offer !== undefined)
        return { said, info, ending: sale(buyer, offer, first, revealAtEnd) };
      if (decision === "leave") return { said, info, ending: noSale("The buyer left.") };
      if (exchanges.length === turns) return { said, info, ending: noSale("The turns are used up.") };
      return { said, info };
    };

    return {
      observation: { messages: opening(buyer, turns), tools: [...dealerTools] },
      async step(action) {
        if (over) throw episodeOver("carDealer");
        throwIfAborted(signal);
        const { said, info, ending: ended } = await act(action);
        actions++;
        const ending = ended ?? (actions === maxTurns ? noSale("The turns are used up.") : undefined);
        over = ending !== undefined;
        if (ending !== undefined) why = ending.success ? undefined : failure(ending);
        return result(buyer, said, info, ending, revealAtEnd);
      },
      privileged: () => ({
        secret: secretOf(buyer),
        // Car numbers mean nothing before a search has shown them, and other cars cannot be
        // offered.
        hidden: [...new Set([buyer.budget, maxPrice(buyer), bestSaleTo(buyer).price])].map(dollars),
        ...(why === undefined ? {} : { failureReason: why }),
      }),
      async close() {
        over = true;
      },
    };
  }
  const start = (task: CarDealerTask, options: StartOptions) => startWith(person, task, options);

  return {
    name: "carDealer",
    actionFormat,
    maxTurns,
    turnLimitEnds: true,
    rewardRange: [0, maxOverBudget],
    idle: callAction("no_op", {}),
    async tasks(split) {
      checkSplit("carDealer", split);
      return buyers[split === "train" ? "train" : testSplit].map(({ id }) => ({ buyer: id }));
    },
    taskId: (task) => task.buyer,
    start,
    // Always with the scripted buyer: a demonstration plays alternatives, each of which would cost
    // a model's replies.
    demonstrate: (task, options) => demonstrate(() => startWith(scriptedBuyer, task, options), options.seed),
    ...(service === undefined ? {} : { usage: () => service.usage() }),
    close: async () => service?.close?.(),
  };
}

interface Ending {
  text: string;
  reward: number;
  success: boolean;
  info: Record<string, unknown>;
}

function refused(reason: string): { said: Message; info: object } {
  return { said: { role: "tool", content: `Error: ${reason}.` }, info: { toolError: true } };
}

function noSale(text: string): Ending {
  return { text: `${text} No car was sold.`, reward: 0, success: false, info: {} };
}

/** Why a negotiation failed, with what is hidden from the dealer. */
function failure({ text, info: { against } }: Ending): string {
  return typeof against === "string" ? `${text} The buyer's objection: ${against}.` : text;
}

/** Evaluates a sale that the buyer agreed to. A model as buyer may agree to an invalid one. */
function sale(buyer: Buyer, offer: Offer, firstCar: number, reveal: boolean): Ending {
  const { car, price } = offer;
  const allowed = allowedDiscount(offer);
  const against = allowed ? objection(buyer, offer, firstCar) : "discount above the limit";
  // The dealer knows the discount limit; the buyer's needs are hidden.
  const why = reveal || !allowed ? `: ${against}` : "";
  return {
    text:
      against === undefined
        ? `Car ${car.id} was sold for ${dollars(price)}.`
        : `The sale of car ${car.id} for ${dollars(price)} is not valid${why}.`,
    reward: against === undefined ? saleReward(buyer, offer) : 0,
    success: against === undefined,
    info: { car: car.id, price, marketPrice: car.marketPrice, ...(against === undefined ? {} : { against }) },
  };
}

/** @param reveal whether the end reveals what was hidden */
function result(
  buyer: Buyer,
  said: Message,
  info: object,
  ending: Ending | undefined,
  reveal: boolean,
): StepResult {
  if (ending === undefined)
    return { observation: [said], reward: 0, terminated: false, truncated: false, info: { ...info } };
  const told = reveal ? ` ${secretOf(buyer)}` : "";
  return {
    observation: [said, { role: "user", content: `[The negotiation is over. ${ending.text}${told}]` }],
    reward: ending.reward,
    terminated: true,
    truncated: false,
    info: { ...info, ...ending.info, success: ending.success, budget: buyer.budget },
  };
}

function bestSaleTo(buyer: Buyer): Offer {
  return bestSale(buyer, inventories[buyer.split].cars)!;
}

function secretOf(buyer: Buyer): string {
  const best = bestSaleTo(buyer);
  return (
    `${needsText(buyer)} The budget was ${dollars(buyer.budget)}; the best sale would have been car ` +
    `${best.car.id} for ${dollars(best.price)}.`
  );
}

function opening(buyer: Buyer, turns: number): Message[] {
  const { brands, types } = inventories[buyer.split];
  return [
    {
      role: "system",
      content: [
        "You are the dealer in a car dealership. Sell the buyer a car, for as much as you can.",
        "",
        `The database has cars of these brands: ${brands.join(", ")}.`,
        `It has these types: ${types.join(", ")}.`,
        `It has these features: ${features.join(", ")}.`,
        "",
        `You have ${turns} turns. In each you may first make one database call (no_op if there is nothing to search), then you`,
        "speak to the buyer by respond: with car_id and price it is an offer, else leave both out.",
        "",
        `A search shows ${maxShown} cars at most. Offer one car at a time, only one that a search has shown you, and name`,
        `its price in dollars. You may take at most ${Math.round(100 * maxDiscount)}% off the market price; give discounts`,
        "only when you are asked for one. The buyer cannot do without some things and can without others: find out which.",
      ].join("\n"),
    },
    { role: "user", content: openingText(buyer) },
  ];
}
