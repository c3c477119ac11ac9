/**
 * An oracle that answers from recorded games, a list of objects with questions and answers.
 *
 * Questions are compared by their words, weighted by rarity (TF-IDF), objects by their questions
 * and answers. A question is answered by all recorded ones that are similar to it, of this object
 * and of others, each with the weight
 *
 *   nearness³ · likeness²        nearness: of the questions, likeness: of the objects, both cosines
 *
 * and those of the object itself with 3 · nearness³. If the weights nearly cancel, or are small in
 * total, the answer is "unknown". The recorded answers are noisy:
 * docs/environments/twenty-questions.md says how often the oracle is right.
 */

import { readFileSync } from "node:fs";
import { z } from "zod";
import { NlacError } from "../../base/errors.ts";
import { getOrAdd } from "../../base/get-or-add.ts";
import { Names, type Word } from "./names.ts";
import type { Oracle } from "./oracle.ts";
import { namedPhrase, readQuestion, withoutNegation } from "./questions.ts";
import { tidy } from "./words.ts";

/** By object: questions and whether the answer was yes. */
export type RecordedGames = ReadonlyMap<string, readonly (readonly [question: string, yes: boolean])[]>;

const gamesSchema = z.record(z.string(), z.array(z.tuple([z.string(), z.string()])));

/**
 * Reads `{ object: [[question, answer], …], … }`. Answers that begin with neither yes nor no are
 * left out. Throws ERR_CONFIG for a file in another format.
 */
export function readGames(path: string): RecordedGames {
  let games: z.output<typeof gamesSchema>;
  try {
    games = gamesSchema.parse(JSON.parse(readFileSync(path, "utf8")));
  } catch (error) {
    throw new NlacError("ERR_CONFIG", `twentyQuestions: ${path} has no recorded games.`, { cause: error });
  }
  const read = new Map<string, [string, boolean][]>();
  for (const [object, turns] of Object.entries(games)) {
    const answered = turns.flatMap(([question, answer]): [string, boolean][] => {
      const word = /^\W*(yes|no)\b/i.exec(answer)?.[1]?.toLowerCase();
      return word === undefined ? [] : [[question, word === "yes"]];
    });
    read.set(tidy(object), answered);
  }
  return read;
}

/**
 * Least similarity of a question. This and the constants below were tuned on a sixth of the
 * objects.
 */
const nearestNearness = 0.5;
const nearnessPower = 3;
const likenessPower = 2;
const ownWeight = 3;
/** Weight of a "no" for the likeness of objects, relative to a "yes": most answers are "no". */
const noWeight = 0.3;
/** Weight that counts for neither answer. */
const doubt = 0.05;
/** Least margin of one answer over the other, as a share of the weight. */
const minMargin = 0.4;

/** Sparse, of length 1. */
type Vector = ReadonlyMap<number, number>;

/** Predicts answers from recorded games. */
export class RecordedAnswers {
  readonly #words = new Map<string, { index: number; questions: number }>();
  #asked = 0;
  readonly #objects = new Map<string, number>();
  readonly #profiles: Vector[] = [];
  /** By distinct question: the answer for each object, +1 or -1. */
  readonly #answers: { object: number; answer: number }[][] = [];
  /** By word: the questions that contain it, and its weight in them. */
  readonly #having = new Map<number, { question: number; weight: number }[]>();
  readonly #likeness = new Map<number, Float64Array>();

