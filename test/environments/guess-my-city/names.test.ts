import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { cities } from "../../../lib/environments/guess-my-city/facts.ts";
import { cityNames, Guesses, Mentions } from "../../../lib/environments/guess-my-city/names.ts";
import { secretsOf } from "../../support/city-games.ts";

const guesses = new Guesses(cities);

describe("reading guesses", () => {
  it("finds every city by each of its names, in every form", () => {
    for (const city of cities) {
      for (const name of cityNames(city)) {
        for (const text of [
          `Is the city ${name}?`,
          `is it ${name.toUpperCase()}`,
          `  Is your city the city of ${name} ?  `,
          `My final guess is: "${name}".`,
          `Final guess: ${name}`,
          `I think it is ${name}!`,
          `Are you from ${name}?`,
          name,
          `Is the city ${name}, ${city.country}?`,
          `Is it ${name} in ${city.country}?`,
          `Is it ${name}, the capital of ${city.country}?`,
          `I think it's ${name}.`,
          `It's ${name}`,
          `It must be ${name}!`,
          `I'd say ${name}`,
          `My guess would be ${name}`,
          `I'm guessing ${name}.`,
          `So, you come from ${name}.`,
          `You’re from ${name}?`,
          `Is your hometown ${name}?`,
        ]) {
          expect(guesses.read(text)?.name, text).toBe(city.name);
        }
      }
    }
  });

  it.each([
    ["Is the city sao paulo?", "São Paulo"],
    ["Is the city SÃO-PAULO?", "São Paulo"],
    ["Is the city Lodz?", "Łódź"],
    ["Is the city Xi’an?", "Xi'an"],
    ["Is the city xian?", "Xi'an"],
    ["Is the city St. Petersburg?", "Saint Petersburg"],
    ["Is the city Washington, D.C.?", "Washington"],
    ["Is the city Izmir?", "Izmir"],
    ["Is the city İZMİR?", "Izmir"],
    ["Is the city Pa\u200bris?", "Paris"],
    ["Is the city ＰＡＲＩＳ？", "Paris"],
    ["Is the city York?", "York"],
    ["Is the city New York?", "New York"],
    ["Is the city East London?", "East London"],
    ["Is the city London?", "London"],
    ["Is the city Mexico City?", "Mexico City"],
  ])("reads %j as %s", (text, name) => {
    expect(guesses.read(text)?.name).toBe(name);
  });

  it.each([
    "Is the city Paris or Lyon?",
    "Is it Paris, Lyon, Lille?",
    "Paris Lyon Lille Nantes",
    "I think it's Paris or Lyon.",
    "It's Paris, it's Lyon, it's Lille",
    "You come from Paris, Lyon or Lille.",
    "Is it Paris, the capital of Germany?",
    "Is it Paris, the capital of France, or Lyon?",
    "I'm not guessing Paris.",
    "Is it near Paris?",
    "Is the city bigger than Paris?",
    "Is the city Parisian?",
    "Is the city Paris, Germany?",
    "Is the city a Paris of the East?",
    "Is the city large?",
    "New",
    "",
    "the city",
  ])("reads no guess in %j", (text) => {
    expect(guesses.read(text)).toBeUndefined();
  });

  it("rejects two cities with the same name", () => {
    const city = (name: string, ...aliases: string[]) => ({
      name,
      aliases,
      country: "X",
      countryAliases: [],
    });
    expect(() => new Guesses([city("Aa", "Bb"), city("bb")])).toThrow(RangeError);
  });
});

describe("finding names in a text", () => {
  const names = new Mentions(["Rome", "New York", "USA", "Łódź"]);
  it.each([
    ["It was Rome.", true],
    ["ROME'S ruins", true],
    ["R-o-m-e", true],
    ["r o m e", true],
    ["It is new  york", true],
    ["lodz", true],
    ["in the USA", true],
    ["We must trust us and usa", false],
    ["Is it Ro-me?", true],
    ["Is it R.o.m.e?", true],
    ["R0me", true],
    ["Rоmе", true], // with Cyrillic letters
    ["ΝΕW ΥΟRΚ", true], // with Greek ones
    ["newyork", true],
    ["Ne wy ork", true],
    ["1odz", true],
    ["far from Erie", false],
    ["is ro me", false], // such short names occur in other words by chance
    ["Romeo", false],
    ["from everywhere", false],
    ["York is new", false],
    ["", false],
  ])("%j: %s", (text, found) => {
    expect(names.in(text)).toBe(found);
  });

  it("matches a short name as written, whatever characters it contains", () => {
    const odd = new Mentions(["A.", "(+", "LA"]);
    for (const [text, found] of [
      ["in A. again", true],
      ["in LA?", true],
      ["la la land", false],
      ["ABLE", false],
      ["x (+ y", true],
    ] as const) {
      expect(odd.in(text), text).toBe(found);
    }
  });

  it("finds a city's name in any case, accents and spacing", () => {
    const accents = fc.constantFrom("", "\u0301", "\u0308", "\u200b");
    fc.assert(
      fc.property(
        fc.constantFrom(...cities),
        fc.infiniteStream(fc.boolean()),
        accents,
        (city, upper, accent) => {
          const written = [...city.name]
            .map(
              (letter) =>
                (upper.next().value ? letter.toUpperCase() : letter) + (/\w/.test(letter) ? accent : ""),
            )
            .join("");
          return secretsOf(city).in(`well, ${written}! `);
        },
      ),
    );
  });
});
