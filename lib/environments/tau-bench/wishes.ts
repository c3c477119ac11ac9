/**
 * Draws a customer's wishes in the retail domain, and the calls that carry them out: changes to
 * orders and to the account that the records allow.
 *
 * The weights are chosen so that the mix after all checks is about that of tau-bench's own 500
 * synthetic training tasks. Most customers have few orders and one payment method, so many draws do
 * not fit or repeat an earlier one.
 */

import type { Draws } from "./draws.ts";
import {
  type Address,
  type Customer,
  type Item,
  type Order,
  type PaymentMethod,
  paidWith,
  type Shop,
  total,
  type Variant,
} from "./shop.ts";

/** Replacement of an item by another of the same product. */
export interface Swap {
  item: Item;
  variant: Variant;
  /** How the customer describes it: by the options that change, or as the cheapest. */
  by: "options" | "price";
}

/** An address, and how the customer gives it: written out, or as the address of another record. */
export interface NewAddress {
  address: Address;
  from: "new" | "default" | Order;
}

export type Change =
  | { kind: "cancel"; order: Order; reason: "no longer needed" | "ordered by mistake" }
  | { kind: "return"; order: Order; items: Item[]; method: PaymentMethod }
  | { kind: "exchange" | "modifyItems"; order: Order; swaps: Swap[]; method: PaymentMethod }
  | { kind: "modifyAddress"; order: Order; to: NewAddress }
  | { kind: "modifyPayment"; order: Order; method: PaymentMethod }
  | { kind: "modifyDefaultAddress"; to: NewAddress };

/** A question of the customer, and what the agent must say in its answer. */
export type Question =
  | { kind: "refund"; order: Order; answer: string }
  | { kind: "difference"; order: Order; answer: string }
  | { kind: "tracking"; order: Order; answer: string }
  | { kind: "price"; product: string; answer: string };

export interface Wishes {
  customer: Customer;
  /** All orders of the customer. */
  orders: Order[];
  changes: Change[];
  questions: Question[];
}

export interface Call {
  name: string;
  kwargs: Record<string, unknown>;
}

/**
 * Number of orders that a scenario changes, limited by the customer's; with none, the account's
 * address is changed.
 */
const orderCounts = [
  [0, 0.02],
  [1, 0.69],
  [2, 0.16],
  [3, 0.1],
  [4, 0.03],
] as const;
const itemCounts = [
  [1, 0.62],
  [2, 0.26],
  [3, 0.1],
  [4, 0.02],
] as const;
const pendingChanges = [
  [["cancel"], 0.4],
  [["modifyItems"], 0.33],
  [["modifyAddress"], 0.02],
  [["modifyPayment"], 0.04],
  [["modifyAddress", "modifyItems"], 0.07],
  [["modifyPayment", "modifyItems"], 0.15],
  [["modifyAddress", "modifyPayment", "modifyItems"], 0.05],
] as const;
const deliveredChanges = [
  [["return"], 0.48],
  [["exchange"], 0.52],
] as const;
/** Share of the scenarios with orders that also change the account's address. */
const withDefaultAddress = 0.03;
/** Share of swaps requested by price, if one variant is the cheapest. */
const byPrice = 0.25;
/** Share of refunds to the original payment method, if that is allowed. */
const refundToOriginal = 0.6;

/**
 * Wishes of `customer`, or undefined if the draw does not fit the records: no replacement for an
 * item, no suitable payment method, no address to change to.
 *
 * @param questions the share of scenarios with a question
 */
export function drawWishes(
  shop: Shop,
  customer: Customer,
  draws: Draws,
  questions: number,
): Wishes | undefined {
  const orders = ordersOf(shop, customer);
  const touched = shuffled(draws.sample(openOrders(shop, customer), draws.weighted(orderCounts)), draws);
  const purse = new Purse(customer);
  const changes: Change[] = [];
  for (const order of touched) {
    for (const kind of draws.weighted<readonly ChangeKind[]>(
      order.status === "pending" ? pendingChanges : deliveredChanges,
    )) {
      const change = drawChange[kind]({ shop, customer, orders, order, purse, draws });
      if (change === undefined) return undefined;
      changes.push(change);
    }
  }
  if (touched.length === 0 || draws.chance(withDefaultAddress)) {
    const to = drawAddress(shop, customer, orders, customer.address, draws);
    if (to === undefined) return undefined;
    changes.push({ kind: "modifyDefaultAddress", to });
  }
  const wishes: Wishes = { customer, orders, changes, questions: [] };
  if (draws.chance(questions)) {
    const possible = questionsAbout(shop, wishes);
    if (possible.length > 0) wishes.questions.push(draws.pick(possible));
  }
  return wishes;
}

