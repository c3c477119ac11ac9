/** Which LaTeX commands and symbols the parser of answers knows, by their meaning. */

import type { Node } from "./node.ts";

/** Relations, by command. */
export const relationCommands: Record<string, string> = {
  le: "<=",
  leq: "<=",
  leqslant: "<=",
  ge: ">=",
  geq: ">=",
  geqslant: ">=",
  ne: "!=",
  neq: "!=",
  in: "in",
  approx: "approx",
  equiv: "=",
  lt: "<",
  gt: ">",
  to: "->",
  rightarrow: "->",
  mapsto: "->",
  mid: "mid",
  sim: "~",
  parallel: "parallel",
  perp: "perp",
};
/** Relations, by symbol. */
export const relationSymbols: Record<string, string> = {
  "=": "=",
  "==": "=",
  "<": "<",
  ">": ">",
  "<=": "<=",
  ">=": ">=",
  "!=": "!=",
  "->": "->",
};
/** Functions of one or more arguments. */
export const functions = new Set(
  "sin cos tan cot sec csc arcsin arccos arctan sinh cosh ln log lg exp abs gcd lcm max min det arg Re Im".split(
    " ",
  ),
);
/** Commands that are a value. */
export const textual: Record<string, Node> = {
  pi: { kind: "constant", name: "pi" },
  infty: { kind: "constant", name: "infinity" },
  emptyset: { kind: "set", items: [] },
  varnothing: { kind: "set", items: [] },
};

/** Commands that begin a factor. */
export const startsFactor = new Set(
  (
    "frac sqrt cbrt pi infty binom dbinom tbinom sum prod lfloor lceil lvert boxed fbox emptyset varnothing dots ldots cdots " +
    "langle lbrace"
  ).split(" "),
);
/** Letters. */
export const greek = new Set(
  (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau phi " +
    "varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar"
  ).split(" "),
);
/** Commands that are names without a known meaning. */
export const opaque = new Set(
  "triangle angle square bot top intercal backslash prime star dagger".split(" "),
);

/** `table[key]` if it is the table's own property. */
export function own<T>(table: Record<string, T>, key: string): T | undefined {
  return Object.hasOwn(table, key) ? table[key] : undefined;
}
