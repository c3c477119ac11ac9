/**
 * Rank 0's connections to the other ranks: it sends calls and receives answers. If one rank ends,
 * all end.
 */

import type { Socket } from "node:net";
import { hostname } from "node:os";
import { type ErrorCode, NlacError } from "../base/errors.ts";
import { Channel } from "./channel.ts";
import { pingMs, type Reply, type Request } from "./protocol.ts";

interface Waiting {
  resolve: (value: unknown) => void;
  reject: (error: NlacError) => void;
}

type Call = Extract<Request, { id: number }>;
/** A call without its number. */
export type PeerCall = Call extends infer One ? (One extends unknown ? Omit<One, "id"> : never) : never;

/**
 * Pings in a row without an answer until a rank counts as ended: a minute. Pings are counted, not
 * time, because answers wait unread while rank 0's event loop is blocked.
 */
const maxUnanswered = 12;

class Peer {
  readonly rank: number;
  readonly channel: Channel;
  /** Pings since the last message. */
  unanswered = 0;
  #waiting = new Map<number, Waiting>();
  #next = 0;

  constructor(rank: number, socket: Socket, onClose: (rank: number, reason: string) => void) {
    this.rank = rank;
    this.channel = new Channel(socket, {
      onMessage: (message) => this.#take(message as Reply),
      onClose: (reason) => onClose(rank, reason),
    });
    socket.resume();
  }

  /** Resolves with the answer. When `signal` fires, the rank stops the call and answers. */
  call(call: PeerCall, signal?: AbortSignal): Promise<unknown> {
    const id = this.#next++;
    const cancel = () => this.channel.send({ call: "cancel", id } satisfies Request);
    signal?.addEventListener("abort", cancel, { once: true });
    return new Promise<unknown>((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.channel.send({ ...call, id } satisfies Omit<Call, "call">);
    }).finally(() => signal?.removeEventListener("abort", cancel));
  }

  fail(error: NlacError): void {
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
  }

  #take(reply: Reply): void {
    this.unanswered = 0;
    if (!("id" in reply)) return;
    const waiting = this.#waiting.get(reply.id);
    this.#waiting.delete(reply.id);
    if ("value" in reply) waiting?.resolve(reply.value);
    else waiting?.reject(new NlacError(reply.code as ErrorCode, `Rank ${this.rank}: ${reply.message}`));
  }
}

export class Peers {
  readonly #peers: Peer[];
  readonly #pinging: NodeJS.Timeout;
  #lost: NlacError | undefined;
  #reportLoss: (error: NlacError) => void = () => {};
  readonly #loss: Promise<never>;

  /** @param sockets of the ranks from 1, in order */
  constructor(sockets: readonly Socket[]) {
    this.#loss = new Promise((_, reject) => {
      this.#reportLoss = reject;
    });
    this.#loss.catch(() => {}); // reported by the call that waits, or by the next one
    this.#peers = sockets.map((socket, i) => new Peer(i + 1, socket, (rank, why) => this.#lose(rank, why)));
    this.#pinging = setInterval(() => this.#ping(), pingMs);
    this.#pinging.unref();
  }

  get count(): number {
    return this.#peers.length;
  }

  /** Calls rank `rank`, from 1. */
  call(rank: number, call: PeerCall, signal?: AbortSignal): Promise<unknown> {
    if (this.#lost !== undefined) return Promise.reject(this.#lost);
    return this.#peers[rank - 1]!.call(call, signal);
  }

  /**
   * Waits for the calls of all ranks, or until one rank ends: rank 0's own call may wait long for
   * that rank.
   *
   * @throws NlacError ERR_PEER when a rank has ended
   */
  async settled<T>(calls: readonly Promise<T>[]): Promise<PromiseSettledResult<T>[]> {
    if (this.#lost !== undefined) {
      Promise.allSettled(calls);
      throw this.#lost;
    }
    return Promise.race([Promise.allSettled(calls), this.#loss]);
  }

  get lost(): NlacError | undefined {
    return this.#lost;
  }

  /** Ends the other ranks in order: the training is over. */
  end(): void {
    clearInterval(this.#pinging);
    for (const { channel } of this.#peers) {
      channel.send({ call: "end" } satisfies Request);
      channel.end();
    }
  }

  /** Closes all connections: the other ranks notice it at once. */
  abandon(reason: NlacError): void {
    if (this.#lost !== undefined) return;
    this.#lost = reason;
    clearInterval(this.#pinging);
    for (const peer of this.#peers) {
      peer.channel.destroy();
      peer.fail(reason);
    }
    this.#reportLoss(reason);
  }

  #lose(rank: number, why: string): void {
    this.abandon(
      new NlacError(
        "ERR_PEER",
        `Rank ${rank} of ${this.count + 1} has ended (${why}), as rank 0 on ${hostname()} reports. See the output of ` +
          `rank ${rank} for the reason. The last checkpoint is intact.`,
      ),
    );
  }

  #ping(): void {
    for (const peer of this.#peers) {
      if (peer.unanswered >= maxUnanswered) {
        this.#lose(peer.rank, `no answer to ${maxUnanswered} pings in ${(maxUnanswered * pingMs) / 1000} s`);
        return;
      }
      peer.unanswered++;
      peer.channel.send({ call: "ping" } satisfies Request);
    }
  }
}
