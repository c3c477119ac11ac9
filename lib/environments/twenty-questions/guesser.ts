/**
 * A player that knows the table: asks the question that splits the remaining objects most evenly,
 * and guesses when few are left. It shows that the game can be won, and makes demonstrations: its
 * thoughts say what is known, what the word may still be, and why the question comes next.
 */

import { streams, uniform } from "../../base/random.ts";
import type { Action } from "../../contract/environment.ts";
import type { ScriptedPolicy } from "../check.ts";
import { alternatives, chooseQuestion, entropy } from "../guessing.ts";
import { listed } from "../listed.ts";
import { type Answer, type AttributeName, attributeNames, attributes } from "./attributes.ts";
import { Names } from "./names.ts";
import { namedPhrase, readQuestion } from "./questions.ts";
import { type HiddenObject, objectNamed, table } from "./table.ts";

/** Options of `scriptedGuesser`. */
export interface GuesserOptions {
  /** Possible words. Default: all of the table. */
  words?: readonly string[];
  /** Questions per game. Default 20. */
  turns?: number;
  /**
   * Seed for choosing among the nearly best questions, so that games differ. Default: always the
   * best.
   */
  seed?: number;
}

/** Share of the best question's information from which a question counts as nearly best. */
const nearlyBest = 0.93;

/**
 * Throws nothing: unknown words in `words`, and turns of a history that it cannot interpret, are
 * ignored.
 */
export function scriptedGuesser(options: GuesserOptions = {}): ScriptedPolicy {
  // By the game's own name.
  const objects =
    options.words === undefined
      ? table
      : options.words.flatMap((word) => {
          const object = objectNamed(word);
          return object === undefined ? [] : [{ ...object, name: word }];
        });
  const names = new Names(objects);
  const byWord = new Map(objects.map((object) => [object.name, object]));
  const turns = options.turns ?? 20;
  return ({ history }) => {
    let possible = [...objects];
    const facts: string[] = [];
    const asked = new Set<AttributeName>();
    const guessed = new Set<HiddenObject>();
    for (const { action, result } of history) {
      const question = readQuestion(action.text);
      const answer = answerIn(result.observation[0]?.content ?? "");
      // An attribute's question may also name an object: "Is it a boat?" a second time is a guess.
      const asks = question.kind === "attribute" && !asked.has(question.name);
      const object = asks ? undefined : byWord.get(names.meaning(namedPhrase(action.text) ?? "") ?? "");
      if (object !== undefined) {
        guessed.add(object);
        facts.push(`it is not ${withArticle(object.name)}`);
      } else if (question.kind === "attribute" && answer !== undefined) {
        asked.add(question.name);
        const wanted = question.negated && answer !== "unknown" ? (answer === "yes" ? "no" : "yes") : answer;
        const left = possible.filter((object) => object.answers[question.name] === wanted);
        // Another oracle may disagree with the table; such an answer is ignored.
        if (left.length > 0) possible = left;
        if (answer !== "unknown") facts.push(statement(attributes[question.name].question, wanted === "yes"));
      }
    }
    possible = possible.filter((object) => !guessed.has(object));
    const random = options.seed === undefined ? 0 : uniform(options.seed, streams.policy, history.length);
    const guesses = possible.length <= 2 || history.length >= turns - 1;
    const unasked = attributeNames.filter((name) => !asked.has(name));
    const best = guesses
      ? undefined
      : chooseQuestion(unasked, (name) => information(possible, name), nearlyBest, random);
    if (best === undefined) {
      const fallback = objects.find((object) => !guessed.has(object)) ?? objects[0]!;
      return guessAction(possible[Math.floor(random * possible.length)] ?? fallback, possible, facts);
    }
    return questionAction(best, possible, facts);
  };
}

function answerIn(content: string): Answer | undefined {
  if (content.startsWith("Yes")) return "yes";
  if (content.startsWith("No")) return "no";
  return content.startsWith("I can't tell") ? "unknown" : undefined;
}

