import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { describe, expect, test, vi } from "vitest";
import type { Action, StepResult } from "../../../lib/contract/environment.ts";
import { tauBench } from "../../../lib/environments/tau-bench/index.ts";
import type { UserOption } from "../../../lib/environments/tau-bench/open-user.ts";
import { type Customer, readShop, type Shop } from "../../../lib/environments/tau-bench/shop.ts";
import { synthesizeRetail, type TauBenchTaskRecord } from "../../../lib/environments/tau-bench/synthesize.ts";
import { stopWord, type User } from "../../../lib/environments/tau-bench/user.ts";
import type { Call } from "../../../lib/environments/tau-bench/wishes.ts";
import { shop, synthesize } from "../../support/scenarios.ts";
import { writeTauShop } from "../../support/tau-shop.ts";
import { dataFile } from "../data.ts";

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
    expect(rejected["is a duplicate"]).toBeGreaterThan(0);
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
