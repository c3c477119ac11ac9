/** A small recursive-descent parser of answers with bounded depth. Does not use `eval`. */

import type { Token } from "./latex.ts";
import { joinProduct, letters, type Node, number, type Of, printed, raised } from "./node.ts";
import {
  functions,
  greek,
  opaque,
  own,
  relationCommands,
  relationSymbols,
  startsFactor,
  textual,
} from "./symbols.ts";
import { TokenReader, Unreadable } from "./token-reader.ts";
import { unitName } from "./units.ts";

/** Undefined if the tokens are not an expression that this parser supports. */
export function parse(tokens: readonly Token[]): Node | undefined {
  try {
    return new Parser(tokens).answer();
  } catch (error) {
    if (error instanceof Unreadable) return undefined;
    throw error;
  }
}

class Parser extends TokenReader {
  /** Indices of the enclosing sums and products; among them, i is not the imaginary unit. */
  private readonly indices: string[] = [];
  /** Number of open |…|; inside one, a bar closes it. */
  private bars = 0;

  answer(): Node {
    const answer = this.groups(["\\\\", "&"], () => this.accept(";") || this.accept("\\\\"));
    if (!this.end()) throw new Unreadable();
    return answer;
  }

  /** Lists between semicolons. Commas as in (1,5; 2) are already decimal points: see latex.ts. */
  private groups(alsoEnds: string[] = [], separator = () => this.accept(";")): Node {
    const groups = [this.list(alsoEnds)];
    while (separator()) {
      if (this.end() || this.closes()) break;
      groups.push(this.list(alsoEnds));
    }
    return groups.length === 1 ? groups[0]! : { kind: "list", items: groups };
  }

  /** Items between commas; one item is returned as is. */
  private list(alsoEnds: string[] = []): Node {
    const items = [this.relation()];
    while (this.accept(",")) {
      while (this.accept(","));
      if (this.end() || this.closes() || alsoEnds.some((symbol) => this.sees(symbol)) || this.sees(";"))
        break;
      items.push(this.relation());
    }
    return items.length === 1 ? items[0]! : { kind: "list", items };
  }

  private closes(): boolean {
    return [")", "]", "}", "\\}"].some((symbol) => this.sees(symbol));
  }

  private relation(): Node {
    return this.deeper(() => {
      const parts = [this.union()];
      const operators: string[] = [];
      for (
        let operator = this.relationOperator();
        operator !== undefined;
        operator = this.relationOperator()
      ) {
        operators.push(operator);
        parts.push(this.union());
      }
      return operators.length === 0 ? parts[0]! : { kind: "relation", operators, parts };
    });
  }

  private relationOperator(): string | undefined {
    const token = this.tokens[this.at];
    let operator: string | undefined;
    if (token?.kind === "symbol") operator = own(relationSymbols, token.text);
    else if (token?.kind === "command") operator = own(relationCommands, token.text);
    if (operator !== undefined) this.at++;
    return operator;
  }

  private union(): Node {
    const items = [this.ratio()];
    while (this.acceptCommand("cup")) items.push(this.ratio());
    const union: Node = items.length === 1 ? items[0]! : { kind: "union", items };
    if (!this.acceptCommand("setminus")) return union;
    return { kind: "relation", operators: ["setminus"], parts: [union, this.ratio()] };
  }

  private ratio(): Node {
    const items = [this.sum()];
    while (this.accept(":") || this.acceptCommand("colon")) items.push(this.sum());
    if (items.length === 1) return items[0]!;
    // The unit of 8:34 p.m. is that of the whole.
    const last = items.at(-1)!;
    if (last.kind !== "unit") return { kind: "ratio", items };
    return { kind: "unit", of: { kind: "ratio", items: [...items.slice(0, -1), last.of] }, unit: last.unit };
  }

  private sum(): Node {
    const items: Node[] = [];
    let sign = this.sign();
    for (;;) {
      const term = this.product();
      if (sign === "-") items.push({ kind: "negative", of: term });
      else if (sign === "pm" || sign === "mp") items.push({ kind: "plusMinus", up: sign === "pm", of: term });
      else items.push(term);
      sign = this.sign();
      if (sign === undefined) break;
    }
    return items.length === 1 ? items[0]! : { kind: "sum", items };
  }

