/** Terminal lines that are updated in place, and a progress bar. */

import { printable } from "./printable.ts";

export interface ProgressStream {
  isTTY?: boolean;
  columns?: number;
  rows?: number;
  write(text: string): unknown;
}

/** If the stream is not a terminal, only notes are printed. */
export class LiveLines {
  readonly #stream: ProgressStream;
  #drawn = 0;

  constructor(stream: ProgressStream) {
    this.#stream = stream;
  }

  /** Maximum columns; longer lines are cut. */
  get width(): number {
    return Math.max(20, (this.#stream.columns ?? 100) - 1);
  }

  /** Replaces the lines drawn before with `lines`. */
  draw(lines: readonly string[]): void {
    if (!this.#stream.isTTY) return;
    const { width } = this;
    this.#stream.write(this.#erased() + lines.map((line) => line.slice(0, width)).join("\n"));
    this.#drawn = lines.length;
  }

  /** Prints `text` above, and removes the drawn lines until they are drawn again. */
  note(text: string): void {
    this.#stream.write(`${this.#erased()}${printable(text, this.#stream)}\n`);
  }

  /** Removes the drawn lines. */
  clear(): void {
    if (this.#drawn > 0) this.#stream.write(this.#erased());
  }

  /** Leaves the drawn lines on the screen. */
  end(): void {
    if (this.#drawn > 0) this.#stream.write("\n");
    this.#drawn = 0;
  }

  /** The control codes that remove the drawn lines. */
  #erased(): string {
    const lines = this.#drawn;
    this.#drawn = 0;
    if (lines === 0) return "";
    return `\r${lines > 1 ? `\x1b[${lines - 1}A` : ""}\x1b[0J`;
  }
}

/** A part of a line. */
export interface LinePart {
  text: string;
  /** Parts with the highest number are left out first when the line is too long; 0 always stays. */
  drop: number;
}

/** Joins `parts` by two spaces, without the least important ones if they exceed `width` columns. */
export function fitParts(parts: readonly LinePart[], width: number): string {
  const kept = [...parts];
  const length = () => kept.reduce((sum, { text }) => sum + text.length + 2, -2);
  while (length() > width) {
    const last = kept.reduce((worst, part, i) => (part.drop >= kept[worst]!.drop ? i : worst), 0);
    if (kept[last]!.drop === 0) break;
    kept.splice(last, 1);
  }
  return kept.map(({ text }) => text).join("  ");
}

/** A bar of `width` cells, filled by `share` (0 to 1). */
export function progressBar(share: number, width: number): string {
  const full = Math.round(Math.min(1, share) * width);
  return "█".repeat(full) + "░".repeat(width - full);
}
