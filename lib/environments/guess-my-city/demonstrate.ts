/**
 * Scripted games with judgements, for a supervised warm-up. The player that knows the facts asks
 * good questions; each comes with a worse alternative (a premature guess, a repeated or a forbidden
 * question) and what is wrong with it.
 */

import { derivedSeed, streams, uniform } from "../../base/random.ts";
import type { Action, Demonstration, Observation, StepResult } from "../../contract/environment.ts";
import { judgedAction } from "../judged-action.ts";
import type { City } from "./facts.ts";
import { cityGuesser, guessAction, listedCities } from "./guesser.ts";

/**
 * @param city the hidden city; premature guesses name others
 * @param play returns the result of a text in the given turn, from 0
 */
export async function demonstrate(
  observation: Observation,
  city: string,
  play: (text: string, used: number) => Promise<StepResult>,
  turns: number,
  seed: number,
): Promise<Demonstration> {
  const policy = cityGuesser({ turns, seed: derivedSeed(seed, streams.policy, 0) });
  const others = listedCities(observation).filter(({ name }) => name !== city);
  const history: { action: Action; result: StepResult }[] = [];
  const shown: Demonstration["turns"] = [];
  for (let used = 0; ; used++) {
    const action = policy({ observation, history });
    const result = await play(action.text, used);
    const poor = poorAction(history, others, seed, used);
    shown.push({
      action,
      judged: [
        judgedAction(action, expectation(result.terminated), result),
        {
          ...judgedAction(poor.action, poor.future, await play(poor.action.text, used)),
          advice: result.terminated
            ? `Guess now by "${action.text}", because it fits all the answers.`
            : `Ask "${action.text}" instead, because its answer tells more cities apart.`,
          better: action,
        },
      ],
      observation: result.observation,
    });
    history.push({ action, result });
    if (result.terminated) return { observation, turns: shown };
  }
}

function expectation(guess: boolean): string {
  return guess
    ? "The guess fits everything that is known, so the city is probably found."
    : "The answer rules out many cities, and the right one can be guessed soon after.";
}

function poorAction(
  history: readonly { action: Action }[],
  others: readonly City[],
  seed: number,
  used: number,
): { action: Action; future: string } {
  const random = (number: number) => uniform(seed, streams.warmup, used * 4 + number);
  const repeated = history[Math.floor(random(0) * history.length)]?.action.text;
  if (repeated !== undefined && random(1) < 0.4) {
    return {
      action: { text: repeated, thought: "I want to be sure." },
      future: "The answer is the same as before, and a turn is lost.",
    };
  }
  if (random(2) < 0.4) {
    return {
      action: { text: "What is the name of the country?", thought: "The country would tell a lot." },
      future: "That may not be asked: nothing is learned, and a turn is lost.",
    };
  }
  const city = others[Math.floor(random(3) * others.length)]!;
  return {
    action: { ...guessAction([city]), thought: "I simply guess." },
    future: "Many other cities are possible, so the guess is probably wrong, and the game is lost.",
  };
}
