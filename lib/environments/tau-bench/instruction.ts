/**
 * Writes a scenario's instruction: who the customer is and what the customer wants, in the second
 * person as in tau-bench's own instructions, composed of phrases. Everything in it is identified
 * unambiguously among the customer's records: an order by its number, or by a product that no other
 * order has; a payment method by its id or a distinguishing property.
 */

import { listed } from "../listed.ts";
import type { Draws } from "./draws.ts";
import { type Address, type Item, type Order, type PaymentMethod, paidWith } from "./shop.ts";
import type { Change, NewAddress, Question, Swap, Wishes } from "./wishes.ts";

export interface Instruction {
  text: string;
  /** Strings that any rewording must contain, case-insensitive. */
  facts: string[];
}

const traits = [
  ..."calm cheerful curious distracted friendly frugal generous gloomy hasty honest impatient".split(" "),
  ..."insecure loud modest organized patient polite proud quiet rigid shy stubborn talkative".split(" "),
  ..."thorough tired trusting".split(" "),
];

const manners = [
  "You write short messages.",
  "You like to deal with one thing after the other.",
  "You say everything that you want in your first message.",
  "You want to be done quickly.",
  "You answer questions, but tell nothing unasked.",
  "",
  "",
  "",
];

/** The instruction for `wishes`. */
export function writeInstruction(wishes: Wishes, draws: Draws): Instruction {
  const writer = new Writer(wishes, draws);
  const sentences = [
    writer.identity(),
    `You are ${draws.sample(traits, 2 + Math.floor(draws.next() * 3)).join(", ")}.`,
    draws.pick(manners),
    ...wishes.changes.map((change) => writer.change(change)),
    ...wishes.questions.map((question) => writer.question(question)),
  ];
  const text = sentences.filter((sentence) => sentence !== "").join(" ");
  return { text, facts: [...writer.facts] };
}

class Writer {
  readonly facts = new Set<string>();
  readonly #wishes: Wishes;
  readonly #draws: Draws;
  /** The wording for each order, chosen once per text. */
  readonly #orderNames = new Map<Order, string>();

  constructor(wishes: Wishes, draws: Draws) {
    this.#wishes = wishes;
    this.#draws = draws;
  }

