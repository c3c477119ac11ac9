/** A small shop in the form of tau-bench's retail data, written to a directory. */

import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { retailTools } from "../../lib/environments/tau-bench/retail.ts";
import { type Address, readShop, type Shop } from "../../lib/environments/tau-bench/shop.ts";

const products: { name: string; options: Record<string, string[]> }[] = [
  { name: "Desk Lamp", options: { color: ["black", "white"], brightness: ["low", "medium", "high"] } },
  { name: "Water Bottle", options: { capacity: ["500ml", "750ml", "1000ml"], color: ["red", "green"] } },
  { name: "Skateboard", options: { "deck material": ["maple", "bamboo"], length: ["28 inch", "31 inch"] } },
];
const names = [
  "Mia Lee",
  "Omar Diaz",
  "Ana Kovac",
  "Yusuf Ito",
  "Lena Roy",
  "Raj Moore",
  "Eva Silva",
  "Noah Kim",
];
const places = [
  { city: "Chicago", state: "IL", zip: "60601" },
  { city: "Denver", state: "CO", zip: "80202" },
  { city: "Austin", state: "TX", zip: "78701" },
];

export interface TauShop {
  /** What the environment takes as `data`. */
  data: string;
  shop: Shop;
}

/**
 * Eight customers with four orders each: two pending, one delivered, one processed. The second
 * customer of every two has a gift card beside the credit card that was paid with; every third
 * order has two items of one product.
 */
export function writeTauShop(): TauShop {
  const data = mkdtempSync(join(tmpdir(), "tau-shop-"));
  const directory = join(data, "retail");
  mkdirSync(directory);
  const catalogue = products.map(({ name, options }, p) => {
    const combinations = Object.entries(options).reduce<Record<string, string>[]>(
      (all, [option, values]) => all.flatMap((one) => values.map((value) => ({ ...one, [option]: value }))),
      [{}],
    );
    const variants = combinations.map((chosen, v) => ({
      item_id: `${100 * (p + 1) + v}`,
      options: chosen,
      available: v !== 1,
      price: 20 * (p + 1) + ((7 * v) % 5) + v / 4 + 0.13,
    }));
    return { name, product_id: `${p + 1}`, variants };
  });
  const orders: Record<string, unknown> = {};
  const users: Record<string, unknown> = {};
  for (const [u, full] of names.entries()) {
    const [first_name, last_name] = full.split(" ") as [string, string];
    const id = `${first_name}_${last_name}_${1000 + u}`.toLowerCase();
    const address = addressOf(u);
    const card = { source: "credit_card", brand: "visa", last_four: `${4000 + u}`, id: `credit_card_${u}` };
    const gift = { source: "gift_card", balance: 90 + u, id: `gift_card_${u}` };
    const numbers = ["pending", "pending", "delivered", "processed"].map((status, o) => {
      const orderId = `#W${7000 + 10 * u + o}`;
      const items = Array.from({ length: 1 + ((u + o) % 3) }, (_, i) => {
        const { name, product_id, variants } = catalogue[(u + (o % 3) * i) % catalogue.length]!;
        const { item_id, price, options } = variants[(u + 2 * i) % variants.length]!;
        return { name, product_id, item_id, price, options };
      });
      const delivered = status !== "pending" && { tracking_id: [`${880000 + 10 * u + o}`], item_ids: [] };
      orders[orderId] = {
        order_id: orderId,
        user_id: id,
        address: o === 1 ? addressOf(u + 1) : address,
        items,
        fulfillments: delivered ? [delivered] : [],
        status,
        payment_history: [
          {
            transaction_type: "payment",
            amount: Math.round(items.reduce((sum, { price }) => sum + price, 0) * 100) / 100,
            payment_method_id: card.id,
          },
        ],
      };
      return orderId;
    });
    users[id] = {
      name: { first_name, last_name },
      address,
      email: `${id}@example.com`,
      payment_methods: { [card.id]: card, ...(u % 2 === 1 && { [gift.id]: gift }) },
      orders: numbers,
    };
  }
  const tools = retailTools.map(({ name }) => ({
    type: "function",
    function: { name, description: name, parameters: { type: "object", properties: {} } },
  }));
  const byId = catalogue.map(({ variants, ...product }) => [
    product.product_id,
    { ...product, variants: Object.fromEntries(variants.map((variant) => [variant.item_id, variant])) },
  ]);
  const files = { users, orders, products: Object.fromEntries(byId), tools };
  for (const [name, content] of Object.entries(files)) {
    writeFileSync(join(directory, `${name}.json`), JSON.stringify(content));
  }
  writeFileSync(join(directory, "wiki.md"), "# Policy\n");
  return { data, shop: readShop(directory) };
}

function addressOf(place: number): Address {
  return {
    address1: `${100 + place} Oak Street`,
    address2: `Suite ${200 + place}`,
    ...places[place % places.length]!,
    country: "USA",
  };
}
