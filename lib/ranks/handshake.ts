/**
 * How the other ranks connect to rank 0: it listens on a free port, and stores the port and a
 * secret in the ranks' store. A connection that does not begin with the secret is closed unread.
 */

import { randomBytes, timingSafeEqual } from "node:crypto";
import { connect, createServer, type Server, type Socket } from "node:net";
import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import type { Ranks } from "./join.ts";

const key = "channel";
const secretBytes = 32;
const helloBytes = secretBytes + 4;
/** Milliseconds in which a connection must send the secret. */
const helloMs = 10_000;
/** Maximum connections per rank that have not sent the secret. Above it the oldest is closed. */
const pendingPerRank = 4;
const invitation = z.strictObject({ port: z.int(), secret: z.string() });

/** Milliseconds after which a rank says which others it waits for. */
const noticeMs = 5000;

/**
 * Waits for all other ranks. Returns their sockets, in order of their ranks from 1.
 *
 * @param log is told once which ranks are missing, if they are late
 * @throws NlacError ERR_PEER that names the ranks that did not connect in time
 */
export async function acceptPeers({ place, native }: Ranks, log?: (line: string) => void): Promise<Socket[]> {
  if (place.ranks === 1) return [];
  const secret = randomBytes(secretBytes);
  const sockets = new Map<number, Socket>();
  const pending = new Map<Socket, NodeJS.Timeout>();
  const settle = (socket: Socket) => {
    clearTimeout(pending.get(socket));
    pending.delete(socket);
  };
  let complete: () => void = () => {};
  const all = new Promise<void>((resolve) => {
    complete = resolve;
  });
  const server = createServer((socket) => {
    socket.on("error", () => socket.destroy());
    socket.on("close", () => settle(socket));
    if (pending.size >= pendingPerRank * place.ranks) {
      const [oldest] = pending.keys();
      settle(oldest!);
      oldest!.destroy();
    }
    pending.set(
      socket,
      setTimeout(() => socket.destroy(), helloMs),
    );
    let hello = Buffer.alloc(0);
    const read = (chunk: Buffer) => {
      hello = Buffer.concat([hello, chunk]);
      if (hello.length < helloBytes) return;
      socket.off("data", read);
      const rank = hello.readUInt32LE(secretBytes);
      const known = timingSafeEqual(hello.subarray(0, secretBytes), secret);
      if (!known || hello.length > helloBytes || rank < 1 || rank >= place.ranks || sockets.has(rank)) {
        socket.destroy();
        return;
      }
      settle(socket);
      socket.pause();
      sockets.set(rank, socket);
      if (sockets.size === place.ranks - 1) complete();
    };
    socket.on("data", read);
  });
  let timer: NodeJS.Timeout | undefined;
  const missing = () =>
    ranksFrom1(place.ranks)
      .filter((rank) => !sockets.has(rank))
      .join(", ");
  const notice = setTimeout(() => {
    log?.(`waiting for rank ${missing()} of ${place.ranks}, for up to ${place.timeoutMs / 1000} s …`);
  }, noticeMs);
  try {
    const port = await listen(server, place.address);
    await native.set(key, JSON.stringify({ port, secret: secret.toString("hex") }));
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        reject(
          new NlacError(
            "ERR_PEER",
            `Rank ${missing()} of ${place.ranks} did not start within ${place.timeoutMs / 1000} s.`,
          ),
        );
      }, place.timeoutMs);
    });
    await Promise.race([all, late]);
  } catch (error) {
    for (const socket of sockets.values()) socket.destroy();
    throw error;
  } finally {
    clearTimeout(timer);
    clearTimeout(notice);
    server.close();
    for (const socket of pending.keys()) {
      settle(socket);
      socket.destroy();
    }
  }
  return ranksFrom1(place.ranks).map((rank) => sockets.get(rank)!);
}

/** Connects to rank 0. Throws ERR_PEER. */
export async function connectToFirst({ place, native }: Ranks): Promise<Socket> {
  const { port, secret } = invitation.parse(JSON.parse(await native.get(key)));
  const socket = connect({ port, host: place.address });
  await new Promise<void>((resolve, reject) => {
    socket.once("connect", resolve);
    socket.once("error", (error) =>
      reject(
        new NlacError("ERR_PEER", `Rank 0 at ${place.address}:${port} cannot be reached: ${error.message}.`, {
          cause: error,
        }),
      ),
    );
  });
  const rank = Buffer.alloc(4);
  rank.writeUInt32LE(place.rank);
  socket.write(Buffer.concat([Buffer.from(secret, "hex"), rank]));
  return socket;
}

function ranksFrom1(ranks: number): number[] {
  return Array.from({ length: ranks - 1 }, (_, i) => i + 1);
}

/** Listens on a free port: on the loopback interface only, if all ranks are on this machine. */
function listen(server: Server, address: string): Promise<number> {
  const local = address === "localhost" || address.startsWith("127.");
  return new Promise((resolve, reject) => {
    server.once("error", (error) =>
      reject(
        new NlacError("ERR_PEER", `Rank 0 cannot listen for others: ${error.message}.`, { cause: error }),
      ),
    );
    const listening = () => resolve((server.address() as { port: number }).port);
    if (local) server.listen(0, address, listening);
    else server.listen(0, listening);
  });
}