/** The calls that carry out the wishes, in an order in which each succeeds. */
export function callsOf({ customer, changes }: Wishes): Call[] {
  return changes.map((change) => callOf(change, customer));
}

function callOf(change: Change, customer: Customer): Call {
  switch (change.kind) {
    case "cancel":
      return {
        name: "cancel_pending_order",
        kwargs: { order_id: change.order.order_id, reason: change.reason },
      };
    case "return":
      return {
        name: "return_delivered_order_items",
        kwargs: {
          order_id: change.order.order_id,
          item_ids: change.items.map(({ item_id }) => item_id),
          payment_method_id: change.method.id,
        },
      };
    case "exchange":
    case "modifyItems":
      return {
        name: change.kind === "exchange" ? "exchange_delivered_order_items" : "modify_pending_order_items",
        kwargs: {
          order_id: change.order.order_id,
          item_ids: change.swaps.map(({ item }) => item.item_id),
          new_item_ids: change.swaps.map(({ variant }) => variant.item_id),
          payment_method_id: change.method.id,
        },
      };
    case "modifyAddress":
      return {
        name: "modify_pending_order_address",
        kwargs: { order_id: change.order.order_id, ...change.to.address },
      };
    case "modifyPayment":
      return {
        name: "modify_pending_order_payment",
        kwargs: { order_id: change.order.order_id, payment_method_id: change.method.id },
      };
    case "modifyDefaultAddress":
      return { name: "modify_user_address", kwargs: { user_id: customer.id, ...change.to.address } };
  }
}

/**
 * The orders that can be changed. Orders with an item twice are excluded, since a reference to the
 * item would be ambiguous.
 */
export function openOrders(shop: Shop, customer: Customer): Order[] {
  return ordersOf(shop, customer).filter(({ status, items }) => {
    const once = new Set(items.map(({ item_id }) => item_id)).size === items.length;
    return once && (status === "pending" || status === "delivered");
  });
}

function ordersOf(shop: Shop, customer: Customer): Order[] {
  return customer.orders.map((id) => shop.orders.get(id)!);
}

/** Tracks gift card balances while wishes are drawn: they must cover all of them together. */
class Purse {
  readonly methods: PaymentMethod[];
  readonly #spent = new Map<string, number>();

  constructor(customer: Customer) {
    this.methods = Object.values(customer.payment_methods);
  }

