/**
 * The `calculate` tool: Python's arithmetic on texts of digits, dots, blanks, `+ - * /` and
 * parentheses, with the errors of Python 3.11 for all other such texts. Besides numbers, a text may
 * evaluate to the empty tuple, the ellipsis (three dots) or a complex number (a root of a negative
 * number), none of which is an answer.
 */

import { iterate, PythonError, round2, toFloat, typeName } from "./python.ts";
import { repr } from "./text.ts";
import type { Value } from "./values.ts";

const characters = "0123456789+-*/(). ";

/**
 * Returns the observation. Throws PythonError if `expression` is not a string, as the original
 * does.
 */
export function calculate(expression: Value): string {
  for (const character of iterate(expression)) {
    if (typeof character !== "string")
      throw new PythonError(`'in <string>' requires string as left operand, not ${typeName(character)}`);
    if (!characters.includes(character)) return "Error: invalid characters in expression";
  }
  try {
    if (typeof expression !== "string") fail("eval() arg 1 must be a string, bytes or code object");
    const value = new Expression(expression).parse()();
    if (typeof value === "symbol")
      fail(`float() argument must be a string or a real number, not '${kindOf(value)}'`);
    return repr(round2(toFloat(value)));
  } catch (error) {
    if (error instanceof PythonError) return `Error: ${error.message}`;
    throw error;
  }
}

function fail(message: string): never {
  throw new PythonError(message);
}

function syntaxError(message: string, line = 1): never {
  return fail(`${message} (<string>, line ${line})`);
}

const tuple = Symbol("tuple");
const ellipsis = Symbol("ellipsis");
const complex = Symbol("complex");

type Operand = bigint | number | typeof tuple | typeof ellipsis | typeof complex;

function kindOf(value: Operand): string {
  if (typeof value === "symbol") return value.description!;
  return typeof value === "bigint" ? "int" : "float";
}

/** A part of an expression, evaluated after the whole text has been parsed. */
type Part = () => Operand;

interface Token {
  text: string;
  /** Present for a number. */
  value?: bigint | number;
}

const tokenPattern = / *(?:(\d+\.\d*|\.\d+)|(\d+)|(\.\.\.|\*\*|\/\/|[-+*/().]))/y;
/** Python's limits on nested parentheses and on the digits of an integer. */
const maxParentheses = 200;
const maxDigits = 4300;

/**
 * Parses an expression like CPython. The first pass accepts only valid input. If it fails, a second
 * pass looks for mistakes that have their own message; all others are "invalid syntax".
 */
class Expression {
  readonly #tokens: Token[];
  /** Whether a parenthesis is unclosed at the end. */
  readonly #open: boolean;
  #at = 0;
  #depth = 0;
  #diagnosing = false;

  constructor(text: string) {
    const body = text.trim();
    if (body === "") syntaxError("invalid syntax", 0);
    this.#tokens = [];
    let depth = 0;
    for (let at = 0; at < body.length; at = tokenPattern.lastIndex) {
      tokenPattern.lastIndex = at;
      const [, float, int, operator] = tokenPattern.exec(body)!;
      if (operator === "(" && ++depth > maxParentheses) syntaxError("too many nested parentheses");
      if (operator === ")" && --depth < 0) syntaxError("unmatched ')'");
      if (int !== undefined) this.#tokens.push({ text: int, value: wholeNumber(int) });
      else if (float !== undefined) this.#tokens.push({ text: float, value: Number(float) });
      else this.#tokens.push({ text: operator! });
    }
    this.#open = depth > 0;
  }

  parse(): Part {
    const part = this.#sum();
    if (part !== undefined && this.#peek() === undefined) return part;
    this.#at = 0;
    this.#depth = 0;
    this.#diagnosing = true;
    this.#expression();
    return syntaxError("invalid syntax");
  }

  /** The next token; undefined at the end, where an unclosed parenthesis is detected. */
  #peek(): Token | undefined {
    if (this.#at === this.#tokens.length && this.#open) syntaxError("'(' was never closed");
    return this.#tokens[this.#at];
  }

  /** Consumes the next token if it is one of `texts`. */
  #take(...texts: string[]): string | undefined {
    const text = this.#peek()?.text;
    if (text === undefined || !texts.includes(text)) return undefined;
    this.#at++;
    return text;
  }

  /**
   * A sum. While diagnosing, two adjacent ones within parentheses are reported as a missing comma.
   */
  #expression(): Part | undefined {
    const part = this.#sum();
    if (part === undefined || !this.#diagnosing) return part;
    const end = this.#at;
    this.#diagnosing = false;
    const second = this.#sum();
    this.#diagnosing = true;
    this.#at = end;
    if (second !== undefined && this.#depth > 0) syntaxError("invalid syntax. Perhaps you forgot a comma?");
    return part;
  }

  #sum(): Part | undefined {
    return this.#chain(["+", "-"], () => this.#term());
  }