  /** Records `text` as a fact and returns it. */
  #fact(text: string): string {
    this.facts.add(text);
    return text;
  }

  identity(): string {
    const { name, email, address } = this.#wishes.customer;
    const full = this.#fact(`${name.first_name} ${name.last_name}`);
    const byEmail = this.#draws.chance(0.5);
    const known = this.#fact(byEmail ? email : address.zip);
    return this.#draws.pick(
      byEmail
        ? [
            `Your name is ${full} and your email is ${known}.`,
            `You are ${full}. The email address of your account is ${known}.`,
            `You are ${full} (${known}) and do not remember your user id.`,
          ]
        : [
            `Your name is ${full} and your zip code is ${known}.`,
            `You are ${full} and live in ${address.city}, zip code ${known}.`,
            `You are ${full}. You do not remember the email of your account; your zip code is ${known}.`,
          ],
    );
  }

  change(change: Change): string {
    switch (change.kind) {
      case "cancel":
        return this.#cancel(change.order, change.reason);
      case "return":
        return this.#return(change.order, change.items, change.method);
      case "exchange":
        return this.#exchange(change.order, change.swaps, change.method);
      case "modifyItems":
        return this.#modifyItems(change.order, change.swaps, change.method);
      case "modifyAddress":
        return this.#modifyAddress(change.order, change.to);
      case "modifyPayment":
        return this.#modifyPayment(change.order, change.method);
      case "modifyDefaultAddress":
        return this.#modifyDefaultAddress(change.to);
    }
  }

  question(question: Question): string {
    switch (question.kind) {
      case "refund": {
        const order = this.#order(question.order);
        return this.#draws.pick([
          `You also want to know how much money you get back for what you return from ${order}.`,
          `Ask for the total refund for the return from ${order}, in dollars.`,
        ]);
      }
      case "difference": {
        const order = this.#order(question.order);
        return this.#draws.pick([
          `You also want to know the total price difference for the changed items of ${order}.`,
          `Ask how much the new items of ${order} cost more or less in total.`,
        ]);
      }
      case "tracking": {
        const order = this.#order(question.order);
        return this.#draws.pick([
          `You also need the tracking number of ${order}.`,
          `Ask for the tracking number of ${order} as well.`,
        ]);
      }
      case "price": {
        const product = this.#fact(question.product);
        return this.#draws.pick([
          `Ask what the cheapest ${product} costs that is available in the store right now.`,
          `You also want to know the price of the cheapest available ${product}.`,
        ]);
      }
    }
  }

  #cancel(order: Order, reason: "no longer needed" | "ordered by mistake"): string {
    const name = this.#order(order);
    const why =
      reason === "no longer needed"
        ? this.#draws.pick([
            `you ${this.#fact("no longer need")} it`,
            `it is ${this.#fact("no longer need")}ed`,
          ])
        : this.#draws.pick([
            `you ordered it ${this.#fact("by mistake")}`,
            `it was ordered ${this.#fact("by mistake")}`,
          ]);
    return this.#draws.pick([
      `You want to cancel ${name} because ${why}.`,
      `Cancel ${name}: ${why}.`,
      `You do not want ${name} any more and want it cancelled; the reason is that ${why}.`,
    ]);
  }

  #return(order: Order, items: readonly Item[], method: PaymentMethod): string {
    const name = this.#order(order);
    const all = items.length === order.items.length && this.#draws.chance(0.5);
    const what = all ? this.#fact("everything") : listed(items.map((item) => this.#item(order, item)));
    const to = this.#method(method, order);
    return this.#draws.pick([
      `You want to return ${what} from ${name}, with the refund going to ${to}.`,
      `From ${name}, return ${what}. The refund should go to ${to}.`,
      `You are not happy with ${name}: return ${what} and get the money back to ${to}.`,
    ]);
  }

  #exchange(order: Order, swaps: readonly Swap[], method: PaymentMethod): string {
    const name = this.#order(order);
    const what = swaps.map((swap) => this.#swap(order, swap, "for")).join("; also ");
    const by = this.#method(method, order);
    return this.#draws.pick([
      `In ${name}, you want to exchange ${what}. Use ${by} for the price difference.`,
      `Exchange ${what}; it is about ${name}. Pay or get back the difference with ${by}.`,
      `You have received ${name} and want to exchange ${what}, with ${by} for any difference in price.`,
    ]);
  }

  #modifyItems(order: Order, swaps: readonly Swap[], method: PaymentMethod): string {
    const name = this.#order(order);
    const what = swaps.map((swap) => this.#swap(order, swap, "to")).join("; also ");
    const by = this.#method(method, order);
    return this.#draws.pick([
      `In ${name}, which is still pending, change ${what}. Use ${by} for the price difference.`,
      `You want to modify ${name}: change ${what}. Pay or get back the difference with ${by}.`,
      `Before ${name} is shipped, you want to change ${what}, with ${by} for any difference in price.`,
    ]);
  }

  #modifyAddress(order: Order, to: NewAddress): string {
    const name = this.#order(order);
    const where = this.#address(to);
    return this.#draws.pick([
      `You want ${name} to be sent to ${where}.`,
      `Change the shipping address of ${name} to ${where}.`,
      `${capital(name)} should go to another place: ${where}.`,
    ]);
  }

  #modifyPayment(order: Order, method: PaymentMethod): string {
    const name = this.#order(order);
    const by = this.#method(method);
    return this.#draws.pick([
      `You want to pay for ${name} with ${by} instead.`,
      `Change the payment method of ${name} to ${by}.`,
      `${capital(name)} should be charged to ${by} and not to what you chose at first.`,
    ]);
  }

  #modifyDefaultAddress(to: NewAddress): string {
    const where = this.#address(to);
    return this.#draws.pick([
      `You have moved: change the default address of your account to ${where}.`,
      `Your account's default address should become ${where}.`,
      `You want ${where} to be the default address in your profile.`,
    ]);
  }

  /** By its number, or by a property that distinguishes it from the customer's other orders. */
  #order(order: Order): string {
    const known = this.#orderNames.get(order);
    if (known !== undefined) return known;
    const others = this.#wishes.orders.filter((other) => other !== order);
    const names: string[] = [];
    if (!others.some(({ status }) => status === order.status)) names.push(`your only ${order.status} order`);
    const product = order.items.find(
      ({ product_id }) => !others.some(({ items }) => items.some((item) => item.product_id === product_id)),
    );
    if (product !== undefined) names.push(`your order with the ${product.name}`);
    const byNumber = names.length === 0 || this.#draws.chance(0.7);
    const name = byNumber ? `order ${this.#fact(order.order_id)}` : this.#draws.pick(names);
    if (!byNumber) this.#fact(name.replace(/^your (?:order with the )?/, ""));
    this.#orderNames.set(order, name);
    return name;
  }

  /** By its product; with its options if the order has another item of that product. */
  #item({ items }: Order, item: Item): string {
    const alone = items.filter(({ product_id }) => product_id === item.product_id).length === 1;
    const product = this.#fact(item.name);
    if (alone) return `the ${product}`;
    return `the ${product} (${Object.entries(item.options)
      .map(([option, value]) => `${option} ${this.#fact(value)}`)
      .join(", ")})`;
  }

  #swap(order: Order, { item, variant, by }: Swap, into: "for" | "to"): string {
    const old = this.#item(order, item);
    if (by === "price") return `${old} ${into} the ${this.#fact("cheapest")} one that is available`;
    const all = Object.entries(variant.options);
    const changed = all.filter(([option, value]) => item.options[option] !== value);
    const wanted = changed.map(([option, value]) => `${option} ${this.#fact(value)}`).join(", ");
    return `${old} ${into} one with ${wanted}${changed.length < all.length ? " and otherwise the same" : ""}`;
  }

  /**
   * By its id, or by a property that distinguishes it from the customer's others. `order`: the
   * order it is about, if that was paid.
   */
  #method(method: PaymentMethod, order?: Order): string {
    const others = Object.values(this.#wishes.customer.payment_methods).filter(({ id }) => id !== method.id);
    const names: string[] = [];
    if (!others.some(({ source }) => source === method.source)) {
      names.push(
        { paypal: "your PayPal account", gift_card: "your gift card", credit_card: "your credit card" }[
          method.source
        ],
      );
    } else if (
      method.last_four !== undefined &&
      !others.some(({ last_four }) => last_four === method.last_four)
    ) {
      names.push(`your ${method.brand} card ending in ${method.last_four}`);
    }
    const paidAnew = this.#wishes.changes.some(
      (change) => change.kind === "modifyPayment" && change.order === order,
    );
    if (order !== undefined && !paidAnew && method.id === paidWith(order)) {
      names.push("the original payment method");
    }
    const byId = names.length === 0 || this.#draws.chance(0.4);
    const name = byId ? this.#fact(method.id) : this.#draws.pick(names);
    if (!byId) this.#fact(/\d{4}$/.exec(name)?.[0] ?? name.replace(/^(?:your|the) |(?: account)$/g, ""));
    return name;
  }

  /**
   * Written out if the place that identifies the address changes too, since a reference to it would
   * be ambiguous.
   */
  #address({ address, from }: NewAddress): string {
    const moving = this.#wishes.changes.some(
      (change) =>
        (change.kind === "modifyAddress" && change.order === from) ||
        (change.kind === "modifyDefaultAddress" && from === "default"),
    );
    if (from === "new" || moving || this.#draws.chance(0.3)) return this.#writtenOut(address);
    return from === "default"
      ? `the ${this.#fact("default address")} of your account`
      : `the ${this.#fact("same")} address that order ${this.#fact(from.order_id)} has`;
  }

  #writtenOut({ address1, address2, city, state, zip, country }: Address): string {
    for (const part of [address1, address2, city, state, zip, country]) if (part !== "") this.#fact(part);
    return [address1, address2, city, `${state} ${zip}`, country].filter((part) => part !== "").join(", ");
  }
}

function capital(text: string): string {
  return `${text[0]!.toUpperCase()}${text.slice(1)}`;
}