  /** Methods that can take a charge of `amount` dollars, or a refund if it is negative. */
  covering(amount: number): PaymentMethod[] {
    return this.methods.filter(
      ({ id, balance = Number.POSITIVE_INFINITY }) => total([balance, -(this.#spent.get(id) ?? 0)]) >= amount,
    );
  }

  /** Refunds are not added: they may arrive after the money is needed. */
  charge({ id }: PaymentMethod, amount: number): void {
    this.#spent.set(id, (this.#spent.get(id) ?? 0) + Math.max(0, amount));
  }
}

type ChangeKind = Exclude<Change["kind"], "modifyDefaultAddress">;

interface Situation {
  shop: Shop;
  customer: Customer;
  orders: Order[];
  order: Order;
  purse: Purse;
  draws: Draws;
}

const drawChange: Record<ChangeKind, (situation: Situation) => Change | undefined> = {
  cancel: ({ order, draws }) => ({
    kind: "cancel",
    order,
    reason: draws.pick(["no longer needed", "ordered by mistake"] as const),
  }),
  return({ order, purse, draws }) {
    const items = draws.sample(order.items, draws.weighted(itemCounts));
    const original = purse.methods.find(({ id }) => id === paidWith(order));
    const giftCards = purse.methods.filter(({ source }) => source === "gift_card");
    if (original !== undefined && (giftCards.length === 0 || draws.chance(refundToOriginal))) {
      return { kind: "return", order, items, method: original };
    }
    return giftCards.length === 0
      ? undefined
      : { kind: "return", order, items, method: draws.pick(giftCards) };
  },
  exchange: (situation) => drawSwaps("exchange", situation),
  modifyItems: (situation) => drawSwaps("modifyItems", situation),
  modifyAddress({ shop, customer, orders, order, draws }) {
    const to = drawAddress(shop, customer, orders, order.address, draws);
    return to && { kind: "modifyAddress", order, to };
  },
  modifyPayment({ order, purse, draws }) {
    const { amount } = order.payment_history[0]!;
    const methods = purse.covering(amount).filter(({ id }) => id !== paidWith(order));
    if (methods.length === 0) return undefined;
    const method = draws.pick(methods);
    purse.charge(method, amount);
    return { kind: "modifyPayment", order, method };
  },
};

function drawSwaps(
  kind: "exchange" | "modifyItems",
  { shop, order, purse, draws }: Situation,
): Change | undefined {
  const swaps: Swap[] = [];
  for (const item of draws.sample(order.items, draws.weighted(itemCounts))) {
    const others = availableVariants(shop, item.product_id).filter(({ item_id }) => item_id !== item.item_id);
    if (others.length === 0) return undefined;
    const cheapest = cheapestVariant(shop, item);
    swaps.push(
      cheapest !== undefined && draws.chance(byPrice)
        ? { item, variant: cheapest, by: "price" }
        : { item, variant: draws.pick(others), by: "options" },
    );
  }
  const amount = priceDifference(swaps);
  const methods = purse.covering(amount);
  if (methods.length === 0) return undefined;
  const method = draws.pick(methods);
  purse.charge(method, amount);
  return { kind, order, swaps, method };
}

/** The cost of the swaps in dollars; negative for a refund. */
function priceDifference(swaps: readonly Swap[]): number {
  return total(swaps.flatMap(({ item, variant }) => [variant.price, -item.price]));
}

function availableVariants(shop: Shop, productId: string): Variant[] {
  return Object.values(shop.products.get(productId)!.variants).filter(({ available }) => available);
}

/** The one variant that is cheaper than all others and than the item itself, if there is one. */
function cheapestVariant(shop: Shop, item: Item): Variant | undefined {
  const [first, second] = availableVariants(shop, item.product_id).sort((a, b) => a.price - b.price);
  if (first === undefined || first.price >= item.price) return undefined;
  return second !== undefined && second.price === first.price ? undefined : first;
}

/** An address other than `current`: one of the customer's other addresses, or a new one. */
function drawAddress(
  shop: Shop,
  customer: Customer,
  orders: readonly Order[],
  current: Address,
  draws: Draws,
): NewAddress | undefined {
  const known: NewAddress[] = [
    { address: customer.address, from: "default" as const },
    ...orders.map((order) => ({ address: order.address, from: order })),
  ].filter(({ address }) => !sameAddress(address, current));
  if (known.length > 0 && draws.chance(0.5)) return draws.pick(known);
  const others = [...shop.customers.values()];
  const { city, state, country, zip } = draws.pick(others).address;
  const street = draws.pick(others).address.address1.replace(/^\d+ /, "");
  const address: Address = {
    address1: `${100 + Math.floor(draws.next() * 900)} ${street}`,
    address2: `Suite ${100 + Math.floor(draws.next() * 900)}`,
    ...{ city, state, country, zip },
  };
  return sameAddress(address, current) ? undefined : { address, from: "new" };
}

function sameAddress(a: Address, b: Address): boolean {
  return (Object.keys(a) as (keyof Address)[]).every((key) => a[key] === b[key]);
}

/** Questions whose answers follow from the records and the changes. */
function questionsAbout(shop: Shop, { orders, changes }: Wishes): Question[] {
  const questions: Question[] = [];
  for (const change of changes) {
    if (change.kind === "return") {
      const { order, items } = change;
      questions.push({ kind: "refund", order, answer: dollars(total(items.map(({ price }) => price))) });
    }
    if (change.kind === "exchange" || change.kind === "modifyItems") {
      const amount = Math.abs(priceDifference(change.swaps));
      if (amount > 0) questions.push({ kind: "difference", order: change.order, answer: dollars(amount) });
      for (const { item } of change.swaps) {
        const prices = availableVariants(shop, item.product_id).map(({ price }) => price);
        questions.push({ kind: "price", product: item.name, answer: dollars(Math.min(...prices)) });
      }
    }
  }
  for (const order of orders) {
    const numbers = order.fulfillments.flatMap(({ tracking_id }) => tracking_id);
    if (numbers.length === 1) questions.push({ kind: "tracking", order, answer: numbers[0]! });
  }
  return questions.filter(({ answer }) => answer.length >= shortestAnswer);
}

/**
 * A shorter answer could occur by chance in what an agent says, for example in an order's number.
 */
const shortestAnswer = 4;

/** Without trailing zeros, so that an agent that writes 346.90 has said 346.9. */
function dollars(amount: number): string {
  return String(amount);
}

function shuffled<T>(items: readonly T[], draws: Draws): T[] {
  const left = [...items];
  return items.map(() => left.splice(Math.floor(draws.next() * left.length), 1)[0]!);
}
