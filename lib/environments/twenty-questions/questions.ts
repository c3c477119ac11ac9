/**
 * How the scripted oracle understands a question. The text is normalized (lower case, no
 * punctuation, contractions spelled out, filler dropped), then converted to a frame: `is`, `has`,
 * `does`, `you`, `use`, `at` or `of`, and the words after it. A frame is looked up as a whole,
 * never by a single word: "Is it an animal that barks?" must not be answered as "Is it an animal?".
 * Unknown frames cannot be answered.
 */

import {
  type Answer,
  type Attribute,
  type AttributeName,
  attributeNames,
  attributes,
  sameSize,
} from "./attributes.ts";
import { singulars } from "./names.ts";
import { byName, type HiddenObject, tableNames } from "./table.ts";

export type Question =
  /** A guess. `object` is absent if the table does not have it. */
  | { kind: "guess"; phrase: string; object?: HiddenObject }
  | { kind: "attribute"; name: AttributeName; negated: boolean }
  /** "Is it bigger than a cat?": answered by the sizes of the table. */
  | { kind: "size"; than: number; larger: boolean; negated: boolean }
  /** A yes/no question that the table cannot answer. */
  | { kind: "other"; reason: "several" | "not in the table" }
  /** Not a yes/no question. */
  | { kind: "invalid" };

type Frame = "is" | "has" | "does" | "you" | "use" | "at" | "of";
const frames: readonly Frame[] = ["is", "has", "does", "you", "use", "at", "of"];

/** "is alive" → the attribute, and whether the answer is inverted. */
const known = new Map<string, { name: AttributeName; negated: boolean }>();

/** Longer texts are not treated as questions. */
export const maxQuestionLength = 300;

/** Parses the text of one turn in time linear in its length. */
export function readQuestion(text: string): Question {
  const trimmed = text.trim();
  if (trimmed === "" || trimmed.length > maxQuestionLength || !/[a-z]/i.test(trimmed))
    return { kind: "invalid" };
  if ((trimmed.match(/\?/g) ?? []).length > 1) return { kind: "other", reason: "several" };
  const words = plain(trimmed);
  if (/^(?:what|which|who|whom|whose|where|when|why|how|tell|give|describe)\b/.test(words))
    return { kind: "invalid" };

  const announced =
    /^(?:i guess|i think|my guess is|my final guess is|final guess|guess|i will guess|my answer is|the answer is|i say|i believe)(?: that)? (?:it is |is it )?(.+)$/.exec(
      words,
    );
  if (announced !== null) return guess(announced[1]!, trimmed);
  const named =
    /^(?:are you thinking of|is the (?:word|answer|object|item|secret|thing) called|is it called|is it named|could the answer be|is the answer|is the word|is the hidden word|is the secret word|is the hidden object|is the secret object) (.+)$/.exec(
      words,
    );
  if (named !== null) return guess(named[1]!, trimmed);

  const asked = frame(words);
  if (asked === undefined) {
    if (!trimmed.endsWith("?") || words.split(" ").length > 4) return { kind: "invalid" };
    // "A dog?"
    return guess(words, trimmed);
  }
  const bare = withoutArticle(asked.rest);
  const object = asked.frame === "is" && !asked.negated ? objectOf(bare) : undefined;
  if (object !== undefined && !known.has(`is ${bare}`)) return guess(bare, trimmed);
  if (/\b(?:or|and)\b/.test(asked.rest) && lookUp(asked.frame, asked.rest) === undefined) {
    return { kind: "other", reason: "several" };
  }
  const compared = lookUp(asked.frame, asked.rest) === undefined ? comparison(asked) : undefined;
  if (compared !== undefined) return compared;

  // "Is it an orange?" names the fruit, "Is it orange?" the colour.
  const withArticle = bare !== asked.rest;
  if (asked.frame === "is" && !asked.negated && withArticle && objectOf(bare)) return guess(bare, trimmed);
  const found = lookUp(asked.frame, asked.rest);
  // "Is it a glass?" asks for a thing, not for what a thing is made of.
  if (withArticle && found !== undefined && attributes[found.name].question.includes("made mostly of")) {
    return { kind: "other", reason: "not in the table" };
  }
  if (found !== undefined) {
    return { kind: "attribute", name: found.name, negated: found.negated !== asked.negated };
  }
  if (asked.frame === "is" && !asked.negated && objectOf(bare)) return guess(bare, trimmed);
  return { kind: "other", reason: "not in the table" };
}

