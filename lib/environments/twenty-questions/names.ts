/**
 * Decides whether a guess names the hidden word, and so wins. Case, accents, hyphens, blanks,
 * articles, plurals and British or American spelling are ignored; a word inside another ("bread" in
 * "breadbox") is a different thing. A guess that equals the name of another word of the game means
 * that word: "glass" is not read as the singular of "glasses".
 */

/** A word of the game, and its other names. */
export interface Word {
  name: string;
  aliases: readonly string[];
}

/** The names of a game's words. */
export class Names {
  /** The word that each spelling means. */
  readonly #meant = new Map<string, string>();

  /** A name that two words share means the word whose main name it is, or else the first. */
  constructor(words: Iterable<Word>) {
    const list = [...words];
    const spellings: [spelling: string | undefined, name: string][] = [
      ...list.map(({ name }): [string | undefined, string] => [nameForms(name)[0], name]),
      ...list.flatMap(({ name, aliases }) =>
        aliases.map((alias): [string | undefined, string] => [nameForms(alias)[0], name]),
      ),
      ...list.flatMap(({ name, aliases }) =>
        [name, ...aliases].flatMap((any) => nameForms(any).map((form): [string, string] => [form, name])),
      ),
    ];
    for (const [spelling, name] of spellings) {
      if (spelling !== undefined && !this.#meant.has(spelling)) this.#meant.set(spelling, name);
    }
  }

  /** The word that a phrase names; undefined if it is not a word of the game. */
  meaning(phrase: string): string | undefined {
    for (const form of nameForms(phrase)) {
      const word = this.#meant.get(form);
      if (word !== undefined) return word;
    }
    return undefined;
  }

  /** Whether the phrase names the hidden word, which need not be one of the game's. */
  names(phrase: string, hidden: string): boolean {
    const meant = this.meaning(phrase);
    if (meant !== undefined) return meant === hidden;
    const forms = new Set(nameForms(hidden));
    return nameForms(phrase).some((form) => forms.has(form));
  }

  /** Whether the phrase is only a list of different words of the game. */
  lists(phrase: string): boolean {
    const parts = phrase.split(/\s+/).filter((part) => nameForms(part).length > 0);
    const meanings = new Set(parts.map((part) => this.meaning(part)));
    return meanings.size > 1 && !meanings.has(undefined);
  }
}

/**
 * Normalized spellings of a name, letters and digits only: as written, then with its last word in
 * possible singular forms. Empty for a text without letters and digits.
 */
function nameForms(text: string): string[] {
  const words = text
    .normalize("NFKD")
    .toLowerCase()
    .replace(/[\u0300-\u036f'’`]/g, "")
    .replace(/\([^)]*\)/g, " ")
    .replace(/[^a-z0-9]+/g, " ")
    .trim()
    .replace(/^(?:(?:an?|the|some|any|one|my|your|pair of|a pair of) )+(?=\S)/, "")
    .split(" ")
    .map((word) => american[word] ?? word);
  const last = words.pop()!;
  if (last === "") return [];
  return [last, ...singulars(last)].map((form) => [...words, american[form] ?? form].join(""));
}

/** Possible singulars of the word. */
export function singulars(word: string): string[] {
  // Eyeglasses; a glass is another thing.
  if (word === "glasses") return [];
  const forms: string[] = [];
  if (/ies$/.test(word)) forms.push(word.replace(/ies$/, "y"));
  if (/ves$/.test(word)) forms.push(word.replace(/ves$/, "f"), word.replace(/ves$/, "fe"));
  if (/es$/.test(word)) forms.push(word.slice(0, -2));
  if (/[^s]s$/.test(word)) forms.push(word.slice(0, -1));
  return [...forms, ...(irregular.get(word) ?? [])];
}

// A Map, since an object would also have "constructor".
const irregular = new Map(
  Object.entries({
    feet: ["foot"],
    teeth: ["tooth"],
    geese: ["goose"],
    mice: ["mouse"],
    lice: ["louse"],
    dice: ["die"],
    oxen: ["ox"],
    men: ["man"],
    women: ["woman"],
    children: ["child"],
    people: ["person"],
    cacti: ["cactus"],
    fungi: ["fungus"],
  }),
);

/** American spelling of each, mostly British, spelling. */
const american: Record<string, string> = Object.assign(
  Object.create(null),
  Object.fromEntries(
    (
      "aluminium aluminum, armour armor, axe ax, catsup ketchup, centre center, cheque check, chilli chili, colour color, " +
      "doughnut donut, doughnuts donuts, drier dryer, fibre fiber, flautist flutist, grey gray, " +
      "jewellery jewelry, kerb curb, lasagne lasagna, licence license, mould mold, moustache mustache, omelette omelet, " +
      "plough plow, pyjamas pajamas, pyjama pajama, racquet racket, sabre saber, sceptre scepter, snowplough snowplow, " +
      "syrop syrup, tee t, theatre theater, tyre tire, tyres tires, whisky whiskey, yoghurt yogurt"
    )
      .split(", ")
      .map((pair) => pair.split(" ")),
  ),
);
