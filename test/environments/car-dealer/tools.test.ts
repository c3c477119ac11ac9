import { describe, expect, it } from "vitest";
import { inventories, search } from "../../../lib/environments/car-dealer/inventory.ts";
import { dealerTools, readCall, searchResult } from "../../../lib/environments/car-dealer/tools.ts";

describe("the tools", () => {
  const read = (name: string, args: Record<string, unknown>) => readCall(inventories.train, name, args);

  it("are the paper's five, and respond", () => {
    expect(dealerTools.map(({ name, parameters }) => [name, parameters.required])).toEqual([
      ["search_car_by_brand_type", ["car_brand", "car_type"]],
      ["search_car_by_brand", ["car_brand"]],
      ["search_car_by_type", ["car_type"]],
      ["search_car_that_have_features", ["features_list"]],
      ["no_op", []],
      ["respond", ["content"]],
    ]);
  });

  it("search the inventory", () => {
    expect(read("search_car_by_brand", { car_brand: "BMW" })).toEqual({
      kind: "search",
      cars: search(inventories.train, { brand: "BMW" }),
    });
    expect(read("search_car_by_type", { car_type: "truck" })).toEqual({
      kind: "search",
      cars: search(inventories.train, { type: "truck" }),
    });
    expect(read("search_car_that_have_features", { features_list: ["sunroof"] })).toEqual({
      kind: "search",
      cars: search(inventories.train, { features: ["sunroof"] }),
    });
  });

  it("show at most eight cars, with prices and suggested discounts", () => {
    const { cars } = inventories.train;
    const shown = JSON.parse(searchResult(cars));
    expect(shown.found).toBe(cars.length);
    expect(shown.cars).toHaveLength(8);
    const { id, brand, type, marketPrice } = cars[0]!;
    expect(shown.cars[0]).toEqual({
      car_id: id,
      brand,
      type,
      features: cars[0]!.features,
      market_price: marketPrice,
      suggested_discounts: ["2%", "5%", "10%"],
    });
    expect(JSON.parse(searchResult([]))).toEqual({ found: 0, cars: [] });
  });

  it.each([
    ["search_cars", {}],
    ["search_car_by_brand", {}],
    ["search_car_by_brand", { car_brand: 3 }],
    ["search_car_by_brand", { car_brand: "BMW", car_type: "SUV" }],
    ["search_car_that_have_features", { features_list: [] }],
    ["search_car_that_have_features", { features_list: "sunroof" }],
    ["no_op", { x: 1 }],
    ["respond", {}],
    ["respond", { content: "" }],
    ["respond", { content: "  \n" }],
    ["respond", { content: "x".repeat(1001) }],
    ["respond", { content: "x", car_id: 101 }],
    ["respond", { content: "x", price: 20_000 }],
    ["respond", { content: "x", car_id: 101, price: 0 }],
    ["respond", { content: "x", car_id: 101, price: -1 }],
    ["respond", { content: "x", car_id: 101, price: Number.NaN }],
    ["respond", { content: "x", car_id: 101, price: Number.POSITIVE_INFINITY }],
    ["respond", { content: "x", car_id: 101, price: 1e7 }],
    ["respond", { content: "x", car_id: 101, price: "20000" }],
    ["respond", { content: "x", car_id: 101.5, price: 20_000 }],
    ["__proto__", {}],
    ["constructor", {}],
    ["x".repeat(100_000), {}],
  ])("refuse %.40s(%j)", (name, args) => {
    const call = read(name, args);
    expect(call).toMatchObject({ kind: "refused" });
    expect(JSON.stringify(call).length).toBeLessThan(400);
  });
});
