/** Reads answers line by line from a person at a terminal, or from a pipe. */

import { createInterface, type Interface } from "node:readline";

export class Person {
  readonly #output: NodeJS.WritableStream;
  readonly #reader: Interface;
  readonly #lines: AsyncIterator<string>;
  readonly #interrupt = new AbortController();
  #closed = false;

  /** Reads `input` until `close`. At a terminal, Ctrl-C fires `signal` and does not exit. */
  constructor(input: NodeJS.ReadableStream, output: NodeJS.WritableStream) {
    this.#output = output;
    this.#reader = createInterface({ input, output });
    // Iterate from the start: a pipe delivers lines before they are requested.
    this.#lines = this.#reader[Symbol.asyncIterator]();
    this.#reader.on("SIGINT", () => {
      this.#interrupt.abort();
      this.#reader.close();
    });
    this.#reader.on("close", () => {
      this.#closed = true;
    });
  }

  /** Fires at Ctrl-C. */
  get signal(): AbortSignal {
    return this.#interrupt.signal;
  }

  /** The next line; undefined at Ctrl-D or the pipe's end, and after Ctrl-C. */
  async ask(question: string): Promise<string | undefined> {
    if (this.#closed) {
      this.#output.write(question);
    } else {
      this.#reader.setPrompt(question);
      this.#reader.prompt();
    }
    const line = await this.#lines.next();
    if (!line.done) return line.value;
    this.#output.write("\n"); // end the prompt's line
    return undefined;
  }

  close(): void {
    this.#reader.close();
  }
}
