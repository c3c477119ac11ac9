/**
 * Converts an answer's LaTeX (or plain text) to tokens, without markup that only concerns the
 * layout.
 */

export type Token =
  | { kind: "number"; text: string }
  | { kind: "name"; text: string }
  | { kind: "command"; text: string }
  | { kind: "text"; text: string }
  | { kind: "symbol"; text: string };

/** How commas between digits are read; an answer may be ambiguous. */
export type Commas = "list" | "thousands" | "decimal";

const unicode: Record<string, string> = {
  "−": "-",
  "–": "-",
  "×": "\\times ",
  "·": "\\cdot ",
  "÷": "/",
  π: "\\pi ",
  "√": "\\sqrt ",
  "∞": "\\infty ",
  "≤": "\\le ",
  "≥": "\\ge ",
  "≠": "\\ne ",
  "≈": "\\approx ",
  "∪": "\\cup ",
  "∩": "\\cap ",
  "∈": "\\in ",
  "±": "\\pm ",
  "∓": "\\mp ",
  "°": "^\\circ ",
  "²": "^2 ",
  "³": "^3 ",
  "½": "\\frac{1}{2}",
  "¼": "\\frac{1}{4}",
  "¾": "\\frac{3}{4}",
  "∅": "\\emptyset ",
  "％": "%",
  "，": ",",
  "（": "(",
  "）": ")",
};

/** Stands for the end of a matrix row, so that its backslashes are not read as part of commands. */
const rowBreak = "␤";

const knownCommands =
  "frac|dfrac|tfrac|cfrac|sqrt|left|right|begin|end|text|mbox|mathrm|mathbf|textbf|pi|infty|cup|cap|pm|mp|times|" +
  "cdot|div|le|leq|ge|geq|ne|neq|in|circ|theta|alpha|beta|gamma|sin|cos|tan|cot|sec|csc|log|ln|boxed|binom|approx";

/**
 * Removes layout: sizes, spaces, dollars, styles. Answers that are equal after this look equal in
 * print.
 */
export function clean(answer: string): string {
  return (
    answer
      .replace(/[−–×·÷π√∞≤≥≠≈∪∩∈±∓°²³½¼¾∅％，（）]/gu, (character) => unicode[character]!)
      // A command whose backslash was escaped once too often.
      .replace(new RegExp(`(?<!\\\\)\\\\\\\\(?=(?:${knownCommands})(?![a-zA-Z]))`, "g"), "\\")
      // If the number of backslashes is odd, the last one begins a command.
      .replace(/(?:\\\\)+(?:\[\d*\.?\d*(?:pt|ex|em|mm)\])?/g, rowBreak)
      .replace(/\\(?:left|right)(?![a-zA-Z])\s*(?:\.|)/g, " ")
      .replace(/\\(?:[bB]igg?[lrm]?)(?![a-zA-Z])/g, " ")
      .replace(/\\(?:displaystyle|textstyle|limits|nolimits|strut|hfill|centering)(?![a-zA-Z])/g, " ")
      .replace(/\\h?phantom\s*(?:\{[^{}]*\}|[^\\{}])/g, " ")
      // A comma in braces is not a list separator: before three digits it groups thousands, else it
      // is a decimal comma.
      .replace(/(?<=\d)\{,\}(?=\d+(?!\d))/g, (_, at: number, text: string) =>
        /(?<![\d.])0$/.test(text.slice(0, at)) || !/^\{,\}\d{3}(?!\d)/.test(text.slice(at)) ? "." : "",
      )
      // Thousands: 12,\!000 is one number, and so is 12\,000.
      .replace(/(?<=\d),\s*\\!\s*(?=\d{3})/g, "")
      .replace(/(?<=\d)(?:\\[,;: ]|~)(?=\d{3}(?!\d))/g, "")
      .replace(/\\[!]/g, "")
      .replace(/\\q?quad(?![a-z]{3})/g, " ")
      .replace(/\\[,;:> ]|~|\\space(?![a-zA-Z])/g, " ")
      .replace(/\\\$|\$|€|£|¥|¢/g, "")
      .replace(/\\[()[\]]/g, " ")
      .replace(/\\[dtc]frac(?![a-zA-Z])/g, "\\frac")
      .replace(/\*\*$|^\*\*(?!\d)/g, "")
      // p.m. is PM in another spelling.
      .replace(/(?<![a-zA-Z.])([ap])\.\s?m\.?(?![a-zA-Z])/gi, "$1m")
      .replace(/[\s.;:,]+$/, "")
      .trim()
  );
}

/** For the first comparison: the answer without spaces and layout. */
export function bare(answer: string): string {
  return clean(answer)
    .replace(/\\(?:text|mbox|mathrm|textrm|mathbf|textbf|mathit|textnormal)\s*\{([^{}]*)\}/g, "$1")
    .replace(/(?<=\d) (?=\d{3}(?!\d))/g, "")
    .replace(/(?<!\d)\s+|\s+(?!\d)/g, "")
    .replace(/\^\{([\da-zA-Z])\}/g, "^$1")
    .replace(/_\{([\da-zA-Z])\}/g, "_$1");
}