  private sign(): string | undefined {
    let sign: string | undefined;
    for (;;) {
      if (this.accept("+")) sign ??= "+";
      else if (this.accept("-")) sign = sign === "-" ? "+" : sign === "pm" || sign === "mp" ? sign : "-";
      else if (this.acceptCommand("pm")) sign = "pm";
      else if (this.acceptCommand("mp")) sign = "mp";
      else return sign;
    }
  }

  private product(): Node {
    let left = this.factor();
    for (;;) {
      if (
        this.acceptCommand("times") ||
        this.acceptCommand("cdot") ||
        this.acceptCommand("ast") ||
        this.accept("*")
      ) {
        left = joinProduct(left, this.signedFactor());
      } else if (this.accept("/") || this.acceptCommand("div")) {
        left = { kind: "quotient", left, right: this.signedFactor() };
      } else if (this.acceptCommand("bmod") || this.acceptCommand("mod")) {
        left = { kind: "call", name: "mod", arguments: [left, this.signedFactor()] };
      } else if (this.startsFactor()) {
        left = this.mixed(left) ?? joinProduct(left, this.factor());
      } else if (this.tokens[this.at]?.kind === "text") {
        left = { kind: "unit", of: left, unit: (this.tokens[this.at++] as { text: string }).text };
        // "cm squared" is often written as a power of the unit, or as "cm/s".
        if (this.accept("^")) this.argument();
        if (this.sees("/") && this.tokens[this.at + 1]?.kind === "text") this.at += 2;
        if (this.tokens[this.at]?.kind === "number") return this.compound(left);
      } else {
        return left;
      }
    }
  }

  /** "2 hours 30 minutes": a name of the two units with the two numbers, and no product. */
  private compound(first: Of<"unit">): Node {
    const parts = [first];
    while (this.tokens[this.at]?.kind === "number") {
      const value = this.factor();
      const of = this.mixed(value) ?? value;
      const unit = this.tokens[this.at++];
      if (unit?.kind !== "text") throw new Unreadable();
      parts.push({ kind: "unit", of, unit: unit.text });
    }
    const units = parts.map((part) => unitName(part.unit));
    return { kind: "call", name: `units:${units.join(",")}`, arguments: parts.map((part) => part.of) };
  }

  /** 2\frac{5}{8} and "2 5/8": an integer before a fraction of integers is a mixed number. */
  private mixed(left: Node): Node | undefined {
    if (left.kind !== "number" || left.value.d !== 1n || left.digits.includes(".")) return undefined;
    const token = this.tokens[this.at];
    const from = this.at;
    let fraction: Node | undefined;
    if (token?.kind === "command" && token.text === "frac") fraction = this.factor();
    else if (token?.kind === "number" && this.tokens[this.at + 1]?.text === "/") {
      const numerator = this.atom();
      this.at++;
      fraction = { kind: "quotient", left: numerator, right: this.atom() };
    }
    if (
      fraction?.kind === "quotient" &&
      fraction.left.kind === "number" &&
      fraction.right.kind === "number" &&
      fraction.left.value.d === 1n &&
      fraction.right.value.d === 1n
    ) {
      return { kind: "sum", items: [left, fraction] };
    }
    this.goBack(from);
    return undefined;
  }

  private signedFactor(): Node {
    if (this.accept("-")) return { kind: "negative", of: this.deeper(() => this.signedFactor()) };
    if (this.accept("+")) return this.deeper(() => this.signedFactor());
    return this.factor();
  }

  private startsFactor(): boolean {
    const token = this.tokens[this.at];
    if (token === undefined) return false;
    if (token.kind === "number" || token.kind === "name") return true;
    if (token.kind === "command")
      return [startsFactor, functions, greek, opaque].some((commands) => commands.has(token.text));
    if (token.kind === "text") return false;
    if (token.text === "|") return this.bars === 0;
    return token.text === "(" || token.text === "{" || token.text === "[" || token.text.startsWith("begin:");
  }

