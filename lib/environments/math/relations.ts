/**
 * The meaning of equations and inequalities: the value of "x = 5", the interval of "-2x < 6", the
 * quantity that a label such as "|AB|" names.
 */

import Fraction from "fraction.js";
import { exact, type Fuel } from "./exact.ts";
import { hasName, type Node, negative, number, type Of } from "./node.ts";

type Relation = Of<"relation">;

/** The value or set that a node states about its subject, else the node itself. */
export function meaning(node: Node, fuel: Fuel): Node {
  if (node.kind === "relation") {
    const { operators, parts } = node;
    const approx = operators.indexOf("approx");
    if (approx > 0)
      return meaning(
        { kind: "relation", operators: operators.slice(0, approx), parts: parts.slice(0, approx + 1) },
        fuel,
      );
    if (approx === 0) return isSubject(parts[0]!) ? parts[1]! : parts[0]!;
    if (operators.every((operator) => operator === "=")) {
      if (isSubject(parts[0]!)) return parts.at(-1)!;
      if (!hasName(parts[0]!)) {
        // 2 + 3 = 5, or 5 = x.
        if (!hasName(parts.at(-1)!)) return contradictsItself(parts, fuel) ? node : parts.at(-1)!;
        if (parts.length === 2 && isSubject(parts[1]!)) return parts[0]!;
      }
    }
    if (operators.join() === "in" && isSubject(parts[0]!)) return meaning(parts[1]!, fuel);
    return asInterval(node, fuel) ?? allBut(node) ?? node;
  }
  if (isRealLine(node)) return interval("(", negativeInfinity, infinite, ")");
  if (node.kind === "union" && node.items.every((item) => item.kind === "set"))
    return { kind: "set", items: node.items.flatMap((item) => (item as Of<"set">).items) };
  if (node.kind === "list" && node.items.length > 1 && node.items.every((item) => item.kind === "relation")) {
    const intervals = node.items.map((item) => asInterval(item as Relation, fuel));
    if (intervals.every((found) => found !== undefined))
      return (
        overlap(intervals, fuel) ?? {
          kind: "union",
          items: intervals.flatMap((each) => (each.kind === "union" ? each.items : [each])),
        }
      );
  }
  return node;
}

/**
 * Whether an equation without names equates different numbers, as 4 = 5 does. Then it states no
 * value. A decimal may be rounded, as in 2/3 = 0.67. What a name is said to equal last remains its
 * value: x = 3 + 3 = 5 is 5, as Math-Verify's tests demand.
 */
function contradictsItself(parts: readonly Node[], fuel: Fuel): boolean {
  const numbers = parts.flatMap((part) => {
    const value = isArithmetic(part) ? exact(part, fuel) : undefined;
    return value === undefined ? [] : [{ value, within: resolution(part) }];
  });
  return numbers.some(({ value, within }, i) =>
    numbers.slice(0, i).some((other) =>
      value
        .sub(other.value)
        .abs()
        .gt(within.gt(other.within) ? within : other.within),
    ),
  );
}

/** Whether a node has only numbers, without units, percent signs or remainders. */
function isArithmetic(node: Node): boolean {
  switch (node.kind) {
    case "number":
      return true;
    case "negative":
    case "factorial":
      return isArithmetic(node.of);
    case "call":
      return node.name !== "mod" && node.arguments.every(isArithmetic);
    case "sum":
    case "product":
      return node.items.every(isArithmetic);
    case "quotient":
    case "power":
      return isArithmetic(node.left) && isArithmetic(node.right);
    default:
      return false;
  }
}

/** The unit of a decimal's last place; 0 for any other node. */
function resolution(node: Node): Fraction {
  if (node.kind === "negative") return resolution(node.of);
  const places = node.kind === "number" ? /\.(\d+)$/.exec(node.digits)?.[1]?.length : undefined;
  return places === undefined ? zero : new Fraction(1n, 10n ** BigInt(places));
}

/**
 * The last part of a prediction "x + y = 7", whose left side names the quantity. Only used if the
 * gold answer is a bare value; otherwise the prediction is a line.
 */
