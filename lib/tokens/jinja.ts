/**
 * Renders a Jinja template that is not trusted: its steps, the sizes of its values and its time are
 * limited. Templates cannot reach JavaScript: the interpreter stores all values in maps.
 */

import { Environment, Template } from "@huggingface/jinja";
import { isOverTimeLimit, withTimeLimit } from "../base/time-limit.ts";
import { BoundedInterpreter, type MarkLiteral, TemplateLimitError } from "./jinja-interpreter.ts";

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

/** Throws an Error with the reason if `source` is not a template. */
export function parseTemplate(source: string): unknown {
  if (typeof source !== "string") throw new Error("it is not a text");
  if (source.length > maxSource) throw new Error(`it has more than ${maxSource} characters`);
  // Jinja has one kind of line break.
  return limited(() => new Template(withoutRaw(source.replace(/\r\n?/g, "\n"))).parsed);
}

const rawStart = /\{%(-?)\s*raw\s*(-?)%\}/g;
const rawEnd = /\{%(-?)\s*endraw\s*(-?)%\}/g;

/** Without the white space at the start of its last line, as before other blocks. */
function withoutIndent(text: string): string {
  return text.replace(/(?<=^|\n)[ \t]+$/, "");
}

/** The source with each block of `raw` as an expression that prints its text. */
function withoutRaw(source: string): string {
  let [result, at] = ["", 0];
  rawStart.lastIndex = 0;
  for (let start = rawStart.exec(source); start !== null; start = rawStart.exec(source)) {
    rawEnd.lastIndex = rawStart.lastIndex;
    const end = rawEnd.exec(source);
    if (end === null) throw new Error("a block of raw has no end");
    let text = withoutIndent(source.slice(rawStart.lastIndex, end.index));
    if (start[2] === "-") text = text.trimStart();
    if (end[1] === "-") text = text.trimEnd();
    result += `${withoutIndent(source.slice(at, start.index))}{{${start[1]} ${JSON.stringify(text)} ${end[2]}}}`;
    at = rawEnd.lastIndex;
    if (end[2] === "" && source[at] === "\n") at++; // as after other blocks
    rawStart.lastIndex = at;
  }
  return result + source.slice(at);
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
