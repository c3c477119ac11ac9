/**
 * Messages between two processes over a socket: values that the structured clone algorithm can
 * copy, each after its length. Only for processes that trust each other: see handshake.ts.
 */

import type { Socket } from "node:net";
import { deserialize, serialize } from "node:v8";

export interface ChannelHandlers {
  onMessage(message: unknown): void;
  /** Called once, when the other side has ended or the connection broke. */
  onClose(reason: string): void;
}

/** Bytes of a message's length. */
const headerBytes = 4;

export class Channel {
  readonly #socket: Socket;
  readonly #handlers: ChannelHandlers;
  #chunks: Buffer[] = [];
  #held = 0;
  #closed = false;

  constructor(socket: Socket, handlers: ChannelHandlers) {
    this.#socket = socket;
    this.#handlers = handlers;
    socket.setNoDelay(true);
    socket.setKeepAlive(true, 10_000);
    socket.on("data", (chunk) => this.#take(chunk));
    socket.on("error", (error) => this.#close(error.message));
    socket.on("close", () => this.#close("the connection was closed"));
  }

  /** Sends a copy of `message`. Ignored after the connection has ended. */
  send(message: unknown): void {
    if (this.#closed) return;
    const body = serialize(message);
    const header = Buffer.alloc(headerBytes);
    header.writeUInt32LE(body.length);
    this.#socket.cork();
    this.#socket.write(header);
    this.#socket.write(body);
    this.#socket.uncork();
  }

  /** Sends pending messages and closes the connection, without calling `onClose`. */
  end(): void {
    this.#closed = true;
    this.#socket.end();
  }

  /** Closes the connection at once, without calling `onClose`. */
  destroy(): void {
    this.#closed = true;
    this.#socket.destroy();
  }

  #take(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#held += chunk.length;
    while (!this.#closed && this.#held >= headerBytes) {
      if (this.#chunks[0]!.length < headerBytes) this.#chunks = [Buffer.concat(this.#chunks)];
      const length = headerBytes + this.#chunks[0]!.readUInt32LE(0);
      if (this.#held < length) return;
      const all = this.#chunks.length === 1 ? this.#chunks[0]! : Buffer.concat(this.#chunks);
      this.#chunks = [all.subarray(length)];
      this.#held -= length;
      this.#handlers.onMessage(deserialize(all.subarray(headerBytes, length)));
    }
  }

  #close(reason: string): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#socket.destroy();
    this.#handlers.onClose(reason);
  }
}
