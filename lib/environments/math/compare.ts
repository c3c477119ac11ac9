/**
 * Compares two parsed answers part by part; values.ts compares what remains. Conventions on which
 * graders differ: units and the word "degrees" are ignored unless both sides name different units
 * of one quantity, or different currencies; 10 % equals both 10 and 0.1; order matters in tuples
 * and intervals, but not in sets and bare lists; "x = 5" equals "5", but "4 = 5" states no value; a
 * decimal equals an irrational number that it rounds to with four digits or more.
 */

import { burn, exact, type Fuel, roundedAlike, roundsTo } from "./exact.ts";
import { hasMatrix, type Node, type Of } from "./node.ts";
import {
  type Difference,
  differences,
  isEquation,
  meaning,
  mirrored,
  sameSubject,
  statedValue,
  subject,
} from "./relations.ts";
import { sameTime, timeOfDay } from "./times.ts";
import { sameText, unitsConflict } from "./units.ts";

/** Comparisons that need a library: see values.ts. */
export interface Values {
  sameValue(a: Node, b: Node): boolean;
  /** Whether a = c · b for a number c ≠ 0, with c > 0 if `positive`. */
  proportional(a: Node, b: Node, positive: boolean): boolean;
}

/** One comparison in progress. */
export interface Comparison extends Fuel {
  readonly values: Values;
}

/** Longer bare lists and sets are compared in order. */
const maxUnordered = 48;

