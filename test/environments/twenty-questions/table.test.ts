import { describe, expect, it } from "vitest";
import { attributeNames } from "../../../lib/environments/twenty-questions/attributes.ts";
import { Names } from "../../../lib/environments/twenty-questions/names.ts";
import { scriptedOracle } from "../../../lib/environments/twenty-questions/oracle.ts";
import { byName, objectNamed, table, tableNames } from "../../../lib/environments/twenty-questions/table.ts";

const oracle = scriptedOracle(tableNames);

const ask = async (word: string, question: string): Promise<string> =>
  (await oracle.answer(word, question, { seed: 0 })).verdict;

describe("the table", () => {
  it("knows the objects of other lists, which the embedded game does not use", async () => {
    expect(byName.has("tree")).toBe(false);
    expect(objectNamed("tree")!.answers.tree).toBe("yes");
    expect(objectNamed("volleyball")!.answers.ball).toBe("yes");
    expect(objectNamed("headphone")).toBe(byName.get("headphones"));
    expect(objectNamed("flux capacitor")).toBeUndefined();
    const names = new Names(["tree", "boat", "ship"].map((name) => ({ name, aliases: [] })));
    const oracle = scriptedOracle(names);
    expect((await oracle.answer("tree", "Is it a tree?", { seed: 0 })).verdict).toBe("found");
    expect((await oracle.answer("ship", "Is it a ship?", { seed: 0 })).verdict).toBe("found");
    expect((await oracle.answer("ship", "Is it a boat?", { seed: 0 })).verdict).toBe("yes");
    expect((await oracle.answer("tree", "Is it a boat?", { seed: 0 })).verdict).toBe("no");
  });

  it("has enough objects and attributes", () => {
    expect(table.length).toBeGreaterThanOrEqual(300);
    expect(attributeNames.length).toBeGreaterThanOrEqual(60);
  });

  it("distinguishes every two objects", () => {
    expect(new Set(table.map((object) => JSON.stringify(object.answers))).size).toBe(table.length);
  });

  it("has no contradictions", () => {
    const implies: [string, string][] = [
      ["mammal", "animal"],
      ["bird", "animal"],
      ["fish", "animal"],
      ["insect", "animal"],
      ["reptile", "animal"],
      ["animal", "movesItself"],
      ["bird", "feathers"],
      ["bird", "wings"],
      ["fish", "swims"],
      ["fourLegs", "legs"],
      ["tree", "plant"],
      ["flower", "plant"],
      ["fruit", "edible"],
      ["vegetable", "edible"],
      ["fruit", "food"],
      ["meat", "food"],
      ["dessert", "sweet"],
      ["boat", "vehicle"],
      ["aircraft", "vehicle"],
      ["clothing", "worn"],
      ["jewelry", "worn"],
      ["footwear", "worn"],
      ["ball", "round"],
      ["ball", "sports"],
      ["cuts", "sharp"],
      ["house", "car"],
      ["car", "person"],
      ["person", "breadbox"],
      ["pocket", "hand"],
      ["weapon", "dangerous"],
      ["electronic", "electricity"],
      ["appliance", "electricity"],
      ["kitchenware", "kitchen"],
      ["ocean", "water"],
    ];
    const excludes: [string, string][] = [
      ["animal", "plant"],
      ["animal", "manMade"],
      ["plant", "manMade"],
      ["alive", "electricity"],
      ["mammal", "bird"],
      ["fruit", "vegetable"],
      ["food", "furniture"],
      ["vehicle", "building"],
      ["pocket", "breadbox"],
      ["hand", "person"],
      ["soft", "stone"],
    ];
    const faults: string[] = [];
    for (const { name, answers } of table) {
      const value = answers as Record<string, string>;
      for (const [a, b] of implies)
        if (value[a] === "yes" && value[b] === "no") faults.push(`${name}: ${a}, not ${b}`);
      for (const [a, b] of excludes)
        if (value[a] === "yes" && value[b] === "yes") faults.push(`${name}: ${a} and ${b}`);
    }
    expect(faults).toEqual([]);
  });

  it.each([
    ["dog", "Is it alive?", "yes"],
    ["dog", "Is it a pet?", "yes"],
    ["dog", "Can it fly?", "no"],
    ["penguin", "Can it fly?", "no"],
    ["penguin", "Is it a bird?", "yes"],
    ["bat", "Is it a bird?", "no"],
    ["bat", "Can it fly?", "yes"],
    ["whale", "Is it a fish?", "no"],
    ["whale", "Does it live in the ocean?", "yes"],
    ["shark", "Is it dangerous?", "yes"],
    ["tomato", "Is it a fruit?", "unknown"],
    ["banana", "Is it yellow?", "yes"],
    ["banana", "Can you eat it?", "yes"],
    ["hammer", "Is it made of metal?", "yes"],
    ["hammer", "Is it edible?", "no"],
    ["car", "Does it have wheels?", "yes"],
    ["car", "Is it bigger than a breadbox?", "yes"],
    ["bicycle", "Does it have an engine?", "no"],
    ["piano", "Is it too heavy for one person to lift?", "yes"],
    ["refrigerator", "Is it used in the kitchen?", "yes"],
    ["coin", "Does it fit in a pocket?", "yes"],
    ["sun", "Does it give off light?", "yes"],
    ["chair", "Is it made of wood?", "unknown"],
    ["mountain", "Is it man-made?", "no"],
    ["spider", "Is it an insect?", "no"],
    ["snake", "Does it have legs?", "no"],
  ])("%s: %s %s", async (word, question, answer) => {
    expect(await ask(word, question)).toBe(answer);
  });
});
