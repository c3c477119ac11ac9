/**
 * The tools of the airline domain. They follow sierra-research/tau-bench at 59a200c6 exactly,
 * including its oddities: the same answers, the same checks in the same order, and the same partial
 * changes after an error.
 */

import { calculate } from "./calculate.ts";
import type { Database } from "./database.ts";
import {
  add,
  at,
  dict,
  equal,
  has,
  iterate,
  length,
  less,
  list,
  multiply,
  negative,
  PythonError,
  parseInt10,
  subtract,
  sum,
  typeName,
} from "./python.ts";
import { dumps, str } from "./text.ts";
import { tool } from "./tools.ts";
import type { Dict, Value } from "./values.ts";

const airports = new Map<string, Value>([
  ["SFO", "San Francisco"],
  ["JFK", "New York"],
  ["LAX", "Los Angeles"],
  ["ORD", "Chicago"],
  ["DFW", "Dallas"],
  ["DEN", "Denver"],
  ["SEA", "Seattle"],
  ["ATL", "Atlanta"],
  ["MIA", "Miami"],
  ["BOS", "Boston"],
  ["PHX", "Phoenix"],
  ["IAH", "Houston"],
  ["LAS", "Las Vegas"],
  ["MCO", "Orlando"],
  ["EWR", "Newark"],
  ["CLT", "Charlotte"],
  ["MSP", "Minneapolis"],
  ["DTW", "Detroit"],
  ["PHL", "Philadelphia"],
  ["LGA", "LaGuardia"],
]);

/** Creation time of every new reservation. */
const now = "2024-05-15T15:00:00";

/** Ids of new reservations; the last one is reused. */
const reservationIds = ["HATHAT", "HATHAU", "HATHAV"] as const;

const certificateIds = ["certificate_3221322", "certificate_3221323", "certificate_3221324"];

function sourceOf(method: Value): Value {
  return at(method, "source");
}

/**
 * Looks up the flight named by `flight` (written by an agent), sets its price, origin and
 * destination, and returns the cost of `passengers` seats, or an observation if they are not
 * available. `passengers` is counted only when it is needed.
 */
function priceFlight(
  database: Database,
  flight: Value,
  cabin: Value,
  passengers: Value,
): bigint | number | string {
  const number = at(flight, "flight_number");
  if (!database.has("flights", number)) return `Error: flight ${str(number)} not found`;
  const scheduled = database.get("flights", number);
  const date = at(flight, "date");
  const dates = at(scheduled, "dates");
  if (!has(dates, date)) return `Error: flight ${str(number)} not found on date ${str(date)}`;
  const day = at(dates, date);
  if (at(day, "status") !== "available") {
    return `Error: flight ${str(number)} not available on date ${str(date)}`;
  }
  if (less(at(at(day, "available_seats"), cabin), BigInt(length(passengers)))) {
    return `Error: not enough seats on flight ${str(number)}`;
  }
  const price = at(at(day, "prices"), cabin);
  dict(flight)
    .set("price", price)
    .set("origin", at(scheduled, "origin"))
    .set("destination", at(scheduled, "destination"));
  return multiply(price, BigInt(length(passengers)));
}

/** A flight as shown by a search: without its dates, but with the data of `date`. */
function flightOn(flight: Dict, date: Value): Dict {
  const shown = new Map([...flight].filter(([key]) => key !== "dates"));
  for (const [key, value] of dict(at(at(flight, "dates"), date))) shown.set(key, value);
  return shown;
}

function availableOn(flight: Dict, date: Value): boolean {
  return at(at(at(flight, "dates"), date), "status") === "available";
}

/** The next day as the original formats it: in May 2024, without a leading zero. */
function dayAfter(date: Value): string {
  if (typeof date !== "string") throw new PythonError(`'${typeName(date)}' object is not subscriptable`);
  return `2024-05-${parseInt10([...date].slice(-2).join("")) + 1n}`;
}

/** Why a change of a reservation cannot be paid this way; undefined if it can. */
function refusedPayment(methods: Value, paymentId: Value, price: bigint | number): string | undefined {
  if (!has(methods, paymentId)) return "Error: payment method not found";
  const method = at(methods, paymentId);
  if (sourceOf(method) === "certificate") return "Error: certificate cannot be used to update reservation";
  if (sourceOf(method) === "gift_card" && less(at(method, "amount"), price)) {
    return "Error: gift card balance is not enough";
  }
  return undefined;
}

/** Subtracts `amount` from the balance of a payment method. */
function takeFrom(method: Dict, amount: Value): void {
  method.set("amount", subtract(at(method, "amount"), amount));
}

/** Subtracts the price of a change from a gift card; other payment methods have no balance. */
function payFromGiftCard(database: Database, userId: Value, paymentId: Value, price: bigint | number): void {
  if (sourceOf(at(at(database.get("users", userId), "payment_methods"), paymentId)) !== "gift_card") return;
  takeFrom(dict(at(at(database.edit("users", userId), "payment_methods"), paymentId)), price);
}

