/**
 * Renders a Jinja template that is not trusted: its steps, the sizes of its values and its time are
 * limited. Templates cannot reach JavaScript: the interpreter stores all values in maps.
 */

import { Environment, Interpreter, Template } from "@huggingface/jinja";
import { isOverTimeLimit, withTimeLimit } from "../base/time-limit.ts";
import {
  capitalized,
  type Evaluated,
  type JsonOptions,
  pythonEquals,
  pythonJson,
  pythonText,
  titled,
  titledWords,
} from "./jinja-values.ts";

/** Longest source, in UTF-16 units. Long ones of published models have 20,000. */
const maxSource = 1 << 20;
/** Time for parsing or rendering, in milliseconds, and more for each character of the messages. */
const timeoutMs = 3000;
const timeoutMsPerCharacter = 0.01;
/**
 * Work of a rendering: one for each node that is evaluated, and the length of each text and list
 * that is made. Published templates need about 20 for each character of the messages.
 */
const baseWork = 1_000_000;
const workPerCharacter = 200;

/** Most spaces of a level in JSON. */
const maxIndent = 64;

/** The part of the package's types that its declarations do not export. */
interface TemplateNode {
  type: string;
}
interface MemberNode extends TemplateNode {
  object: TemplateNode;
  property: TemplateNode & { value?: unknown };
}
interface CallNode extends TemplateNode {
  callee: TemplateNode & Partial<MemberNode>;
  args: readonly TemplateNode[];
}
interface FilterNode extends TemplateNode {
  operand: TemplateNode;
  /** A name, or a call of it. */
  filter: TemplateNode & { value?: unknown; callee?: { value?: unknown }; args?: readonly TemplateNode[] };
}
interface BinaryNode extends TemplateNode {
  operator: { value: string };
  left: TemplateNode;
  right: TemplateNode;
}
interface ForNode extends TemplateNode {
  /** The list, or a selection from it. */
  iterable: TemplateNode & { lhs?: TemplateNode };
  body: readonly TemplateNode[];
  defaultBlock: readonly TemplateNode[];
}
/** An operand that was evaluated before. */
interface ComputedNode extends TemplateNode {
  type: "Computed";
  computed: Evaluated;
}
interface BaseInterpreter {
  run(program: unknown): Evaluated;
  evaluate(node: TemplateNode | undefined, environment: unknown): Evaluated | undefined;
  evaluateBlock(statements: readonly TemplateNode[], environment: unknown): Evaluated;
  evaluateArguments(
    args: readonly TemplateNode[],
    environment: unknown,
  ): [positional: Evaluated[], named: Map<string, Evaluated>];
  applyFilter(operand: Evaluated, filter: FilterNode["filter"], environment: unknown): Evaluated;
}
const PlainInterpreter = Interpreter as unknown as new (environment: unknown) => BaseInterpreter;

/** A template that exceeds a limit; it does so for other messages, too. */
export class TemplateLimitError extends Error {}

/** Changes a literal of the template before it is used. */
export type MarkLiteral = (text: string) => string;

/** Nodes whose value existed before; their length is not counted again. */
const references: ReadonlySet<string> = new Set(["Identifier", "MemberExpression"]);

/** Statements: unlike an expression, they print nothing of their own if they have no value. */
const statements: ReadonlySet<string> = new Set(["Set", "Macro", "Break", "Continue", "Comment"]);

/** Filters of texts; Python applies them to the text of another value. */
const textFilters: ReadonlySet<unknown> = new Set(["string", "upper", "lower", "title", "capitalize"]);

/** Filters of lists; to them an undefined value has no items. */
const listFilters: ReadonlySet<unknown> = new Set([
  ...["length", "list", "join", "reverse", "sort", "unique", "items", "map", "selectattr", "rejectattr"],
]);

const emptyList = { type: "ArrayLiteral", value: [] } as TemplateNode;

type Ends = "both" | "left" | "right";

/** Methods of texts, and the ends that they strip. */
const strips: ReadonlyMap<unknown, Ends> = new Map([
  ["strip", "both"],
  ["lstrip", "left"],
  ["rstrip", "right"],
]);

/** White space in Python: other than in JavaScript, U+FEFF is none, and some control characters are. */
const pythonSpaces =
  "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a" +
  "\u2028\u2029\u202f\u205f\u3000";

