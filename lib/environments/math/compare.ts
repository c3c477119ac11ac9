/**
 * Whether two parsed answers mean the same. Conventions, where graders differ: units and the word "degrees" are
 * ignored unless both sides name different units of one quantity; 10 % equals both 10 and 0.1; the order counts
 * in tuples and intervals, not in sets and bare lists; "x = 5" equals "5"; a decimal equals an irrational number
 * when it is rounded right to four digits or more.
 */

import { burn, exact, type Fuel, roundsTo } from "./exact.ts";
import { hasName, type Node } from "./parse.ts";

/** What is left to a library: see values.ts. */
export interface Values {
  sameValue(a: Node, b: Node): boolean;
  proportional(a: Node, b: Node): boolean;
}

/** One comparison in progress. */
export interface Comparison extends Fuel {
  readonly values: Values;
}

type Of<Kind extends Node["kind"]> = Extract<Node, { kind: Kind }>;

/** Longer bare lists and sets must agree in order. */
const mostUnordered = 48;
/** Longer products of matrices are not worked out: an entry would have as many terms as there are ways through them. */
const mostFactors = 4;

export function same(a: Node, b: Node, comparison: Comparison): boolean {
  burn(comparison, 4);
  if (a.kind === "unit" && b.kind === "unit" && unitsConflict(a.unit, b.unit)) return false;
  if (a.kind === "unit") return same(a.of, b, comparison);
  if (b.kind === "unit") return same(a, b.of, comparison);

  if (a.kind === "relation" && b.kind === "relation" && sameRelation(a, b, comparison)) return true;
  const left = meaning(a);
  const right = meaning(b);
  if (left !== a || right !== b) {
    const namedDifferently =
      a.kind === "relation" && b.kind === "relation" && isEquation(a) && isEquation(b) && !sameSubject(a, b);
    return !namedDifferently && same(left, right, comparison);
  }

  const signsA = bothSigns(a);
  const signsB = bothSigns(b);
  if (signsA !== a || signsB !== b) return same(signsA, signsB, comparison);

  if (isCollection(a) || isCollection(b)) return sameCollections(a, b, comparison);
  if (a.kind === "union" || b.kind === "union") {
    return a.kind === "union" && b.kind === "union" && sameUnordered(a.items, b.items, comparison);
  }
  if (isMatrix(a) || isMatrix(b)) return sameMatrices(a, b, comparison);
  if (a.kind === "tuple" || b.kind === "tuple") {
    return (
      a.kind === "tuple" &&
      b.kind === "tuple" &&
      a.open === b.open &&
      a.close === b.close &&
      sameInOrder(a.items, b.items, comparison)
    );
  }
  if (a.kind === "relation" || b.kind === "relation") return false;
  if (a.kind === "ratio" || b.kind === "ratio") return sameRatio(a, b, comparison);
  if (a.kind === "based" || b.kind === "based") {
    return a.kind === "based" && b.kind === "based" && a.base === b.base && a.digits === b.digits;
  }
  if (a.kind === "text" && b.kind === "text") return sameText(a.text, b.text);
  if (isInfinity(a) || isInfinity(b)) return infinity(a) !== 0 && infinity(a) === infinity(b);
  return sameValue(a, b, comparison);
}

// ---------------------------------------------------------------------------------------------- expressions

function sameValue(a: Node, b: Node, comparison: Comparison): boolean {
  if (a.kind === "percent" || b.kind === "percent") {
    if (a.kind === "percent" && b.kind === "percent") return sameValue(a.of, b.of, comparison);
    const [percent, plain] = a.kind === "percent" ? [a, b] : [b as Of<"percent">, a];
    return sameNumber(percent.of, plain, comparison) || sameNumber(percent, plain, comparison);
  }
  return sameNumber(a, b, comparison);
}

function sameNumber(a: Node, b: Node, comparison: Comparison): boolean {
  const left = exact(a, comparison);
  const right = left && exact(b, comparison);
  if (left === undefined || right === undefined) return comparison.values.sameValue(a, b);
  return left.equals(right) || roundsTo(left, false, b) || roundsTo(right, false, a);
}

function isInfinity(node: Node): boolean {
  return infinity(node) !== 0;
}