/** Information of the answer in bits, if all possible objects are equally likely. */
function information(possible: readonly HiddenObject[], name: AttributeName): number {
  const counts = { yes: 0, no: 0, unknown: 0 };
  for (const object of possible) counts[object.answers[name]]++;
  // "I can't tell" is worth less to a reader than the table's bits suggest.
  return entropy(Object.values(counts)) * (1 - (0.6 * counts.unknown) / possible.length);
}

// ---------------------------------------------------------------------------------------- in words

function questionAction(
  name: AttributeName,
  possible: readonly HiddenObject[],
  facts: readonly string[],
): Action {
  const { question } = attributes[name];
  const next = `Whether ${statement(question, true)} will tell more.`;
  const thought =
    facts.length === 0
      ? `Nothing is known yet: it may be ${maybe(possible)}. ${next}`
      : `${known(facts)} It may be ${maybe(possible)}. ${next}`;
  return { thought, text: question };
}

function guessAction(
  object: HiddenObject,
  possible: readonly HiddenObject[],
  facts: readonly string[],
): Action {
  const thought =
    possible.length > 1
      ? `${known(facts)} It may be ${maybe(possible)}; I try one.`
      : `${known(facts)} That fits ${withArticle(object.name)}.`;
  return { thought, text: `Is it ${withArticle(object.name)}?` };
}

/** The latest facts; older ones are in the conversation. */
function known(facts: readonly string[]): string {
  const latest = listed(facts.slice(-3));
  if (latest === "") return "I have no facts to go by.";
  return `${latest[0]!.toUpperCase()}${latest.slice(1)}.`;
}

function maybe(possible: readonly HiddenObject[]): string {
  return alternatives(
    possible.map(({ name }) => withArticle(name)),
    "one other thing",
  );
}

const uncountable = new Set(
  (
    "bread cheese butter honey rice sugar salt bacon ham cereal spaghetti soup sushi popcorn chocolate candy water milk " +
    "coffee tea beer wine soda grass moss ivy bamboo garlic broccoli cauliflower lettuce cabbage spinach corn money " +
    "chalk tape glue toothpaste soap shampoo lipstick perfume rain snow fire sand ice gold lightning hair underwear " +
    "jewelry yogurt steak"
  ).split(" "),
);
const plural =
  /^(?:pants|jeans|shorts|pajamas|glasses|sunglasses|headphones|scissors|pliers|chopsticks|stairs|dice|french fries|playing cards)$/;
const unique = new Set(["sun", "moon"]);

/** "a dog", "an owl", "the sun", "bread", "scissors". */
export function withArticle(name: string): string {
  if (unique.has(name)) return `the ${name}`;
  if (uncountable.has(name) || uncountable.has(name.split(" ").at(-1)!) || plural.test(name)) return name;
  return `${/^[aeiou]/.test(name) ? "an" : "a"} ${name}`;
}

/** "Does it have wheels?" → "it has wheels" or "it does not have wheels". */
export function statement(question: string, yes: boolean): string {
  const text = question.replace(/\?$/, "");
  const subject = (pattern: RegExp, positive: string, negative: string): string | undefined =>
    pattern.test(text) ? text.replace(pattern, yes ? positive : negative) : undefined;
  return (
    subject(/^Is it /, "it is ", "it is not ") ??
    subject(/^Does it have /, "it has ", "it does not have ") ??
    subject(/^Can it /, "it can ", "it cannot ") ??
    subject(/^Can (you|people|a person) /, "$1 can ", "$1 cannot ") ??
    subject(/^Do (people|children) (often )?/, "$1 $2", "$1 do not $2") ??
    subject(/^Do you /, "you ", "you do not ") ??
    (yes
      ? text.replace(/^Does it (\w+)/, (_, verb: string) => `it ${verb}s`)
      : text.replace(/^Does it /, "it does not "))
  );
}
