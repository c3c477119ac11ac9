/**
 * Evaluates templates as Jinja2 does, where the package's interpreter differs from it: values print,
 * compare and format as in Python. Counts the work of a rendering.
 */

import { Environment, Interpreter } from "@huggingface/jinja";
import {
  bracesFormatted,
  capitalized,
  type Ends,
  type Evaluated,
  escapedHtml,
  extreme,
  isTrue,
  type JsonOptions,
  joined,
  percentFormatted,
  pythonEquals,
  pythonInt,
  pythonJson,
  pythonSpaces,
  pythonText,
  strip,
  titled,
  titledWords,
} from "./jinja-values.ts";

/** Most spaces of a level in JSON. */
const maxIndent = 64;

/** The part of the package's types that its declarations do not export. */
interface TemplateNode {
  type: string;
}
interface MemberNode extends TemplateNode {
  /** Whether the property stands in brackets. */
  computed: boolean;
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
interface TestNode extends TemplateNode {
  operand: TemplateNode;
  negate: boolean;
  test: { value: unknown };
}
interface MacroNode extends TemplateNode {
  name: { value: string };
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
/** Variables, and those around them. */
interface Scope {
  variables: ReadonlyMap<string, Evaluated>;
  lookupVariable(name: string): Evaluated;
  setVariable(name: string, value: Evaluated): void;
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

/** The package's classes of values, which it does not export. */
type ValueClass = new (value?: unknown) => Evaluated;
const plain = new PlainInterpreter(new Environment());
const classOf = (node: object): ValueClass =>
  plain.evaluate(node as TemplateNode, new Environment())!.constructor as ValueClass;
const Text = classOf({ type: "StringLiteral", value: "" });
const List = classOf({ type: "ArrayLiteral", value: [] });
const Tuple = classOf({ type: "TupleLiteral", value: [] });
const Integer = classOf({ type: "IntegerLiteral", value: 0 });
const Undefined = classOf({ type: "Identifier", value: "unknown" });
const Truth = classOf({
  ...{ type: "UnaryExpression", operator: { value: "not" } },
  argument: { type: "IntegerLiteral", value: 0 },
});

/** A list of pairs, which the package makes lists. */
function withTuples(pairs: Evaluated): Evaluated {
  return new List((pairs.value as Evaluated[]).map(({ value }) => new Tuple(value)));
}

/** A template that exceeds a limit; it does so for other messages, too. */
export class TemplateLimitError extends Error {}

/** Changes a literal of the template before it is used. */
export type MarkLiteral = (text: string) => string;

/** Nodes whose value existed before; their length is not counted again. */
const references: ReadonlySet<string> = new Set(["Identifier", "MemberExpression"]);

/** Statements: unlike an expression, they print nothing of their own if they have no value. */
const statements: ReadonlySet<string> = new Set(["Set", "Macro", "Break", "Continue", "Comment"]);

/** Filters of lists; to them an undefined value has no items. */
const listFilters: ReadonlySet<unknown> = new Set([
  ...["length", "list", "join", "reverse", "sort", "unique", "items", "first", "last", "min", "max"],
  ...["map", "select", "reject", "selectattr", "rejectattr"],
]);

/** Filters of lists for which a value that counts as false has no items. */
const selections: ReadonlySet<unknown> = new Set(["map", "select", "reject", "selectattr", "rejectattr"]);

/** Methods of mappings. Jinja2 takes `d.items` for the method, even if there is a key "items". */
const mappingMethods: ReadonlySet<unknown> = new Set(["get", "items", "keys", "values"]);

/** Methods that are Python's here: of texts, and of mappings. */
const ownMethods: ReadonlySet<unknown> = new Set([
  ...["strip", "lstrip", "rstrip", "format", "title", "capitalize", "items"],
]);

/** Filters of lists that work on the characters of a text. */
const ofCharacters: ReadonlySet<unknown> = new Set([
  ...["first", "last", "min", "max", "join", "list", "select", "reject", "selectattr", "rejectattr"],
]);

const equalityTests: ReadonlySet<unknown> = new Set(["eq", "equalto", "=="]);

const ownOperators: ReadonlySet<string> = new Set(["==", "!=", "in", "not in", "~", "+", "*", "%"]);

const sequences = ["ArrayValue", "TupleValue", "ObjectValue", "StringValue", "UndefinedValue"];

/** Tests of types. Of an undefined value, Python finds the length 0. */
const testedTypes: ReadonlyMap<unknown, ReadonlySet<string>> = new Map([
  ["iterable", new Set(sequences)],
  ["sequence", new Set(sequences)],
  ["number", new Set(["IntegerValue", "FloatValue", "BooleanValue"])],
]);

/** Methods of texts, and the ends that they strip. */
const strips: ReadonlyMap<unknown, Ends> = new Map([
  ["strip", "both"],
  ["lstrip", "left"],
  ["rstrip", "right"],
]);

function computed(value: Evaluated): ComputedNode {
  return { type: "Computed", computed: value };
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

export class BoundedInterpreter extends PlainInterpreter {
  #left: number;
  readonly #mark: MarkLiteral | undefined;
  /** Texts that the filter `safe` returned. */
  readonly #safe = new WeakSet<Evaluated>();
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
    const evaluated = this.#own(node, environment) ?? super.evaluate(node, environment);
    if (node?.type === "Macro") this.#close(node as MacroNode, environment as Scope);
    const result = node !== undefined && this.#iterables.has(node) ? this.#itemsOf(evaluated) : evaluated;
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

  /** The value of a node that the package evaluates otherwise than Jinja2; undefined for other nodes. */
  #own(node: TemplateNode | undefined, environment: unknown): Evaluated | undefined {
    switch (node?.type) {
      case "BinaryExpression":
        return this.#binary(node as BinaryNode, environment);
      case "CallExpression":
        return this.#called(node as CallNode, environment);
      case "MemberExpression":
        return this.#member(node as MemberNode, environment);
      case "TestExpression":
        return this.#tested(node as TestNode, environment);
      default:
        return undefined;
    }
  }

  /**
   * As the package's, but prints values as Python does, and keeps what a loop's body prints before
   * `break` and `continue`.
   */
  override evaluateBlock(nodes: readonly TemplateNode[], environment: unknown): Evaluated {
    const loop = this.#loops.at(-1);
    if (nodes === loop?.node.defaultBlock && loop.left) return this.#text(""); // see #looped
    // What an iteration sets is not seen by the next one.
    const scope = nodes === loop?.node.body ? new Environment(environment as Environment) : environment;
    let text = "";
    try {
      for (const node of nodes) {
        const result = this.evaluate(node, scope)!;
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
    return this.#text(text);
  }

  /** A macro does not see the variables of its caller. */
  #close({ name }: MacroNode, environment: Scope): void {
    const macro = environment.lookupVariable(name.value);
    const call = macro.value as (args: Evaluated[], scope: Scope) => Evaluated;
    macro.value = (args: Evaluated[], scope: Scope) => {
      const own = new Environment(environment as Environment) as unknown as Scope;
      const caller = scope.variables.get("caller"); // of a call block
      if (caller !== undefined) own.setVariable("caller", caller);
      return call(args, own);
    };
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
    return this.#text(text);
  }

  /**
   * What is looped over: a text's characters, and nothing for an undefined value. The package unpacks
   * lists, but not tuples.
   */
  #itemsOf(value: Evaluated | undefined): Evaluated | undefined {
    if (value?.type === "UndefinedValue") return new List([]);
    if (value?.type === "StringValue") return this.#characters(value);
    if (!Array.isArray(value?.value)) return value;
    const items = value.value as Evaluated[];
    if (!items.some(({ type }) => type === "TupleValue")) return value;
    return new List(
      items.map((item) => (item.type === "TupleValue" ? new List(item.value as Evaluated[]) : item)),
    );
  }

  #characters(text: Evaluated): Evaluated {
    this.#spend((text.value as string).length);
    return new List(Array.from(text.value as string, (character) => this.#text(character)));
  }

  /** The value of an operation on two values; undefined if the package's is Python's. */
  #binary(node: BinaryNode, environment: unknown): Evaluated | undefined {
    const operator = node.operator.value;
    if (!ownOperators.has(operator)) return undefined;
    const left = this.evaluate(node.left, environment)!;
    const right = this.evaluate(node.right, environment)!;
    switch (operator) {
      case "==":
      case "!=":
        return new Truth(pythonEquals(left, right) === (operator === "=="));
      case "in":
      case "not in": {
        const found = this.#contains(right, left);
        if (found !== undefined) return new Truth(found === (operator === "in"));
        break;
      }
      case "~":
        return this.#text(pythonText(left) + pythonText(right));
      case "+":
        if (left.type === "StringValue" || right.type === "StringValue")
          return this.#concatenated(left, right);
        break;
      case "*": {
        const [text, times] = left.type === "StringValue" ? [left, right] : [right, left];
        if (text.type === "StringValue" && times.type === "IntegerValue") return this.#repeated(text, times);
        break;
      }
    }
    const result = super.evaluate(
      { ...node, left: computed(left), right: computed(right) } as TemplateNode,
      environment,
    )!;
    if (operator === "%") {
      const [rest, divisor] = [result.value as number, right.value as number];
      if (divisor === 0) throw new Error("modulo by zero");
      // The result has the sign of the divisor.
      result.value = rest + (rest !== 0 && rest < 0 !== divisor < 0 ? divisor : 0);
    }
    if (result.type === "IntegerValue") result.value = (result.value as number) + 0; // never -0
    return result;
  }

  /** Whether `item` is in `container`; undefined where the package finds what Python does. */
  #contains(container: Evaluated, item: Evaluated): boolean | undefined {
    if (container.type === "UndefinedValue") return false;
    if (Array.isArray(container.value))
      return (container.value as Evaluated[]).some((other) => pythonEquals(other, item));
    return container.type === "ObjectValue" && item.type !== "StringValue" ? false : undefined;
  }