/** 1 and -1 for the two infinities, 0 for anything else. */
function infinity(node: Node): number {
  if (node.kind === "constant" && node.name === "infinity") return 1;
  return node.kind === "negative" && node.of.kind === "constant" && node.of.name === "infinity" ? -1 : 0;
}

/** a ± b as the list of its two values; all signs of one answer change together. */
function bothSigns(node: Node): Node {
  if (!/^(?:sum|product|quotient|power|negative|plusMinus|root|call)$/.test(node.kind) || !hasSign(node))
    return node;
  return { kind: "list", items: [withSign(node, true), withSign(node, false)] };
}

function hasSign(node: Node): boolean {
  return (
    node.kind === "plusMinus" ||
    ("items" in node && node.kind !== "tuple" && node.items.some(hasSign)) ||
    ("of" in node && hasSign(node.of)) ||
    ("left" in node && (hasSign(node.left) || hasSign(node.right))) ||
    ("arguments" in node && node.arguments.some(hasSign))
  );
}

function withSign(node: Node, up: boolean): Node {
  switch (node.kind) {
    case "plusMinus": {
      const of = withSign(node.of, up);
      return node.up === up ? of : { kind: "negative", of };
    }
    case "sum":
    case "product":
    case "list":
    case "set":
      return { ...node, items: node.items.map((item) => withSign(item, up)) };
    case "negative":
    case "factorial":
    case "percent":
    case "degrees":
      return { ...node, of: withSign(node.of, up) };
    case "quotient":
    case "power":
    case "root":
      return { ...node, left: withSign(node.left, up), right: withSign(node.right, up) };
    case "call":
      return { ...node, arguments: node.arguments.map((argument) => withSign(argument, up)) };
    default:
      return node;
  }
}

// ---------------------------------------------------------------------------------------------- collections

type Collection = Of<"list"> | Of<"set">;

function isCollection(node: Node): boolean {
  return node.kind === "list" || node.kind === "set";
}

function sameCollections(a: Node, b: Node, comparison: Comparison): boolean {
  if ((a.kind === "list" || a.kind === "set") && (b.kind === "list" || b.kind === "set")) {
    const left = flatten(a);
    const right = flatten(b);
    if (a.kind === "list" && b.kind === "list" && isSystem(a) !== isSystem(b)) {
      // x = 1, y = 2 against 1, 2: the names give the order.
      const [system, plain] = isSystem(a) ? [left, right] : [right, left];
      return sameInOrder(system.map(meaning), plain, comparison);
    }
    if (a.kind === "list" && b.kind === "list" && orderCounts(left, comparison))
      return sameInOrder(left, right, comparison);
    return sameUnordered(left, right, comparison);
  }
  const [collection, other] = (isCollection(a) ? [a, b] : [b, a]) as [Collection, Node];
  const items = flatten(collection);
  if (collection.kind === "list" && other.kind === "tuple" && other.open === "(" && other.close === ")") {
    return sameInOrder(items.map(meaning), other.items, comparison);
  }
  if (items.length === 1) return same(items[0]!, other, comparison);
  // x < -1 or x > 3 against a union of intervals.
  if (collection.kind === "list" && other.kind === "union") {
    return sameUnordered(items.map(meaning), other.items, comparison);
  }
  if (collection.kind === "list" && other.kind === "matrix") return false;
  return (
    items.length > 1 && items.length <= mostUnordered && items.every((item) => same(item, other, comparison))
  );
}

/**
 * Three or more plain numbers that neither rise nor fall: a gold list in no order of its own states an order
 * ("list the terms"), while one from least to greatest merely enumerates.
 */
function orderCounts(gold: readonly Node[], comparison: Comparison): boolean {
  if (gold.length < 3) return false;
  const values = gold.map((item) => exact(item, comparison));
  if (values.some((value) => value === undefined)) return false;
  const numbers = values.map(Number);
  const monotone = (sign: number) =>
    numbers.every((value, i) => i === 0 || sign * (value - numbers[i - 1]!) >= 0);
  return !monotone(1) && !monotone(-1);
}

/** ± inside a list adds both values; a set in a bare list of one is the set. */
function flatten(collection: Collection): Node[] {
  const items = collection.items.flatMap((item) => {
    const signs = bothSigns(meaning(item));
    return signs.kind === "list" && signs !== item && hasSign(meaning(item)) ? signs.items : [item];
  });
  return items.length === 1 && isCollection(items[0]!) ? flatten(items[0] as Collection) : items;
}