  constructor(recordings: readonly RecordedGames[]) {
    for (const games of recordings) {
      for (const [object, turns] of games) {
        if (!this.#objects.has(object)) this.#objects.set(object, this.#objects.size);
        for (const [question] of turns) this.#countWords(question);
      }
    }
    const profiles = Array.from(this.#objects, () => new Map<number, number>());
    const questions = new Map<string, number>();
    for (const games of recordings) {
      for (const [name, turns] of games) {
        const object = this.#objects.get(name)!;
        for (const [text, yes] of turns) {
          const words = contentWords(text);
          const vector = this.#vectorOf(words);
          const key = words.join(" ");
          let question = questions.get(key);
          if (question === undefined) {
            question = questions.size;
            questions.set(key, question);
            this.#answers.push([]);
            for (const [word, weight] of vector) {
              getOrAdd(this.#having, word, () => []).push({ question, weight });
            }
          }
          this.#answers[question]!.push({ object, answer: yes ? 1 : -1 });
          const profile = profiles[object]!;
          for (const word of words) {
            const { index } = this.#words.get(word)!;
            const weight = this.#rarity(word) / Math.sqrt(words.length);
            profile.set(index, (profile.get(index) ?? 0) + (yes ? weight : -noWeight * weight));
          }
        }
      }
    }
    this.#profiles = profiles.map(normalized);
  }

  get objects(): string[] {
    return [...this.#objects.keys()];
  }

  /**
   * Margin of yes over no as a share of the weight, -1 to 1; 0 without evidence. The object must be
   * recorded.
   */
  margin(object: string, question: string): number {
    const asked = this.#objects.get(object)!;
    const likeness = this.#likenessTo(asked);
    const nearness = new Map<number, number>();
    for (const [word, weight] of this.#vectorOf(contentWords(question))) {
      for (const other of this.#having.get(word) ?? []) {
        nearness.set(other.question, (nearness.get(other.question) ?? 0) + weight * other.weight);
      }
    }
    let yes = 0;
    let all = doubt;
    for (const [near, cosine] of nearness) {
      if (cosine < nearestNearness) continue;
      for (const { object: other, answer } of this.#answers[near]!) {
        const like = other === asked ? ownWeight : likeness[other]! ** likenessPower;
        const weight = cosine ** nearnessPower * like;
        yes += weight * answer;
        all += weight;
      }
    }
    return yes / all;
  }

  #countWords(question: string): void {
    this.#asked++;
    for (const word of contentWords(question)) {
      const known = this.#words.get(word);
      if (known === undefined) this.#words.set(word, { index: this.#words.size, questions: 1 });
      else known.questions++;
    }
  }

  #rarity(word: string): number {
    return Math.log((this.#asked + 1) / ((this.#words.get(word)?.questions ?? 0) + 1));
  }

  /** Words that were never recorded count in the length, so that they reduce the similarity. */
  #vectorOf(words: readonly string[]): Vector {
    return normalized(
      new Map(words.map((word, i) => [this.#words.get(word)?.index ?? -1 - i, this.#rarity(word)])),
    );
  }

  #likenessTo(object: number): Float64Array {
    return getOrAdd(this.#likeness, object, () => {
      const own = this.#profiles[object]!;
      return Float64Array.from(this.#profiles, (profile) => {
        let cosine = 0;
        for (const [word, weight] of own) cosine += weight * (profile.get(word) ?? 0);
        return Math.max(0, cosine);
      });
    });
  }
}

function normalized(vector: ReadonlyMap<number, number>): Vector {
  let squares = 0;
  for (const value of vector.values()) squares += value * value;
  const length = Math.sqrt(squares) || 1;
  return new Map(Array.from(vector, ([index, value]) => [index, value / length]));
}

const emptyWords = new Set(
  (
    "a an the it is does do can could be to of for in on or and by with that which as at from you people one any its are has " +
    "have would used use s found something object item thing this usually typically commonly often generally normally mostly " +
    "mainly primarily really actually considered typical ever also perhaps maybe possibly sometimes then just basically " +
    "probably likely frequently regularly ordinarily please even still kind type sort piece form purpose purposes specific " +
    "specifically"
  ).split(" "),
);
const endings = ["ations", "ation", "ings", "ing", "ied", "ies", "ed", "es", "s", "ly", "er", "al", "y", "e"];

/** The content words of a question, without endings; each once, in order. */
function contentWords(question: string): string[] {
  const words = question.toLowerCase().split(/[^a-z0-9]+/);
  return [...new Set(words.filter((word) => word !== "" && !emptyWords.has(word)).map(stem))].sort();
}

function stem(word: string): string {
  const ending = endings.find((any) => word.endsWith(any) && word.length - any.length >= 3);
  return ending === undefined ? word : word.slice(0, -ending.length);
}

/**
 * Answers from recorded games. Words of the game in a question are guesses and are compared as
 * names. Throws ERR_CONFIG for words without a recorded game.
 */
export function recordedOracle(answers: RecordedAnswers, words: readonly Word[], names: Names): Oracle {
  const recorded = new Names(answers.objects.map((name) => ({ name, aliases: [] })));
  const objects = new Map<string, string>();
  const missing: string[] = [];
  for (const { name, aliases } of words) {
    const object = [name, ...aliases].map((any) => recorded.meaning(any)).find((any) => any !== undefined);
    if (object === undefined) missing.push(name);
    else objects.set(name, object);
  }
  if (missing.length > 0) {
    throw new NlacError(
      "ERR_CONFIG",
      `twentyQuestions: no recorded game is about ${missing.slice(0, 5).join(", ")}. Choose another oracle.`,
    );
  }
  return {
    async answer(hidden, text) {
      const object = objects.get(hidden);
      if (object === undefined) {
        throw new NlacError("ERR_ENVIRONMENT", `twentyQuestions: no recorded game is about "${hidden}".`);
      }
      if (readQuestion(text).kind === "invalid") return { verdict: "invalid", info: {} };
      const named = namedPhrase(text);
      if (named !== undefined && names.names(named, hidden))
        return { verdict: "found", info: { guess: named } };
      const { question, negated } = withoutNegation(text);
      const margin = answers.margin(object, question) * (negated ? -1 : 1);
      if (Math.abs(margin) >= minMargin) return { verdict: margin > 0 ? "yes" : "no", info: { margin } };
      // The question names another thing of the game, and no record says that the hidden one is one
      // of those too.
      if (named !== undefined && names.meaning(named) !== undefined)
        return { verdict: "no", info: { margin } };
      return { verdict: "unknown", info: { margin } };
    },
  };
}