  #term(): Part | undefined {
    return this.#chain(["*", "/", "//"], () => this.#factor());
  }

  /** `operand (operator operand)*`, as far as possible. */
  #chain(operators: string[], operand: () => Part | undefined): Part | undefined {
    const first = operand();
    if (first === undefined) return undefined;
    const rest: [string, Part][] = [];
    for (;;) {
      const start = this.#at;
      const operator = this.#take(...operators);
      const next = operator === undefined ? undefined : operand();
      if (next === undefined) {
        this.#at = start;
        break;
      }
      rest.push([operator!, next]);
    }
    return () => rest.reduce((value, [operator, part]) => binary(operator, value, part()), first());
  }

  #factor(): Part | undefined {
    const sign = this.#take("+", "-");
    if (sign === undefined) return this.#power();
    const part = this.#factor();
    return part && (() => unary(sign, part()));
  }

  #power(): Part | undefined {
    const base = this.#primary();
    if (base === undefined) return undefined;
    const start = this.#at;
    const exponent = this.#take("**") && this.#factor();
    if (exponent) return () => binary("**", base(), exponent());
    this.#at = start;
    return base;
  }

  #primary(): Part | undefined {
    let part = this.#atom();
    while (part !== undefined) {
      const start = this.#at;
      const callee = part;
      // After a dot the parser looks ahead for an attribute.
      if (this.#take(".") !== undefined) this.#peek();
      this.#at = start;
      const called = this.#parenthesized((star) => {
        const argument = this.#expression();
        return argument && (() => call(callee(), star, argument()));
      });
      if (called === undefined) {
        this.#at = start;
        break;
      }
      part = called === "empty" ? () => call(callee()) : called;
    }
    return part;
  }

  #atom(): Part | undefined {
    const token = this.#peek();
    if (token?.value !== undefined || token?.text === "...") {
      this.#at++;
      const value = token.value ?? ellipsis;
      return () => value;
    }
    const group = this.#parenthesized((star) => {
      // One star is accepted as the start of a tuple, which would need a comma; two are always an
      // error.
      if (star === "**" && !this.#diagnosing) return undefined;
      const part = this.#expression();
      if (star === undefined) return part;
      if (!this.#diagnosing || part === undefined || this.#take(")") === undefined) return undefined;
      return syntaxError(`cannot use ${star === "*" ? "starred" : "double starred"} expression here`);
    });
    return group === "empty" ? () => tuple : group;
  }

  /** Parses parentheses, optionally after a star, with `content` for the inside. */
  #parenthesized(content: (star: "*" | "**" | undefined) => Part | undefined): Part | "empty" | undefined {
    if (this.#take("(") === undefined) return undefined;
    if (this.#take(")") !== undefined) return "empty";
    this.#depth++;
    const part = content(this.#take("*", "**") as "*" | "**" | undefined);
    this.#depth--;
    return part !== undefined && this.#take(")") !== undefined ? part : undefined;
  }
}

function wholeNumber(digits: string): bigint {
  if (/^0+[1-9]/.test(digits)) {
    syntaxError(
      "leading zeros in decimal integer literals are not permitted; use an 0o prefix for octal integers",
    );
  }
  if (digits.length > maxDigits) {
    syntaxError(
      `Exceeds the limit (${maxDigits} digits) for integer string conversion: value has ${digits.length} digits; ` +
        "use sys.set_int_max_str_digits() to increase the limit - " +
        "Consider hexadecimal for huge integer literals to avoid decimal conversion limits.",
    );
  }
  return BigInt(digits);
}

function call(callee: Operand, star?: "*" | "**", argument?: Operand): never {
  if (star === "**" || (star === "*" && argument !== tuple)) {
    const shown =
      callee === tuple ? "()" : callee === ellipsis ? "Ellipsis" : repr(callee as bigint | number);
    const needed = star === "*" ? "an iterable" : "a mapping";
    fail(`${shown} argument after ${star} must be ${needed}, not ${kindOf(argument!)}`);
  }
  return fail(`'${kindOf(callee)}' object is not callable`);
}

function unary(sign: string, value: Operand): Operand {
  if (value === complex) return complex;
  if (typeof value === "symbol") return fail(`bad operand type for unary ${sign}: '${kindOf(value)}'`);
  return sign === "-" ? -value : value;
}

function binary(operator: string, a: Operand, b: Operand): Operand {
  if (typeof a === "symbol" || typeof b === "symbol") return unlike(operator, a, b);
  if (typeof a === "bigint" && typeof b === "bigint") return ofInts(operator, a, b);
  return ofFloats(operator, toFloat(a), toFloat(b));
}

/** For operands that are not both real numbers. */
function unlike(operator: string, a: Operand, b: Operand): Operand {
  const [left, right] = [kindOf(a), kindOf(b)];
  if (operator === "*" && (a === tuple || b === tuple)) {
    const other = a === tuple ? b : a;
    return typeof other === "bigint"
      ? tuple
      : fail(`can't multiply sequence by non-int of type '${kindOf(other)}'`);
  }
  if (operator === "+" && a === tuple) {
    return b === tuple ? tuple : fail(`can only concatenate tuple (not "${right}") to tuple`);
  }
  const others = [a, b].filter((value) => value !== complex);
  if (operator !== "//" && others.every((value) => typeof value !== "symbol")) {
    // The value of a complex number is irrelevant: every result is complex again, or an error.
    if (operator === "/" && typeof b !== "symbol" && Number(b) === 0) fail("complex division by zero");
    if (operator === "**" && typeof a !== "symbol" && Number(a) === 0) {
      fail("0.0 to a negative or complex power");
    }
    return complex;
  }
  const shown = operator === "**" ? "** or pow()" : operator;
  return fail(`unsupported operand type(s) for ${shown}: '${left}' and '${right}'`);
}

function ofInts(operator: string, a: bigint, b: bigint): Operand {
  switch (operator) {
    case "+":
      return a + b;
    case "-":
      return a - b;
    case "*":
      return bounded(bitLength(a) + bitLength(b)) && a * b;
    case "/":
      return b === 0n ? fail("division by zero") : quotient(a, b);
    case "//": {
      if (b === 0n) return fail("integer division or modulo by zero");
      const whole = a / b;
      return a % b !== 0n && a < 0n !== b < 0n ? whole - 1n : whole;
    }
    default:
      if (b < 0n) return ofFloats("**", toFloat(a), toFloat(b));
      return bounded(a * a <= 1n ? 0 : bitLength(a) * Number(b)) && a ** b;
  }
}

function ofFloats(operator: string, a: number, b: number): Operand {
  switch (operator) {
    case "+":
      return a + b;
    case "-":
      return a - b;
    case "*":
      return a * b;
    case "/":
      return b === 0 ? fail("float division by zero") : a / b;
    case "//":
      return b === 0 ? fail("float floor division by zero") : floorQuotient(a, b);
    default:
      return power(a, b);
  }
}

/** Most bits of an integer: far more than a float can hold, and still fast. */
const maxBits = 1 << 17;

function bounded(bits: number): true {
  return bits <= maxBits || fail("the number is too large");
}

/** An upper bound of the bit length of `value`, at most 3 too large. */
function bitLength(value: bigint): number {
  return value.toString(16).length * 4;
}

/** `a / b` of ints, rounded once. */
function quotient(a: bigint, b: bigint): number {
  const negative = a < 0n !== b < 0n;
  const [dividend, divisor] = [a < 0n ? -a : a, b < 0n ? -b : b];
  // With this many bits, the bits cut off only matter as being non-zero, which the last bit
  // records.
  const shift = Math.max(0, 66 + bitLength(divisor) - bitLength(dividend));
  const scaled = dividend << BigInt(shift);
  const cut = scaled / divisor;
  const sticky = scaled % divisor === 0n ? cut : cut | 1n;
  const rounded = Number(sticky);
  if (!Number.isFinite(rounded)) fail("integer division result too large for a float");
  const result = rounded * 2 ** -Math.min(shift, 1000) * 2 ** -Math.max(0, shift - 1000);
  return negative ? -result : result;
}

/** `a // b` of floats, computed in the same steps as CPython. */
function floorQuotient(a: number, b: number): number {
  const rest = a % b;
  const exact = (a - rest) / b - (rest !== 0 && rest < 0 !== b < 0 ? 1 : 0);
  if (exact === 0) return (a / b) * 0;
  const whole = Math.floor(exact);
  return exact - whole > 0.5 ? whole + 1 : whole;
}

function power(base: number, exponent: number): Operand {
  if (exponent === 0 || base === 1) return 1;
  if (base === -1 && !Number.isFinite(exponent) && !Number.isNaN(exponent)) return 1;
  if (base === 0 && exponent < 0) return fail("0.0 cannot be raised to a negative power");
  if (base < 0 && Number.isFinite(base) && Number.isFinite(exponent) && !Number.isInteger(exponent))
    return complex;
  const result = base ** exponent;
  if (!Number.isFinite(result) && Number.isFinite(base) && Number.isFinite(exponent)) {
    fail("(34, 'Numerical result out of range')");
  }
  const rounded =
    Number.isInteger(exponent) && Math.abs(exponent) <= 1024 && Number.isFinite(result) && result !== 0;
  return rounded ? integerPower(base, exponent) : result;
}

/**
 * `base ** exponent`, rounded once as in C's library; JavaScript's own result may differ in the
 * last place.
 */
function integerPower(base: number, exponent: number): number {
  let mantissa = base;
  let doublings = 0;
  for (; !Number.isInteger(mantissa); mantissa *= 2) doublings++;
  const [numerator, denominator] = [BigInt(mantissa), 1n << BigInt(doublings)];
  const n = BigInt(Math.abs(exponent));
  return exponent > 0
    ? quotient(numerator ** n, denominator ** n)
    : quotient(denominator ** n, numerator ** n);
}
