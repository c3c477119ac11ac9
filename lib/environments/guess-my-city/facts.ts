/** The scripted oracle's facts: a sentence for every city and every topic. */

import { NlacError } from "../../base/errors.ts";
import { type CountryLines, climates, countries, sizes, statuses } from "./cities.ts";
import type { NamedCity } from "./names.ts";

export type Split = "train" | "validation" | "test";

interface Traits extends Omit<CountryLines, "cities" | "test"> {
  part: string;
  setting: string;
  size: string;
  status: string;
  climate: string;
  landmark: string;
  knownFor: string;
  history: string;
}

interface Topic {
  /** The scripted player's question on the topic. */
  question: string;
  /** Matches questions on the topic, in the plain form of names.ts. */
  asks: RegExp;
  /** The answer. */
  say(traits: Traits): string;
}

/** In order of precedence: the first matching topic is answered. */
const topics = {
  flag: {
    question: "What colours are on the flag of the country?",
    asks: /\b(?:flag|flags)\b/,
    say: ({ flag }) => `The flag of its country is ${flag}.`,
  },
  drives: {
    question: "On which side of the road do people drive?",
    asks: /\b(?:drive|drives|driving|side of the road|traffic)\b/,
    say: ({ drives }) => `People drive on the ${drives}.`,
  },
  dishes: {
    question: "What do people of the country like to eat?",
    asks: /\b(?:foods?|dish|dishes|cuisine|eat|eats|eating|meals?|culinary|specialt(?:y|ies)|delicac(?:y|ies)|restaurants?)\b/,
    say: ({ dishes }) => `People of its country like ${dishes}.`,
  },
  languages: {
    question: "What language do people speak there?",
    asks: /\b(?:languages?|speak|speaks|spoken|dialect)\b/,
    say: ({ languages }) => `People there speak ${languages}.`,
  },
  currency: {
    question: "With what currency do people pay?",
    asks: /\b(?:currency|currencies|money|pay|coins?|banknotes?)\b/,
    say: ({ currency }) => `People pay with the ${currency}.`,
  },
  religion: {
    question: "What is the most common religion there?",
    asks: /\b(?:religions?|religious|faith|believe|worship)\b/,
    say: ({ religion }) => `The most common religion is ${religion}.`,
  },
  sport: {
    question: "What sports are popular in the country?",
    asks: /\b(?:sports?|games?|teams?)\b/,
    say: ({ sport }) => `People of its country love ${sport}.`,
  },
  government: {
    question: "What form of government does the country have?",
    asks: /\b(?:government|monarchy|republic|president|king|queen|political|politics|democracy)\b/,
    say: ({ government }) => `Its country is ${government}.`,
  },
  climate: {
    question: "What is the climate like?",
    asks: /\b(?:climate|weather|temperatures?|snow|snows|rain|rains|rainy|hot|cold|warm|winters?|summers?|seasons?|humid|sunny)\b/,
    say: ({ climate }) => `It has ${climate}.`,
  },
  size: {
    question: "How many people live there?",
    asks: /\b(?:population|populous|inhabitants|residents|people live|how (?:big|large|small)|size|bigger|larger|smaller)\b/,
    say: ({ size }) => `With its suburbs it has ${size}.`,
  },
  status: {
    question: "Is it the capital of anything?",
    asks: /\b(?:capital|administrative|status)\b/,
    say: ({ status }) => `${status}.`,
  },
  hemisphere: {
    question: "In which hemisphere does it lie?",
    asks: /\b(?:hemispheres?|equator)\b/,
    say: ({ hemisphere }) => `It lies in the ${hemisphere} hemisphere.`,
  },
  part: {
    question: "In which part of its country does it lie?",
    asks: /\b(?:(?:part|region|area|side|corner) of (?:the|its|your|that) country|where in (?:the|its|your|that) country|within (?:the|its|your|that) country|(?:(?:north|south)?(?:east|west)|north|south)(?:ern)?(?! (?:america|asia|europe|africa)))\b/,
    say: ({ part }) => `In its country it lies in this part: ${part}.`,
  },
  region: {
    question: "In which part of the world does it lie?",
    asks: /\b(?:part of the world|regions?|area|subcontinent|(?:north|south|east|west|northeast|northwest|southeast|southwest)(?:ern)? (?:asia|europe|africa))\b/,
    say: ({ region }) => `Its country takes up this part of the world: ${region}.`,
  },
  continent: {
    question: "On which continent does it lie?",
    asks: /\b(?:continents?|europe(?:an)?|asian?|africa(?:n)?|america(?:n)?|oceania|world)\b/,
    say: ({ continent }) => `It lies in ${continent}.`,
  },
  landmark: {
    question: "What landmark would a visitor see first?",
    asks: /\b(?:landmarks?|monuments?|buildings?|attractions?|sights?|sightseeing|structures?|tourists?|visit|visitors?|statues?|towers?|skyline|architecture|museums?|see)\b/,
    say: ({ landmark }) => `A well-known sight is ${landmark}.`,
  },
  setting: {
    question: "Does it lie at the sea, at a river or in the mountains?",
    asks: /\b(?:coast|coastal|sea|ocean|rivers?|lakes?|mountains?|inland|islands?|water|geography|geographical(?:ly)?|terrain|landscape|nature|natural|desert|port|harbou?r|beach|beaches|located|location|situated|lie|lies|where)\b/,
    say: ({ setting }) => `It lies ${setting}.`,
  },
  history: {
    question: "What happened there in history?",
    asks: /\b(?:history|histor(?:ic|ical|ically)|founded|founding|past|events?|ancient|old|century|wars?|olympics?|happened)\b/,
    say: ({ history }) => `Of its history one can say that ${history}.`,
  },
  knownFor: {
    question: "What is the city known for?",
    asks: /\b(?:known|famous|famed|fame|special|unique|cultur(?:e|al)|industr(?:y|ies)|econom(?:y|ic)|festivals?|reputation|traditions?|describe|about|music|people|art|best|important)\b/,
    say: ({ knownFor }) => `It is known for ${knownFor}.`,
  },
} satisfies Record<string, Topic>;