/** What a node strips; undefined if it does not. */
function stripOf(
  node: TemplateNode,
): { text: TemplateNode | undefined; characters?: TemplateNode | undefined; ends: Ends } | undefined {
  if (node.type === "FilterExpression") {
    const { operand, filter } = node as FilterNode;
    const trims = filter.type === "Identifier" && filter.value === "trim";
    return trims ? { text: operand, ends: "both" } : undefined;
  }
  if (node.type !== "CallExpression") return undefined;
  const { callee, args } = node as CallNode;
  const ends = strips.get(callee.property?.value);
  if (callee.type !== "MemberExpression" || ends === undefined || args.length > 1) return undefined;
  return { text: callee.object, characters: args[0], ends };
}

/** Without leading or trailing characters that are among `characters`, as Python's `str.strip`. */
function strip(text: string, characters: string, ends: Ends): string {
  const removed = new Set(characters);
  const kept = Array.from(text);
  let [start, end] = [0, kept.length];
  if (ends !== "right") while (start < end && removed.has(kept[start]!)) start++;
  if (ends !== "left") while (end > start && removed.has(kept[end - 1]!)) end--;
  return kept.slice(start, end).join("");
}

/** A loop that is being evaluated. */
interface Loop {
  node: ForNode;
  /** What its last iteration printed before `break`. */
  beforeBreak: string;
  /** Whether an iteration was left by `break` or `continue`, and whether one was not. */
  left: boolean;
  completed: boolean;
}

class BoundedInterpreter extends PlainInterpreter {
  #left: number;
  readonly #mark: MarkLiteral | undefined;
  /** The loops around the node that is evaluated. */
  readonly #loops: Loop[] = [];
  /** Nodes whose values are looped over. */
  readonly #iterables = new WeakSet<TemplateNode>();
  /** Set while `break` or `continue` leaves the blocks of a loop's body: what they have printed. */
  #leaving: { by: string; text: string } | undefined;

  constructor(environment: unknown, work: number, mark: MarkLiteral | undefined) {
    super(environment);
    this.#left = work;
    this.#mark = mark;
  }

  override evaluate(node: TemplateNode | undefined, environment: unknown): Evaluated | undefined {
    this.#spend(1);
    if (node?.type === "Computed") return (node as ComputedNode).computed;
    if (node?.type === "For") return this.#looped(node as ForNode, environment);
    if (node?.type === "Break" || node?.type === "Continue") this.#leaving = { by: node.type, text: "" };
    const evaluated =
      this.#stripped(node, environment) ??
      this.#joined(node, environment) ??
      this.#added(node, environment) ??
      this.#compared(node, environment) ??
      this.#cased(node, environment) ??
      this.#isIn(node, environment) ??
      super.evaluate(node, environment);
    if (node?.type === "MemberExpression" && evaluated?.type === "UndefinedValue")
      this.#requireDefined(node as MemberNode, environment);
    const result =
      node !== undefined && this.#iterables.has(node) ? this.#itemsOf(evaluated, environment) : evaluated;
    // An empty list has no first item.
    if (node === undefined || result === undefined) return result;
    if (node.type === "StringLiteral" && this.#mark !== undefined) {
      result.value = this.#mark(result.value as string);
    }
    if (result.type === "BooleanValue") result.toString = () => pythonText(result);
    const { value } = result;
    if ((typeof value === "string" || Array.isArray(value)) && !references.has(node.type)) {
      this.#spend(value.length);
    }
    return result;
  }

  /**
   * As the package's, but prints values as Python does, and keeps what a loop's body prints before
   * `break` and `continue`.
   */
  override evaluateBlock(nodes: readonly TemplateNode[], environment: unknown): Evaluated {
    const loop = this.#loops.at(-1);
    if (nodes === loop?.node.defaultBlock && loop.left) return this.#textValue(""); // see #looped
    let text = "";
    try {
      for (const node of nodes) {
        const result = this.evaluate(node, environment)!;
        if (result.type !== "NullValue" || !statements.has(node.type)) text += pythonText(result);
      }
      if (nodes === loop?.node.body) loop.completed = true;
    } catch (error) {
      const leaving = this.#leaving;
      if (leaving === undefined) throw error;
      leaving.text = text + leaving.text;
      if (nodes !== loop?.node.body) throw error;
      this.#leaving = undefined;
      loop.left = true;
      if (leaving.by === "Break") {
        loop.beforeBreak = leaving.text;
        throw error;
      }
      text = leaving.text; // `continue` ends the body here
    }
    return this.#textValue(text);
  }

