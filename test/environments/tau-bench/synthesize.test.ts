import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { beforeAll, describe, expect, test, vi } from "vitest";
import type { Action, Message, StepResult } from "../../../lib/contract/environment.ts";
import type { Database } from "../../../lib/environments/tau-bench/database.ts";
import { openDomain } from "../../../lib/environments/tau-bench/domain.ts";
import { Draws } from "../../../lib/environments/tau-bench/draws.ts";
import { tauBench } from "../../../lib/environments/tau-bench/index.ts";
import type { UserOption } from "../../../lib/environments/tau-bench/open-user.ts";
import { rewritingFault } from "../../../lib/environments/tau-bench/rewrite.ts";
import { policyBreach, scenarioFault } from "../../../lib/environments/tau-bench/scenario-check.ts";
import { type Customer, readShop, type Shop } from "../../../lib/environments/tau-bench/shop.ts";
import {
  type SynthesizeRetailOptions,
  synthesizeRetail,
  type TauBenchTaskRecord,
} from "../../../lib/environments/tau-bench/synthesize.ts";
import { stopWord, type User } from "../../../lib/environments/tau-bench/user.ts";
import type { Call } from "../../../lib/environments/tau-bench/wishes.ts";
import { chatServer } from "../../support/chat-server.ts";
import { nlac } from "../../support/command-line.ts";
import { type TauShop, writeTauShop } from "../../support/tau-shop.ts";
import { dataFile } from "../data.ts";

let shop: TauShop;
beforeAll(() => {
  shop = writeTauShop();
});

const synthesize = (options: Partial<SynthesizeRetailOptions> = {}) =>
  synthesizeRetail({ data: shop.data, train: 60, test: 20, questions: 0.5, ...options });

/** Says its instruction, and the stop word after "Done.". */
const untilDone: User = {
  start: async ({ instruction }) => ({
    opening: instruction,
    respond: async (text) => (text === "Done." ? stopWord : "Go on."),
  }),
};

/** Plays the tasks of a synthesized file in the environment. */
async function player(data: string, tasks: readonly TauBenchTaskRecord[], user: UserOption = untilDone) {
  const file = join(mkdtempSync(join(tmpdir(), "tau-tasks-")), "tasks.json");
  writeFileSync(file, JSON.stringify(tasks));
  const environment = tauBench({ data, test: file, user });
  const loaded = await environment.tasks("test");
  return {
    async reward(index: number, calls: readonly Call[], said: readonly string[]): Promise<number> {
      const episode = await environment.start(loaded[index]!, { seed: 0 });
      const actions: Action[] = [
        ...calls.map(({ name, kwargs }) => ({
          text: JSON.stringify({ name, arguments: kwargs }),
          tool: { name, arguments: kwargs },
        })),
        ...[...said, "Done."].map((text) => ({ text })),
      ];
      let result: StepResult | undefined;
      for (const action of actions) result = await episode.step(action);
      return result!.terminated ? result!.reward : Number.NaN;
    },
  };
}