/** Equations for different names: x = 1, y = 2. */
function isSystem(list: Collection): boolean {
  const subjects = list.items.map((item) =>
    item.kind === "relation" && isEquation(item) ? subject(item) : undefined,
  );
  return (
    list.items.length > 1 &&
    subjects.every((name) => name !== undefined) &&
    new Set(subjects.map((name) => name!.replace(/_.*/, ""))).size === subjects.length
  );
}

function sameInOrder(a: readonly Node[], b: readonly Node[], comparison: Comparison): boolean {
  return a.length === b.length && a.every((item, i) => same(item, b[i]!, comparison));
}

/** As sets: each has a partner in the other. */
function sameUnordered(a: readonly Node[], b: readonly Node[], comparison: Comparison): boolean {
  if (a.length > mostUnordered || b.length > mostUnordered) return sameInOrder(a, b, comparison);
  const partner = (item: Node, others: readonly Node[]) =>
    others.some((other) => same(item, other, comparison));
  return a.every((item) => partner(item, b)) && b.every((item) => partner(item, a));
}

function isMatrix(node: Node): boolean {
  return node.kind === "matrix" || (node.kind === "product" && node.items.some(isMatrix));
}

function sameMatrices(a: Node, b: Node, comparison: Comparison): boolean {
  const left = asMatrix(a);
  const right = asMatrix(b);
  if (left === undefined || right === undefined) return false;
  if ((left.style === "vmatrix") !== (right.style === "vmatrix")) return false;
  return (
    left.rows.length === right.rows.length &&
    left.rows.every((row, i) => sameInOrder(row, right.rows[i]!, comparison))
  );
}

/** A matrix, a product of matrices worked out, or a tuple as a column. */
function asMatrix(node: Node): Of<"matrix"> | undefined {
  if (node.kind === "matrix") return node;
  if (node.kind === "product" && node.items.length <= mostFactors) {
    return node.items.map(asMatrix).reduce((left, right) => {
      const inner = right?.rows.length;
      if (left === undefined || right === undefined || left.rows.some((row) => row.length !== inner))
        return undefined;
      const entry = (row: Node[], column: number): Node => ({
        kind: "sum",
        items: row.map((value, i) => ({ kind: "product", items: [value, right.rows[i]![column]!] })),
      });
      const columns = right.rows[0]!.map((_, column) => column);
      if (right.rows.some((row) => row.length !== columns.length)) return undefined;
      const { style } = left;
      return {
        kind: "matrix",
        style,
        rows: left.rows.map((row) => columns.map((column) => entry(row, column))),
      };
    });
  }
  if (node.kind === "tuple" && node.open === "(" && node.close === ")") {
    return { kind: "matrix", style: "pmatrix", rows: node.items.map((item) => [item]) };
  }
  return undefined;
}

function sameRatio(a: Node, b: Node, comparison: Comparison): boolean {
  const left = a.kind === "ratio" ? a.items : [a];
  const right = b.kind === "ratio" ? b.items : [b];
  if (left.length === right.length && isClock(left) && isClock(right))
    return sameInOrder(left, right, comparison);
  const divided = (items: readonly Node[]): Node =>
    items.length === 1 ? items[0]! : { kind: "quotient", left: items[0]!, right: items[1]! };
  if (left.length <= 2 && right.length <= 2) return sameNumber(divided(left), divided(right), comparison);
  return (
    left.length === right.length &&
    left
      .slice(1)
      .every((item, i) =>
        sameNumber(
          { kind: "product", items: [left[0]!, right[i + 1]!] },
          { kind: "product", items: [item, right[0]!] },
          comparison,
        ),
      )
  );
}

/** 12:00 is a time: it is no ratio that could be reduced. */
function isClock(items: readonly Node[]): boolean {
  return (
    items.length === 2 &&
    items[0]!.kind === "number" &&
    items[1]!.kind === "number" &&
    /^\d\d$/.test(items[1].digits) &&
    Number(items[1].digits) < 60 &&
    /^\d\d?$/.test(items[0].digits) &&
    Number(items[0].digits) <= 24
  );
}

// ------------------------------------------------------------------------------------------------ relations