  private factor(): Node {
    return this.deeper(() => {
      let node = this.atom();
      for (;;) {
        if (this.accept("^")) {
          if (this.acceptCommand("circ") || this.acceptCommand("degree"))
            node = { kind: "degrees", of: node };
          else if (this.accept("{")) {
            if (this.acceptCommand("circ") || this.acceptCommand("degree")) {
              this.expect("}");
              node = { kind: "degrees", of: node };
            } else {
              const exponent = this.list();
              this.expect("}");
              node = raised(node, exponent);
            }
          } else if (this.accept("'")) {
            node = { kind: "call", name: "prime", arguments: [node] };
          } else node = raised(node, this.powerArgument());
        } else if (this.sees("!") && !this.sees("!=")) {
          this.at++;
          node = { kind: "factorial", of: node };
        } else if (this.accept("%") || this.accept("\\%")) node = { kind: "percent", of: node };
        else if (this.acceptCommand("degree") || this.acceptCommand("circ"))
          node = { kind: "degrees", of: node };
        else if (this.accept("'")) node = { kind: "call", name: "prime", arguments: [node] };
        else if (this.accept("_")) node = this.subscript(node);
        else return node;
      }
    });
  }

  private powerArgument(): Node {
    if (this.accept("-")) return { kind: "negative", of: this.powerArgument() };
    const token = this.tokens[this.at];
    // x^10 in plain text means ten; LaTeX would print x¹0, which nobody means.
    if (token?.kind === "number") return this.atom();
    return this.argument();
  }

  private subscript(of: Node): Node {
    const index = this.argument();
    const digits =
      of.kind === "number"
        ? of.digits
        : of.kind === "product" || of.kind === "name"
          ? letters(of)
          : undefined;
    const name = printed(index);
    if (name === undefined) throw new Unreadable();
    if (of.kind === "name") return { kind: "name", name: `${of.name}_${name}` };
    if (digits !== undefined && index.kind === "number") return { kind: "based", digits, base: name };
    if (of.kind === "product" && of.items.at(-1)?.kind === "name") {
      const last = of.items.at(-1) as { name: string };
      return {
        kind: "product",
        items: [...of.items.slice(0, -1), { kind: "name", name: `${last.name}_${name}` }],
      };
    }
    return { kind: "call", name: `index:${name}`, arguments: [of] };
  }

  /**
   * One argument of a command: a brace group, a digit, a letter, or a command with its own
   * arguments.
   */
  private argument(): Node {
    return this.deeper(() => {
      if (this.accept("{")) {
        if (this.accept("}")) return { kind: "text", text: "" };
        const inner = this.list();
        this.expect("}");
        return inner;
      }
      const token = this.tokens[this.at];
      if (token?.kind === "number" && /^\d/.test(token.text)) {
        // \frac12 takes one digit each; the rest stays in place.
        return number(this.digit(token.text));
      }
      return this.atom();
    });
  }

  private atom(): Node {
    return this.deeper(() => {
      const token = this.tokens[this.at];
      if (token === undefined) throw new Unreadable();
      if (token.kind === "number") return number(this.digits(token.text));
      if (token.kind === "name") {
        this.at++;
        if ((token.text === "e" || token.text === "i") && !this.indices.includes(token.text))
          return { kind: "constant", name: token.text };
        if (this.sees("(") && (/^[f-hF-HP-Qp-q]$/.test(token.text) || this.defines()))
          return this.applied(token.text);
        return { kind: "name", name: token.text };
      }
      if (token.kind === "text") {
        this.at++;
        return { kind: "text", text: token.text };
      }
      if (token.kind === "command") return this.command(token.text);
      return this.bracket(token.text);
    });
  }

