/** Lines at a terminal that are renewed in place, and the bar that progress is shown by. */

export interface ProgressStream {
  isTTY?: boolean;
  columns?: number;
  rows?: number;
  write(text: string): unknown;
}

/** Does nothing but print notes where the stream is no terminal. */
export class LiveLines {
  readonly #stream: ProgressStream;
  #drawn = 0;

  constructor(stream: ProgressStream) {
    this.#stream = stream;
  }

  /** Columns of a line; longer ones are cut. */
  get width(): number {
    return Math.max(20, (this.#stream.columns ?? 100) - 1);
  }

  /** Puts `lines` in the place of those that were drawn before. */
  draw(lines: readonly string[]): void {
    if (!this.#stream.isTTY) return;
    const { width } = this;
    this.#stream.write(this.#erased() + lines.map((line) => line.slice(0, width)).join("\n"));
    this.#drawn = lines.length;
  }

  /** Prints `text` on lines of its own. What was drawn is gone until it is drawn again. */
  note(text: string): void {
    this.#stream.write(`${this.#erased()}${text}\n`);
  }

  /** Removes what was drawn. */
  clear(): void {
    if (this.#drawn > 0) this.#stream.write(this.#erased());
  }

  /** Leaves what was drawn standing. */
  end(): void {
    if (this.#drawn > 0) this.#stream.write("\n");
    this.#drawn = 0;
  }

  /** The codes that remove what was drawn. */
  #erased(): string {
    const lines = this.#drawn;
    this.#drawn = 0;
    if (lines === 0) return "";
    return `\r${lines > 1 ? `\x1b[${lines - 1}A` : ""}\x1b[0J`;
  }
}

/** `share` of `width` cells, 0 to 1. */
export function progressBar(share: number, width: number): string {
  const full = Math.round(Math.min(1, share) * width);
  return "█".repeat(full) + "░".repeat(width - full);
}