  /**
   * The value of `a + b`, which is an error in Python if only one is a text. What `safe` returned makes
   * the other text HTML, as Python's markupsafe does.
   */
  #concatenated(left: Evaluated, right: Evaluated): Evaluated {
    if (left.type !== right.type)
      throw new Error(`a text cannot be added to a value of another type (${left.type},${right.type})`);
    const safe = this.#safe.has(left) || this.#safe.has(right);
    const part = (text: Evaluated) =>
      safe && !this.#safe.has(text) ? escapedHtml(text.value as string) : (text.value as string);
    return this.#text(part(left) + part(right), safe);
  }

  #repeated(text: Evaluated, times: Evaluated): Evaluated {
    const [part, count] = [text.value as string, Math.max(0, times.value as number)];
    this.#spend(part.length * count);
    return this.#text(part.repeat(count));
  }

  /** The value of a call of a method that the package does not have, or has otherwise. */
  #called({ callee, args }: CallNode, environment: unknown): Evaluated | undefined {
    const name = callee.property?.value;
    if (callee.type !== "MemberExpression" || callee.computed || !ownMethods.has(name)) return undefined;
    const text = this.evaluate(callee.object, environment)!;
    if (text.type !== "StringValue") {
      const bound = { ...callee, object: computed(text) };
      const result = super.evaluate(
        { type: "CallExpression", callee: bound, args } as TemplateNode,
        environment,
      )!;
      return name === "items" && text.type === "ObjectValue" ? withTuples(result) : result;
    }
    const [positional, named] = this.evaluateArguments(args, environment);
    const value = text.value as string;
    const ends = strips.get(name);
    if (ends !== undefined) return this.#stripped(text, positional[0], ends);
    if (name === "format") return this.#text(bracesFormatted(value, [positional, named], this.#counted));
    return this.#text((name === "title" ? titled : capitalized)(value));
  }

  /** A text without the given characters at its ends; the package removes JavaScript's white space. */
  #stripped(text: Evaluated, given: Evaluated | undefined, ends: Ends): Evaluated {
    if (given !== undefined && given.type !== "StringValue" && given.type !== "NullValue")
      throw new Error(`the characters to strip must be a text, not ${given.type}`);
    const characters = (given?.value as string | null | undefined) ?? pythonSpaces;
    return this.#text(strip(pythonText(text), characters, ends), this.#safe.has(text));
  }

  /**
   * A member, of which an undefined value has none. A mapping's methods come before its keys, places
   * in a text count characters, and there is nothing at a key of another type.
   */
  #member(node: MemberNode, environment: unknown): Evaluated {
    const object = this.evaluate(node.object, environment)!;
    const { property } = node;
    if (object.type === "UndefinedValue")
      throw new Error(`a value that is undefined has no member (${String(property.value ?? property.type)})`);
    if (object.type === "ObjectValue" && !node.computed && mappingMethods.has(property.value))
      return (object as Evaluated & { builtins: Map<unknown, Evaluated> }).builtins.get(property.value)!;
    const isText = object.type === "StringValue";
    let key: TemplateNode = property;
    if (node.computed && property.type !== "SliceExpression") {
      const value = this.evaluate(property, environment)!;
      const isPlace = value.type === "IntegerValue" && (isText || Array.isArray(object.value));
      if (value.type !== "StringValue" && !isPlace) return new Undefined();
      key = computed(value);
    }
    const of = (value: Evaluated) =>
      super.evaluate({ ...node, object: computed(value), property: key } as TemplateNode, environment)!;
    if (!isText || !node.computed || !/[\ud800-\udbff]/.test(object.value as string)) return of(object);
    const found = of(this.#characters(object));
    return Array.isArray(found.value)
      ? this.#text((found.value as Evaluated[]).map(pythonText).join(""))
      : found;
  }

  /** The value of a test that the package does not have, or has otherwise. */
  #tested(node: TestNode, environment: unknown): Evaluated {
    const operand = this.evaluate(node.operand, environment)!;
    const types = testedTypes.get(node.test.value);
    if (types !== undefined) return new Truth(types.has(operand.type) !== node.negate);
    return super.evaluate({ ...node, operand: computed(operand) } as TemplateNode, environment)!;
  }

  /** Applies a filter as Jinja2 does. Filters that are not named here are the package's. */
  override applyFilter(operand: Evaluated, filter: FilterNode["filter"], environment: unknown): Evaluated {
    const name = (filter.callee ?? filter).value;
    const args = filter.args ?? [];
    const isEmpty = operand.type === "UndefinedValue" || (selections.has(name) && !isTrue(operand));
    if (isEmpty && listFilters.has(name)) return this.#ofList(new List([]), filter, environment);
    const given = () => this.evaluateArguments(args, environment);
    switch (name) {
      case "tojson":
        return this.#text(pythonJson(operand, this.#jsonOptions(args, environment)));
      case "safe":
        return this.#text(pythonText(operand), true);
      case "string":
        return this.#text(pythonText(operand), this.#safe.has(operand));
      case "upper":
      case "lower":
        return super.applyFilter(this.#text(pythonText(operand)), filter, environment);
      case "title":
        return this.#text(titledWords(pythonText(operand)));
      case "capitalize":
        return this.#text(capitalized(pythonText(operand)));
      case "trim": {
        const [[positional], named] = given();
        return this.#stripped(operand, positional ?? named.get("chars"), "both");
      }
      case "format":
        return this.#text(percentFormatted(pythonText(operand), given(), this.#counted));
      case "int": {
        const [[positional], named] = given();
        const integer = pythonInt(operand);
        if (integer !== undefined) return new Integer(integer);
        return positional ?? named.get("default") ?? new Integer(0);
      }
      case "default":
      case "d": {
        const [positional, named] = given();
        const also = positional[1] ?? named.get("boolean");
        const replaced =
          operand.type === "UndefinedValue" || (also !== undefined && isTrue(also) && !isTrue(operand));
        return replaced ? (positional[0] ?? named.get("default_value") ?? this.#text("")) : operand;
      }
      case "dictsort":
      case "items":
        return withTuples(super.applyFilter(operand, filter, environment));
      case "length":
        if (operand.type === "StringValue") return new Integer(Array.from(operand.value as string).length);
        break;
    }
    return this.#ofList(operand, filter, environment);
  }

  /** Filters of lists. The characters of a text have no attributes. */
  #ofList(operand: Evaluated, filter: FilterNode["filter"], environment: unknown): Evaluated {
    const name = (filter.callee ?? filter).value;
    const items =
      operand.type === "StringValue" && ofCharacters.has(name) ? this.#characters(operand) : operand;
    if (!Array.isArray(items.value)) return super.applyFilter(operand, filter, environment);
    const values = items.value as Evaluated[];
    const given = () => this.evaluateArguments(filter.args ?? [], environment);
    switch (name) {
      case "join": {
        const [positional, named] = given();
        return this.#text(
          joined(values, positional[0] ?? named.get("d"), positional[1] ?? named.get("attribute")),
        );
      }
      case "first":
      case "last":
        return values.at(name === "first" ? 0 : -1) ?? new Undefined();
      case "min":
      case "max":
        if (filter.args?.length) throw new Error(`the filter ${name} takes no arguments here`);
        return extreme(values, name) ?? new Undefined();
      case "select":
      case "reject": {
        const [[test, other]] = given();
        const holds = (item: Evaluated) =>
          this.#holds(item, test, other, environment) === (name === "select");
        return new List(values.filter(holds));
      }
      case "selectattr":
        return operand.type === "StringValue"
          ? new List([])
          : super.applyFilter(operand, filter, environment);
      case "rejectattr":
        return operand.type === "StringValue" ? items : super.applyFilter(operand, filter, environment);
      default:
        return super.applyFilter(items, filter, environment);
    }
  }

  /** Whether a test holds; without one, whether the value counts as true. */
  #holds(
    item: Evaluated,
    test: Evaluated | undefined,
    other: Evaluated | undefined,
    environment: unknown,
  ): boolean {
    if (test === undefined) return isTrue(item);
    if (other !== undefined) {
      if (!equalityTests.has(test.value))
        throw new Error(`there is no test ${String(test.value)} with a value`);
      return pythonEquals(item, other);
    }
    const node = {
      type: "TestExpression",
      operand: computed(item),
      negate: false,
      test: { type: "Identifier", value: test.value },
    };
    return this.evaluate(node as TemplateNode, environment)!.value as boolean;
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

  /** With `safe`, as the filter of that name returns it. */
  #text(text: string, safe = false): Evaluated {
    const made = new Text(text);
    if (safe) this.#safe.add(made);
    return made;
  }

  /** A part of a text that is being made. A format can print a long value many times. */
  readonly #counted = (text: string): string => {
    this.#spend(text.length);
    return text;
  };

  #spend(work: number): void {
    this.#left -= work;
    if (this.#left < 0) throw new TemplateLimitError("it takes too many steps, or too much memory");
  }
}