export type TopicName = keyof typeof topics;

export const topicNames = Object.keys(topics) as TopicName[];

export function questionAbout(topic: TopicName): string {
  return topics[topic].question;
}

/**
 * The topic of a question; undefined if none matches. `question` is in the plain form of names.ts.
 */
export function topicOf(question: string): TopicName | undefined {
  return topicNames.find((name) => topics[name].asks.test(question));
}

export interface City extends NamedCity {
  split: Split;
  facts: Readonly<Record<TopicName, string>>;
}

/** All cities in the order of cities.ts. Throws ERR_INTERNAL if that file cannot be parsed. */
function readCities(): City[] {
  const cities: City[] = [];
  for (const { test, country, cities: lines, ...common } of countries) {
    const [countryName, countryAliases] = named(country);
    const rows = lines.trim().split("\n");
    for (const [i, row] of rows.entries()) {
      const cells = row.split("|").map((cell) => cell.trim());
      if (cells.length !== 7 || cells.includes(""))
        throw new NlacError("ERR_INTERNAL", `cities: cannot read "${row}".`);
      const [head, codes, part, setting, landmark, knownFor, history] = cells as [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
      ];
      const [size, status, climate, ...own] = codes.split(" ");
      const traits: Traits = {
        ...common,
        ...Object.fromEntries(own.map((pair) => pair.replaceAll("_", " ").split("="))),
        country,
        part,
        setting,
        landmark,
        knownFor,
        history,
        size: coded(sizes, size, row),
        status: coded(statuses, status, row),
        climate: coded(climates, climate, row),
      };
      const [name, aliases] = named(head);
      cities.push({
        name,
        aliases,
        country: countryName,
        countryAliases,
        split: test === true ? "test" : i < rows.length - 2 ? "train" : "validation",
        facts: Object.fromEntries(
          topicNames.map((topic) => [topic, topics[topic].say(traits)]),
        ) as City["facts"],
      });
    }
  }
  return cities;
}

/** "Munich (München)" → its name and other names. */
function named(text: string): [name: string, aliases: string[]] {
  const [, name, aliases] = /^([^(]+?)\s*(?:\(([^)]*)\))?$/.exec(text) ?? [];
  if (name === undefined) throw new NlacError("ERR_INTERNAL", `cities: cannot read "${text}".`);
  return [name, aliases === undefined ? [] : aliases.split(", ")];
}

function coded(meanings: Readonly<Record<string, string>>, code: string | undefined, row: string): string {
  const meaning = code === undefined ? undefined : meanings[code];
  if (meaning === undefined) throw new NlacError("ERR_INTERNAL", `cities: no code "${code}" in "${row}".`);
  return meaning;
}

export const cities: readonly City[] = readCities();

export const cityByName: ReadonlyMap<string, City> = new Map(cities.map((city) => [city.name, city]));