/** Names often written without a backslash, and their commands. */
const plainWords: Record<string, string> = {
  ...Object.fromEntries(
    (
      "sqrt cbrt pi sin cos tan cot sec csc arcsin arccos arctan sinh cosh ln log exp abs gcd lcm max min mod theta " +
      "alpha beta"
    )
      .split(" ")
      .map((word) => [word, word]),
  ),
  infinity: "infty",
  inf: "infty",
  oo: "infty",
  asin: "arcsin",
  acos: "arccos",
  atan: "arctan",
  union: "cup",
};

/** Short unit words; longer words are text anyway. */
const unitWords = new Set(
  (
    "cm mm km kg mg ml ft in mi lb lbs oz hr hrs sec min mph kph pct pm am sq cu deg rad inch inches feet foot yard " +
    "yards mile miles meter meters unit units dollar dollars cent cents day days hour hours percent year years " +
    "degree degrees yes no true false odd even none cube way ways"
  ).split(" "),
);

/** These fonts are only layout; other styles have a meaning. */
const fonts = /^(?:mathrm|mathbf|mathit|mathsf|boldsymbol|bm|operatorname)$/;
const styles = /^(?:mathbb|mathcal|mathscr|overline|vec|hat)$/;
const textCommands = /^(?:text|textbf|textit|textrm|textnormal|textsf|texttt|mbox|hbox)$/;

/** Undefined if the answer has more tokens than a plausible answer. */
export function tokenize(answer: string, commas: Commas): Token[] | undefined {
  let source = clean(answer);
  if (commas === "thousands") source = source.replace(/(?<=\d),(?=\d{3}(?!\d))/g, "");
  if (commas === "decimal")
    source = source
      .replace(/(?<![\d.,])\d{1,3}(?:\.\d{3})+(?=,\d)/g, (grouped) => grouped.replaceAll(".", ""))
      // A comma before three digits groups thousands: 1,234 has no decimals.
      .replace(/(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)/g, (grouped) => grouped.replaceAll(",", ""))
      .replace(/(?<![\d.,])(\d+),(?=\d+(?![\d.]*,\d))/g, "$1.");
  source = source.replace(
    /(\d*)\.(\d*)\\overline\s*\{(\d{1,40})\}/g,
    (_, whole: string, fixed: string, cycle: string) => repeatingDecimal(whole, fixed, cycle),
  );
  source = source.replace(/(?<=\d) (?=\d{3}(?!\d))/g, "");

  const tokens: Token[] = [];
  let at = 0;
  const take = (pattern: RegExp): string | undefined => {
    pattern.lastIndex = at;
    const match = pattern.exec(source);
    if (match === null) return undefined;
    at += match[0].length;
    return match[0];
  };
  const group = (): string | undefined => {
    take(/\s*/y);
    if (source[at] !== "{") return undefined;
    let depth = 0;
    for (let i = at; i < source.length; i++) {
      if (source[i] === "\\") i++;
      else if (source[i] === "{") depth++;
      else if (source[i] === "}" && --depth === 0) {
        const content = source.slice(at + 1, i);
        at = i + 1;
        return content;
      }
    }
    return undefined;
  };

  while (at < source.length) {
    if (tokens.length > 1500) return undefined;
    if (take(/\s+/y) !== undefined) continue;
    const scientific = take(
      /(?:\d+\.\d*|\.\d+|\d+)(?:E[-+]?\d+|e\d+|e-?\d\d+)(?![\w.])|(?:\d+\.\d+)e[-+]?\d+(?![\w.])/y,
    );
    if (scientific !== undefined) {
      const [mantissa, exponent] = scientific.split(/e/i) as [string, string];
      tokens.push(
        { kind: "number", text: mantissa },
        { kind: "command", text: "times" },
        { kind: "number", text: "10" },
        { kind: "symbol", text: "^" },
        { kind: "symbol", text: "{" },
      );
      if (exponent.startsWith("-")) tokens.push({ kind: "symbol", text: "-" });
      tokens.push({ kind: "number", text: exponent.replace(/^[-+]/, "") }, { kind: "symbol", text: "}" });
      continue;
    }
    const number = take(/\d+(?:\.\d+)?|\.\d+/y);
    if (number !== undefined) {
      tokens.push({ kind: "number", text: number });
      continue;
    }
    const word = take(/[a-zA-Z]+/y);
    if (word !== undefined) {
      pushWord(tokens, word);
      continue;
    }
    const command = take(/\\[a-zA-Z]+/y)?.slice(1);
    if (command !== undefined) {
      if (textCommands.test(command)) {
        pushText(tokens, group() ?? "");
        continue;
      }
      if (fonts.test(command)) {
        const content = (group() ?? take(/\s*[a-zA-Z\d]/y) ?? "").trim();
        const units = content.split(/[/ ]|\^\{?-?\d\}?/).filter((word) => word !== "");
        if (endsValue(tokens.at(-1)) && units.every(isUnitWord) && units.length > 0)
          pushText(tokens, ` ${units.join("/")}`);
        else if (Object.hasOwn(plainWords, content))
          tokens.push({ kind: "command", text: plainWords[content]! });
        else if (/^[a-zA-Z ]*$/.test(content)) pushText(tokens, content);
        else {
          source = `{${content}}${source.slice(at)}`;
          at = 0;
        }
        continue;
      }
      if (styles.test(command)) {
        const content = (group() ?? take(/\s*[a-zA-Z]/y) ?? "").replace(/\s+/g, "");
        // A segment, a repeating decimal, a vector: opaque except for its letters and digits.
        const plain = /^[a-zA-Z]$/.test(content) && command !== "mathbb";
        tokens.push({ kind: "name", text: plain ? content : `${command}:${content}` });
        continue;
      }
      if (command === "begin" || command === "end") {
        let name = (group() ?? "").trim();
        if (command === "begin" && /^(?:array|tabular)$/.test(name)) group();
        if (name === "array" || name === "tabular" || name === "aligned" || name === "align*")
          name = "matrix";
        tokens.push({ kind: "symbol", text: `${command}:${name}` });
        continue;
      }
      tokens.push({ kind: "command", text: command });
      continue;
    }
    const symbol = take(/\\[{}%|&_#]|<=|>=|!=|==|\*\*|->|[\s\S]/y)!;
    tokens.push({ kind: "symbol", text: symbol === "**" ? "^" : symbol === rowBreak ? "\\\\" : symbol });
  }
  return tokens;
}

/** 0.1666… as the equal fraction (16 - 1) / 90. */
function repeatingDecimal(whole: string, fixed: string, cycle: string): string {
  const numerator = BigInt(whole + fixed + cycle) - BigInt(`0${whole}${fixed}`);
  return `{\\frac{${numerator}}{${"9".repeat(cycle.length)}${"0".repeat(fixed.length)}}}`;
}

function pushWord(tokens: Token[], word: string): void {
  if (Object.hasOwn(plainWords, word)) tokens.push({ kind: "command", text: plainWords[word]! });
  // The imaginary unit, as computer algebra systems write it.
  else if (word === "I") tokens.push({ kind: "name", text: "i" });
  else if (word === "and" || word === "or") tokens.push({ kind: "symbol", text: "," });
  else if (word === "percent" || word === "pct") tokens.push({ kind: "symbol", text: "%" });
  else if (unitWords.has(word.toLowerCase()) || (word.length >= 4 && /[aeiouy]/i.test(word)))
    pushText(tokens, word);
  else for (const letter of word) tokens.push({ kind: "name", text: letter });
}

/** Whether a unit may follow: after a number, a bracket or π. */
function endsValue(token: Token | undefined): boolean {
  return (
    token?.kind === "number" || (token?.kind === "symbol" ? /^[})]$/.test(token.text) : token?.text === "pi")
  );
}

