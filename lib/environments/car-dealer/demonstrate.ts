/**
 * Scripted negotiations with judgements, for a supervised warm-up: the scripted dealer's actions,
 * each with a worse alternative (idle talk, a search without results, a discount that is too high)
 * and what is wrong with it.
 */

import { streams, uniform } from "../../base/random.ts";
import type { Action, Demonstration, Episode, StepResult } from "../../contract/environment.ts";
import { callAction } from "../../prompts/calls.ts";
import { judgedAction } from "../judged-action.ts";
import { respond, scriptedDealer } from "./dealer.ts";

/** @param start opens the same episode on every call */
export async function demonstrate(start: () => Promise<Episode>, seed: number): Promise<Demonstration> {
  const episode = await start();
  const { observation } = episode;
  const policy = scriptedDealer();
  const history: { action: Action; result: StepResult }[] = [];
  const turns: Demonstration["turns"] = [];
  for (;;) {
    const action = policy({ observation, history });
    const poor = poorAction(action, uniform(seed, streams.warmup, history.length));
    const beside = await aside(start, history, poor.action);
    const result = await episode.step(action);
    turns.push({
      action,
      judged: [
        judgedAction(action, expectation(action), result),
        { ...judgedAction(poor.action, poor.future, beside), advice: poor.advice, better: action },
      ],
      observation: result.observation,
    });
    history.push({ action, result });
    if (result.terminated) break;
  }
  await episode.close();
  return { observation, turns };
}

/** The result of an alternative action after the same beginning. */
async function aside(
  start: () => Promise<Episode>,
  history: readonly { action: Action }[],
  action: Action,
): Promise<StepResult> {
  const episode = await start();
  for (const past of history) await episode.step(past.action);
  const result = await episode.step(action);
  await episode.close();
  return result;
}

function isOffer(action: Action): boolean {
  return action.tool?.arguments.car_id !== undefined;
}

function expectation(action: Action): string {
  if (isOffer(action))
    return "The car suits the buyer and can be paid, so it is probably sold now or soon after.";
  return action.tool?.name === "respond"
    ? "The buyer tells what is needed or what can be paid, and a fitting offer can follow."
    : "Cars are shown that may suit the buyer, and one of them can be offered.";
}

function poorAction(good: Action, random: number): { action: Action; future: string; advice: string } {
  if (isOffer(good)) {
    const { content, car_id, price } = good.tool!.arguments as {
      content: string;
      car_id: number;
      price: number;
    };
    const gift = Math.round(0.8 * price);
    return {
      action: respond(
        content.replace(/for \$[\d,]+\.$/, `for only $${gift.toLocaleString("en-US")}.`),
        "A low price sells.",
        {
          car_id,
          price: gift,
        },
      ),
      future:
        "Perhaps the buyer agrees, but so large a discount is not allowed, and the sale is worth nothing.",
      advice: "Ask for a price within 10% of the market price.",
    };
  }
  if (good.tool?.name === "respond" || random < 0.5) {
    return {
      action: respond("Nice weather today, is it not?", "I make some conversation."),
      future: "The buyer asks for an offer, and a turn is lost.",
      advice:
        good.tool?.name === "respond"
          ? "Ask the buyer for what is still unknown."
          : "Search the database for cars that the buyer may want.",
    };
  }
  return {
    action: callAction("no_op", {}, "I do not search."),
    future: "Nothing is shown, so that no car can be offered in this turn.",
    advice: "Search the database for cars that the buyer may want.",
  };
}
