/**
 * Rewrites regular expressions of JavaScript to the part of the syntax that xgrammar reads as
 * JavaScript does: sets of characters, groups, alternatives and repetitions. Anchors become the
 * absence of text around the expression, and sets contain only what a text can have.
 */

import { type AST, RegExpParser } from "@eslint-community/regexpp";

/** Code points from the first to the second, inclusive. */
type Range = readonly [first: number, last: number];

type Node =
  /** One character, out of sorted ranges that do not overlap. */
  | { kind: "set"; ranges: readonly Range[] }
  | { kind: "sequence"; nodes: readonly Node[] }
  /** One of the nodes. No text matches an `any` of no nodes. */
  | { kind: "any"; nodes: readonly Node[] }
  | { kind: "repeat"; node: Node; min: number; max: number }
  | { kind: "start" }
  | { kind: "end" };

export interface PatternUse {
  /**
   * "text": the whole text matches, and `.` is any character, as with the flag s. Others are
   * a schema's patterns, which a part of the value matches. "json": the value of a JSON string that
   * has no character that must be escaped. "tags": text between tags, without <.
   */
  in: "text" | "json" | "tags";
  /** Limits of the text's length, in code points. */
  minLength?: number;
  maxLength?: number;
}

/** Maximum nesting of groups; the same as in the core. */
const maxDepth = 64;
/** Maximum length of an expression, also after rewriting; the core refuses longer grammars. */
const maxWritten = 64 * 2 ** 10;

/** All characters but the null character, which no text has. */
const all: readonly Range[] = [
  [1, 0xd7ff],
  [0xe000, 0x10ffff],
];
/** The characters of a text. */
const characters: Readonly<Record<PatternUse["in"], readonly Range[]>> = {
  text: all,
  json: between(all, complement([[1, 0x1f], codePoint('"'), codePoint("\\")])),
  tags: between(all, complement([codePoint("<")])),
};
const without = {
  text: "",
  json: "without quotes, backslashes and control characters ",
  tags: "without < ",
} as const;
const digits: readonly Range[] = [[0x30, 0x39]];
const word: readonly Range[] = [...digits, [0x41, 0x5a], codePoint("_"), [0x61, 0x7a]];
const lineBreaks: readonly Range[] = [
  [10, 10],
  [13, 13],
  [0x2028, 0x2029],
];
const space = union([
  ...[...lineBreaks, [9, 13] as const, [0x2000, 0x200a] as const],
  ...[..." \u00a0\u1680\u202f\u205f\u3000\ufeff"].map(codePoint),
]);
const classes = { digit: digits, word, space } as const;

const empty: Node = { kind: "sequence", nodes: [] };

/**
 * The pattern with escapes that JavaScript's flag u does not allow, but other languages and
 * JavaScript without the flag do, in a form that it does: `\-`, `\@`, and `[\w-.]`.
 */
