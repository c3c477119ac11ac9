/** Units of measurement, currencies, and comparison of answers that are words. */

const unitTable: Record<string, [quantity: string, unit: string]> = {};
for (const [quantity, units] of Object.entries({
  length:
    "mm millimeter/cm centimeter/m meter metre/km kilometer/in inch inches/ft foot feet/yd yard/mi mile",
  mass: "mg milligram/g gram/kg kilogram/lb lbs pound/oz ounce",
  time: "s sec second/min minute/h hr hour/day/week/month/year",
  volume: "ml milliliter/l liter litre/gallon/quart/pint/cup",
  "half of the day": "am/pm",
})) {
  for (const names of units.split("/")) {
    const [first, ...others] = names.split(" ") as [string, ...string[]];
    for (const name of [first, ...others]) unitTable[name] = unitTable[`${name}s`] = [quantity, first];
  }
}

/**
 * Centimetres conflict with metres, but not with square centimetres or "students". Square feet
 * conflict with square inches, and km/h with m/s.
 */
export function unitsConflict(a: string, b: string): boolean {
  const [left, right] = [factors(a), factors(b)];
  return (
    left.length === right.length &&
    left.some((unit, i) => {
      const [x, y] = [known(unit), known(right[i]!)];
      return x !== undefined && y !== undefined && x[0] === y[0] && x[1] !== y[1];
    })
  );
}

/** The units of a rate, each without "square" or "cubic". */
function factors(unit: string): string[] {
  const spelled = unit
    .trim()
    .replace(/^mph$/, "miles/hour")
    .replace(/^k[mp]h$/, "km/h");
  return spelled
    .split(/\s*\/\s*|\s+per\s+/)
    .map((factor) => factor.replace(/^(?:square|sq\.?|cubic|cu\.?)\s+/, ""));
}

function known(unit: string): [quantity: string, unit: string] | undefined {
  const name = unit.trim().replace(/^[ap]m$/i, (half) => half.toLowerCase());
  return Object.hasOwn(unitTable, name) ? unitTable[name] : undefined;
}

/** A unit by the name that the table has first, so that h and hours are the same. */
export function unitName(unit: string): string {
  return known(unit)?.[1] ?? unit.trim().toLowerCase();
}

/** How answers name money. Signs are removed when an answer is parsed, so whole texts are searched. */
const money: [currency: string, named: RegExp][] = [
  ["dollar", /\\\$|\bdollars?\b|\bUSD\b/i],
  ["cent", /\bcents?\b|¢/i],
  ["euro", /€|\beuros?\b|\bEUR\b/i],
  ["sterling", /£/],
  ["yen", /¥|\byen\b/i],
];

/** Whether two answers name money, and have no currency in common: 80 cents and $80. */
export function currenciesConflict(a: string, b: string): boolean {
  const left = currencies(a);
  const right = left.length === 0 ? [] : currencies(b);
  return right.length > 0 && !left.some((currency) => right.includes(currency));
}

function currencies(answer: string): string[] {
  // One dollar without a backslash is a sign, two are the ends of a formula.
  const lone = /^[^$]*(?<!\\)\$\s*[\d.][^$]*$/.test(answer);
  return money.flatMap(([currency, named]) =>
    named.test(answer) || (lone && currency === "dollar") ? [currency] : [],
  );
}

/** Compares words without case and punctuation. */
export function sameText(a: string, b: string): boolean {
  const plain = (text: string) =>
    text
      .toLowerCase()
      .replace(/[^\p{L}\p{N}]+/gu, " ")
      .trim();
  return plain(a) === plain(b) && plain(a) !== "";
}