export function statedValue(node: Node): Node | undefined {
  if (node.kind !== "relation" || node.operators.some((operator) => operator !== "=")) return undefined;
  return isQuantity(node.parts[0]!) ? node.parts.at(-1)! : undefined;
}

/** Whether a node names the subject of an answer: x, f(3), AB, |AB|, an angle, a tuple of names. */
function isSubject(node: Node): boolean {
  switch (node.kind) {
    case "name":
    case "text":
      return true;
    case "constant":
      // Rare, but "e = …" and "i = …" do name things.
      return node.name === "e" || node.name === "i";
    case "call":
      if (/^(?:apply|index):|^prime$/.test(node.name)) return true;
      if (node.name === "abs") return node.arguments.every(isFigure);
      return trigonometric.test(node.name) && node.arguments.some(hasName);
    case "product":
    case "quotient":
    case "sum":
      return isFigure(node);
    case "ratio":
    case "tuple":
    case "list":
      return node.items.every(isSubject);
    default:
      return false;
  }
}

const trigonometric = /^(?:sin|cos|tan|cot|sec|csc|det|arg|Re|Im)$/;

/** Names of segments and angles (AB, \overline{AB}), E[X], d(A, B); sums and ratios of them. */
function isFigure(node: Node): boolean {
  switch (node.kind) {
    case "product":
      return (
        (node.items.length === 2 && isDerivative(node.items[0]!)) ||
        node.items.every(
          (item, i) =>
            isPointOrSign(item) ||
            (item.kind === "tuple" && item.items.every(isPointOrSign)) ||
            (i === 0 && (item.kind === "text" || (item.kind === "name" && node.items[1]!.kind === "tuple"))),
        )
      );
    case "quotient":
      return isFigure(node.left) && isFigure(node.right);
    case "sum":
      return node.items.every((item) => isFigure(item));
    case "name":
      return node.name.includes(":");
    default:
      return false;
  }
}

/** f' before its argument. */
function isDerivative(node: Node): boolean {
  return node.kind === "call" && node.name === "prime";
}

function isPointOrSign(node: Node): boolean {
  return node.kind === "name" && /^\\?[A-Z]|^\\(?:angle|triangle)|^m$|:/.test(node.name);
}

/** Whether an expression has numbers only as exponents and in a function's arguments. */
function isQuantity(node: Node): boolean {
  switch (node.kind) {
    case "sum":
    case "product":
      return node.items.every(isQuantity);
    case "negative":
      return isQuantity(node.of);
    case "quotient":
      return isQuantity(node.left) && isQuantity(node.right);
    case "power":
      return isQuantity(node.left) && (node.right.kind === "number" || isQuantity(node.right));
    case "call":
      return isSubject(node) || hasName(node);
    default:
      return isSubject(node);
  }
}

export function isEquation(relation: Relation): boolean {
  return relation.operators.every((operator) => operator === "=" || operator === "approx");
}

/** The subject of an equation as text. */
export function subject(relation: Relation): string | undefined {
  const first = relation.parts[0]!;
  return isSubject(first) ? nameOf(first) : undefined;
}

function nameOf(node: Node): string {
  if (node.kind === "name" || node.kind === "constant") return node.name;
  return JSON.stringify(node, (_key, value: unknown) =>
    typeof value === "bigint" ? value.toString() : value,
  );
}

/**
 * Whether two equations have the same subject. Two names must agree, and so must two known
 * functions; y and f(x) may be the same, and so may x and x_1.
 */
export function sameSubject(a: Relation, b: Relation): boolean {
  const first = a.parts[0]!;
  const second = b.parts[0]!;
  const known = (node: Node) =>
    node.kind === "name" || (node.kind === "call" && trigonometric.test(node.name));
  if (known(first) && known(second)) {
    const [x, y] = [nameOf(first), nameOf(second)];
    return x === y || (x.includes("_") !== y.includes("_") && x.replace(/_.*/, "") === y.replace(/_.*/, ""));
  }
  return isSubject(first) && isSubject(second);
}

// --------------------------------------------------------------------------------------- intervals

const infinite: Node = { kind: "constant", name: "infinity" };
const negativeInfinity = negative(infinite);

function interval(open: "(" | "[", low: Node, high: Node, close: ")" | "]"): Node {
  return { kind: "tuple", open, close, items: [low, high] };
}

