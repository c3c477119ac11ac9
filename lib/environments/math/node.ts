/** The tree of a parsed answer, and the properties that follow from its shape. */

import Fraction from "fraction.js";

/** One variant of the union for each kind, so that `kind` narrows. */
type Each<Kind extends string, Fields> = Kind extends string ? { kind: Kind } & Fields : never;

export type Node =
  | { kind: "number"; value: Fraction; digits: string }
  | { kind: "based"; digits: string; base: string }
  | { kind: "constant"; name: "pi" | "e" | "i" | "infinity" }
  | { kind: "name"; name: string }
  | { kind: "text"; text: string }
  | Each<"sum" | "product", { items: Node[] }>
  | Each<"negative" | "factorial" | "percent" | "degrees", { of: Node }>
  | Each<"quotient" | "power" | "root", { left: Node; right: Node }>
  /** ± (up) or ∓ before `of`. */
  | { kind: "plusMinus"; up: boolean; of: Node }
  | { kind: "call"; name: string; arguments: Node[] }
  | { kind: "tuple"; open: "(" | "["; close: ")" | "]"; items: Node[] }
  | Each<"list" | "set" | "union" | "ratio", { items: Node[] }>
  | { kind: "matrix"; style: string; rows: Node[][] }
  /** Values and their conditions; undefined for "otherwise". */
  | { kind: "cases"; rows: { value: Node; when: Node | undefined }[] }
  | { kind: "relation"; operators: string[]; parts: Node[] }
  | { kind: "unit"; of: Node; unit: string };

export type Of<Kind extends Node["kind"]> = Extract<Node, { kind: Kind }>;

/** A numeral as written. */
export function number(digits: string): Node {
  const [whole = "", decimals = ""] = digits.split(".");
  const value = new Fraction(BigInt(whole + decimals), 10n ** BigInt(decimals.length));
  return { kind: "number", value, digits };
}

export function negative(of: Node): Node {
  return { kind: "negative", of };
}

/** The letters and digits of a numeral in a base above ten. */
export function letters(node: Node): string | undefined {
  if (node.kind === "number") return node.digits;
  if (node.kind === "name") return undefined;
  if (node.kind !== "product" || node.items[0]?.kind !== "number") return undefined;
  let text = "";
  for (const item of node.items) {
    if (item.kind === "number") text += item.digits;
    else if (item.kind === "name" && item.name.length === 1) text += item.name;
    else return undefined;
  }
  return text;
}

/** A subscript as text. */
export function printed(node: Node): string | undefined {
  switch (node.kind) {
    case "number":
      return node.digits;
    case "name":
    case "constant":
      return node.name;
    case "text":
      return node.text;
    case "sum":
    case "product":
    case "list": {
      const parts = node.items.map(printed);
      return parts.includes(undefined)
        ? undefined
        : parts.join(node.kind === "sum" ? "+" : node.kind === "list" ? "," : "");
    }
    case "negative": {
      const inner = printed(node.of);
      return inner === undefined ? undefined : `-${inner}`;
    }
    default:
      return undefined;
  }
}

/** Whether a value depends on a variable. */
export function hasName(node: Node): boolean {
  switch (node.kind) {
    case "name":
    case "text":
      return true;
    case "sum":
    case "product":
    case "tuple":
      return node.items.some(hasName);
    case "matrix":
      return node.rows.some((row) => row.some(hasName));
    case "negative":
    case "factorial":
    case "percent":
    case "degrees":
    case "plusMinus":
    case "unit":
      return hasName(node.of);
    case "quotient":
    case "power":
    case "root":
      return hasName(node.left) || hasName(node.right);
    case "call":
      return node.name.includes(":") || node.arguments.some(hasName);
    default:
      return false;
  }
}

/** Whether a node is a matrix or arithmetic with matrices or points. */
export function hasMatrix(node: Node): boolean {
  switch (node.kind) {
    case "matrix":
      return true;
    case "sum":
    case "product":
      return node.items.some((item) => item.kind === "tuple" || hasMatrix(item));
    case "negative":
      return node.of.kind === "tuple" || hasMatrix(node.of);
    case "quotient":
    case "power":
      return node.left.kind === "tuple" || hasMatrix(node.left);
    case "call":
      return /^(?:det|transpose)$/.test(node.name) && node.arguments.some(hasMatrix);
    default:
      return false;
  }
}

/** The product of `left` and `right`; a product on the left is extended. */
export function joinProduct(left: Node, right: Node): Node {
  return left.kind === "product"
    ? { kind: "product", items: [...left.items, right] }
    : { kind: "product", items: [left, right] };
}

/** A power, or a transposed matrix: an exponent T always means the transpose. */
export function raised(left: Node, right: Node): Node {
  if (left.kind === "matrix" && right.kind === "name" && /^(?:T|\\top|\\intercal)$/.test(right.name))
    return { kind: "call", name: "transpose", arguments: [left] };
  return { kind: "power", left, right };
}