function isUnitWord(word: string): boolean {
  return /^[mgshlLNJW]$/.test(word) || unitWords.has(word.toLowerCase());
}

function pushText(tokens: Token[], content: string): void {
  const text = content.replace(/\s+/g, " ").trim();
  if (text === "") return;
  // \text{8:34 PM} is a time, like 8:34 \text{ PM}.
  const time = /^(\d{1,2}(?::\d\d){1,2}) ?([ap]m)$/i.exec(text);
  if (time !== null) {
    for (const [i, number] of time[1]!.split(":").entries()) {
      if (i > 0) tokens.push({ kind: "symbol", text: ":" });
      tokens.push({ kind: "number", text: number });
    }
    tokens.push({ kind: "text", text: time[2]! });
    return;
  }
  if (/^(?:,\s*)?(?:and|or)$/.test(text) || /^[,;]$/.test(text)) {
    tokens.push({ kind: "symbol", text: "," });
    return;
  }
  if (/^(?:percent|%|\\%|pct)$/.test(text)) {
    tokens.push({ kind: "symbol", text: "%" });
    return;
  }
  if (/^[-+]?\d+(?:\.\d+)?$/.test(text)) {
    if (/^[-+]/.test(text)) tokens.push({ kind: "symbol", text: text[0]! });
    tokens.push({ kind: "number", text: text.replace(/^[-+]/, "") });
    return;
  }
  // 5\text{ m} and 5\,\text{m} have a unit, \text{m} is a name.
  const isUnit = endsValue(tokens.at(-1)) && (/^\s/.test(content) || isUnitWord(text));
  if (/^[a-zA-Z]$/.test(text) && !isUnit) {
    tokens.push({ kind: "name", text });
    return;
  }
  // \text{A, C} are two choices.
  if (/^[A-Z](?: ?,(?: and)? ?[A-Z]| and [A-Z])+$/.test(text)) {
    for (const [i, letter] of text.match(/[A-Z]/g)!.entries()) {
      if (i > 0) tokens.push({ kind: "symbol", text: "," });
      tokens.push({ kind: "name", text: letter });
    }
    return;
  }
  const choice = /^\(([A-Za-z])\)$/.exec(text);
  if (choice !== null) {
    tokens.push({ kind: "name", text: choice[1]! });
    return;
  }
  const previous = tokens.at(-1);
  if (previous?.kind === "text") previous.text += ` ${text}`;
  else tokens.push({ kind: "text", text });
}