/** What a relation says about its subject: the value of x = 5, the interval of x < 5. Else the node itself. */
function meaning(node: Node): Node {
  if (node.kind === "relation") {
    const { operators, parts } = node;
    const approx = operators.indexOf("approx");
    if (approx > 0)
      return meaning({
        kind: "relation",
        operators: operators.slice(0, approx),
        parts: parts.slice(0, approx + 1),
      });
    if (approx === 0) return isSubject(parts[0]!) ? parts[1]! : parts[0]!;
    if (operators.every((operator) => operator === "=") && isSubject(parts[0]!)) return parts.at(-1)!;
    if (operators.length === 1 && operators[0] === "in" && isSubject(parts[0]!)) return meaning(parts[1]!);
    return asInterval(node) ?? allBut(node) ?? node;
  }
  if (isRealLine(node)) return interval("(", negativeInfinity, infinite, ")");
  if (node.kind === "list" && node.items.length > 1 && node.items.every((item) => item.kind === "relation")) {
    const intervals = node.items.map((item) => asInterval(item as Of<"relation">));
    if (intervals.every((interval) => interval !== undefined)) {
      return {
        kind: "union",
        items: intervals.flatMap((interval) => (interval!.kind === "union" ? interval!.items : [interval!])),
      };
    }
  }
  return node;
}

/** A name, a function's value, a product or ratio of capital letters, a tuple of names: what an answer is about. */
function isSubject(node: Node): boolean {
  switch (node.kind) {
    case "name":
      return true;
    case "constant":
      // Seldom, but "e = …" and "i = …" do name things.
      return node.name === "e" || node.name === "i";
    case "text":
      return true;
    case "call":
      return node.name.startsWith("apply:") || node.name.startsWith("index:") || node.name === "prime";
    case "product":
      return node.items.every((item) => item.kind === "name" && /^\\?[A-Z]/.test(item.name));
    case "ratio":
    case "tuple":
    case "list":
      return node.items.every(isSubject);
    default:
      return false;
  }
}

function isEquation(relation: Of<"relation">): boolean {
  return relation.operators.every((operator) => operator === "=" || operator === "approx");
}

function subject(relation: Of<"relation">): string | undefined {
  const first = relation.parts[0]!;
  if (first.kind === "name") return first.name;
  if (first.kind === "constant") return first.name;
  return isSubject(first) ? JSON.stringify(first, bigintAsText) : undefined;
}

/** Two plain names must agree; y and f(x) are two ways to name one thing. */
function sameSubject(a: Of<"relation">, b: Of<"relation">): boolean {
  const first = a.parts[0]!;
  const second = b.parts[0]!;
  if (first.kind === "name" && second.kind === "name") return first.name === second.name;
  return isSubject(first) && isSubject(second);
}

function bigintAsText(_key: string, value: unknown): unknown {
  return typeof value === "bigint" ? value.toString() : value;
}

const mirrored: Record<string, string> = { "<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!=" };

const infinite: Node = { kind: "constant", name: "infinity" };
const negativeInfinity: Node = { kind: "negative", of: infinite };

function interval(open: "(" | "[", low: Node, high: Node, close: ")" | "]"): Node {
  return { kind: "tuple", open, close, items: [low, high] };
}

function isRealLine(node: Node): boolean {
  return node.kind === "name" && node.name === "mathbb:R";
}

/** x ≠ 3 and ℝ without {3} as what lies on its two sides. */
function allBut({ operators, parts }: Of<"relation">): Node | undefined {
  if (operators.length !== 1) return undefined;
  const [left, right] = parts as [Node, Node];
  let point: Node | undefined;
  if (operators[0] === "!=" && isSubject(left)) point = right;
  if (operators[0] === "setminus" && isRealLine(left) && right.kind === "set") point = right.items[0];
  if (point === undefined || !isBound(point)) return undefined;
  if (right.kind === "set" && right.items.length > 1) return undefined;
  return {
    kind: "union",
    items: [interval("(", negativeInfinity, point, ")"), interval("(", point, infinite, ")")],
  };
}

