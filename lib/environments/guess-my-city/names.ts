/** Finds names of cities and countries in a text, and the city that a text guesses. */

import { escapePattern } from "../../base/escape-pattern.ts";

/** A city as the rules see it; facts.ts adds the scripted oracle's facts. */
export interface NamedCity {
  name: string;
  /** Other names and spellings. */
  aliases: readonly string[];
  country: string;
  countryAliases: readonly string[];
}

const letters: Readonly<Record<string, string>> = {
  ł: "l",
  ø: "o",
  đ: "d",
  ı: "i",
  ß: "ss",
  æ: "ae",
  œ: "oe",
};

/**
 * Lower case, without accents, punctuation and invisible characters: " Xi’an?" is "xian",
 * "SÃO-PAULO" "sao paulo".
 */
export function plain(text: string): string {
  return text
    .normalize("NFKD")
    .toLowerCase()
    .replace(/\p{M}|\p{Cf}/gu, "")
    .replace(/[łøđıßæœ]/g, (letter) => letters[letter]!)
    .replace(/['’`]s\b/g, "")
    .replace(/['’`]/g, "")
    .replace(/[^\p{L}\p{N}]+/gu, " ")
    .trim();
}

/** Shorter names are also ordinary words ("us", "la"): they match only as written. */
const shortestName = 4;

/** A pattern of whole words that are one of the names. */
function asWritten(names: readonly string[], flags: string): RegExp {
  const escaped = names.map(escapePattern);
  return new RegExp(`(?<![\\p{L}\\p{N}])(?:${escaped.join("|")})(?![\\p{L}\\p{N}])`, flags);
}

/** Replaces names in their usual spelling by a blank; Mentions finds the others. */
export function blanked(text: string, names: readonly string[]): string {
  const longestFirst = [...names].sort((a, b) => b.length - a.length);
  return text.replace(asWritten(longestFirst, "giu"), "___");
}

/**
 * Lookalikes of each letter: letters of other alphabets, and digits. Small l and capital I are
 * treated as alike, too.
 */
const lookalikes: ReadonlyMap<string, string> = new Map(
  (
    "а a, в b, е e, к k, м m, н h, о o, р p, с c, т t, у y, х x, і i, ј j, ѕ s, " +
    "α a, β b, ε e, η h, ι i, κ k, ν n, ο o, ρ p, τ t, υ y, χ x, 0 o, 1 i, 3 e, 4 a, 5 s, 7 t, 8 b, l i"
  )
    .split(", ")
    .map((pair) => pair.split(" ") as [string, string]),
);

/** The plain form with lookalikes mapped to one letter. */
function looks(text: string): string {
  return [...plain(text)].map((letter) => lookalikes.get(letter) ?? letter).join("");
}

/**
 * Shorter names are not searched across word boundaries: "Is it at a lake or an island?" does not
 * mention Oran.
 */
const shortestParted = 5;

/**
 * Finds names in a text as whole words: in any case and accents, spelled with lookalike letters, or
 * split by blanks and hyphens. Other paraphrases (backwards, another language, the name of the
 * inhabitants) are not found.
 */
export class Mentions {
  readonly #names: ReadonlySet<string>;
  /** Names without blanks. */
  readonly #joined: ReadonlySet<string>;
  readonly #longest: number;
  readonly #short: RegExp | undefined;

  constructor(names: readonly string[]) {
    const long = names.filter((name) => name.length >= shortestName).map(looks);
    this.#names = new Set(long);
    const joined = long.map((name) => name.replaceAll(" ", ""));
    this.#joined = new Set(joined.filter((name) => name.length >= shortestParted));
    this.#longest = Math.max(0, ...long.map((name) => name.length));
    const short = names.filter((name) => name.length < shortestName);
    this.#short = short.length === 0 ? undefined : asWritten(short, "u");
  }

  in(text: string): boolean {
    if (this.#short?.test(text)) return true;
    const words = looks(text);
    // "Ro-me", "R.o.m.e"; and "r o m e": runs of single letters are read as one word, too.
    const unparted = looks(text.replace(/(?<=[\p{L}\p{N}])[^\p{L}\p{N}\s]+(?=[\p{L}\p{N}])/gu, ""));
    const joined = words.replace(/(?<![^ ])\p{L}(?: \p{L}(?![^ ]))+/gu, (run) => run.replaceAll(" ", ""));
    return [...new Set([words, unparted, joined])].some((form) => this.#has(form));
  }

  #has(text: string): boolean {
    const words = text.split(" ");
    return words.some((_, start) => {
      let phrase = "";
      for (let end = start; end < words.length && phrase.length <= this.#longest * 2; end++) {
        phrase = phrase === "" ? words[end]! : `${phrase} ${words[end]}`;
        if (this.#names.has(phrase) || this.#joined.has(phrase.replaceAll(" ", ""))) return true;
      }
      return false;
    });
  }
}

export function cityNames(city: NamedCity): string[] {
  return [city.name, ...city.aliases];
}

export function countryNames(city: NamedCity): string[] {
  return [city.country, ...city.countryAliases];
}

/** Phrases by which a guess may refer to the hidden city; "it's" is "it" in the plain form. */
const hidden =
  "(?:it|this|that|(?:the|your) (?:hidden |secret |home )?(?:city|town)|your hometown|the answer)";
const before = "(?:(?:so|ok|okay|then|well|now) )*";

const guessForms: readonly RegExp[] = [
  `(?:is|could|might|would|can|must) ${hidden}(?: be)? (?:the city (?:of )?)?`,
  "(?:are you|do you come|were you born) (?:from|in) ",
  "(?:you are|youre|you come|you must be|you must come) from ",
  "(?:are you|were you) thinking of ",
  `(?:i (?:think|guess|believe|say|would say|am guessing|am sure)|id say|im guessing|im sure)(?: that)?(?: ${hidden}(?: is| must be)?| (?:you are|youre|you come) from)? `,
  `(?:(?:my|the) )?(?:final |last )?(?:guess|answer)(?: is| would be)?(?: that)?(?: ${hidden}(?: is)?)? `,
  `${hidden}(?: is| must be)? `,
  "",
].map((form) => new RegExp(`^${before}${form}(.+)$`));

/** Finds the one city that a text guesses. No two cities may share a name. */
export class Guesses<City extends NamedCity> {
  readonly #cities = new Map<string, City>();

  /** @throws RangeError if two cities share a name */
  constructor(cities: readonly City[]) {
    for (const city of cities) {
      for (const name of new Set(cityNames(city).map(plain))) {
        if (this.#cities.has(name)) throw new RangeError(`two cities are called ${JSON.stringify(name)}`);
        this.#cities.set(name, city);
      }
    }
  }

  /**
   * "Is the city Paris?", "My guess is Paris, France", "paris" are guesses; a question about a city
   * or a list of cities is not.
   */
  read(text: string): City | undefined {
    const words = plain(text);
    for (const form of guessForms) {
      const phrase = form.exec(words)?.[1];
      const city =
        phrase === undefined
          ? undefined
          : this.#named(phrase.replace(/ (?:then|right|correct|i wonder)$/, ""));
      if (city !== undefined) return city;
    }
    return undefined;
  }

  /**
   * The city of that name, optionally followed by its country: "paris france", "paris the capital
   * of france".
   */
  #named(phrase: string): City | undefined {
    const found = this.#cities.get(phrase);
    if (found !== undefined) return found;
    for (const [name, city] of this.#cities) {
      if (!phrase.startsWith(`${name} `)) continue;
      const rest = phrase
        .slice(name.length + 1)
        .replace(/^(?:(?:in|(?:the capital|a city|the city) (?:of|in)) )?(?:the )?/, "");
      if (countryNames(city).some((country) => plain(country) === rest)) return city;
    }
    return undefined;
  }
}