  /** Of an undefined value Python has no member, not even an undefined one. */
  #requireDefined({ object, property }: MemberNode, environment: unknown): void {
    if (this.evaluate(object, environment)?.type !== "UndefinedValue") return;
    throw new Error(`a value that is undefined has no member (${String(property.value ?? property.type)})`);
  }

  #looped(node: ForNode, environment: unknown): Evaluated {
    this.#iterables.add(node.iterable.lhs ?? node.iterable);
    const loop: Loop = { node, beforeBreak: "", left: false, completed: false };
    this.#loops.push(loop);
    let text: string;
    try {
      text = (super.evaluate(node, environment)!.value as string) + loop.beforeBreak;
    } finally {
      this.#loops.pop();
    }
    // Jinja2 takes a loop for empty if no iteration came to its end.
    if (loop.left && !loop.completed) text += this.evaluateBlock(node.defaultBlock, environment).value;
    this.#spend(text.length);
    return this.#textValue(text);
  }

  /** What is looped over: a text's characters, and nothing for an undefined value. */
  #itemsOf(value: Evaluated | undefined, environment: unknown): Evaluated | undefined {
    if (value?.type === "UndefinedValue") return super.evaluate(emptyList, environment);
    return value?.type === "StringValue" ? this.#characters(value, environment) : value;
  }

  #characters(text: Evaluated, environment: unknown): Evaluated {
    this.#spend((text.value as string).length);
    const list = super.evaluate(emptyList, environment)!;
    list.value = Array.from(text.value as string, (character) => this.#textValue(character));
    return list;
  }

  /** The value of `a + b`, which is an error in Python if only one is a text; undefined for other nodes. */
  #added(node: TemplateNode | undefined, environment: unknown): Evaluated | undefined {
    if (node?.type !== "BinaryExpression" || (node as BinaryNode).operator.value !== "+") return undefined;
    const sides = (["left", "right"] as const).map(
      (side) => this.evaluate((node as BinaryNode)[side], environment)!,
    );
    const texts = sides.filter(({ type }) => type === "StringValue");
    if (texts.length === 1)
      throw new Error(`a text cannot be added to a value of another type (${sides.map(({ type }) => type)})`);
    if (texts.length === 2) return this.#textValue(texts.map(({ value }) => value as string).join(""));
    const [left, right] = sides.map((computed) => ({ type: "Computed", computed }));
    return super.evaluate({ ...(node as BinaryNode), left, right } as TemplateNode, environment);
  }

  /**
   * The value of `a == b` and `a != b`, and of `a % b` for numbers, as in Python; undefined for other
   * nodes.
   */
  #compared(node: TemplateNode | undefined, environment: unknown): Evaluated | undefined {
    if (node?.type !== "BinaryExpression") return undefined;
    const operator = (node as BinaryNode).operator.value;
    if (operator !== "==" && operator !== "!=" && operator !== "%") return undefined;
    const left = this.evaluate((node as BinaryNode).left, environment)!;
    const right = this.evaluate((node as BinaryNode).right, environment)!;
    if (operator !== "%") {
      const value = pythonEquals(left, right) === (operator === "==") ? "true" : "false";
      return super.evaluate({ type: "Identifier", value } as TemplateNode, environment);
    }
    const sides = {
      left: { type: "Computed", computed: left },
      right: { type: "Computed", computed: right },
    };
    const result = super.evaluate({ ...(node as BinaryNode), ...sides } as TemplateNode, environment)!;
    const [rest, divisor] = [result.value as number, right.value as number];
    if (divisor === 0) throw new Error("modulo by zero");
    // The result has the sign of the divisor, and is never -0.
    result.value = rest + (rest !== 0 && rest < 0 !== divisor < 0 ? divisor : 0);
    return result;
  }

  /** The value of `text.title()` and `text.capitalize()`; undefined for other nodes. */
  #cased(node: TemplateNode | undefined, environment: unknown): Evaluated | undefined {
    if (node?.type !== "CallExpression") return undefined;
    const { callee, args } = node as CallNode;
    const name = callee.property?.value;
    if (callee.type !== "MemberExpression" || args.length > 0) return undefined;
    if (name !== "title" && name !== "capitalize") return undefined;
    const text = this.evaluate(callee.object, environment);
    if (text?.type !== "StringValue") return undefined;
    return this.#textValue((name === "title" ? titled : capitalized)(text.value as string));
  }

  /**
   * The value of `a in b` and `a not in b` if one is undefined: Python finds nothing in it, and does
   * not find it in a list or mapping.
   */
  #isIn(node: TemplateNode | undefined, environment: unknown): Evaluated | undefined {
    if (node?.type !== "BinaryExpression") return undefined;
    const { operator, left, right } = node as BinaryNode;
    if (operator.value !== "in" && operator.value !== "not in") return undefined;
    const isUndefined = (side: TemplateNode) =>
      references.has(side.type) && this.evaluate(side, environment)?.type === "UndefinedValue";
    if (!isUndefined(right)) {
      if (!isUndefined(left) || this.evaluate(right, environment)?.type === "StringValue") return undefined;
    }
    const value = operator.value === "in" ? "false" : "true";
    return super.evaluate({ type: "Identifier", value } as TemplateNode, environment);
  }

  /**
   * As the package's, but `string`, `join` and `tojson` give Python's text, filters of texts work on
   * it, and an undefined value is an empty list to filters of lists.
   */
  override applyFilter(operand: Evaluated, filter: FilterNode["filter"], environment: unknown): Evaluated {
    const name = (filter.callee ?? filter).value;
    if (name === "tojson")
      return this.#textValue(pythonJson(operand, this.#jsonOptions(filter.args ?? [], environment)));
    if (operand.type === "UndefinedValue" && listFilters.has(name)) {
      const list = super.evaluate(emptyList, environment)!;
      return this.applyFilter(list, filter, environment);
    }
    if (name === "join" && Array.isArray(operand.value))
      return this.#textValue(this.#joinedItems(operand.value, filter.args ?? [], environment));
    // The characters of a text have no attributes.
    if (operand.type === "StringValue" && filter.callee?.value === "selectattr")
      return super.evaluate(emptyList, environment)!;
    if (operand.type === "StringValue" && filter.callee?.value === "rejectattr")
      return this.#characters(operand, environment);
    if (filter.type === "Identifier" && textFilters.has(filter.value)) {
      const text = pythonText(operand);
      if (filter.value === "string") return this.#textValue(text);
      if (filter.value === "title") return this.#textValue(titledWords(text));
      if (filter.value === "capitalize") return this.#textValue(capitalized(text));
      return super.applyFilter(this.#textValue(text), filter, environment);
    }
    return super.applyFilter(operand, filter, environment);
  }

  /** The items of a list as `join` prints them: `join(d="", attribute=none)`. */
  #joinedItems(items: readonly Evaluated[], args: readonly TemplateNode[], environment: unknown): string {
    const [positional, named] = this.evaluateArguments(args, environment);
    const separator = positional[0] ?? named.get("d");
    const attribute = positional[1] ?? named.get("attribute");
    const texts = items.map((item) => {
      if (attribute === undefined) return pythonText(item);
      const member = item.value instanceof Map ? item.value.get(attribute.value) : undefined;
      return member === undefined ? "" : pythonText(member as Evaluated);
    });
    return texts.join(separator === undefined ? "" : pythonText(separator));
  }

  /**
   * The value of `text | trim`, and of `text.strip(characters)`, `lstrip` or `rstrip`, which the
   * package evaluates as if JavaScript's white space was meant; undefined for other nodes.
   */
  #stripped(node: TemplateNode | undefined, environment: unknown): Evaluated | undefined {
    const asked = node && stripOf(node);
    if (asked === undefined) return undefined;
    const text = this.evaluate(asked.text, environment);
    const given = asked.characters && this.evaluate(asked.characters, environment);
    if (text?.type !== "StringValue" || (given !== undefined && given.type !== "StringValue"))
      return undefined;
    const characters = (given?.value as string | undefined) ?? pythonSpaces;
    return this.#textValue(strip(text.value as string, characters, asked.ends));
  }

  /** The value of `a ~ b`, which the package prints as JavaScript does; undefined for other nodes. */
  #joined(node: TemplateNode | undefined, environment: unknown): Evaluated | undefined {
    if (node?.type !== "BinaryExpression" || (node as BinaryNode).operator.value !== "~") return undefined;
    const { left, right } = node as BinaryNode;
    const texts = [left, right].map((side) => {
      const value = this.evaluate(side, environment);
      return value === undefined ? "" : pythonText(value);
    });
    return this.#textValue(texts.join(""));
  }

  #jsonOptions(args: readonly TemplateNode[], environment: unknown): JsonOptions {
    const [positional, named] = this.evaluateArguments(args, environment);
    const given = (name: string, place: number): unknown =>
      (named.get(name) ?? positional[place])?.value ?? null;
    const indent = given("indent", 1);
    if (indent !== null && !(Number.isInteger(indent) && (indent as number) <= maxIndent))
      throw new Error(`the indent of tojson must be an integer up to ${maxIndent}`);
    const separators = given("separators", 2);
    if (separators !== null && !(Array.isArray(separators) && separators.length === 2))
      throw new Error("the separators of tojson must be two texts");
    const texts = (separators as Evaluated[] | null)?.map(({ value }) => String(value));
    return {
      ensureAscii: given("ensure_ascii", 0) === true,
      indent: indent === null ? undefined : Math.max(0, indent as number),
      separators: texts as [string, string] | undefined,
      sortKeys: given("sort_keys", 3) === true,
    };
  }

  /** A text of the package, whose classes it does not export. */
  #textValue(text: string): Evaluated {
    const empty = super.evaluateBlock([], undefined);
    return new (empty.constructor as new (value: string) => Evaluated)(text);
  }

  #spend(work: number): void {
    this.#left -= work;
    if (this.#left < 0) throw new TemplateLimitError("it takes too many steps, or too much memory");
  }
}

