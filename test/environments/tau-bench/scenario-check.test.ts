import { describe, expect, test } from "vitest";
import type { Database } from "../../../lib/environments/tau-bench/database.ts";
import { openDomain } from "../../../lib/environments/tau-bench/domain.ts";
import { policyBreach, scenarioFault } from "../../../lib/environments/tau-bench/scenario-check.ts";
import type { Shop } from "../../../lib/environments/tau-bench/shop.ts";
import type { Call } from "../../../lib/environments/tau-bench/wishes.ts";
import { shop } from "../../support/scenarios.ts";

describe("the checks", () => {
  const mia = "mia_lee_1000"; // a credit card
  const omar = "omar_diaz_1001"; // a credit card, and a gift card with 91 dollars
  const address = { address1: "1 A", address2: "", city: "B", state: "C", country: "USA", zip: "1" };
  const order = (id: string) => shop.shop.orders.get(id)!;
  const ids = (id: string) => order(id).items.map(({ item_id }) => item_id);
  const variants = (id: string) =>
    Object.values(shop.shop.products.get(order(id).items[0]!.product_id)!.variants);
  const cancel = (id: string, reason = "no longer needed"): Call => ({
    name: "cancel_pending_order",
    kwargs: { order_id: id, reason },
  });
  const pay = (id: string, method: string): Call => ({
    name: "modify_pending_order_payment",
    kwargs: { order_id: id, payment_method_id: method },
  });
  const giveBack = (id: string, method: string, items = ids(id).slice(0, 1)): Call => ({
    name: "return_delivered_order_items",
    kwargs: { order_id: id, item_ids: items, payment_method_id: method },
  });
  /** Swaps the order's first item for another of its product. */
  const swap = (
    tool: "exchange_delivered" | "modify_pending",
    id: string,
    change: Record<string, unknown> = {},
  ): Call => ({
    name: `${tool}_order_items`,
    kwargs: {
      order_id: id,
      item_ids: ids(id).slice(0, 1),
      new_item_ids: [
        variants(id).find(({ item_id, available }) => available && item_id !== ids(id)[0])!.item_id,
      ],
      payment_method_id: order(id).payment_history[0]!.payment_method_id,
      ...change,
    },
  });
  const move = (id: string): Call => ({
    name: "modify_pending_order_address",
    kwargs: { order_id: id, ...address },
  });
  const moveHome = (userId: string): Call => ({
    name: "modify_user_address",
    kwargs: { user_id: userId, ...address },
  });
  const open = () => openDomain("retail", shop.data).open();

  test("scenarios that follow every rule have no fault", () => {
    const calls = [
      move("#W7010"),
      pay("#W7010", "gift_card_1"),
      cancel("#W7011", "ordered by mistake"),
      giveBack("#W7012", "gift_card_1"),
      moveHome(omar),
    ];
    expect(policyBreach(omar, calls, shop.shop)).toBeUndefined();
    expect(
      policyBreach(mia, [swap("modify_pending", "#W7000"), swap("exchange_delivered", "#W7002")], shop.shop),
    ).toBe(undefined);
  });

  test.each<[string, string, () => Call[]]>([
    ["no such customer", "nobody", () => [cancel("#W7000")]],
    ["no such order", mia, () => [cancel("#W1")]],
    ["another customer's order", mia, () => [cancel("#W7010")]],
    ["another customer's account", mia, () => [moveHome(omar)]],
    ["a delivered order cancelled", mia, () => [cancel("#W7002")]],
    ["a cancellation for another reason", mia, () => [cancel("#W7000", "too dear")]],
    ["a change after a cancellation", mia, () => [cancel("#W7000"), move("#W7000")]],
    ["a change after an item's", mia, () => [swap("modify_pending", "#W7000"), move("#W7000")]],
    ["items changed twice", mia, () => [swap("modify_pending", "#W7000"), swap("modify_pending", "#W7000")]],
    [
      "a return after an exchange",
      mia,
      () => [swap("exchange_delivered", "#W7002"), giveBack("#W7002", "credit_card_0")],
    ],
    ["a pending order returned", mia, () => [giveBack("#W7000", "credit_card_0")]],
    ["a pending order exchanged", mia, () => [swap("exchange_delivered", "#W7000")]],
    ["a delivered order modified", mia, () => [swap("modify_pending", "#W7002")]],
    ["a processed order moved", mia, () => [move("#W7003")]],
    ["a processed order paid otherwise", omar, () => [pay("#W7013", "gift_card_1")]],
    ["paid with what was paid with", mia, () => [pay("#W7000", "credit_card_0")]],
    ["paid with another customer's card", mia, () => [pay("#W7000", "credit_card_1")]],
    ["paid anew twice", omar, () => [pay("#W7010", "gift_card_1"), pay("#W7010", "credit_card_1")]],
    ["a gift card that does not cover it", omar, () => [pay("#W7011", "gift_card_1")]],
    ["a refund to another customer's card", mia, () => [giveBack("#W7002", "credit_card_1")]],
    ["an item that the order has not", mia, () => [giveBack("#W7002", "credit_card_0", ["999"])]],
    [
      "an item twice",
      mia,
      () => [giveBack("#W7002", "credit_card_0", [ids("#W7002")[0]!, ids("#W7002")[0]!])],
    ],
    ["no item", mia, () => [giveBack("#W7002", "credit_card_0", [])]],
    [
      "the same item",
      mia,
      () => [swap("modify_pending", "#W7000", { new_item_ids: ids("#W7000").slice(0, 1) })],
    ],
    ["another product", mia, () => [swap("modify_pending", "#W7000", { new_item_ids: ["201"] })]],
    ["what is not available", mia, () => [swap("modify_pending", "#W7000", { new_item_ids: ["101"] })]],
    ["fewer new items", mia, () => [swap("modify_pending", "#W7000", { new_item_ids: [] })]],
    [
      "charged to another's card",
      mia,
      () => [swap("modify_pending", "#W7000", { payment_method_id: "paypal_1" })],
    ],
    [
      "a tool that changes nothing",
      mia,
      () => [{ name: "get_order_details", kwargs: { order_id: "#W7000" } }],
    ],
  ])("%s breaks the policy", (_, userId, calls) => {
    expect(policyBreach(userId, calls(), shop.shop)).toEqual(expect.any(String));
    expect(scenarioFault(userId, calls(), shop.shop, open)).toBe("breaks the policy");
  });

  test("a refund that goes to a method other than the original must go to a gift card", () => {
    const both = { ...shop.shop.customers.get(omar)!.payment_methods };
    const paypal = { id: "paypal_1", source: "paypal" as const };
    const customer = { ...shop.shop.customers.get(omar)!, payment_methods: { ...both, paypal_1: paypal } };
    const other = { ...shop.shop, customers: new Map([[omar, customer]]) };
    expect(policyBreach(omar, [giveBack("#W7012", "paypal_1")], other)).toMatch(/gift card/);
    expect(policyBreach(omar, [giveBack("#W7012", "gift_card_1")], other)).toBeUndefined();
  });

  test("two charges that a gift card covers one by one must be covered together", () => {
    const dear = (id: string) => {
      const best = variants(id)
        .filter(({ available }) => available)
        .sort((a, b) => b.price - a.price)[0]!;
      return swap("modify_pending", id, { new_item_ids: [best.item_id], payment_method_id: "gift_card_1" });
    };
    const calls = [dear("#W7010"), dear("#W7011")];
    const balance = (dollars: number): Shop => {
      const customer = shop.shop.customers.get(omar)!;
      const gift = { ...customer.payment_methods.gift_card_1!, balance: dollars };
      const methods = { ...customer.payment_methods, gift_card_1: gift };
      return { ...shop.shop, customers: new Map([[omar, { ...customer, payment_methods: methods }]]) };
    };
    const costs = calls.map(({ kwargs }) => {
      const bought = variants(kwargs.order_id as string).find(
        ({ item_id }) => item_id === (kwargs.new_item_ids as string[])[0],
      )!;
      return bought.price - order(kwargs.order_id as string).items[0]!.price;
    });
    expect(Math.min(...costs)).toBeGreaterThan(0.01);
    const together = costs[0]! + costs[1]!;
    expect(policyBreach(omar, calls, balance(together + 0.01))).toBeUndefined();
    expect(policyBreach(omar, calls, balance(together - 0.01))).toMatch(/gift card/);
    for (const call of calls) expect(policyBreach(omar, [call], balance(together - 0.01))).toBeUndefined();
  });

  test("calls that the tools refuse cannot be solved", () => {
    const { zip: _, ...short } = move("#W7000").kwargs;
    const call = { name: "modify_pending_order_address", kwargs: short };
    expect(scenarioFault(mia, [call], shop.shop, open)).toBe("cannot be done");
  });

  test("a call that changes nothing is superfluous", () => {
    const { address: home } = shop.shop.customers.get(mia)!;
    const stay = { name: "modify_user_address", kwargs: { user_id: mia, ...home } };
    expect(scenarioFault(mia, [cancel("#W7000"), stay], shop.shop, open)).toBe("does more than is needed");
    expect(scenarioFault(mia, [cancel("#W7000"), moveHome(mia)], shop.shop, open)).toBeUndefined();
  });

  test("a goal that depends on the sequence of orders is rejected", () => {
    // A database that records the sequence of calls.
    const remembering = () => {
      const called: string[] = [];
      const call = (name: string) => {
        called.push(name);
        return { failed: false };
      };
      const state = {
        called,
        equals: (other: { called: string[] }) => other.called.join() === called.join(),
      };
      return { call, state } as unknown as Database;
    };
    const calls = [cancel("#W7000"), giveBack("#W7002", "credit_card_0")];
    expect(scenarioFault(mia, calls, shop.shop, remembering)).toBe("depends on the order");
    // Calls on one order stay in sequence.
    expect(scenarioFault(mia, [move("#W7000"), cancel("#W7000")], shop.shop, remembering)).toBeUndefined();
  });
});