  /** Whether a letter and the bracket after it are the left side of an equation, as in W(n) = 1. */
  private defines(): boolean {
    const before = this.tokens[this.at - 2];
    if (before !== undefined && !(before.kind === "symbol" && /^(?:[,;&{]|\\\\)$/.test(before.text)))
      return false;
    let end = this.at + 1;
    while (this.tokens[end] !== undefined && !/^[()=]$/.test(this.tokens[end]!.text)) end++;
    return this.tokens[end]?.text === ")" && this.tokens[end + 1]?.text === "=";
  }

  /** f(x): a function's value, opaque except for its argument. */
  private applied(name: string): Node {
    this.expect("(");
    const inner = this.list();
    this.expect(")");
    return { kind: "call", name: `apply:${name}`, arguments: inner.kind === "list" ? inner.items : [inner] };
  }

  private command(name: string): Node {
    const constant = own(textual, name);
    this.at++;
    if (constant !== undefined) return constant;
    switch (name) {
      case "frac": {
        const left = this.argument();
        return { kind: "quotient", left, right: this.argument() };
      }
      case "sqrt": {
        let degree: Node = number("2");
        if (this.accept("[")) {
          degree = this.sum();
          this.expect("]");
        }
        // \sqrt12 means √12, though LaTeX would print √1 2.
        const whole = this.tokens[this.at]?.kind === "number" && !this.insideNumber();
        return { kind: "root", left: whole ? this.atom() : this.argument(), right: degree };
      }
      case "cbrt":
        return { kind: "root", left: this.argument(), right: number("3") };
      case "binom":
      case "dbinom":
      case "tbinom": {
        const left = this.argument();
        return { kind: "call", name: "binomial", arguments: [left, this.argument()] };
      }
      case "sum":
      case "prod":
        return this.series(name);
      case "lfloor":
        return this.enclosed("rfloor", "floor");
      case "lceil":
        return this.enclosed("rceil", "ceil");
      case "lvert":
        return this.enclosed("rvert", "abs");
      case "langle": {
        const inner = this.list();
        if (!this.acceptCommand("rangle")) throw new Unreadable();
        return { kind: "tuple", open: "(", close: ")", items: inner.kind === "list" ? inner.items : [inner] };
      }
      case "boxed":
      case "fbox":
        return this.argument();
      case "lbrace":
        return this.set(() => this.acceptCommand("rbrace"));
      case "dots":
      case "ldots":
      case "cdots":
        return { kind: "name", name: "…" };
    }
    if (functions.has(name)) return this.call(name);
    if (greek.has(name) || opaque.has(name)) return { kind: "name", name: `\\${name.replace(/^var/, "")}` };
    throw new Unreadable();
  }

  private call(name: string): Node {
    const extra: Node[] = [];
    let exponent: Node | undefined;
    for (;;) {
      if (this.accept("^")) exponent = this.argument();
      else if (this.accept("_")) extra.push(this.argument());
      else break;
    }
    let argument: Node;
    if (this.accept("(")) {
      const inner = this.list();
      this.expect(")");
      argument = inner;
    } else {
      // \sin 2x y: the argument extends to the next sign or function.
      argument = this.factor();
      while (this.startsFactor() && !this.seesFunction()) argument = joinProduct(argument, this.factor());
    }
    const parameters = argument.kind === "list" || argument.kind === "set" ? argument.items : [argument];
    if (exponent?.kind === "negative" && exponent.of.kind === "number" && exponent.of.digits === "1") {
      return { kind: "call", name: `arc${name}`, arguments: parameters };
    }
    const called: Node = { kind: "call", name, arguments: [...parameters, ...extra] };
    return exponent === undefined ? called : { kind: "power", left: called, right: exponent };
  }

  /** \sum_{k=1}^{n} and its body, up to the next sign. */
  private series(name: string): Node {
    let range: Node | undefined;
    let high: Node | undefined;
    for (;;) {
      if (this.accept("_")) range = this.argument();
      else if (this.accept("^")) high = this.argument();
      else break;
    }
    if (range?.kind !== "relation" || range.operators.join() !== "=" || high === undefined)
      throw new Unreadable();
    const [index, low] = range.parts as [Node, Node];
    if (!("name" in index)) throw new Unreadable();
    this.indices.push(index.name);
    const body = this.product();
    this.indices.pop();
    return { kind: "call", name, arguments: [{ kind: "name", name: index.name }, low, high, body] };
  }

  private seesFunction(): boolean {
    const token = this.tokens[this.at];
    return token?.kind === "command" && functions.has(token.text);
  }

  private enclosed(close: string, name: string): Node {
    const inner = this.sum();
    if (!this.acceptCommand(close)) throw new Unreadable();
    return { kind: "call", name, arguments: [inner] };
  }

  private bracket(symbol: string): Node {
    if (symbol === "(" || symbol === "[") {
      this.at++;
      const outer = this.bars;
      this.bars = 0;
      const inner = this.groups();
      this.bars = outer;
      const close = this.accept(")") ? ")" : this.accept("]") ? "]" : undefined;
      if (close === undefined) throw new Unreadable();
      if (inner.kind === "list") return { kind: "tuple", open: symbol, close, items: inner.items };
      if (symbol === "(" && close === ")") return inner;
      if (symbol === "[" && close === "]") return inner;
      throw new Unreadable();
    }
    if (symbol === "\\{") {
      this.at++;
      return this.set(() => this.accept("\\}"));
    }
    if (symbol === "{") {
      this.at++;
      if (this.accept("}")) return { kind: "set", items: [] };
      const inner = this.list();
      this.expect("}");
      return inner;
    }
    if (symbol === "|") {
      this.at++;
      this.bars++;
      const inner = this.sum();
      this.bars--;
      this.expect("|");
      return { kind: "call", name: "abs", arguments: [inner] };
    }
    if (symbol.startsWith("begin:")) return this.matrix(symbol.slice("begin:".length));
    throw new Unreadable();
  }

  private set(close: () => boolean): Node {
    if (close()) return { kind: "set", items: [] };
    const outer = this.bars;
    this.bars = 1;
    const inner = this.groups();
    this.bars = outer;
    if (this.accept("|") || this.accept(":")) {
      const condition = this.list();
      if (!close()) throw new Unreadable();
      return {
        kind: "set",
        items: [conditionOf({ kind: "relation", operators: ["mid"], parts: [inner, condition] })],
      };
    }
    if (!close()) throw new Unreadable();
    return { kind: "set", items: inner.kind === "list" ? inner.items : [conditionOf(inner)] };
  }

  private matrix(style: string): Node {
    this.at++;
    if (style === "cases") return this.cases();
    const rows: Node[][] = [];
    while (!this.sees(`end:${style}`)) {
      const row = [this.list(["\\\\", "&"])];
      while (this.accept("&")) row.push(this.list(["\\\\", "&"]));
      rows.push(row);
      if (!this.accept("\\\\")) break;
    }
    this.expect(`end:${style}`);
    if (rows.length === 0) throw new Unreadable();
    if (style === "align*") return { kind: "list", items: rows.map((row) => row[0]!) };
    return { kind: "matrix", style, rows };
  }

  /** A list if no row has a condition: a system of equations. */
  private cases(): Node {
    const rows: Of<"cases">["rows"] = [];
    while (!this.sees("end:cases")) {
      const value = this.list(["\\\\", "&"]);
      rows.push({ value, when: this.accept("&") ? this.condition() : undefined });
      if (!this.accept("\\\\")) break;
    }
    this.expect("end:cases");
    if (rows.length === 0) throw new Unreadable();
    if (rows.every((row) => row.when === undefined))
      return { kind: "list", items: rows.map((row) => row.value) };
    return { kind: "cases", rows };
  }

  /** The condition of a case: a relation, or its words. Undefined for "otherwise". */
  private condition(): Node | undefined {
    const ends = () => this.end() || this.sees("\\\\") || this.sees("end:cases");
    const skipped = (word: string) => /^(?:if|for|when|where|is)?$/i.test(word);
    for (;;) {
      const token = this.tokens[this.at];
      if (!this.sees(",") && !(token?.kind === "text" && skipped(token.text))) break;
      this.at++;
    }
    let end = this.at;
    while (end < this.tokens.length && !/^(?:\\\\|end:cases)$/.test(this.tokens[end]!.text)) end++;
    if (!this.tokens.slice(this.at, end).some((token) => token.kind === "text"))
      return end === this.at ? undefined : this.list(["\\\\"]);
    const words: string[] = [];
    for (; !ends(); this.at++) words.push(...this.tokens[this.at]!.text.split(" "));
    const text = words.filter((word) => !skipped(word)).join(" ");
    return /^(?:otherwise|else)$/i.test(text) ? undefined : { kind: "text", text };
  }
}

/** The condition of {x | x > 0}, which is the set's meaning; any other node as it is. */
function conditionOf(node: Node): Node {
  if (node.kind !== "relation" || node.parts[0]!.kind !== "name") return node;
  const { operators, parts } = node;
  const domain = parts[1]!;
  const from = operators[0] === "in" && domain.kind === "name" && domain.name === "mathbb:R" ? 1 : 0;
  if (operators[from] !== "mid") return node;
  if (parts.length > from + 2)
    return { kind: "relation", operators: operators.slice(from + 1), parts: parts.slice(from + 1) };
  const condition = parts[from + 1]!;
  return condition.kind === "relation" ? condition : node;
}
