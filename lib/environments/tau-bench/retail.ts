/**
 * The tools of the retail domain. They follow sierra-research/tau-bench at 59a200c6 exactly,
 * including its oddities: the same answers, the same checks in the same order, and the same partial
 * changes after an error.
 */

import { compareText } from "../../base/python-text.ts";
import { calculate } from "./calculate.ts";
import type { Database } from "./database.ts";
import {
  add,
  at,
  count,
  dict,
  equal,
  first,
  has,
  iterate,
  length,
  less,
  list,
  lower,
  negative,
  round2,
  sorted,
  subtract,
} from "./python.ts";
import { dumps, str } from "./text.ts";
import { tool } from "./tools.ts";
import type { Dict, Value } from "./values.ts";

/** Sets a payment method's balance to the rounded sum of it and `amount`. */
function addToBalance(method: Dict, amount: Value): void {
  method.set("balance", round2(add(at(method, "balance"), amount, "+=")));
}

/** The payment methods of an order's user. Do not change them. */
function paymentMethods(database: Database, order: Dict): Value {
  return at(database.get("users", at(order, "user_id")), "payment_methods");
}

/** A payment method of an order's user, which may be changed. */
function editPaymentMethod(database: Database, order: Dict, id: Value): Dict {
  return dict(at(at(database.edit("users", at(order, "user_id")), "payment_methods"), id));
}

function isGiftCard(method: Value): boolean {
  return equal(at(method, "source"), "gift_card");
}

function mentionsGiftCard(paymentId: Value): boolean {
  return str(paymentId).includes("gift_card");
}

/** The order's first item with that id; throws Python's index error if there is none. */
function findItem(order: Dict, itemId: Value): Dict {
  return dict(first(list(at(order, "items")).filter((item) => equal(at(item, "item_id"), itemId))));
}

/**
 * The first of `itemIds` that occurs more often in the list than in the order; undefined if there
 * is none.
 */
function missingItem(order: Dict, itemIds: Value): Value | undefined {
  const all = list(at(order, "items")).map((item) => at(item, "item_id"));
  return iterate(itemIds).find((itemId) => count(itemIds, itemId) > count(all, itemId));
}

function payment(kind: "payment" | "refund", amount: Value, paymentId: Value): Dict {
  return new Map([
    ["transaction_type", kind],
    ["amount", amount],
    ["payment_method_id", paymentId],
  ]);
}

function address(
  address1: Value,
  address2: Value,
  city: Value,
  state: Value,
  country: Value,
  zip: Value,
): Dict {
  return new Map(Object.entries({ address1, address2, city, state, country, zip }));
}

/** Price of the new items minus the old ones; an observation if they are not available. */
function priceDifference(
  database: Database,
  order: Dict,
  itemIds: Value,
  newItemIds: Value,
): bigint | number | string {
  const missing = missingItem(order, itemIds);
  if (missing !== undefined) return `Error: ${str(missing)} not found`;
  if (length(itemIds) !== length(newItemIds))
    return "Error: the number of items to be exchanged should match";
  let difference: bigint | number = 0n;
  const newIds = iterate(newItemIds);
  for (const [i, itemId] of iterate(itemIds).entries()) {
    const newItemId = newIds[i]!;
    const item = findItem(order, itemId);
    const variants = at(database.get("products", at(item, "product_id")), "variants");
    if (!has(variants, newItemId) || at(at(variants, newItemId), "available") !== true) {
      return `Error: new item ${str(newItemId)} not found or available`;
    }
    const rise = subtract(at(at(variants, newItemId), "price"), at(item, "price"));
    difference = add(difference, rise, "+=");
  }
  return difference;
}

