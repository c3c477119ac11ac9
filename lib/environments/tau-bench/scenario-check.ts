/**
 * Checks a scenario of the retail domain: it can be solved, no subset of its ground truth solves
 * it, and the ground truth follows the policy. It reads only the finished task, independently of
 * the generator.
 */

import type { Database } from "./database.ts";
import { type Customer, type Order, paidWith, type Shop, total } from "./shop.ts";
import type { Call } from "./wishes.ts";

/** Why a scenario is rejected. */
export type Fault =
  | "breaks the policy"
  | "cannot be done"
  | "does more than is needed"
  | "depends on the order";

/**
 * The first fault of a scenario, undefined for a good one.
 *
 * @param calls its ground truth
 * @param open opens a fresh database
 */
export function scenarioFault(
  userId: string,
  calls: readonly Call[],
  shop: Shop,
  open: () => Database,
): Fault | undefined {
  if (policyBreach(userId, calls, shop) !== undefined) return "breaks the policy";
  const goal = replay(calls, open);
  if (goal.failed) return "cannot be done";
  const isReached = (others: readonly Call[]) =>
    replay(others, open).database.state.equals(goal.database.state);
  // Without any one of its calls; if there is only one, without any call.
  if (calls.some((dropped) => isReached(calls.filter((call) => call !== dropped))))
    return "does more than is needed";
  return isReached(otherOrder(calls)) ? undefined : "depends on the order";
}

function replay(calls: readonly Call[], open: () => Database): { database: Database; failed: boolean } {
  const database = open();
  const results = calls.map(({ name, kwargs }) => database.call(name, kwargs));
  return { database, failed: results.some(({ failed }) => failed) };
}

/** The calls with the orders reversed; calls on one order stay in sequence. */
function otherOrder(calls: readonly Call[]): Call[] {
  const orders = [...new Set(calls.map(({ kwargs }) => kwargs.order_id))].reverse();
  return orders.flatMap((order) => calls.filter(({ kwargs }) => kwargs.order_id === order));
}

/**
 * The first rule of the domain's policy (wiki.md) that the calls break, for a message; undefined if
 * there is none.
 */
export function policyBreach(userId: string, calls: readonly Call[], shop: Shop): string | undefined {
  const customer = shop.customers.get(userId);
  if (customer === undefined) return "there is no such customer";
  const state: PolicyState = { shop, customer, closed: new Set(), paidWith: new Map(), spent: new Map() };
  for (const { name, kwargs } of calls) {
    const breach =
      name === "modify_user_address" ? otherCustomer(kwargs, customer) : orderBreach(name, kwargs, state);
    if (breach !== undefined) return breach;
  }
  return undefined;
}

interface PolicyState {
  shop: Shop;
  customer: Customer;
  /** Orders that may not be changed any more. */
  closed: Set<Order>;
  /** Orders whose payment method was changed, with the new one. */
  paidWith: Map<Order, string>;
  /** Dollars spent by gift card; refunds are not subtracted. */
  spent: Map<string, number>;
}

function otherCustomer(kwargs: Call["kwargs"], customer: Customer): string | undefined {
  return kwargs.user_id === customer.id ? undefined : "it is another customer's account";
}

function orderBreach(name: string, kwargs: Call["kwargs"], state: PolicyState): string | undefined {
  const order = state.shop.orders.get(kwargs.order_id as string);
  if (order === undefined || order.user_id !== state.customer.id) return "the customer has no such order";
  if (state.closed.has(order)) return "nothing more may be done to the order";
  const methodId = kwargs.payment_method_id as string;
  const method = state.customer.payment_methods[methodId];
  const paid = state.paidWith.get(order) ?? paidWith(order);
  switch (name) {
    case "cancel_pending_order": {
      state.closed.add(order);
      if (order.status !== "pending") return "only a pending order can be cancelled";
      return ["no longer needed", "ordered by mistake"].includes(kwargs.reason as string)
        ? undefined
        : "a cancellation needs one of two reasons";
    }
    case "modify_pending_order_address":
      return order.status === "pending" ? undefined : "only a pending order can be modified";
    case "modify_pending_order_payment":
      if (order.status !== "pending") return "only a pending order can be modified";
      if (state.paidWith.has(order)) return "the payment method is changed twice";
      if (method === undefined) return "the customer has no such payment method";
      if (methodId === paid) return "the new payment method is the old one";
      state.paidWith.set(order, methodId);
      return overdraws(methodId, order.payment_history[0]!.amount, state);
    case "return_delivered_order_items":
      state.closed.add(order);
      if (order.status !== "delivered") return "only a delivered order can be returned";
      if (method === undefined) return "the customer has no such payment method";
      if (method.source !== "gift_card" && methodId !== paid) {
        return "a refund goes to a gift card or to what was paid with";
      }
      return itemsOf(order, kwargs.item_ids) === undefined ? "the order has no such items" : undefined;
    case "exchange_delivered_order_items":
    case "modify_pending_order_items": {
      state.closed.add(order);
      const status = name === "modify_pending_order_items" ? "pending" : "delivered";
      if (order.status !== status) return `only a ${status} order allows it`;
      if (method === undefined) return "the customer has no such payment method";
      const difference = swapDifference(order, kwargs, state.shop);
      return typeof difference === "string" ? difference : overdraws(methodId, difference, state);
    }
    default:
      return `${name} is no change that a customer can want`;
  }
}

/** The order's items with those ids; each id may occur once. */
function itemsOf(order: Order, ids: unknown): Order["items"] | undefined {
  if (!Array.isArray(ids) || ids.length === 0 || new Set(ids).size < ids.length) return undefined;
  const items = ids.map((id) => order.items.find(({ item_id }) => item_id === id));
  return items.every((item) => item !== undefined) ? items : undefined;
}

/** Price of the new items minus the old ones in dollars, or the problem with them. */
function swapDifference(order: Order, kwargs: Call["kwargs"], shop: Shop): number | string {
  const items = itemsOf(order, kwargs.item_ids);
  const newIds = kwargs.new_item_ids as string[];
  if (items === undefined || newIds.length !== items.length) return "the order has no such items";
  const prices: number[] = [];
  for (const [i, item] of items.entries()) {
    const variant = shop.products.get(item.product_id)!.variants[newIds[i]!];
    if (variant === undefined) return "the new item is another product";
    if (!variant.available) return "the new item is not available";
    if (variant.item_id === item.item_id) return "the new item is the old one";
    prices.push(variant.price, -item.price);
  }
  return total(prices);
}

function overdraws(methodId: string, amount: number, { customer, spent }: PolicyState): string | undefined {
  const sum = total([spent.get(methodId) ?? 0, Math.max(0, amount)]);
  spent.set(methodId, sum);
  const balance = customer.payment_methods[methodId]!.balance ?? Number.POSITIVE_INFINITY;
  return sum > balance ? "the gift card does not cover it" : undefined;
}