/** Throws an Error with the reason if `source` is not a template. */
export function parseTemplate(source: string): unknown {
  if (typeof source !== "string") throw new Error("it is not a text");
  if (source.length > maxSource) throw new Error(`it has more than ${maxSource} characters`);
  // Jinja has one kind of line break.
  return limited(() => new Template(source.replace(/\r\n?/g, "\n")).parsed);
}

/**
 * The text of a template.
 *
 * @param size characters of `variables`; the work that is allowed grows with it
 * @throws Error with the reason, if the template fails or exceeds a limit
 */
export function renderTemplate(
  program: unknown,
  variables: Readonly<Record<string, unknown>>,
  size: number,
  mark?: MarkLiteral,
): string {
  const work = baseWork + workPerCharacter * size;
  return limited(() => {
    const environment = new Environment();
    for (const [name, value] of Object.entries({ ...globals, ...variables })) environment.set(name, value);
    return String(new BoundedInterpreter(environment, work, mark).run(program).value);
  }, size);
}

function limited<T>(work: () => T, size = 0): T {
  const allowed = timeoutMs + timeoutMsPerCharacter * size;
  try {
    return withTimeLimit(allowed, work);
  } catch (error) {
    if (isOverTimeLimit(error))
      throw new TemplateLimitError(`it takes longer than ${allowed / 1000} seconds`);
    if (error instanceof RangeError) {
      throw new TemplateLimitError("it is nested too deeply, or a text is too long");
    }
    throw error;
  }
}