/**
 * The phrase by which a text names the hidden thing, even if it may mean an attribute: "bird" in
 * "Is it a bird?". Undefined if there is none, or the text names several.
 */
export function namedPhrase(text: string): string | undefined {
  const question = readQuestion(text);
  if (question.kind === "invalid" || (question.kind === "other" && question.reason === "several"))
    return undefined;
  let phrase: string;
  if (question.kind === "guess") {
    phrase = question.phrase;
  } else {
    const asked = frame(plain(text));
    if (asked?.frame !== "is" || asked.negated) return undefined;
    phrase = withoutArticle(asked.rest);
  }
  return inOnePiece(phrase, text) ? phrase : undefined;
}

/**
 * Words that only refer to the hidden one: if a judge accepted "the answer" as its name, such a
 * guess would always win.
 */
const pointing = new Set(
  (
    "it that this these those one ones same what which such so a an the of as in to is be your my mine our its yours you i we " +
    "word words answer secret hidden mystery target thing something object item guess name noun term solution mind thinking " +
    "right correct true yes no"
  ).split(" "),
);

/**
 * The phrase that a text puts forward as a guess, for a judge that knows more words than the table.
 * It must be short and contain a word that identifies a thing.
 */
export function guessedPhrase(text: string): string | undefined {
  const { kind } = readQuestion(text);
  if (kind === "attribute" || kind === "size") return undefined;
  const phrase = namedPhrase(text);
  if (phrase === undefined || phrase.length > 40) return undefined;
  const words = phrase.split(/[ -]/);
  return words.length > 4 || words.every((word) => pointing.has(word)) ? undefined : phrase;
}

/** The oracle's answer from the table. */
export function answerFrom(object: HiddenObject, question: Question): Answer {
  switch (question.kind) {
    case "attribute": {
      const answer = object.answers[question.name];
      return question.negated ? opposite(answer) : answer;
    }
    case "size": {
      if (object.size === undefined || Math.abs(object.size - question.than) < sameSize) return "unknown";
      const answer = object.size > question.than === question.larger ? "yes" : "no";
      return question.negated ? opposite(answer) : answer;
    }
    case "guess":
      // The oracle decides whether it is the hidden one, since it knows the other words of the
      // game.
      return "no";
    case "other":
    case "invalid":
      return "unknown";
  }
}

function opposite(answer: Answer): Answer {
  return answer === "yes" ? "no" : answer === "no" ? "yes" : "unknown";
}

// ---------------------------------------------------------------------------------- to plain words

