/** Names of cities and countries in a text: which are mentioned, and which city is guessed. */

/** A city as the rules see it; facts.ts adds what the scripted oracle knows. */
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

/** Lower case, without accents, punctuation and invisible characters: " Xi’an?" is "xian", "SÃO-PAULO" "sao paulo". */
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

/** Shorter names are words of their own ("us", "la"): they count only as they are written. */
const shortestName = 4;

/** A pattern of whole words that are one of the names. */
function asWritten(names: readonly string[], flags: string): RegExp {
  const escaped = names.map((name) => name.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
  return new RegExp(`(?<![\\p{L}\\p{N}])(?:${escaped.join("|")})(?![\\p{L}\\p{N}])`, flags);
}

/** A blank in the place of names in their usual spelling; Mentions finds the others. */
export function blanked(text: string, names: readonly string[]): string {
  const longestFirst = [...names].sort((a, b) => b.length - a.length);
  return text.replace(asWritten(longestFirst, "giu"), "___");
}

/** Whether a text has one of some names in it, as whole words. */
export class Mentions {
  readonly #words: ReadonlySet<string>;
  readonly #longest: number;
  readonly #short: RegExp | undefined;

  constructor(names: readonly string[]) {
    const long = names.filter((name) => name.length >= shortestName).map(plain);
    this.#words = new Set(long);
    this.#longest = Math.max(0, ...long.map((name) => name.split(" ").length));
    const short = names.filter((name) => name.length < shortestName);
    this.#short = short.length === 0 ? undefined : asWritten(short, "u");
  }

  in(text: string): boolean {
    if (this.#short?.test(text)) return true;
    const words = plain(text);
    // "P-a-r-i-s": runs of single letters are read as one word, too.
    const joined = words.replace(/(?<![^ ])\p{L}(?: \p{L}(?![^ ]))+/gu, (run) => run.replaceAll(" ", ""));
    return this.#has(words) || (joined !== words && this.#has(joined));
  }

  #has(text: string): boolean {
    const words = text.split(" ");
    return words.some((_, start) => {
      for (let count = 1; count <= this.#longest && start + count <= words.length; count++) {
        if (this.#words.has(words.slice(start, start + count).join(" "))) return true;
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

const guessForms: readonly RegExp[] = [
  /^(?:(?:so|ok|okay|then|well|now) )?(?:is|could|might|would|can) (?:it|this|that|the city|your city|the answer)(?: be)? (?:the city of )?(.+)$/,
  /^(?:are you|do you come|were you born) (?:from|in) (.+)$/,
  /^(?:are you|were you) thinking of (.+)$/,
  /^(?:i think|i guess|i believe|i say)(?: that)?(?: (?:it|the city|your city) is)? (.+)$/,
  /^(?:(?:my|the) )?(?:final |last )?(?:guess|answer)(?: is)?(?: that)?(?: (?:it|the city|your city) is)? (.+)$/,
  /^(?:it|the city|your city) is (.+)$/,
  /^(.+)$/,
];

/** Finds the one city that a text guesses. Two cities may share no name. */
export class Guesses<City extends NamedCity> {
  readonly #cities = new Map<string, City>();

  /** @throws RangeError when two cities have a name in common */
  constructor(cities: readonly City[]) {
    for (const city of cities) {
      for (const name of new Set(cityNames(city).map(plain))) {
        if (this.#cities.has(name)) throw new RangeError(`two cities are called ${JSON.stringify(name)}`);
        this.#cities.set(name, city);
      }
    }
  }

  /** "Is the city Paris?", "My guess is Paris, France", "paris": a question about a city or a list of some is no guess. */
  read(text: string): City | undefined {
    const words = plain(text);
    for (const form of guessForms) {
      const phrase = form.exec(words)?.[1];
      const city =
        phrase === undefined ? undefined : this.#named(phrase.replace(/ (?:then|right|correct)$/, ""));
      if (city !== undefined) return city;
    }
    return undefined;
  }

  /** The city of that name, which its country's may follow. */
  #named(phrase: string): City | undefined {
    const found = this.#cities.get(phrase);
    if (found !== undefined) return found;
    for (const [name, city] of this.#cities) {
      if (!phrase.startsWith(`${name} `)) continue;
      const rest = phrase.slice(name.length + 1).replace(/^in (?:the )?/, "");
      if (countryNames(city).some((country) => plain(country) === rest)) return city;
    }
    return undefined;
  }
}