/**
 * The local time as Python's `strftime` prints it, in English in every locale. Other directives
 * stay.
 */
function formattedTime(format: string): string {
  const now = new Date();
  const two = (number: number) => String(number).padStart(2, "0");
  const named = (options: Intl.DateTimeFormatOptions) =>
    new Intl.DateTimeFormat("en-US", options).format(now);
  const directives: Readonly<Record<string, () => string>> = {
    ...{ Y: () => String(now.getFullYear()), m: () => two(now.getMonth() + 1), d: () => two(now.getDate()) },
    ...{ b: () => named({ month: "short" }), B: () => named({ month: "long" }) },
    ...{ a: () => named({ weekday: "short" }), A: () => named({ weekday: "long" }) },
    ...{ H: () => two(now.getHours()), M: () => two(now.getMinutes()), S: () => two(now.getSeconds()) },
    "%": () => "%",
  };
  return format.replace(/%([YmdbBaAHMS%])/g, (_, directive: string) => directives[directive]!());
}

/** Longest list of `range`. */
const maxRange = 100_000;

/** The interpreter's own globals, which are only set by its own unlimited rendering. */
const globals: Readonly<Record<string, unknown>> = {
  true: true,
  false: false,
  none: null,
  True: true,
  False: false,
  None: null,
  raise_exception: (reason: unknown) => {
    throw new Error(String(reason));
  },
  range: (first: number, second?: number, step = 1) => {
    const [start, stop] = typeof second === "number" ? [first, second] : [0, first];
    const length = Math.max(0, Math.ceil((stop - start) / step));
    if (!(length <= maxRange)) throw new Error(`range() makes more than ${maxRange} numbers`);
    return Array.from({ length }, (_, i) => start + i * step);
  },
  strftime_now: (format: unknown) => formattedTime(String(format)),
};