export const retailTools = [
  tool("calculate", "expression", (_, expression) => calculate(expression!)),

  tool("cancel_pending_order", "order_id reason", (database, orderId, reason) => {
    if (!database.has("orders", orderId!)) return "Error: order not found";
    const order = database.get("orders", orderId!);
    if (at(order, "status") !== "pending") return "Error: non-pending order cannot be cancelled";
    if (reason !== "no longer needed" && reason !== "ordered by mistake") return "Error: invalid reason";
    const refunds = iterate(at(order, "payment_history")).map((paid) => {
      const [amount, id] = [at(paid, "amount"), at(paid, "payment_method_id")];
      if (mentionsGiftCard(id)) addToBalance(editPaymentMethod(database, order, id), amount);
      return payment("refund", amount, id);
    });
    const cancelled = database.edit("orders", orderId!);
    cancelled.set("status", "cancelled").set("cancel_reason", reason);
    list(at(cancelled, "payment_history")).push(...refunds);
    return dumps(cancelled);
  }),

  tool(
    "exchange_delivered_order_items",
    "order_id item_ids new_item_ids payment_method_id",
    (database, orderId, itemIds, newItemIds, paymentId) => {
      if (!database.has("orders", orderId!)) return "Error: order not found";
      const order = database.get("orders", orderId!);
      if (at(order, "status") !== "delivered") return "Error: non-delivered order cannot be exchanged";
      const exact = priceDifference(database, order, itemIds!, newItemIds!);
      if (typeof exact === "string") return exact;
      const difference = round2(exact);
      const methods = paymentMethods(database, order);
      if (!has(methods, paymentId!)) return "Error: payment method not found";
      const method = at(methods, paymentId!);
      if (isGiftCard(method) && less(at(method, "balance"), difference)) {
        return "Error: insufficient gift card balance to pay for the price difference";
      }
      const changed = database.edit("orders", orderId!);
      changed.set("status", "exchange requested");
      changed.set("exchange_items", sorted(itemIds!));
      changed.set("exchange_new_items", sorted(newItemIds!));
      changed.set("exchange_payment_method_id", paymentId!);
      changed.set("exchange_price_difference", difference);
      return dumps(changed);
    },
  ),

  tool("find_user_id_by_email", "email", (database, email) => {
    for (const [id, user] of database.records("users")) {
      if (lower(at(user, "email")) === lower(email!)) return id;
    }
    return "Error: user not found";
  }),

  tool("find_user_id_by_name_zip", "first_name last_name zip", (database, firstName, lastName, zip) => {
    for (const [id, user] of database.records("users")) {
      const name = at(user, "name");
      if (
        lower(at(name, "first_name")) === lower(firstName!) &&
        lower(at(name, "last_name")) === lower(lastName!) &&
        equal(at(at(user, "address"), "zip"), zip!)
      ) {
        return id;
      }
    }
    return "Error: user not found";
  }),

  tool("get_order_details", "order_id", (database, id) =>
    database.has("orders", id!) ? dumps(database.get("orders", id!)) : "Error: order not found",
  ),

  tool("get_product_details", "product_id", (database, id) =>
    database.has("products", id!) ? dumps(database.get("products", id!)) : "Error: product not found",
  ),

  tool("get_user_details", "user_id", (database, id) =>
    database.has("users", id!) ? dumps(database.get("users", id!)) : "Error: user not found",
  ),

  tool("list_all_product_types", "", (database) => {
    const ids: Dict = new Map();
    for (const product of database.records("products").values()) {
      ids.set(str(at(product, "name")), at(product, "product_id"));
    }
    return dumps(new Map([...ids].sort(([a], [b]) => compareText(a, b))));
  }),

  tool(
    "modify_pending_order_address",
    "order_id address1 address2 city state country zip",
    (database, orderId, address1, address2, city, state, country, zip) => {
      if (!database.has("orders", orderId!)) return "Error: order not found";
      if (at(database.get("orders", orderId!), "status") !== "pending") {
        return "Error: non-pending order cannot be modified";
      }
      const order = database.edit("orders", orderId!);
      order.set("address", address(address1!, address2!, city!, state!, country!, zip!));
      return dumps(order);
    },
  ),

  tool(
    "modify_pending_order_items",
    "order_id item_ids new_item_ids payment_method_id",
    (database, orderId, itemIds, newItemIds, paymentId) => {
      if (!database.has("orders", orderId!)) return "Error: order not found";
      const order = database.get("orders", orderId!);
      if (at(order, "status") !== "pending") return "Error: non-pending order cannot be modified";
      // Not rounded, here and in the payment.
      const difference = priceDifference(database, order, itemIds!, newItemIds!);
      if (typeof difference === "string") return difference;
      const methods = paymentMethods(database, order);
      if (!has(methods, paymentId!)) return "Error: payment method not found";
      const method = at(methods, paymentId!);
      if (isGiftCard(method) && less(at(method, "balance"), difference)) {
        return "Error: insufficient gift card balance to pay for the new item";
      }
      const changed = database.edit("orders", orderId!);
      const amount = difference < 0 ? negative(difference) : difference;
      const paid = payment(difference > 0 ? "payment" : "refund", amount, paymentId!);
      list(at(changed, "payment_history")).push(paid);
      if (isGiftCard(method)) {
        addToBalance(editPaymentMethod(database, order, paymentId!), negative(difference));
      }
      const newIds = iterate(newItemIds!);
      for (const [i, itemId] of iterate(itemIds!).entries()) {
        const item = findItem(changed, itemId);
        const variants = at(database.get("products", at(item, "product_id")), "variants");
        const variant = at(variants, newIds[i]!);
        item.set("item_id", newIds[i]!);
        item.set("price", at(variant, "price"));
        item.set("options", at(variant, "options"));
      }
      changed.set("status", "pending (item modified)");
      return dumps(changed);
    },
  ),

  tool("modify_pending_order_payment", "order_id payment_method_id", (database, orderId, paymentId) => {
    if (!database.has("orders", orderId!)) return "Error: order not found";
    const order = database.get("orders", orderId!);
    if (at(order, "status") !== "pending") return "Error: non-pending order cannot be modified";
    const methods = paymentMethods(database, order);
    if (!has(methods, paymentId!)) return "Error: payment method not found";
    const history = at(order, "payment_history");
    if (length(history) > 1 || at(first(history), "transaction_type") !== "payment") {
      return "Error: there should be exactly one payment for a pending order";
    }
    const [oldId, amount] = [at(first(history), "payment_method_id"), at(first(history), "amount")];
    if (oldId === paymentId) {
      return "Error: the new payment method should be different from the current one";
    }
    const method = at(methods, paymentId!);
    if (isGiftCard(method) && less(at(method, "balance"), amount)) {
      return "Error: insufficient gift card balance to pay for the order";
    }
    const changed = database.edit("orders", orderId!);
    list(at(changed, "payment_history")).push(
      payment("payment", amount, paymentId!),
      payment("refund", amount, oldId),
    );
    if (isGiftCard(method)) addToBalance(editPaymentMethod(database, order, paymentId!), negative(amount));
    if (mentionsGiftCard(oldId)) addToBalance(editPaymentMethod(database, order, oldId), amount);
    return dumps(changed);
  }),

  tool(
    "modify_user_address",
    "user_id address1 address2 city state country zip",
    (database, userId, address1, address2, city, state, country, zip) => {
      if (!database.has("users", userId!)) return "Error: user not found";
      const user = database.edit("users", userId!);
      user.set("address", address(address1!, address2!, city!, state!, country!, zip!));
      return dumps(user);
    },
  ),

  tool(
    "return_delivered_order_items",
    "order_id item_ids payment_method_id",
    (database, orderId, itemIds, paymentId) => {
      if (!database.has("orders", orderId!)) return "Error: order not found";
      const order = database.get("orders", orderId!);
      if (at(order, "status") !== "delivered") return "Error: non-delivered order cannot be returned";
      if (!has(paymentMethods(database, order), paymentId!)) return "Error: payment method not found";
      if (
        !mentionsGiftCard(paymentId!) &&
        paymentId !== at(first(at(order, "payment_history")), "payment_method_id")
      ) {
        return "Error: payment method should be either the original payment method or a gift card";
      }
      if (missingItem(order, itemIds!) !== undefined) return "Error: some item not found";
      const changed = database.edit("orders", orderId!);
      changed.set("status", "return requested");
      changed.set("return_items", sorted(itemIds!));
      changed.set("return_payment_method_id", paymentId!);
      return dumps(changed);
    },
  ),

  tool("think", "thought", () => ""),

  tool("transfer_to_human_agents", "summary", () => "Transfer successful"),
];