function payment(paymentId: Value, amount: Value): Dict {
  return new Map([
    ["payment_id", paymentId],
    ["amount", amount],
  ]);
}

/** Records the cost of a change of a reservation, unless it is 0. */
function recordPayment(reservation: Dict, paymentId: Value, price: bigint | number): void {
  if (!equal(price, 0n)) list(at(reservation, "payment_history")).push(payment(paymentId, price));
}

export const airlineTools = [
  tool(
    "book_reservation",
    "user_id origin destination flight_type cabin flights passengers payment_methods total_baggages nonfree_baggages insurance",
    (
      database,
      userId,
      origin,
      destination,
      flightType,
      cabin,
      flights,
      passengers,
      payments,
      totalBaggages,
      nonfreeBaggages,
      insurance,
    ) => {
      if (!database.has("users", userId!)) return "Error: user not found";
      const id = reservationIds.find((other) => !database.has("reservations", other)) ?? reservationIds[2];
      let total: bigint | number = 0n;
      for (const flight of iterate(flights!)) {
        const price = priceFlight(database, flight, cabin!, passengers!);
        if (typeof price === "string") return price;
        total = add(total, price, "+=");
      }
      if (insurance === "yes") total = add(total, 30n * BigInt(length(passengers!)), "+=");
      total = add(total, multiply(50n, nonfreeBaggages!), "+=");
      const methods = at(database.get("users", userId!), "payment_methods");
      for (const paid of iterate(payments!)) {
        const [paymentId, amount] = [at(paid, "payment_id"), at(paid, "amount")];
        if (!has(methods, paymentId)) return `Error: payment method ${str(paymentId)} not found`;
        const source = sourceOf(at(methods, paymentId));
        if (
          (source === "gift_card" || source === "certificate") &&
          less(at(at(methods, paymentId), "amount"), amount)
        ) {
          return `Error: not enough balance in payment method ${str(paymentId)}`;
        }
      }
      const paidInAll = sum(iterate(payments!).map((paid) => at(paid, "amount")));
      if (!equal(paidInAll, total)) {
        return `Error: payment amount does not add up, total price is ${str(total)}, but paid ${str(paidInAll)}`;
      }
      const user = database.edit("users", userId!);
      const ownMethods = dict(at(user, "payment_methods"));
      for (const paid of iterate(payments!)) {
        const paymentId = at(paid, "payment_id") as string;
        const method = dict(at(ownMethods, paymentId));
        if (sourceOf(method) === "gift_card") takeFrom(method, at(paid, "amount"));
        // A certificate is used up whatever amount was paid with it.
        else if (sourceOf(method) === "certificate") ownMethods.delete(paymentId);
      }
      const reservation: Dict = new Map(
        Object.entries({
          reservation_id: id,
          user_id: userId!,
          origin: origin!,
          destination: destination!,
          flight_type: flightType!,
          cabin: cabin!,
          flights: flights!,
          passengers: passengers!,
          payment_history: payments!,
          created_at: now,
          total_baggages: totalBaggages!,
          nonfree_baggages: nonfreeBaggages!,
          insurance: insurance!,
        }),
      );
      database.put("reservations", id, reservation);
      list(at(user, "reservations")).push(id);
      return dumps(reservation);
    },
  ),

  tool("calculate", "expression", (_, expression) => calculate(expression!)),

  tool("cancel_reservation", "reservation_id", (database, reservationId) => {
    if (!database.has("reservations", reservationId!)) return "Error: reservation not found";
    const refunds = iterate(at(database.get("reservations", reservationId!), "payment_history")).map((paid) =>
      payment(at(paid, "payment_id"), negative(at(paid, "amount"))),
    );
    const reservation = database.edit("reservations", reservationId!);
    list(at(reservation, "payment_history")).push(...refunds);
    reservation.set("status", "cancelled");
    return dumps(reservation);
  }),

  // An unknown reservation is answered as in the original.
  tool("get_reservation_details", "reservation_id", (database, id) =>
    database.has("reservations", id!) ? dumps(database.get("reservations", id!)) : "Error: user not found",
  ),

  tool("get_user_details", "user_id", (database, id) =>
    database.has("users", id!) ? dumps(database.get("users", id!)) : "Error: user not found",
  ),

  tool("list_all_airports", "", () => dumps(airports)),

  tool("search_direct_flight", "origin destination date", (database, origin, destination, date) => {
    const found: Value[] = [];
    for (const flight of database.records("flights").values()) {
      if (!equal(at(flight, "origin"), origin!) || !equal(at(flight, "destination"), destination!)) continue;
      if (has(at(flight, "dates"), date!) && availableOn(flight, date!)) found.push(flightOn(flight, date!));
    }
    return dumps(found);
  }),

  tool("search_onestop_flight", "origin destination date", (database, origin, destination, date) => {
    const flights = [...database.records("flights").values()];
    const second = flights.filter((flight) => equal(at(flight, "destination"), destination!));
    const found: Value[] = [];
    for (const one of flights) {
      if (!equal(at(one, "origin"), origin!)) continue;
      const arrival = at(one, "scheduled_arrival_time_est");
      for (const two of second) {
        if (!equal(at(one, "destination"), at(two, "origin"))) continue;
        const date2 = str(arrival).includes("+1") ? dayAfter(date!) : date!;
        if (less(at(two, "scheduled_departure_time_est"), arrival)) continue;
        if (!has(at(one, "dates"), date!) || !has(at(two, "dates"), date2)) continue;
        if (!availableOn(one, date!) || !availableOn(two, date2)) continue;
        // As in the original, seats and prices of the second flight are those of the first one's
        // date.
        found.push([flightOn(one, date!).set("date", date!), flightOn(two, date!).set("date", date2)]);
      }
    }
    return dumps(found);
  }),

  tool("send_certificate", "user_id amount", (database, userId, amount) => {
    if (!database.has("users", userId!)) return "Error: user not found";
    const methods = at(database.get("users", userId!), "payment_methods");
    const id = certificateIds.find((other) => !has(methods, other));
    // The original's loop over the ids ends without a return. It is the only one of the 30 tools of
    // both domains that can.
    if (id === undefined) return null;
    const certificate = new Map<string, Value>([
      ["source", "certificate"],
      ["amount", amount!],
      ["id", id],
    ]);
    dict(at(database.edit("users", userId!), "payment_methods")).set(id, certificate);
    return `Certificate ${id} added to user ${str(userId!)} with amount ${str(amount!)}.`;
  }),

  tool("think", "thought", () => ""),

  tool("transfer_to_human_agents", "summary", () => "Transfer successful"),

  tool(
    "update_reservation_baggages",
    "reservation_id total_baggages nonfree_baggages payment_id",
    (database, reservationId, totalBaggages, nonfreeBaggages, paymentId) => {
      if (!database.has("reservations", reservationId!)) return "Error: reservation not found";
      const booked = database.get("reservations", reservationId!);
      const more = subtract(nonfreeBaggages!, at(booked, "nonfree_baggages"));
      const price = multiply(50n, less(0n, more) ? more : 0n);
      const userId = at(booked, "user_id");
      const methods = at(database.get("users", userId), "payment_methods");
      const refused = refusedPayment(methods, paymentId!, price);
      if (refused !== undefined) return refused;
      const reservation = database.edit("reservations", reservationId!);
      reservation.set("total_baggages", totalBaggages!).set("nonfree_baggages", nonfreeBaggages!);
      payFromGiftCard(database, userId, paymentId!, price);
      recordPayment(reservation, paymentId!, price);
      return dumps(reservation);
    },
  ),

  tool(
    "update_reservation_flights",
    "reservation_id cabin flights payment_id",
    (database, reservationId, cabin, flights, paymentId) => {
      if (!database.has("reservations", reservationId!)) return "Error: reservation not found";
      const booked = database.get("reservations", reservationId!);
      const passengers = at(booked, "passengers");
      const bookedFlights = at(booked, "flights");
      let total: bigint | number = 0n;
      for (const flight of iterate(flights!)) {
        const kept = iterate(bookedFlights).find(
          (other) =>
            equal(at(other, "flight_number"), at(flight, "flight_number")) &&
            equal(at(other, "date"), at(flight, "date")) &&
            equal(cabin!, at(booked, "cabin")),
        );
        if (kept === undefined) {
          const price = priceFlight(database, flight, cabin!, passengers);
          if (typeof price === "string") return price;
          total = add(total, price, "+=");
        } else {
          total = add(total, multiply(at(kept, "price"), BigInt(length(passengers))), "+=");
          for (const key of ["price", "origin", "destination"]) dict(flight).set(key, at(kept, key));
        }
      }
      const before = sum(iterate(bookedFlights).map((flight) => at(flight, "price")));
      total = subtract(total, multiply(before, BigInt(length(passengers))));
      const userId = at(booked, "user_id");
      const methods = at(database.get("users", userId), "payment_methods");
      const refused = refusedPayment(methods, paymentId!, total);
      if (refused !== undefined) return refused;
      payFromGiftCard(database, userId, paymentId!, total);
      // As in the original, the cabin does not change.
      const reservation = database.edit("reservations", reservationId!).set("flights", flights!);
      recordPayment(reservation, paymentId!, total);
      return dumps(reservation);
    },
  ),

  tool(
    "update_reservation_passengers",
    "reservation_id passengers",
    (database, reservationId, passengers) => {
      if (!database.has("reservations", reservationId!)) return "Error: reservation not found";
      if (length(passengers!) !== length(at(database.get("reservations", reservationId!), "passengers"))) {
        return "Error: number of passengers does not match";
      }
      const reservation = database.edit("reservations", reservationId!).set("passengers", passengers!);
      return dumps(reservation);
    },
  ),
];
