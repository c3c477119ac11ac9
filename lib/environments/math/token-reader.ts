/** Reads tokens one after the other, with bounded depth; the base of the parser of answers. */

import type { Token } from "./latex.ts";

/** Depth of nested calls of `deeper` above which an expression is refused. */
const deepest = 240;

/** The tokens are not an expression that the parser supports. */
export class Unreadable extends Error {}

export class TokenReader {
  protected readonly tokens: readonly Token[];
  /** Index of the next token. */
  protected at = 0;
  private depth = 0;
  /** Digits of the number at `at` that are not read yet; "" before the first one. */
  private pending = "";

  constructor(tokens: readonly Token[]) {
    this.tokens = tokens;
  }

  /** Calls `read` one level deeper. Throws Unreadable beyond the limit. */
  protected deeper<T>(read: () => T): T {
    if (++this.depth > deepest) throw new Unreadable();
    const result = read();
    this.depth--;
    return result;
  }

  /** Whether all tokens are read. */
  protected end(): boolean {
    return this.at >= this.tokens.length;
  }

  /** Whether the next token is this symbol. */
  protected sees(symbol: string): boolean {
    const token = this.tokens[this.at];
    return token?.kind === "symbol" && token.text === symbol;
  }

  /** Skips the next token if it is this symbol; returns whether it was. */
  protected accept(symbol: string): boolean {
    if (!this.sees(symbol)) return false;
    this.at++;
    return true;
  }

  /** Skips the next token if it is this command; returns whether it was. */
  protected acceptCommand(name: string): boolean {
    const token = this.tokens[this.at];
    if (token?.kind !== "command" || token.text !== name) return false;
    this.at++;
    return true;
  }

  /** Skips the next token, which must be this symbol. Throws Unreadable if it is not. */
  protected expect(symbol: string): void {
    if (!this.accept(symbol)) throw new Unreadable();
  }

  /**
   * Reads one digit of the number `text`, which is the next token: \frac12 has two arguments. A
   * decimal that is left is read whole.
   */
  protected digit(text: string): string {
    const from = this.pending === "" ? text : this.pending;
    this.pending = from.slice(1);
    if (this.pending !== "" && !this.pending.startsWith(".")) return from[0]!;
    this.at++;
    const isDecimal = this.pending !== "";
    this.pending = "";
    return isDecimal ? from : from[0]!;
  }

  /** Reads the digits that are left of the number `text`, which is the next token. */
  protected digits(text: string): string {
    const left = this.pending === "" ? text : this.pending;
    this.pending = "";
    this.at++;
    return left;
  }

  /** Whether some digits of the next token are already read. */
  protected insideNumber(): boolean {
    return this.pending !== "";
  }

  /** Makes the token of this index the next one. */
  protected goBack(index: number): void {
    this.at = index;
    this.pending = "";
  }
}
