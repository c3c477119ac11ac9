/**
 * Lists of hidden words and their splits. The embedded table is always available; the papers' lists
 * are read from data that is not part of the package.
 */

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { NlacError, NotHere } from "../../base/errors.ts";
import type { Word } from "./names.ts";

/** A game's training words and test words. */
export interface Split {
  train: Word[];
  test: Word[];
}

/** Path of a file of the dialogue data. Throws ERR_CONFIG if there is none. */
export function dialogueFile(name: string, data: string | undefined): string {
  const directory = data ?? join(process.env.NLAC_DATA ?? "", "dialogue");
  if (data === undefined && process.env.NLAC_DATA === undefined) {
    throw new NotHere(
      `twentyQuestions: ${name} is needed. Set the option data to its directory, or NLAC_DATA to the parent of its directory dialogue.`,
    );
  }
  const path = join(directory, name);
  if (!existsSync(path))
    throw new NotHere(
      `twentyQuestions: there is no ${path}. Set the option data to the directory of ${name}.`,
    );
  return path;
}

/**
 * The names of things of THINGS (Hebart et al., 2019), one per line: the paper's words. Throws
 * ERR_CONFIG.
 */
export function readThings(path: string): Word[] {
  const lines = readFileSync(path, "utf8").split("\n").map(tidy);
  return [...new Set(lines.filter((line) => line !== ""))].map((name) => ({ name, aliases: [] }));
}

/** Removes leading, trailing and doubled blanks, which are mistakes in the list. */
export function tidy(name: string): string {
  return name.trim().replace(/\s+/g, " ");
}

const categoriesSchema = z.record(z.string(), z.array(z.array(z.string()).min(1)));

/**
 * The 158 objects of LMRL-Gym (Abdulhai et al., 2023) by category, with their names. Throws
 * ERR_CONFIG.
 */
export function readCategories(path: string): Map<string, Word[]> {
  let categories: z.output<typeof categoriesSchema>;
  try {
    categories = categoriesSchema.parse(JSON.parse(readFileSync(path, "utf8")));
  } catch (error) {
    throw new NlacError("ERR_CONFIG", `twentyQuestions: ${path} is not a list of objects by category.`, {
      cause: error,
    });
  }
  return new Map(
    Object.entries(categories).map(([category, objects]) => [
      category,
      objects.map((names) => {
        const [name, ...aliases] = names.map((any) => tidy(any).toLowerCase());
        return { name: name!, aliases };
      }),
    ]),
  );
}

/**
 * Sorts words by a hash of their names, so that a word's place does not depend on its list and
 * adding words moves few. Seed 0 hashes only the name.
 */
export function shuffled<T>(items: readonly T[], nameOf: (item: T) => string, seed: number): T[] {
  return items
    .map((item) => ({ item, name: nameOf(item) }))
    .map(({ item, name }) => ({ item, name, key: hash(seed === 0 ? name : `${name}\n${seed}`) }))
    .sort((a, b) => a.key - b.key || (a.name < b.name ? -1 : 1))
    .map(({ item }) => item);
}

/**
 * Number of words of the two categories that HOPE tests on, and number of validation words of the
 * others (appendix G.1).
 */
const unseenWords = 20;
const validationWords = 28;

/**
 * HOPE's split: two categories only for testing; the other categories are divided into training and
 * validation. The paper gives the numbers (110, 28 and 20) but not the words; here the seed chooses
 * them.
 */
export function splitCategories(
  categories: ReadonlyMap<string, readonly Word[]>,
  seed: number,
): Split & { validation: Word[] } {
  const order = shuffled([...categories], ([category]) => category, seed);
  for (const [i, [, first]] of order.entries()) {
    for (const [, second] of order.slice(i + 1)) {
      if (first.length + second.length !== unseenWords) continue;
      const seen = order.flatMap(([, words]) => (words === first || words === second ? [] : words));
      const words = shuffled(seen, ({ name }) => name, seed);
      const train = words.length - validationWords;
      return { train: words.slice(0, train), validation: words.slice(train), test: [...first, ...second] };
    }
  }
  throw new NlacError(
    "ERR_CONFIG",
    `twentyQuestions: no two categories have ${unseenWords} words together, as the test split needs.`,
  );
}

/** FNV-1a with a final scramble, since the hashes of short words would otherwise be close. */
function hash(word: string): number {
  let value = 0x811c9dc5;
  for (let i = 0; i < word.length; i++) value = Math.imul(value ^ word.charCodeAt(i), 0x01000193);
  value = Math.imul(value ^ (value >>> 16), 0x85ebca6b);
  value = Math.imul(value ^ (value >>> 13), 0xc2b2ae35);
  return (value ^ (value >>> 16)) >>> 0;
}