function asInterval(relation: Of<"relation">): Node | undefined {
  let operators = relation.operators;
  let parts = relation.parts;
  if (operators.some((operator) => !/^[<>]=?$/.test(operator))) return undefined;
  if (operators[0]!.startsWith(">")) {
    if (operators.some((operator) => !operator.startsWith(">"))) return undefined;
    operators = operators.map((operator) => mirrored[operator]!).reverse();
    parts = [...parts].reverse();
  } else if (operators.some((operator) => !operator.startsWith("<"))) return undefined;
  const openBracket = (operator: string) => (operator === "<=" ? "[" : "(");
  const closeBracket = (operator: string) => (operator === "<=" ? "]" : ")");
  if (parts.length === 2) {
    const [low, high] = parts as [Node, Node];
    if (isSubject(low) && isBound(high))
      return interval("(", negativeInfinity, high, closeBracket(operators[0]!));
    if (isSubject(high) && isBound(low)) return interval(openBracket(operators[0]!), low, infinite, ")");
    return undefined;
  }
  const [low, middle, high] = parts as [Node, Node, Node];
  if (parts.length !== 3 || !isBound(low) || !isBound(high)) return undefined;
  const [first, second] = operators as [string, string];
  const above = interval(openBracket(first), low, high, closeBracket(second));
  if (isSubject(middle)) return above;
  if (middle.kind === "call" && middle.name === "abs" && isSubject(middle.arguments[0]!)) {
    const negative = (of: Node): Node => ({ kind: "negative", of });
    const below = interval(openBracket(second), negative(high), negative(low), closeBracket(first));
    return { kind: "union", items: [below, above] };
  }
  return undefined;
}

function isBound(node: Node): boolean {
  return (
    !hasName(node) &&
    /^(?:number|sum|product|quotient|power|root|negative|constant|call|unit)$/.test(node.kind)
  );
}

function sameRelation(a: Of<"relation">, b: Of<"relation">, comparison: Comparison): boolean {
  const inOrder = (x: Of<"relation">, y: Of<"relation">) =>
    x.operators.length === y.operators.length &&
    x.operators.every((operator, i) => operator === y.operators[i]) &&
    x.parts.every((part, i) => same(part, y.parts[i]!, comparison));
  if (inOrder(a, b)) return true;
  if (b.operators.every((operator) => Object.hasOwn(mirrored, operator))) {
    const turned: Of<"relation"> = {
      kind: "relation",
      operators: b.operators.map((operator) => mirrored[operator]!).reverse(),
      parts: [...b.parts].reverse(),
    };
    if (inOrder(a, turned)) return true;
  }
  const single = a.operators.length === 1 && b.operators.length === 1;
  return single && a.operators[0] === "=" && b.operators[0] === "=" && proportional(a, b, comparison);
}

/** L₁ - R₁ = c (L₂ - R₂) for one constant c: the same line, circle or plane. */
function proportional(a: Of<"relation">, b: Of<"relation">, comparison: Comparison): boolean {
  const difference = (relation: Of<"relation">): Node => ({
    kind: "sum",
    items: [relation.parts[0]!, { kind: "negative", of: relation.parts[1]! }],
  });
  return comparison.values.proportional(difference(a), difference(b));
}

// ----------------------------------------------------------------------------------------------- text, units

function sameText(a: string, b: string): boolean {
  const plain = (text: string) =>
    text
      .toLowerCase()
      .replace(/[^\p{L}\p{N}]+/gu, " ")
      .trim();
  return plain(a) === plain(b) && plain(a) !== "";
}

const unitTable: Record<string, [quantity: string, unit: string]> = {};
for (const [quantity, units] of Object.entries({
  length:
    "mm millimeter/cm centimeter/m meter metre/km kilometer/in inch inches/ft foot feet/yd yard/mi mile",
  mass: "mg milligram/g gram/kg kilogram/lb lbs pound/oz ounce",
  time: "s sec second/min minute/h hr hour/day/week/month/year",
  money: "dollar/cent",
  volume: "ml milliliter/l liter litre/gallon/quart/pint/cup",
})) {
  for (const names of units.split("/")) {
    const [first, ...others] = names.split(" ") as [string, ...string[]];
    for (const name of [first, ...others]) unitTable[name] = unitTable[`${name}s`] = [quantity, first];
  }
}

/** Centimetres against metres, not centimetres against square centimetres or "students". */
function unitsConflict(a: string, b: string): boolean {
  const left = Object.hasOwn(unitTable, a.trim()) ? unitTable[a.trim()] : undefined;
  const right = Object.hasOwn(unitTable, b.trim()) ? unitTable[b.trim()] : undefined;
  return left !== undefined && right !== undefined && left[0] === right[0] && left[1] !== right[1];
}
