/**
 * Progress display on stderr: a line that is updated in place at a terminal, plain lines in a pipe.
 */

import { fitParts, type LinePart, LiveLines, type ProgressStream, progressBar } from "./live-lines.ts";
import { RemainingTime } from "./remaining-time.ts";

/** Shows the progress of a long operation. */
export interface Progress {
  /** Starts a phase of `total` steps. */
  phase(name: string, total: number): void;
  /** Call when `done` steps of the phase are done; `tokens` is the number since the last call. */
  advance(done: number, tokens?: number): void;
  /** Sets figures to show, by name. */
  show(figures: Record<string, number>): void;
  /** Removes a figure. */
  hide?(name: string): void;
  /** Sets the number of the iteration, from 1, and how many there are if that is known. */
  iteration?(number: number, total?: number): void;
  /** Prints a line beside the progress, such as a warning. */
  note?(text: string): void;
  /** Sets the share of the whole training that is done, 0 to 1, for the remaining time. */
  overall(fraction: number): void;
}

/** Shows nothing. */
export const silentProgress: Progress = { phase() {}, advance() {}, show() {}, overall() {} };

const barWidth = 24;
/** Below this many columns the bar is short. */
const narrow = 110;
const narrowBarWidth = 10;
/** Columns of the longest phase name, "evaluate". */
const nameWidth = 8;
/** Seconds between plain lines, and between redraws at a terminal. */
const plainInterval = 15;
const drawInterval = 0.1;

/** 75 → "1m15s". */
export function formatSeconds(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  if (hours > 0) return `${hours}h${String(minutes).padStart(2, "0")}m`;
  return minutes > 0 ? `${minutes}m${String(whole % 60).padStart(2, "0")}s` : `${whole}s`;
}

/** Three significant digits, with an exponent only for very large or small numbers. */
export function formatFigure(value: number): string {
  if (!Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const magnitude = Math.abs(value);
  return magnitude >= 0.001 && magnitude < 1e6
    ? String(Number(value.toPrecision(3)))
    : value.toExponential(1);
}

/** One line on stderr that is updated in place at a terminal; in a pipe a line every 15 s. */
export class TerminalProgress implements Progress {
  readonly #stream: ProgressStream;
  readonly #lines: LiveLines;
  readonly #now: () => number;
  readonly #started: number;
  readonly #figures = new Map<string, number>();
  readonly #remaining = new RemainingTime();
  #name = "";
  #iteration = "";
  #total = 0;
  #done = 0;
  #phaseStarted = 0;
  #phaseTokens = 0;
  #drawn = Number.NEGATIVE_INFINITY;
  readonly #clock: NodeJS.Timeout;
  /** Whether something has changed since the last plain line. */
  #pending = false;
  #ended = false;

  constructor(stream: ProgressStream = process.stderr, now: () => number = () => performance.now() / 1000) {
    this.#stream = stream;
    this.#lines = new LiveLines(stream);
    this.#now = now;
    this.#started = now();
    // A step can take many seconds: update the time in between.
    const seconds = stream.isTTY ? 1 : plainInterval;
    this.#clock = setInterval(() => this.#draw(false), seconds * 1000).unref();
  }

  phase(name: string, total: number): void {
    this.#name = name;
    this.#total = total;
    this.#done = 0;
    this.#phaseStarted = this.#now();
    this.#remaining.phase(this.#phaseStarted);
    this.#phaseTokens = 0;
    this.#draw(true);
  }

  advance(done: number, tokens = 0): void {
    this.#done = done;
    this.#phaseTokens += tokens;
    this.#draw(done >= this.#total);
  }

  show(figures: Record<string, number>): void {
    for (const [name, value] of Object.entries(figures)) this.#figures.set(name, value);
  }

  hide(name: string): void {
    this.#figures.delete(name);
  }

  iteration(number: number, total?: number): void {
    this.#remaining.iterations = total;
    this.#iteration = `iteration ${number}${total === undefined ? "" : `/${total}`}`;
  }

  overall(fraction: number): void {
    this.#remaining.overall(fraction, this.#now());
  }

  /** Prints `text` above the progress line. */
  note(text: string): void {
    this.#lines.note(text);
    this.#draw(false);
  }

  /** Leaves the last state on the screen, or writes it as the last line of a pipe. */
  end(): void {
    clearInterval(this.#clock);
    this.#ended = true;
    if (this.#stream.isTTY) {
      this.#draw(true); // figures may have changed since the last time
      this.#lines.end();
    } else if (this.#pending) this.#stream.write(`${this.#render(this.#now())}\n`);
    this.#pending = false;
  }

  #draw(force: boolean): void {
    if (this.#name === "") return;
    this.#pending = true;
    const now = this.#now();
    const interval = this.#stream.isTTY ? drawInterval : plainInterval;
    if (now - this.#drawn < interval && !(force && this.#stream.isTTY)) return;
    this.#drawn = now;
    this.#pending = false;
    if (this.#stream.isTTY) this.#lines.draw([this.#render(now)]);
    else this.#stream.write(`${this.#render(now)}\n`);
  }

  /** Times come first. A narrow terminal omits figures, the latest first, then the speed. */
  #render(now: number): string {
    const width = this.#stream.isTTY ? this.#lines.width : Number.POSITIVE_INFINITY;
    const cells = width < narrow ? narrowBarWidth : barWidth;
    const bar = progressBar(this.#total === 0 ? 0 : this.#done / this.#total, cells);
    const parts: LinePart[] = [{ text: this.#times(now), drop: 0 }];
    if (this.#iteration !== "") parts.push({ text: this.#iteration, drop: 0 });
    parts.push({ text: `${this.#name.padEnd(nameWidth)} ${bar} ${this.#done}/${this.#total}`, drop: 0 });
    for (const [name, value] of this.#figures) {
      const isSuccess = name.endsWith("success");
      parts.push({ text: `${name} ${formatFigure(value)}`, drop: isSuccess ? 1 : parts.length + 3 });
    }
    const elapsed = now - this.#phaseStarted;
    if (this.#phaseTokens > 0 && elapsed > 0.5)
      parts.push({ text: `${Math.round(this.#phaseTokens / elapsed)} tok/s`, drop: 2 });
    return fitParts(parts, width);
  }

  /** The elapsed time and, once the speed is known, the remaining time. */
  #times(now: number): string {
    const elapsed = formatSeconds(now - this.#started);
    const left = this.#remaining.left(now);
    if (left === undefined || this.#ended) return elapsed;
    // All updates are done: the last evaluation, or the last checkpoint, is in progress.
    return left > 0 ? `${elapsed}, ${formatSeconds(left)} left` : `${elapsed}, finishing`;
  }
}