export function strictPattern(pattern: string): string {
  return pattern.replace(/\\([dDsSwW])-|\\(.)/gs, (found, several, escaped) => {
    if (several !== undefined) return `\\${several}\\x2d`;
    return /[ -/:-@[-`{-~]/.test(escaped) ? `\\x${escaped.charCodeAt(0).toString(16)}` : found;
  });
}

/**
 * The pattern in the core's form.
 * @throws a SyntaxError if it is not a regular expression; an Error that says why it cannot be enforced
 */
export function corePattern(asked: string, use: PatternUse): string {
  if (asked.length > maxWritten) throw new Error("it is too long");
  const isSchema = use.in !== "text";
  const allowed = characters[use.in];
  const around: Node = { kind: "repeat", node: { kind: "set", ranges: allowed }, min: 0, max: Infinity };
  const parsed = nodeOf(parse(strictPattern(asked)), isSchema ? complement(lineBreaks) : all);
  const node = possible(anchored(parsed, isSchema ? around : empty), allowed);
  if (isNever(node)) throw new Error(`no text ${without[use.in]}matches it`);
  return written(limited(node, use.minLength ?? 0, use.maxLength ?? Infinity));
}

// --- parsing -------------------------------------------------------------------------------------

const parser = new RegExpParser();

function parse(pattern: string): AST.Pattern {
  try {
    return parser.parsePattern(pattern, 0, pattern.length, { unicode: true });
  } catch (error) {
    // The parser calls itself for each group.
    throw error instanceof RangeError ? tooDeep() : error;
  }
}

function tooDeep(): Error {
  return new Error(`its groups are nested deeper than ${maxDepth} levels`);
}

/**
 * @param dot the characters that `.` matches
 * @param depth number of groups around it
 */
function nodeOf(
  { alternatives }: AST.Pattern | AST.Group | AST.CapturingGroup,
  dot: readonly Range[],
  depth = 0,
): Node {
  if (depth > maxDepth) throw tooDeep();
  const nodes = alternatives.map(
    ({ elements }): Node => ({
      kind: "sequence",
      nodes: elements.map((element) => elementNode(element, dot, depth)),
    }),
  );
  return nodes.length === 1 ? nodes[0]! : { kind: "any", nodes };
}

function elementNode(element: AST.Element, dot: readonly Range[], depth: number): Node {
  switch (element.type) {
    case "Quantifier": {
      const { min, max } = element;
      return { kind: "repeat", node: elementNode(element.element, dot, depth), min, max };
    }
    case "Group":
      if (element.modifiers) throw new Error("it has flags, (?…:)");
      return nodeOf(element, dot, depth + 1);
    case "CapturingGroup":
      return nodeOf(element, dot, depth + 1);
    case "Assertion":
      if (element.kind === "start" || element.kind === "end") return { kind: element.kind };
      if (element.kind === "word") throw new Error(`it has a word boundary, ${element.raw}`);
      throw new Error(`it has a ${element.kind}`);
    case "Backreference":
      throw new Error(`it has a back reference, ${element.raw}`);
    default:
      return { kind: "set", ranges: rangesOf(element, dot) };
  }
}

function rangesOf(
  element: AST.QuantifiableElement | AST.CharacterClassElement,
  dot: readonly Range[],
): readonly Range[] {
  switch (element.type) {
    case "Character":
      return [[element.value, element.value]];
    case "CharacterClassRange":
      return [[element.min.value, element.max.value]];
    case "CharacterClass": {
      const ranges = union(element.elements.flatMap((part) => rangesOf(part, dot)));
      return element.negate ? complement(ranges) : ranges;
    }
    case "CharacterSet":
      if (element.kind === "any") return dot;
      if (element.kind === "property") throw new Error(`it has ${element.raw}`);
      return element.negate ? complement(classes[element.kind]) : classes[element.kind];
    default:
      throw new Error(`it has ${element.raw}`);
  }
}

// --- sets ----------------------------------------------------------------------------------------

function codePoint(character: string): Range {
  const code = character.codePointAt(0)!;
  return [code, code];
}

function union(ranges: readonly Range[]): Range[] {
  const merged: [number, number][] = [];
  for (const [first, last] of [...ranges].sort(([a], [b]) => a - b)) {
    const before = merged.at(-1);
    if (before === undefined || first > before[1] + 1) merged.push([first, last]);
    else before[1] = Math.max(before[1], last);
  }
  return merged;
}

/** @param ranges sorted */
function complement(ranges: readonly Range[]): Range[] {
  const others: Range[] = [];
  let next = 0;
  for (const [first, last] of ranges) {
    if (first > next) others.push([next, first - 1]);
    next = last + 1;
  }
  return next > 0x10ffff ? others : [...others, [next, 0x10ffff]];
}

/** What is in both. */
function between(some: readonly Range[], others: readonly Range[]): Range[] {
  return some.flatMap(([first, last]) =>
    others.flatMap(([from, to]): Range[] => {
      const both: Range = [Math.max(first, from), Math.min(last, to)];
      return both[0] <= both[1] ? [both] : [];
    }),
  );
}

// --- rewriting -----------------------------------------------------------------------------------

/** The expression without its anchors, and with `around` where it has none. */
function anchored(node: Node, around: Node): Node {
  if (node.kind === "any")
    return { kind: "any", nodes: node.nodes.map((branch) => anchored(branch, around)) };
  let nodes = node.kind === "sequence" ? node.nodes : [node];
  const [only] = nodes;
  if (nodes.length === 1 && (only!.kind === "any" || only!.kind === "sequence"))
    return anchored(only!, around);
  const starts = nodes.findIndex(({ kind }) => kind !== "start");
  const from = starts < 0 ? nodes.length : starts;
  const to = nodes.findLastIndex(({ kind }) => kind !== "end") + 1;
  const [before, after] = [from > 0 ? [] : [around], to < nodes.length ? [] : [around]];
  nodes = nodes.slice(from, Math.max(from, to));
  if (nodes.some(hasAnchor)) throw new Error("it has ^ or $ in its middle");
  return { kind: "sequence", nodes: [...before, ...nodes, ...after] };
}

function hasAnchor(node: Node): boolean {
  switch (node.kind) {
    case "set":
      return false;
    case "repeat":
      return hasAnchor(node.node);
    case "sequence":
    case "any":
      return node.nodes.some(hasAnchor);
    default:
      return true;
  }
}

function isNever(node: Node): boolean {
  return node.kind === "any" && node.nodes.length === 0;
}

/** The expression without what only other characters match. */
function possible(node: Node, allowed: readonly Range[]): Node {
  const never: Node = { kind: "any", nodes: [] };
  switch (node.kind) {
    case "set": {
      const ranges = between(node.ranges, allowed);
      return ranges.length === 0 ? never : { kind: "set", ranges };
    }
    case "repeat": {
      if (node.max === 0) return empty;
      const inner = possible(node.node, allowed);
      if (isNever(inner)) return node.min === 0 ? empty : never;
      return { ...node, node: inner };
    }
    case "sequence": {
      const nodes = node.nodes.map((part) => possible(part, allowed));
      return nodes.some(isNever) ? never : { kind: "sequence", nodes };
    }
    case "any": {
      const nodes = node.nodes.map((branch) => possible(branch, allowed)).filter((one) => !isNever(one));
      return nodes.length === 1 ? nodes[0]! : { kind: "any", nodes };
    }
    default:
      return node;
  }
}

/** The least and the most characters of a text. */
function lengths(node: Node): readonly [least: number, most: number] {
  switch (node.kind) {
    case "set":
      return [1, 1];
    case "repeat": {
      const [least, most] = lengths(node.node);
      return [least * node.min, most === 0 ? 0 : most * node.max];
    }
    case "sequence":
      return node.nodes.map(lengths).reduce(([a, b], [least, most]) => [a + least, b + most], [0, 0]);
    case "any":
      return node.nodes
        .map(lengths)
        .reduce(([a, b], [least, most]) => [Math.min(a, least), Math.max(b, most)], [Infinity, 0]);
    default:
      return [0, 0];
  }
}

/** The expression with limits of the length, if one repetition of a set is all that varies in length. */
function limited(node: Node, min: number, max: number): Node {
  const [least, most] = lengths(node);
  if (least >= min && most <= max) return node;
  const nodes = node.kind === "sequence" ? node.nodes : [node];
  const varying = nodes.filter((part) => new Set(lengths(part)).size > 1);
  const [only] = varying;
  if (varying.length === 1 && only!.kind === "sequence")
    return {
      kind: "sequence",
      nodes: nodes.map((part) => (part === only ? limited(part, min - least, max) : part)),
    };
  if (varying.length !== 1 || only!.kind !== "repeat" || only!.node.kind !== "set")
    throw new Error("several of its parts vary in length, beside minLength or maxLength");
  const fixed = least - only!.min;
  const repeat = {
    ...only!,
    min: Math.max(only!.min, min - fixed),
    max: Math.min(only!.max, max - fixed),
  };
  if (repeat.min > repeat.max) throw new Error("no text of the allowed length matches it");
  return { kind: "sequence", nodes: nodes.map((part) => (part === only ? repeat : part)) };
}

// --- writing -------------------------------------------------------------------------------------

function written(node: Node): string {
  const text = write(node);
  if (text.length > maxWritten) throw new Error("it is too long");
  return text;
}

function write(node: Node): string {
  switch (node.kind) {
    case "set":
      return setText(node.ranges);
    case "sequence":
      return node.nodes.map((part) => (part.kind === "any" ? `(${written(part)})` : written(part))).join("");
    case "any":
      return node.nodes.map(written).join("|");
    case "repeat": {
      const { min, max } = node;
      const inner = node.node.kind === "set" ? written(node.node) : `(${written(node.node)})`;
      if (max === Infinity) {
        // xgrammar misreads {n,} of alternatives.
        if (min <= 1) return inner + (min === 0 ? "*" : "+");
        return `${inner}{${min}}${inner}*`;
      }
      // Nor may ? follow a group: xgrammar would let its repetitions follow without its beginning.
      if (min === 0 && max === 1) return node.node.kind === "set" ? `${inner}?` : `(${inner}|)`;
      return `${inner}{${min},${max}}`;
    }
    default:
      return "";
  }
}

function setText(ranges: readonly Range[]): string {
  const [[first, last]] = ranges as [Range];
  if (ranges.length === 1 && first === last) return characterText(first);
  // xgrammar reads an escaped ^ as a complement if it comes first.
  const sorted =
    first === 0x5e ? [...ranges.slice(1), [first + 1, last] as const, [first, first] as const] : ranges;
  const parts = sorted
    .filter(([from, to]) => from <= to)
    .map(([from, to]) => characterText(from) + (from === to ? "" : `-${characterText(to)}`));
  return `[${parts.join("")}]`;
}

function characterText(code: number): string {
  const text = String.fromCodePoint(code);
  return /^[\w ,:;@%&=<>!~#'"`]$/.test(text) ? text : `\\u{${code.toString(16)}}`;
}