/** "x > 1 and x < 3": two half-lines that cover the whole line mean their intersection. */
function overlap(intervals: readonly Node[], fuel: Fuel): Node | undefined {
  if (intervals.length !== 2 || intervals.some((each) => each.kind !== "tuple")) return undefined;
  const halves = intervals as Of<"tuple">[];
  const upper = halves.find((each) => each.items[1] === infinite);
  const lower = halves.find((each) => each.items[0] === negativeInfinity);
  if (upper === undefined || lower === undefined || upper === lower) return undefined;
  const low = exact(upper.items[0]!, fuel);
  const high = low && exact(lower.items[1]!, fuel);
  return low && high && low.lt(high)
    ? interval(upper.open, upper.items[0]!, lower.items[1]!, lower.close)
    : undefined;
}

function isRealLine(node: Node): boolean {
  return node.kind === "name" && node.name === "mathbb:R";
}

/** x ≠ 3 and ℝ without {3} as the two intervals on its sides. */
function allBut({ operators, parts }: Relation): Node | undefined {
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

export const mirrored: Record<string, string> = {
  "<": ">",
  ">": "<",
  "<=": ">=",
  ">=": "<=",
  "=": "=",
  "!=": "!=",
};

/** The set of one inequality or two joined ones, linear in one name or in its absolute value. */
function asInterval({ operators, parts }: Relation, fuel: Fuel): Node | undefined {
  if (operators.length > 2 || operators.some((operator) => !/^[<>]=?$/.test(operator))) return undefined;
  let low: { bound: Node; open: "(" | "[" } = { bound: negativeInfinity, open: "(" };
  let high: { bound: Node; close: ")" | "]" } = { bound: infinite, close: ")" };
  const absolute = parts.find((part) => part.kind === "call" && part.name === "abs" && !isSubject(part));
  if (absolute?.kind === "call") return ofAbsolute(operators, parts, absolute, fuel);
  const subjects = new Set<string>();
  for (const [i, operator] of operators.entries()) {
    const solved = solve(parts[i]!, operator, parts[i + 1]!, fuel);
    if (solved === undefined) return undefined;
    subjects.add(solved.subject);
    const included = solved.operator.endsWith("=");
    const upper = solved.operator.startsWith("<");
    if ((upper ? high.bound : low.bound) !== (upper ? infinite : negativeInfinity)) return undefined;
    if (upper) high = { bound: solved.bound, close: included ? "]" : ")" };
    else low = { bound: solved.bound, open: included ? "[" : "(" };
  }
  return subjects.size === 1 ? interval(low.open, low.bound, high.bound, high.close) : undefined;
}

/** |x - 1| < 3 is one interval; 1 < |x| and 1 < |x| < 2 are two. */
function ofAbsolute(operators: string[], parts: Node[], absolute: Of<"call">, fuel: Fuel): Node | undefined {
  const inner = absolute.arguments[0]!;
  const at = parts.indexOf(absolute);
  const upwards = (operator: string) => operator.startsWith("<") === (at === 0);
  if (operators.length === 1) {
    const bound = parts[1 - at]!;
    const inwards = at === 0 ? operators[0]! : mirrored[operators[0]!]!;
    if (upwards(operators[0]!))
      return asInterval(
        { kind: "relation", operators: [inwards, inwards], parts: [negative(bound), inner, bound] },
        fuel,
      );
    const above = asInterval({ kind: "relation", operators: [inwards], parts: [inner, bound] }, fuel);
    const below = asInterval(
      { kind: "relation", operators: [mirrored[inwards]!], parts: [inner, negative(bound)] },
      fuel,
    );
    return above && below && { kind: "union", items: [below, above] };
  }
  if (at !== 1) return undefined;
  const [first, last] = [parts[0]!, parts[2]!];
  const above = asInterval({ kind: "relation", operators, parts: [first, inner, last] }, fuel);
  const turned = operators.map((operator) => mirrored[operator]!);
  const below = asInterval(
    { kind: "relation", operators: turned, parts: [negative(first), inner, negative(last)] },
    fuel,
  );
  return above && below && { kind: "union", items: [below, above] };
}

/** Solves left < right to x < bound; the operator flips if x has a negative factor. */
function solve(
  left: Node,
  operator: string,
  right: Node,
  fuel: Fuel,
): { subject: string; operator: string; bound: Node } | undefined {
  const a = linear(left, fuel);
  const b = a && linear(right, fuel);
  if (a === undefined || b === undefined) return undefined;
  const subject = a.subject ?? b.subject;
  if (subject === undefined || (b.subject ?? subject) !== subject) return undefined;
  const slope = a.slope.sub(b.slope);
  if (slope.n === 0n) return undefined;
  let bound = b.constant ?? number("0");
  if (a.constant !== undefined)
    bound =
      b.constant === undefined ? negative(a.constant) : { kind: "sum", items: [bound, negative(a.constant)] };
  // A bound that is only negated stays a numeral, since it may be a rounded one.
  if (slope.equals(-1)) bound = negative(bound);
  else if (!slope.equals(1)) bound = { kind: "quotient", left: bound, right: ratio(slope) };
  return { subject, operator: slope.s < 0n ? mirrored[operator]! : operator, bound };
}

function ratio(value: Fraction): Node {
  const size: Node = { kind: "quotient", left: number(`${value.n}`), right: number(`${value.d}`) };
  return value.s < 0n ? negative(size) : size;
}

/** An expression as slope · subject + constant; without a subject it is a bound. */
interface Linear {
  subject?: string;
  slope: Fraction;
  constant?: Node;
}

const zero = new Fraction(0);

function linear(node: Node, fuel: Fuel): Linear | undefined {
  if (isBound(node)) return { slope: zero, constant: node };
  if (isSubject(node)) return { subject: nameOf(node), slope: new Fraction(1) };
  switch (node.kind) {
    case "negative":
      return scaled(linear(node.of, fuel), new Fraction(-1));
    case "quotient": {
      const by = exact(node.right, fuel);
      return by === undefined || by.n === 0n ? undefined : scaled(linear(node.left, fuel), by.inverse());
    }
    case "product": {
      const named = node.items.filter(hasName);
      if (named.length !== 1) return undefined;
      const by = exact({ kind: "product", items: node.items.filter((item) => !hasName(item)) }, fuel);
      return by && scaled(linear(named[0]!, fuel), by);
    }
    case "sum": {
      const terms = node.items.map((item) => linear(item, fuel));
      const total: Linear = { slope: zero };
      const constants: Node[] = [];
      for (const term of terms) {
        if (term === undefined || (term.subject ?? total.subject) !== (total.subject ?? term.subject))
          return undefined;
        total.subject ??= term.subject;
        total.slope = total.slope.add(term.slope);
        if (term.constant !== undefined) constants.push(term.constant);
      }
      if (constants.length > 0)
        total.constant = constants.length === 1 ? constants[0]! : { kind: "sum", items: constants };
      return total;
    }
    default:
      return undefined;
  }
}

function scaled(of: Linear | undefined, by: Fraction): Linear | undefined {
  if (of === undefined) return undefined;
  const constant: Node | undefined = of.constant && { kind: "product", items: [ratio(by), of.constant] };
  return { ...of, slope: of.slope.mul(by), ...(constant && { constant }) };
}

function isBound(node: Node): boolean {
  return (
    !hasName(node) &&
    /^(?:number|sum|product|quotient|power|root|negative|constant|call|unit|percent)$/.test(node.kind)
  );
}

// ------------------------------------------------------------------------------------- differences

/** One side of a relation minus the other, and how that compares with 0. */
export interface Difference {
  of: Node;
  operator: string;
}

/** One difference per operator, the greater side first; undefined for chains of equations. */
export function differences({ operators, parts }: Relation): Difference[] | undefined {
  const single = operators.length === 1 && /^!?=$/.test(operators[0]!);
  if (!single && !operators.every((operator) => /^[<>]=?$/.test(operator))) return undefined;
  return operators.map((operator, i) => {
    const [left, right] = [parts[i]!, parts[i + 1]!];
    const turned = operator.startsWith("<");
    const items = turned ? [right, negative(left)] : [left, negative(right)];
    return { of: { kind: "sum", items }, operator: turned ? mirrored[operator]! : operator };
  });
}
