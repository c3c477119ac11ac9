/**
 * A scripted player that knows the facts, for demonstrations and as a reference: it asks the
 * question with the most information about the remaining cities, and guesses when one is left.
 */

import { streams, uniform } from "../../base/random.ts";
import type { Action, Observation } from "../../contract/environment.ts";
import type { ScriptedPolicy } from "../check.ts";
import { alternatives, chooseQuestion, entropy } from "../guessing.ts";
import { type City, cities, questionAbout, type TopicName, topicNames, topicOf } from "./facts.ts";
import { plain } from "./names.ts";

/** Options of `cityGuesser`. */
export interface CityGuesserOptions {
  /** Turns per game. Default 10. */
  turns?: number;
  /** Seed for choosing among good questions. Default: always the best one. */
  seed?: number;
}

/** With a seed, a question is good enough with this share of the best one's information. */
const goodEnough = 0.4;

/** Throws nothing: answers that match none of the facts are ignored. */
export function cityGuesser(options: CityGuesserOptions = {}): ScriptedPolicy {
  const turns = options.turns ?? 10;
  return ({ observation, history }) => {
    let possible = listedCities(observation);
    const asked = new Set<TopicName>();
    for (const { action, result } of history) {
      const topic = topicOf(plain(action.text));
      if (topic === undefined) continue;
      asked.add(topic);
      const heard = result.observation[0]?.content ?? "";
      const left = possible.filter(({ facts }) => heard.startsWith(facts[topic]));
      if (left.length > 0) possible = left;
    }
    const topic = chooseQuestion(
      topicNames.filter((name) => !asked.has(name)),
      (name) => information(possible, name),
      goodEnough,
      options.seed === undefined ? 0 : uniform(options.seed, streams.policy, history.length),
    );
    if (topic === undefined || history.length === turns - 1) return guessAction(possible);
    return {
      thought: `It may be ${maybe(possible)}. The answer to this will tell more.`,
      text: questionAbout(topic),
    };
  };
}

/** The cities listed in the rules. */
export function listedCities({ messages }: Observation): City[] {
  const names = new Set((messages[0]?.content ?? "").split(/; |\n|\.\n/));
  return cities.filter(({ name }) => names.has(name));
}

export function guessAction(possible: readonly City[]): Action {
  const name = possible[0]!.name;
  const thought =
    possible.length === 1 ? `Only ${name} fits all the answers.` : `It may be ${maybe(possible)}; I try one.`;
  return { thought, text: `Is the city ${name}?` };
}

/** Information of the answer in bits, if all possible cities are equally likely. */
function information(possible: readonly City[], name: TopicName): number {
  const counts = new Map<string, number>();
  for (const { facts } of possible) counts.set(facts[name], (counts.get(facts[name]) ?? 0) + 1);
  return entropy([...counts.values()]);
}

function maybe(possible: readonly City[]): string {
  return alternatives(
    possible.map(({ name }) => name),
    "one other",
  );
}