/** Whether the prediction `b` equals the gold answer `a`. */
export function same(a: Node, b: Node, comparison: Comparison): boolean {
  burn(comparison, 4);
  const time = timeOfDay(a);
  if (time?.certain) {
    const other = meaning(b, comparison);
    if (!isCollection(other)) {
      const answered = timeOfDay(other);
      const isHour = other.kind === "number" && time.half === undefined;
      return answered !== undefined && !isHour && sameTime(time, answered);
    }
  }
  if (a.kind === "unit" && b.kind === "unit" && unitsConflict(a.unit, b.unit)) return false;
  if (a.kind === "unit") return same(a.of, b, comparison);
  if (b.kind === "unit") return same(a, b.of, comparison);

  if (a.kind === "relation" && b.kind === "relation" && sameRelation(a, b, comparison)) return true;
  const left = meaning(a, comparison);
  let right = meaning(b, comparison);
  if (right === b && a.kind !== "relation") right = statedValue(b) ?? b;
  if (left !== a || right !== b) {
    const namedDifferently =
      a.kind === "relation" && b.kind === "relation" && isEquation(a) && isEquation(b) && !sameSubject(a, b);
    return !namedDifferently && same(left, right, comparison);
  }

  const signsA = bothSigns(a);
  const signsB = bothSigns(b);
  if (signsA !== a || signsB !== b) return same(signsA, signsB, comparison);

  if (a.kind === "cases" || b.kind === "cases")
    return a.kind === "cases" && b.kind === "cases" && sameCases(a.rows, b.rows, comparison);
  if (isCollection(a) || isCollection(b)) return sameCollections(a, b, comparison);
  if (a.kind === "union" || b.kind === "union") {
    return a.kind === "union" && b.kind === "union" && sameUnordered(a.items, b.items, comparison);
  }
  if (hasMatrix(a) || hasMatrix(b)) return sameMatrices(a, b, comparison);
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

// ------------------------------------------------------------------------------------- expressions

function sameValue(first: Node, second: Node, comparison: Comparison): boolean {
  const [a, b] = [signInside(first), signInside(second)];
  if (a.kind === "percent" || b.kind === "percent") {
    if (a.kind === "percent" && b.kind === "percent") return sameValue(a.of, b.of, comparison);
    const [percent, plain] = a.kind === "percent" ? [a, b] : [b as Of<"percent">, a];
    return sameNumber(percent.of, plain, comparison) || sameNumber(percent, plain, comparison);
  }
  return sameNumber(a, b, comparison);
}

/** -10 % as the percentage of -10; any other node as it is. */
function signInside(node: Node): Node {
  if (node.kind !== "negative" || node.of.kind !== "percent") return node;
  return { kind: "percent", of: { kind: "negative", of: node.of.of } };
}

function sameNumber(a: Node, b: Node, comparison: Comparison): boolean {
  const left = exact(a, comparison);
  const right = left && exact(b, comparison);
  if (left === undefined || right === undefined) return comparison.values.sameValue(a, b);
  return left.equals(right) || roundsTo(left, false, b) || roundsTo(right, false, a) || roundedAlike(a, b);
}

function isInfinity(node: Node): boolean {
  return infinity(node) !== 0;
}

/** 1 and -1 for the two infinities, 0 for anything else. */
function infinity(node: Node): number {
  if (node.kind === "negative") return -infinity(node.of);
  return node.kind === "constant" && node.name === "infinity" ? 1 : 0;
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

/** Replaces every sign that `hasSign` finds, so that none remains. */
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
    case "union":
    case "ratio":
      return { ...node, items: node.items.map((item) => withSign(item, up)) };
    case "negative":
    case "factorial":
    case "percent":
    case "degrees":
    case "unit":
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

// ------------------------------------------------------------------------------------- collections

type Collection = Of<"list"> | Of<"set">;

function isCollection(node: Node): boolean {
  return node.kind === "list" || node.kind === "set";
}

function sameCollections(a: Node, b: Node, comparison: Comparison): boolean {
  if ((a.kind === "list" || a.kind === "set") && (b.kind === "list" || b.kind === "set")) {
    const left = flatten(a, comparison);
    const right = flatten(b, comparison);
    if (a.kind === "list" && b.kind === "list" && isSystem(a) !== isSystem(b)) {
      // x = 1, y = 2 against 1, 2: the names give the order.
      const [system, plain] = isSystem(a) ? [left, right] : [right, left];
      return sameInOrder(
        byName(system).map((item) => meaning(item, comparison)),
        plain,
        comparison,
      );
    }
    if (a.kind === "list" && b.kind === "list" && orderCounts(left, comparison))
      return sameInOrder(left, right, comparison);
    return sameUnordered(left, right, comparison);
  }
  const [collection, other] = (isCollection(a) ? [a, b] : [b, a]) as [Collection, Node];
  const items = flatten(collection, comparison);
  if (collection.kind === "list" && other.kind === "tuple" && other.open === "(" && other.close === ")") {
    return sameInOrder(
      byName(items).map((item) => meaning(item, comparison)),
      other.items,
      comparison,
    );
  }
  if (items.length === 1) return same(items[0]!, other, comparison);
  // x < -1 or x > 3 against a union of intervals.
  if (collection.kind === "list" && other.kind === "union") {
    return sameUnordered(
      items.map((item) => meaning(item, comparison)),
      other.items,
      comparison,
    );
  }
  if (collection.kind === "list" && other.kind === "matrix") return false;
  return (
    items.length > 1 && items.length <= maxUnordered && items.every((item) => same(item, other, comparison))
  );
}

/**
 * Three or more plain numbers or capital letters that neither rise nor fall: an unsorted gold list states an order
 * ("list the terms"), while a sorted one merely enumerates.
 */
function orderCounts(gold: readonly Node[], comparison: Comparison): boolean {
  if (gold.length < 3) return false;
  const values = gold.map((item) =>
    item.kind === "name" && /^[A-Z]$/.test(item.name) ? item.name.charCodeAt(0) : exact(item, comparison),
  );
  if (values.some((value) => value === undefined)) return false;
  const numbers = values.map(Number);
  const monotone = (sign: number) =>
    numbers.every((value, i) => i === 0 || sign * (value - numbers[i - 1]!) >= 0);
  return !monotone(1) && !monotone(-1);
}

/** ± inside a list adds both values; a set in a bare list of one is the set. */
function flatten(collection: Collection, fuel: Fuel): Node[] {
  const items = collection.items.flatMap((item) => {
    const value = meaning(item, fuel);
    const signs = bothSigns(value);
    return signs.kind === "list" && signs !== item && hasSign(value) ? signs.items : [item];
  });
  return items.length === 1 && isCollection(items[0]!) ? flatten(items[0] as Collection, fuel) : items;
}

/** Whether the list consists of equations for different names: x = 1, y = 2. */
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

/** Coordinates in their order: "y = 2, x = 1" is (1, 2). Other items as they are. */
function byName(items: readonly Node[]): readonly Node[] {
  const names = items.map((item) => (item.kind === "relation" ? (subject(item) ?? "") : ""));
  if (!names.every((name) => /^[xyz]$/.test(name))) return items;
  return items
    .map((item, i) => ({ item, name: names[i]! }))
    .sort((a, b) => (a.name < b.name ? -1 : 1))
    .map(({ item }) => item);
}

type Rows = Of<"cases">["rows"];

/** The same values under the same conditions, in any order; one condition may be "otherwise". */
function sameCases(a: Rows, b: Rows, comparison: Comparison): boolean {
  if (a.length !== b.length) return false;
  const others = [...b];
  const open: Rows = [];
  for (const row of a) {
    const at = others.findIndex(
      ({ value, when }) =>
        when !== undefined &&
        row.when !== undefined &&
        same(row.when, when, comparison) &&
        same(row.value, value, comparison),
    );
    if (at < 0) open.push(row);
    else others.splice(at, 1);
  }
  if (open.length === 0) return true;
  const [left, right] = [open[0]!, others[0]!];
  return (
    open.length === 1 &&
    (left.when === undefined || right.when === undefined) &&
    same(left.value, right.value, comparison)
  );
}

function sameInOrder(a: readonly Node[], b: readonly Node[], comparison: Comparison): boolean {
  return a.length === b.length && a.every((item, i) => same(item, b[i]!, comparison));
}

/** Compares as sets: each item has a partner in the other. */
function sameUnordered(a: readonly Node[], b: readonly Node[], comparison: Comparison): boolean {
  if (a.length > maxUnordered || b.length > maxUnordered) return sameInOrder(a, b, comparison);
  return (
    a.every((item) => b.some((other) => same(item, other, comparison))) &&
    b.every((other) => a.some((item) => same(item, other, comparison)))
  );
}

/** Compares entries if both matrices are written out, else values. */
function sameMatrices(a: Node, b: Node, comparison: Comparison): boolean {
  const left = asMatrix(a);
  const right = asMatrix(b);
  if (left === undefined || right === undefined) {
    const literal = left ?? right;
    const both = (left !== undefined || hasMatrix(a)) && (right !== undefined || hasMatrix(b));
    return (both || literal === undefined || isNumber(literal)) && comparison.values.sameValue(a, b);
  }
  if ((left.style === "vmatrix") !== (right.style === "vmatrix")) return comparison.values.sameValue(a, b);
  return (
    left.rows.length === right.rows.length &&
    left.rows.every((row, i) => sameInOrder(row, right.rows[i]!, comparison))
  );
}

/** Whether a matrix that is written out is a number, such as a determinant. */
function isNumber({ style, rows }: Of<"matrix">): boolean {
  return style === "vmatrix" || rows.flat().length === 1;
}

/** A matrix, or a tuple as a column. */
function asMatrix(node: Node): Of<"matrix"> | undefined {
  if (node.kind === "matrix") return node;
  if (node.kind === "tuple" && node.open === "(" && node.close === ")") {
    return { kind: "matrix", style: "pmatrix", rows: node.items.map((item) => [item]) };
  }
  return undefined;
}

function sameRatio(a: Node, b: Node, comparison: Comparison): boolean {
  const left = a.kind === "ratio" ? a.items : [a];
  const right = b.kind === "ratio" ? b.items : [b];
  const [time, answered] = [timeOfDay(a), timeOfDay(b)];
  if (left.length === 2 && right.length === 2 && time && answered) return sameTime(time, answered);
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

// --------------------------------------------------------------------------------------- relations

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
  // Multiples are equal: the same line, circle or half-plane.
  const left = differences(a);
  const right = left && differences(b);
  if (left === undefined || right === undefined || left.length !== right.length) return false;
  const agree = (x: Difference, y: Difference) =>
    x.operator === y.operator && comparison.values.proportional(x.of, y.of, x.operator.startsWith(">"));
  return (
    left.every((x) => right.some((y) => agree(x, y))) && right.every((y) => left.some((x) => agree(x, y)))
  );
}