const contractions: [RegExp, string][] = [
  [/\b(is|are|does|do|can|could|would|was|has|have|did)n['’]?t\b/g, "$1"],
  [/\bcan['’]t\b/g, "can"],
  [/\b(it|that|this)['’]s\b/g, "$1 is"],
  [/\bi['’]d\b/g, "i would"],
  [/\bi['’]ll\b/g, "i will"],
];

const filler =
  /\b(?:usually|typically|commonly|often|generally|normally|mostly|mainly|primarily|really|actually|considered|typical|ever|also|perhaps|maybe|possibly|sometimes|then|just|very commonly|in general|by chance|by any chance|basically|probably|most likely|likely|frequently|regularly|ordinarily|naturally|please|even|still|kind of|type of|sort of|piece of|form of|made out|made up)\b/g;

function unaccented(text: string): string {
  return text
    .normalize("NFKD")
    .replace(/[\u0300-\u036f]/g, "")
    .toLowerCase();
}

function plain(text: string): string {
  let words = unaccented(text).replace(/[“”"*_`]/g, " ");
  // "Isn't it alive?" asks whether it is alive; only an explicit "not" inverts a question.
  for (const [pattern, spelled] of contractions) words = words.replace(pattern, spelled);
  return words
    .replace(/^\s*(?:question|q|turn)?\s*(?:#|no\.?)?\s*\d*\s*[.:)-]+\s*/, "")
    .replace(/[^a-z0-9' -]+/g, " ")
    .replace(/(?<=[a-z])-(?=[a-z])/g, " ")
    .replace(
      /^(?:\s*(?:ok|okay|so|well|hmm+|um|uh|alright|great|thanks|right|next|now|and|let me ask|let me guess|i want to know if|i wonder if|i would like to know if|can you tell me if|do you know if|tell me|does that mean|would you say|would you say that|is it true that|is it correct that)\b\s*)+/,
      "",
    )
    .replace(filler, " ")
    .replace(
      /\b(?:(?:the|this|that|your|hidden|secret|mystery)\s+)+(?:object|thing|item|word|answer)(?!\s+called)\b/g,
      "it",
    )
    .replace(
      /\bsomething (?:that |which )?(?:you |we |people |one )(?=can|could|would|might|use)/g,
      "it you ",
    )
    .replace(/\s+/g, " ")
    .trim();
}

const person = "(?:you|we|people|i|one|someone|somebody|a person|persons|humans|most people|children|kids)";

/** The first pattern that matches names the frame; group 1 is its content. */
const shapes: [RegExp, Frame][] = [
  [
    new RegExp(
      `^is it (?:something|it|a thing|an object|one|an item|a tool)(?: that| which)? ${person} (?:can |could |would |might )?(.+)$`,
    ),
    "you",
  ],
  [/^is it (?:made|built|constructed|composed) (?:of|from|out of|with) (.+)$/, "of"],
  [
    /^(?:is|could|might|can|would) it (?:be )?(?:used|useful|meant|designed|intended|good|needed) (?:for|to) (.+)$/,
    "use",
  ],
  [new RegExp(`^(?:do|can|would|could) ${person} use it (?:for|to) (.+)$`), "use"],
  [
    /^(?:is|can|could|would) it (?:be )?(?:found|used|kept|located|seen|stored|placed|live|living) (?:in|on|at|around|inside) (.+)$/,
    "at",
  ],
  [
    new RegExp(
      `^(?:do|can|would|could|will|might) ${person} (?:find|see|keep|use|have|get|put) it (?:in|on|at|around|inside) (.+)$`,
    ),
    "at",
  ],
  [
    /^(?:is|can|could|would) it (?:be )?(?:found|used|kept|located|seen|stored) (indoors|outdoors|outside|inside|underwater)$/,
    "at",
  ],
  [
    new RegExp(
      `^(?:do|can|would|could|will) ${person} (?:find|see|keep|use) it (indoors|outdoors|outside|inside|underwater)$`,
    ),
    "at",
  ],
  [/^does it (?:live|belong|stay|exist|grow) (?:in|on|at|around) (.+)$/, "at"],
  [/^is it (?:in|on|at) (.+)$/, "at"],
  [/^is it (indoors|outdoors|outside|inside)$/, "at"],
  [/^(?:does|did|would|do|can) it have (.+)$/, "has"],
  [/^(?:has it|has it got|is there|are there) (.+?)(?: on it| in it)?$/, "has"],
  [/^is it with (.+)$/, "has"],
  [/^(?:does|can|could|would|will|do) (?:it|they) (.+)$/, "does"],
  [
    /^is it (?:something|it|a thing|an object|one|a tool|an item)?(?: that| which)? ?(?:able to|capable of) (.+)$/,
    "does",
  ],
  [
    new RegExp(
      `^(?:can|do|does|could|would|should|may|will|is it possible to|is it) ${person} (?:can |could |would |might |usually )?(.+)$`,
    ),
    "you",
  ],
  [/^(?:is it possible to|can it be possible to) (.+)$/, "you"],
  [
    /^is it (?:something|it|a thing|an object|an item)(?: that| which)? (?:can|could|does|will|would) (.+)$/,
    "does",
  ],
  [/^is it (?:something|it|a thing|an object|an item)(?: that| which)? has (.+)$/, "has"],
  [/^is it (?:something|it|a thing|an object|an item)(?: that| which)? is (.+)$/, "is"],
  [
    /^(?:is|are|was|could|might|would|can|may|must|does) (?:it|they|these|that|this)(?: be)? (?:something |a thing |an object |an item )?(.+)$/,
    "is",
  ],
  [/^it is (.+)$/, "is"],
];

function frame(words: string): { frame: Frame; rest: string; negated: boolean } | undefined {
  let { text, negated } = withoutNot(words);
  text = text.replace(/^is it without /, () => {
    negated = !negated;
    return "does it have ";
  });
  for (const [pattern, name] of shapes) {
    const match = pattern.exec(text);
    if (match === null) continue;
    let rest = match[1]!.trim();
    if (name === "you") {
      // The object of the verb may be left out: "something you can eat".
      if (!/\bit\b/.test(rest)) rest = /^(\w+)(?: (?:with|on|in))?$/.test(rest) ? `${rest} it` : rest;
    }
    if (name === "does" && /^be /.test(rest)) return reframe(`is it ${rest.slice(3)}`, negated);
    return rest === "" ? undefined : { frame: name, rest, negated };
  }
  return undefined;
}

/** "not" and "never" each invert a question. */
function withoutNot(words: string): { text: string; negated: boolean } {
  let negated = false;
  const text = words.replace(/ (?:not|never)(?= |$)/g, () => {
    negated = !negated;
    return "";
  });
  return { text, negated };
}

/** The question without negation, and whether it was negated. */
export function withoutNegation(text: string): { question: string; negated: boolean } {
  const plainly = withoutNot(plain(text));
  return { question: plainly.text, negated: plainly.negated };
}

function reframe(
  words: string,
  negated: boolean,
): { frame: Frame; rest: string; negated: boolean } | undefined {
  const again = frame(words);
  return again && { ...again, negated: again.negated !== negated };
}

function withoutArticle(words: string): string {
  return words.replace(/^(?:an?|the|some|any|your|my|one|another|its|in|on|at) (?=\S)/, "");
}

// ----------------------------------------------------------------------------------------- look-up

function guess(phrase: string, text: string): Question {
  const bare = withoutArticle(phrase);
  if (!inOnePiece(bare, text)) return { kind: "other", reason: "several" };
  const object = objectOf(bare);
  return object === undefined ? { kind: "guess", phrase: bare } : { kind: "guess", phrase: bare, object };
}

/**
 * Whether the phrase occurs in the text without interruption: words separated by a comma or a slash
 * are not one name.
 */
function inOnePiece(phrase: string, text: string): boolean {
  const words = phrase.split(" ").join("[\\s-]+");
  return phrase !== "" && new RegExp(`(?<![a-z0-9])${words}(?![a-z0-9])`).test(unaccented(text));
}

function objectOf(phrase: string): HiddenObject | undefined {
  return byName.get(tableNames.meaning(phrase) ?? "");
}

function lookUp(name: Frame, rest: string): { name: AttributeName; negated: boolean } | undefined {
  const phrase = normalPhrase(rest);
  for (const form of [phrase, ...singulars(phrase)]) {
    const found =
      known.get(`${name} ${form}`) ?? known.get(`${name} ${form.replace(/ (?:item|object|thing)$/, "")}`);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** Drops articles and small words on both sides, so that each phrase needs only one entry. */
function normalPhrase(phrase: string): string {
  return phrase
    .replace(/\b(?:an?|the|some|any|your|their|its|his|own|item of|kinds of|types of)\b/g, " ")
    .replace(/-/g, " ")
    .replace(/ purposes?$| to (?:function|operate|work)$/, "")
    .replace(/\s+/g, " ")
    .trim();
}

const references: Record<string, number> = {
  breadbox: 3,
  "bread box": 3,
  "loaf of bread": 2.8,
  "shoe box": 2.8,
  shoebox: 2.8,
  "microwave oven": 3,
  person: 4,
  human: 4,
  "human being": 4,
  man: 4,
  adult: 4,
  child: 3.7,
  baby: 3.3,
  fist: 1.8,
  hand: 2,
  football: 2.8,
  building: 6.3,
  room: 5.6,
  "grain of rice": 0.6,
};

function comparison(asked: { frame: Frame; rest: string; negated: boolean }): Question | undefined {
  if (asked.frame !== "is") return undefined;
  const match = /^(bigger|larger|taller|greater|smaller|tinier|shorter|less)(?: in size)? than (.+)$/.exec(
    asked.rest,
  );
  if (match === null) return undefined;
  const phrase = withoutArticle(match[2]!);
  const size = Object.hasOwn(references, phrase) ? references[phrase] : objectOf(phrase)?.size;
  if (size === undefined) return { kind: "other", reason: "not in the table" };
  return {
    kind: "size",
    than: size,
    larger: /^(?:bigger|larger|taller|greater)$/.test(match[1]!),
    negated: asked.negated,
  };
}

for (const name of attributeNames) {
  const attribute: Attribute = attributes[name];
  const list = (phrases: string | undefined) =>
    (phrases ?? "")
      .split(",")
      .flatMap((phrase) => (phrase.trim() === "" ? [] : [normalPhrase(phrase.trim())]));
  for (const kind of frames)
    for (const phrase of list(attribute[kind])) known.set(`${kind} ${phrase}`, { name, negated: false });
  for (const phrase of list(attribute.not)) {
    for (const kind of ["is", "does", "at"] as const) known.set(`${kind} ${phrase}`, { name, negated: true });
  }
}
// Added last, so that a question of the table always means its own attribute, in any frame.
for (const name of attributeNames) {
  const asked = frame(plain(attributes[name].question));
  if (asked !== undefined)
    known.set(`${asked.frame} ${normalPhrase(asked.rest)}`, { name, negated: asked.negated });
}
