/**
 * The retail domain's records as the scenario generator reads them: customers, orders and products
 * by id.
 */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { NlacError } from "../../base/errors.ts";

const addressSchema = z.object({
  address1: z.string(),
  address2: z.string(),
  city: z.string(),
  state: z.string(),
  country: z.string(),
  zip: z.string(),
});

const methodSchema = z.object({
  id: z.string(),
  source: z.enum(["credit_card", "paypal", "gift_card"]),
  /** Of a credit card. */
  brand: z.string().optional(),
  last_four: z.string().optional(),
  /** Of a gift card, in dollars. */
  balance: z.number().optional(),
});

const customerSchema = z.object({
  name: z.object({ first_name: z.string(), last_name: z.string() }),
  address: addressSchema,
  email: z.string(),
  payment_methods: z.record(z.string(), methodSchema),
  orders: z.array(z.string()),
});

const options = z.record(z.string(), z.string());

const itemSchema = z.object({
  name: z.string(),
  product_id: z.string(),
  item_id: z.string(),
  price: z.number(),
  options,
});

const orderSchema = z.object({
  order_id: z.string(),
  user_id: z.string(),
  address: addressSchema,
  items: z.array(itemSchema),
  fulfillments: z.array(z.object({ tracking_id: z.array(z.string()) })),
  status: z.string(),
  payment_history: z.array(z.object({ payment_method_id: z.string(), amount: z.number() })).min(1),
});

const variantSchema = z.object({
  item_id: z.string(),
  options,
  available: z.boolean(),
  price: z.number(),
});

const productSchema = z.object({
  name: z.string(),
  product_id: z.string(),
  variants: z.record(z.string(), variantSchema),
});

export type Address = z.output<typeof addressSchema>;
export type PaymentMethod = z.output<typeof methodSchema>;
export type Customer = z.output<typeof customerSchema> & { id: string };
export type Item = z.output<typeof itemSchema>;
export type Order = z.output<typeof orderSchema>;
export type Variant = z.output<typeof variantSchema>;
export type Product = z.output<typeof productSchema>;

export interface Shop {
  customers: ReadonlyMap<string, Customer>;
  orders: ReadonlyMap<string, Order>;
  products: ReadonlyMap<string, Product>;
}

/**
 * Reads `users.json`, `orders.json` and `products.json` of a directory. Throws ERR_CONFIG if one is
 * missing or invalid.
 */
export function readShop(directory: string): Shop {
  const records = Object.entries(readRecords(join(directory, "users.json"), customerSchema));
  const customers = new Map(records.map(([id, customer]) => [id, { id, ...customer }]));
  const orders = new Map(Object.entries(readRecords(join(directory, "orders.json"), orderSchema)));
  const products = new Map(Object.entries(readRecords(join(directory, "products.json"), productSchema)));
  const missing =
    [...customers.values()].flatMap((customer) => customer.orders).find((id) => !orders.has(id)) ??
    [...orders.values()].flatMap(({ items }) => items).find((item) => !products.has(item.product_id))?.name;
  if (missing !== undefined) {
    throw new NlacError("ERR_CONFIG", `${directory} refers to ${missing}, but has no record of it.`);
  }
  return { customers, orders, products };
}

function readRecords<T>(path: string, schema: z.ZodType<T>): Record<string, T> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(readFileSync(path, "utf8"));
  } catch (error) {
    throw new NlacError("ERR_CONFIG", `${path} cannot be read: ${(error as Error).message}`, {
      cause: error,
    });
  }
  const records = z.record(z.string(), schema).safeParse(parsed);
  if (!records.success) {
    throw new NlacError(
      "ERR_CONFIG",
      `${path} does not have tau-bench's format: ${z.prettifyError(records.error)}`,
    );
  }
  return records.data;
}

/** The order's payment method. */
export function paidWith(order: Order): string {
  return order.payment_history[0]!.payment_method_id;
}

/** Sum of prices in dollars, rounded to cents. */
export function total(prices: readonly number[]): number {
  return Math.round(prices.reduce((sum, price) => sum + price, 0) * 100) / 100;
}