/** The orders that an instruction refers to, found in the text as a reader would find them. */
function ordersNamed(
  { instruction }: TauBenchTaskRecord,
  customer: Customer,
  { orders, products }: Shop,
): Set<string> {
  const own = customer.orders.map((id) => orders.get(id)!);
  const named = new Set(instruction.match(/#W\d+/g));
  const add = (found: typeof own) => {
    expect(found.length, instruction).toBe(1);
    named.add(found[0]!.order_id);
  };
  for (const [, status] of instruction.matchAll(/[Yy]our only (\w+) order/g)) {
    add(own.filter((order) => order.status === status));
  }
  for (const [, rest] of instruction.matchAll(/[Yy]our order with the ([^.]+)/g)) {
    const product = [...products.values()].find(({ name }) => rest!.startsWith(name));
    add(own.filter(({ items }) => items.some(({ name }) => name === product!.name)));
  }
  return named;
}

/** Checks every scenario, by playing it and by reading it. */
async function checkAll(data: string, tasks: readonly TauBenchTaskRecord[], records: Shop): Promise<void> {
  const { reward } = await player(data, tasks);
  for (const [i, task] of tasks.entries()) {
    const { actions, outputs, instruction, user_id } = task;
    const said = outputs.map((output) => `It is ${output}.`);
    expect(await reward(i, actions, said), instruction).toBe(1);
    expect(await reward(i, [], said), instruction).toBe(0);
    for (const dropped of actions) {
      const others = actions.filter((call) => call !== dropped);
      expect(await reward(i, others, said), instruction).toBe(0);
    }
    if (outputs.length > 0) expect(await reward(i, actions, []), instruction).toBe(0);

    const customer = records.customers.get(user_id)!;
    const { first_name, last_name } = customer.name;
    expect(instruction).toContain(`${first_name} ${last_name}`);
    expect(instruction.includes(customer.email) || instruction.includes(customer.address.zip)).toBe(true);
    const named = ordersNamed(task, customer, records);
    for (const { kwargs } of actions) {
      if (kwargs.order_id !== undefined) expect(named, instruction).toContain(kwargs.order_id);
    }
  }
}

describe("scenarios of a small shop", () => {
  test("each is solved by its ground truth and by no subset of it, and can be understood from its text", async () => {
    const { train, test: tests } = await synthesize();
    expect([train.length, tests.length]).toEqual([60, 20]);
    await checkAll(shop.data, [...train, ...tests], shop.shop);
    const tools = new Set(train.flatMap(({ actions }) => actions.map(({ name }) => name)));
    expect(tools.size).toBe(7);
    expect(train.some(({ outputs }) => outputs.length > 0)).toBe(true);
    expect(train.map(({ index }) => index)).toEqual(Array.from({ length: 60 }, (_, i) => i));
  });

  test("the scripted user plays them to their end", async () => {
    const { test: tests } = await synthesize();
    const { reward } = await player(shop.data, tests, "scripted");
    for (const [i, { actions, outputs }] of tests.entries()) {
      const asked = ["To verify your identity, what is your name?", "Shall I do it?"];
      expect(await reward(i, actions, [...asked, ...outputs.map((output) => `It is ${output}.`)])).toBe(1);
    }
  });

  test("no customer is in both splits, and held-out customers are in the test split", async () => {
    const customers = (tasks: readonly TauBenchTaskRecord[]) => new Set(tasks.map(({ user_id }) => user_id));
    const apart = await synthesize();
    expect([...customers(apart.train)].filter((id) => customers(apart.test).has(id))).toEqual([]);
    const heldOut = [...customers(apart.train)].slice(0, 2);
    const held = await synthesize({ heldOut });
    expect([...customers(held.test)].sort()).toEqual(heldOut.sort());
    expect([...customers(held.train)].filter((id) => heldOut.includes(id))).toEqual([]);
    const many = [...shop.shop.customers.keys()].slice(0, 5);
    expect(customers((await synthesize({ heldOut: many })).test).size).toBe(5);
    expect(customers((await synthesize({ heldOut: many, test: 0 })).train).size).toBe(3);
    expect(customers((await synthesize({ train: 0 })).test).size).toBe(8);
  });

  test("are determined by the seed", async () => {
    const first = await synthesize({ seed: 3 });
    expect(await synthesize({ seed: 3 })).toEqual(first);
    expect(await synthesize({ seed: 4 })).not.toEqual(first);
  });

  test("questions can be turned off, or always included", async () => {
    const asked = ({ train }: Awaited<ReturnType<typeof synthesize>>) =>
      train.filter(({ outputs }) => outputs.length > 0).length;
    expect(asked(await synthesize({ questions: 0 }))).toBe(0);
    expect(asked(await synthesize({ questions: 1 }))).toBeGreaterThan(50);
  });

  test("none occurs twice, and rejected draws are counted", async () => {
    const { train, test: tests, drawn, rejected } = await synthesize({ train: 300 });
    const keys = train.map(({ actions }) =>
      JSON.stringify(actions.map((call) => JSON.stringify(call)).sort()),
    );
    expect(new Set(keys).size).toBe(300);
    const refused = Object.values(rejected).reduce((sum, count) => sum + count, 0);
    expect(drawn).toBe(train.length + tests.length + refused);
    expect(rejected["is there already"]).toBeGreaterThan(0);
    expect(rejected["does not fit the records"]).toBeGreaterThan(0);
  });

  test("asking for more than possible is rejected", async () => {
    await expect(synthesize({ train: 100, heldOut: [...shop.shop.customers.keys()] })).rejects.toMatchObject({
      code: "ERR_VALUE",
      message: expect.stringContaining("0 customers gave 0 of 100"),
    });
  });

  test.each([
    ["an unknown option", { turns: 3 }],
    ["a share above 1", { questions: 2 }],
    ["half a scenario", { train: 0.5 }],
    ["data that is not there", { data: "/nowhere" }],
  ])("%s is rejected", async (_, options) => {
    await expect(synthesize(options as never)).rejects.toMatchObject({ code: "ERR_CONFIG" });
  });

  test("a missing data option is rejected", async () => {
    vi.stubEnv("NLAC_DATA", "");
    await expect(synthesizeRetail({ train: 1, test: 1 })).rejects.toMatchObject({ code: "ERR_CONFIG" });
    vi.unstubAllEnvs();
  });

  test.each([
    ["an order", "orders.json", "#W7000"],
    ["a product", "products.json", "1"],
    ["what a customer must have", "users.json", undefined],
  ])("data without %s is rejected", async (_, name, id) => {
    const { data } = writeTauShop();
    const file = join(data, "retail", name);
    const records = JSON.parse(readFileSync(file, "utf8")) as Record<string, unknown>;
    if (id === undefined) records.nobody = {};
    else delete records[id];
    writeFileSync(file, JSON.stringify(records));
    await expect(synthesize({ data })).rejects.toMatchObject({ code: "ERR_CONFIG" });
  });

  test("an abort is ERR_ABORTED", async () => {
    await expect(synthesize({ signal: AbortSignal.abort() })).rejects.toMatchObject({ code: "ERR_ABORTED" });
  });
});

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

describe("rewriting", () => {
  test("a text with the same meaning replaces the template's", async () => {
    const asked: string[] = [];
    const plain = await synthesize({ train: 20, test: 0 });
    const progress: number[] = [];
    const { train, rewritten } = await synthesize({
      train: 20,
      test: 0,
      rewrite: (messages) => {
        asked.push(messages[0]!.content);
        // The template's text, which is a separate paragraph.
        return `<think>Hm.</think>Listen: ${messages[0]!.content.split("\n\n")[1]}`;
      },
      onProgress: (done) => progress.push(done),
    });
    expect(rewritten).toBe(20);
    expect(train.map(({ instruction }) => instruction)).toEqual(
      plain.train.map(({ instruction }) => `Listen: ${instruction}`),
    );
    expect(train.map(({ actions }) => actions)).toEqual(plain.train.map(({ actions }) => actions));
    expect(asked.length).toBe(20);
    expect(progress).toEqual([16, 20]);
  });

  test("the prompt", async () => {
    let prompt = "";
    const rewrite = (messages: readonly Message[]) => {
      prompt = messages[0]!.content;
      return "-";
    };
    await synthesize({ train: 1, test: 0, rewrite });
    expect(prompt).toMatchSnapshot();
  });

  test("one that differs is requested again with the difference, then discarded", async () => {
    const asked: string[] = [];
    const { train, rewritten } = await synthesize({
      train: 5,
      test: 0,
      rewrite: (messages) => {
        asked.push(messages.at(-1)!.content);
        return "<think>Let me see.</think>Cancel everything.";
      },
    });
    expect([rewritten, asked.length]).toEqual([0, 10]);
    expect(asked[9]).toMatch(/^That cannot be used: it must contain /);
    expect(train).toEqual((await synthesize({ train: 5, test: 0 })).train);
  });

  test.each([
    ["Order #W12 of ANN LEE (ann.lee1@example.com), please: the 1.5 liters one.", undefined],
    ["Ann Lee wants the 1.5 liters one.", "it must contain ann.lee1@example.com, #W12"],
    ["Ann Lee, ann.lee1@example.com: the 1.5 liters one of #W12 and #W13.", "it must not contain #w13"],
    ["Ann Lee, ann.lee1@example.com: 2 of the 1.5 liters ones of #W12.", "it must not contain 2"],
  ])("%j: %s", (text, fault) => {
    const before = {
      text: "You are Ann Lee (ann.lee1@example.com). From #W12 you want the one with 1.5 liters.",
      facts: ["Ann Lee", "ann.lee1@example.com", "#W12", "1.5 liters"],
    };
    expect(rewritingFault(text, before)).toBe(fault);
  });

  test("a service that fails is ERR_SERVICE", async () => {
    const rewrite = { model: "x", baseURL: "http://127.0.0.1:1/v1", maxRetries: 0 };
    await expect(synthesize({ train: 1, test: 0, rewrite })).rejects.toMatchObject({ code: "ERR_SERVICE" });
  });
});

describe("draws", () => {
  test("follow their weights", () => {
    const draws = new Draws(1);
    const counts = { a: 0, b: 0, never: 0 };
    for (let i = 0; i < 4000; i++) {
      counts[
        draws.weighted([
          ["a", 3],
          ["never", 0],
          ["b", 1],
        ] as const)
      ]++;
    }
    expect(counts.never).toBe(0);
    expect(Math.abs(counts.a / 4000 - 0.75)).toBeLessThan(0.03);
  });

  test("a sample preserves the order and draws every item equally often", () => {
    const draws = new Draws(2);
    const seen = new Map<string, number>();
    for (let i = 0; i < 3000; i++) {
      const drawn = draws.sample([1, 2, 3], 2).join();
      seen.set(drawn, (seen.get(drawn) ?? 0) + 1);
    }
    expect([...seen.keys()].sort()).toEqual(["1,2", "1,3", "2,3"]);
    for (const count of seen.values()) expect(Math.abs(count - 1000)).toBeLessThan(120);
    expect(draws.sample([1, 2], 5)).toEqual([1, 2]);
  });
});

describe("on the command line", () => {
  const run = (out: string, ...more: string[]) =>
    nlac(
      "data",
      "synthesize",
      "tau-bench-retail",
      "--data",
      shop.data,
      "--out",
      out,
      "--train",
      "12",
      "--test",
      "4",
      ...more,
    );

  test("writes tasks that the environment plays, and describes them", async () => {
    const out = join(shop.data, "made");
    const { code, output, errors } = await run(out);
    expect([errors, code]).toEqual(["", 0]);
    expect(output).toMatch(
      /^16 tasks in [\d.]+ s, from \d+ candidates; rejected: does not fit the records \d+/,
    );
    expect(output).toMatch(/train: 12 tasks of \d customers/);
    const environment = tauBench({
      data: shop.data,
      train: join(out, "tasks_train.json"),
      test: join(out, "tasks_test.json"),
    });
    expect((await environment.tasks("train")).length).toBe(12);
    const [task] = await environment.tasks("test");
    const { observation } = await environment.start(task!, { seed: 0 });
    expect(observation.messages[1]!.content).toContain("I");
  });

  test("existing files stay", async () => {
    const out = join(shop.data, "twice");
    await run(out);
    const before = readFileSync(join(out, "tasks_train.json"), "utf8");
    const { code, errors } = await run(out, "--seed", "1");
    expect(code).toBe(1);
    expect(errors).toMatch(/ERR_VALUE: .*tasks_train.json already exists/);
    expect(readFileSync(join(out, "tasks_train.json"), "utf8")).toBe(before);
  });

  test("a directory that cannot be created is rejected before a service is used", async () => {
    const out = join(shop.data, "retail", "users.json", "made");
    let asked = 0;
    const server = await chatServer(() => {
      asked++;
      return { text: "No." };
    });
    const rewrite = JSON.stringify({ model: "m", baseURL: server.baseURL });
    const { code, errors } = await run(out, "--rewrite", rewrite);
    await server.close();
    expect([code, asked]).toEqual([1, 0]);
    expect(errors).toMatch(/^nlac: ERR_IO: .*users\.json/);
  });

  test("customers of other tasks are held out", async () => {
    const first = join(shop.data, "first");
    await run(first);
    const file = join(first, "tasks_test.json");
    const { output } = await run(join(shop.data, "second"), "--hold-out", file, "--seed", "1", "--json");
    const { files, splits } = JSON.parse(output) as {
      files: { train: string };
      splits: { train: { tasks: number } };
    };
    expect(splits.train.tasks).toBe(12);
    const users = (path: string) =>
      (JSON.parse(readFileSync(path, "utf8")) as TauBenchTaskRecord[]).map(({ user_id }) => user_id);
    expect(users(files.train).filter((id) => users(file).includes(id))).toEqual([]);
  });

  test.each([
    [["data", "synthesize", "tau-bench-airline", "--out", "x"], /tau-bench-retail only/],
    [["data", "synthesize", "tau-bench-retail"], /--out/],
    [["data", "synthesize", "tau-bench-retail", "--out", "x", "--questions", "2"], /from 0 to 1/],
  ])("%j is rejected", async (argv, message) => {
    const { code, errors } = await nlac(...argv);
    expect([code, errors]).toEqual([1, expect.stringMatching(message)]);
  });
});

const users = dataFile("tau-bench/retail/users.json");
describe.skipIf(users === undefined)("scenarios of tau-bench's own shop", () => {
  const directory = dirname(users ?? "");

  test("pass the same checks, and are mixed as tau-bench's own training tasks are", {
    timeout: 120_000,
  }, async () => {
    const { train, test: tests } = await synthesizeRetail({
      data: dirname(directory),
      train: 1000,
      test: 200,
    });
    await checkAll(dirname(directory), [...train.slice(0, 60), ...tests.slice(0, 20)], readShop(directory));
    const official = JSON.parse(
      readFileSync(join(directory, "tasks_train.json"), "utf8"),
    ) as TauBenchTaskRecord[];
    const shares = (tasks: readonly TauBenchTaskRecord[], keys: (task: TauBenchTaskRecord) => string[]) => {
      const all = tasks.flatMap(keys);
      return (key: string) => all.filter((other) => other === key).length / all.length;
    };
    const tools = ({ actions }: TauBenchTaskRecord) => actions.map(({ name }) => name);
    const changes = ({ actions }: TauBenchTaskRecord) => [String(actions.length)];
    for (const keys of [tools, changes]) {
      const [ours, theirs] = [shares(train, keys), shares(official, keys)];
      for (const key of new Set(official.flatMap(keys))) {
        expect(Math.abs(ours(key) - theirs(key)), key).toBeLessThan(0.07);
      }
    }
  });
});
