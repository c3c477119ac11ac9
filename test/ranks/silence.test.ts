/** Ranks that fall silent, and connections that never send the secret. */

import { once } from "node:events";
import { connect, createServer, type Server, type Socket } from "node:net";
import { setTimeout } from "node:timers/promises";
import { afterEach, expect, test, vi } from "vitest";
import { Channel } from "../../lib/ranks/channel.ts";
import { acceptPeers, connectToFirst } from "../../lib/ranks/handshake.ts";
import type { Ranks } from "../../lib/ranks/join.ts";
import { Peers } from "../../lib/ranks/peers.ts";
import { pingMs } from "../../lib/ranks/protocol.ts";
import { serveRank } from "../../lib/ranks/serve-rank.ts";

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

/** Ranks that share a store in this process. */
function ranksOf(count: number, timeoutMs = 60_000): Ranks[] {
  const values = new Map<string, string>();
  const native = {
    set: async (key: string, value: string) => void values.set(key, value),
    get: async (key: string) => {
      while (!values.has(key)) await setTimeout(5);
      return values.get(key)!;
    },
  };
  return Array.from({ length: count }, (_, rank) => {
    const place = { rank, ranks: count, localRank: rank, localRanks: count, address: "127.0.0.1" };
    return {
      place: { ...place, port: 1, serves: false, restart: 0, timeoutMs },
      native,
    } as unknown as Ranks;
  });
}

async function pair(): Promise<{ near: Socket; far: Socket; server: Server }> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const accepted = once(server, "connection") as Promise<[Socket]>;
  const near = connect((server.address() as { port: number }).port, "127.0.0.1");
  const [far] = await accepted;
  server.close();
  return { near, far, server };
}

test("a rank that answers pings lives through a blocked rank 0, and one that does not counts as ended", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const { near, far } = await pair();
  const peers = new Peers([near]);
  let silent = false;
  const channel = new Channel(far, {
    onMessage: () => silent || channel.send({ call: "pong" }),
    onClose: () => {},
  });
  const now = performance.now.bind(performance);
  const clock = vi.spyOn(performance, "now").mockImplementation(() => now() + 120_000);
  vi.advanceTimersByTime(pingMs);
  expect(peers.lost).toBeUndefined();
  clock.mockRestore();
  for (let i = 0; i < 20; i++) {
    vi.advanceTimersByTime(pingMs);
    await setTimeout(20);
  }
  expect(peers.lost).toBeUndefined();
  silent = true;
  vi.advanceTimersByTime(12 * pingMs);
  expect(peers.lost).toBeUndefined();
  vi.advanceTimersByTime(pingMs);
  expect(peers.lost).toMatchObject({
    code: "ERR_PEER",
    message: expect.stringContaining("12 pings in 60 s"),
  });
  far.destroy();
});

test("a rank ends when rank 0 was silent for NLAC_PEER_TIMEOUT", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const [first, second] = ranksOf(2, 100_000);
  const accepted = acceptPeers(first!);
  let reason: { code?: string; message?: string } | undefined;
  const serving = serveRank(second!).catch((error) => {
    reason = error;
  });
  const [socket] = await accepted;
  let pongs = 0;
  const channel = new Channel(socket!, { onMessage: () => pongs++, onClose: () => {} });
  socket!.resume();
  const ping = async () => {
    const before = pongs;
    channel.send({ call: "ping" });
    while (pongs === before) await setTimeout(5);
  };
  await ping();
  vi.advanceTimersByTime(90_000);
  await ping();
  vi.advanceTimersByTime(90_000);
  await setTimeout(20);
  expect(reason).toBeUndefined();
  vi.advanceTimersByTime(20_000);
  await serving;
  expect(reason).toMatchObject({ code: "ERR_PEER", message: expect.stringContaining("silent for 100 s") });
  socket!.destroy();
});

test("connections without the secret are few, are closed in time, and do not keep a rank out", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  const [first, second] = ranksOf(2);
  const accepted = acceptPeers(first!);
  const { port } = JSON.parse(await first!.native.get("channel")) as { port: number };
  let closed = 0;
  const strangers: Socket[] = [];
  const add = async () => {
    const socket = connect(port, "127.0.0.1").on("error", () => {});
    socket.on("close", () => closed++).resume();
    strangers.push(socket);
    await once(socket, "connect");
  };
  for (let i = 0; i < 11; i++) await add();
  // Four per rank are left.
  await vi.waitFor(() => expect(closed).toBe(3));
  vi.advanceTimersByTime(10_000);
  await vi.waitFor(() => expect(closed).toBe(11));
  await add();
  const rank = await connectToFirst(second!);
  const [socket] = await accepted;
  await vi.waitFor(() => expect(closed).toBe(12));
  rank.destroy();
  socket!.destroy();
});
