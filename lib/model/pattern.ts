/**
 * Rewrites regular expressions of JavaScript to the part of the syntax that xgrammar reads as
 * JavaScript does: sets of characters, groups, alternatives and repetitions. Anchors become the
 * absence of text around the expression, and sets contain only what a text can have.
 */

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
/** Maximum length of a rewritten expression; the core refuses longer grammars. */
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
const classes: Readonly<Record<string, readonly Range[]>> = {
  ...{ d: digits, D: complement(digits), w: word, W: complement(word) },
  ...{ s: space, S: complement(space) },
};
const controls: Readonly<Record<string, number>> = { 0: 0, t: 9, n: 10, v: 11, f: 12, r: 13 };

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
  const pattern = strictPattern(asked);
  new RegExp(pattern, "u");
  const isSchema = use.in !== "text";
  const allowed = characters[use.in];
  const around: Node = { kind: "repeat", node: { kind: "set", ranges: allowed }, min: 0, max: Infinity };
  const parsed = new Parser(pattern, isSchema ? complement(lineBreaks) : all).read();
  const node = possible(anchored(parsed, isSchema ? around : empty), allowed);
  if (isNever(node)) throw new Error(`no text ${without[use.in]}matches it`);
  return written(limited(node, use.minLength ?? 0, use.maxLength ?? Infinity));
}

// --- parsing -------------------------------------------------------------------------------------

class Parser {
  readonly #pattern: string;
  readonly #dot: readonly Range[];
  #at = 0;
  #depth = 0;

  constructor(pattern: string, dot: readonly Range[]) {
    this.#pattern = pattern;
    this.#dot = dot;
  }

  /** Alternatives, up to the end of the pattern or of their group. */
  read(): Node {
    const nodes = [this.#branch()];
    while (this.#take(/\|/y)) nodes.push(this.#branch());
    return nodes.length === 1 ? nodes[0]! : { kind: "any", nodes };
  }

  #branch(): Node {
    const nodes: Node[] = [];
    while (this.#at < this.#pattern.length && !/[|)]/.test(this.#pattern[this.#at]!)) {
      const node = this.#atom();
      const [found, symbol, least, comma, most] = this.#take(/(?:([*+?])|\{(\d+)(,?)(\d*)\})\??/y) ?? [];
      if (found === undefined) nodes.push(node);
      else {
        const min = symbol === undefined ? Number(least) : symbol === "+" ? 1 : 0;
        const open = symbol === undefined ? comma !== "" && most === "" : symbol !== "?";
        nodes.push({ kind: "repeat", node, min, max: open ? Infinity : Number(most || least || 1) });
      }
    }
    return { kind: "sequence", nodes };
  }

  #atom(): Node {
    if (this.#take(/\^/y)) return { kind: "start" };
    if (this.#take(/\$/y)) return { kind: "end" };
    if (this.#take(/\./y)) return { kind: "set", ranges: this.#dot };
    if (this.#take(/\[/y)) return this.#set();
    if (!this.#take(/\((?:\?(?::|<(?![=!])[^>]+>))?/y))
      return { kind: "set", ranges: this.#character(false) };
    if (this.#take(/\?/y)) throw new Error("it has a lookahead, a lookbehind or flags, (?…)");
    if (++this.#depth > maxDepth) throw new Error(`its groups are nested deeper than ${maxDepth} levels`);
    const node = this.read();
    this.#depth--;
    this.#take(/\)/y);
    return node;
  }

  /** A set of characters after its bracket. */
  #set(): Node {
    const isComplement = this.#take(/\^/y) !== undefined;
    const ranges: Range[] = [];
    while (!this.#take(/\]/y)) {
      const first = this.#character(true);
      const last = this.#take(/-(?!\])/y) ? this.#character(true) : undefined;
      if (last === undefined) ranges.push(...first);
      else ranges.push([first[0]![0], last[0]![1]]);
    }
    return { kind: "set", ranges: isComplement ? complement(union(ranges)) : union(ranges) };
  }

  /** A character, or an escape of several. */
  #character(inSet: boolean): readonly Range[] {
    const hex = this.#take(
      /\\u(?:\{([\da-f]+)\}|(d[89ab][\da-f]{2})\\u(d[c-f][\da-f]{2})|([\da-f]{4}))|\\x([\da-f]{2})/iy,
    );
    if (hex !== undefined) {
      const [, braced, high, low, four, two] = hex;
      const text =
        high === undefined ? undefined : String.fromCharCode(Number(`0x${high}`), Number(`0x${low}`));
      return text === undefined ? one(Number(`0x${braced ?? four ?? two}`)) : [codePoint(text)];
    }
    const property = this.#take(/\\[pP]\{[^}]+\}/y)?.[0];
    if (property !== undefined) throw new Error(`it has ${property}`);
    const control = this.#take(/\\c([a-z])/iy)?.[1];
    if (control !== undefined) return one(control.charCodeAt(0) % 32);
    const [whole, escaped] = this.#take(/\\(.)|./suy)!;
    if (escaped === undefined) return [codePoint(whole)];
    if (classes[escaped] !== undefined) return classes[escaped];
    if (escaped === "b" && inSet) return one(8);
    if (/[bB]/.test(escaped)) throw new Error(`it has a word boundary, \\${escaped}`);
    if (/[1-9k]/.test(escaped)) throw new Error(`it has a back reference, \\${escaped}`);
    return controls[escaped] === undefined ? [codePoint(escaped)] : one(controls[escaped]);
  }

  #take(sticky: RegExp): RegExpExecArray | undefined {
    sticky.lastIndex = this.#at;
    const found = sticky.exec(this.#pattern) ?? undefined;
    this.#at += found?.[0].length ?? 0;
    return found;
  }
}

// --- sets ----------------------------------------------------------------------------------------

function codePoint(character: string): Range {
  const code = character.codePointAt(0)!;
  return [code, code];
}

function one(code: number): readonly Range[] {
  return [[code, code]];
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
