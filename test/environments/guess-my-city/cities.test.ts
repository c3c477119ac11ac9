import { describe, expect, it } from "vitest";
import { type City, cities, topicNames } from "../../../lib/environments/guess-my-city/facts.ts";
import { cityNames, Mentions } from "../../../lib/environments/guess-my-city/names.ts";
import { ask, secretsOf } from "../../support/city-games.ts";

const inSplit = (split: string): City[] => cities.filter((city) => city.split === split);

const countriesOf = (split: string) => [...new Set(inSplit(split).map(({ country }) => country))];

describe("the cities", () => {
  it("come in the paper's numbers", () => {
    expect([inSplit("train").length, inSplit("validation").length, inSplit("test").length]).toEqual([
      120, 30, 30,
    ]);
    for (const [split, count, each] of [
      ["train", 15, 8],
      ["validation", 15, 2],
      ["test", 3, 10],
    ] as const) {
      expect(countriesOf(split)).toHaveLength(count);
      for (const country of countriesOf(split)) {
        expect(inSplit(split).filter((city) => city.country === country)).toHaveLength(each);
      }
    }
  });

  it("of validation are of training countries, those of the test of none of these", () => {
    expect(countriesOf("validation")).toEqual(countriesOf("train"));
    expect(countriesOf("test").filter((country) => countriesOf("train").includes(country))).toEqual([]);
    expect(new Set(cities.map(({ name }) => name)).size).toBe(180);
  });

  it("differ in the oracle's facts", () => {
    for (const topic of ["landmark", "knownFor", "history"] as const) {
      expect(new Set(cities.map(({ facts }) => facts[topic])).size, topic).toBe(180);
    }
  });

  it("are not named by any fact, nor are their countries", () => {
    const all = new Mentions(cities.flatMap(cityNames));
    for (const city of cities) {
      for (const topic of topicNames) {
        expect(secretsOf(city).in(city.facts[topic]), `${city.name}: ${city.facts[topic]}`).toBe(false);
        expect(all.in(city.facts[topic]), `${city.name}: ${city.facts[topic]}`).toBe(false);
      }
    }
  });

  it.each([
    ["Paris", "What is the most famous landmark?", "Eiffel Tower"],
    ["Canberra", "Is it the capital?", "It is the national capital"],
    ["Sydney", "Is it the capital?", "not the national capital"],
    ["Pretoria", "Is it a capital city?", "one of the three capitals"],
    ["Istanbul", "On which continent does it lie?", "both Europe and Asia"],
    ["Vladivostok", "On which continent does it lie?", "in Asia"],
    ["Moscow", "On which continent does it lie?", "in Europe"],
    ["Montreal", "What languages are spoken there?", "French and English"],
    ["Chennai", "What languages are spoken there?", "Tamil"],
    ["Manaus", "In which hemisphere is it?", "southern"],
    ["Murmansk", "How is the weather?", "long, dark, cold winters"],
    ["London", "On which side do people drive?", "left"],
    ["Warsaw", "What currency do they use?", "zloty"],
    ["Seoul", "What foods should I try?", "kimchi"],
    ["Alice Springs", "How many people live in the city?", "less than about two hundred thousand"],
    ["Tokyo", "What is its population?", "ten million people or more"],
    ["Cape Town", "Does it lie at the sea?", "Atlantic"],
    ["Kazan", "What is the main religion?", "Orthodox"],
  ])("%s: %s", async (city, question, answer) => {
    expect(await ask(city, question)).toContain(answer);
  });
});
