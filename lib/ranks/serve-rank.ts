/** A rank other than 0: executes the calls that rank 0 sends on its own learner. */

import { hostname } from "node:os";
import { messageOf, NlacError } from "../base/errors.ts";
import type { Learner } from "../learner/learner.ts";
import { Channel } from "./channel.ts";
import { connectToFirst } from "./handshake.ts";
import type { Ranks } from "./join.ts";
import { openLearner } from "./open-learner.ts";
import { type CommonMethod, pingMs, type Reply, type Request, type SplitMethod } from "./protocol.ts";

type AnyMethod = (...args: unknown[]) => Promise<unknown>;

/** Least number of intervals between pings without a message until rank 0 counts as ended. */
const minMissed = 12;

/**
 * Serves until rank 0 says that the training is over.
 *
 * @throws NlacError ERR_PEER when rank 0 or another rank has ended. A call on the learner may still
 *   be waiting for it: end the process.
 */
export async function serveRank(ranks: Ranks): Promise<void> {
  const { place } = ranks;
  const socket = await connectToFirst(ranks);
  const running = new Map<number, AbortController>();
  let learner: Learner | undefined;
  let watch: NodeJS.Timeout | undefined;
  await new Promise<void>((resolve, reject) => {
    // Intervals are counted, not time: messages wait unread while this event loop is blocked.
    // Rank 0 may block its own for long, for example while it reads a replay buffer.
    const maxMissed = Math.max(minMissed, Math.ceil(place.timeoutMs / pingMs));
    let missed = 0;
    watch = setInterval(() => {
      if (++missed > maxMissed) end(`rank 0 was silent for ${(maxMissed * pingMs) / 1000} s`);
    }, pingMs).unref();
    const end = (why: string) =>
      reject(
        new NlacError("ERR_PEER", `Rank ${place.rank} of ${place.ranks} on ${hostname()} ends: ${why}.`),
      );
    const channel = new Channel(socket, {
      onClose: (reason) => end(`rank 0 has ended (${reason})`),
      onMessage: (message) => {
        missed = 0;
        const request = message as Request;
        if (request.call === "ping") channel.send({ call: "pong" } satisfies Reply);
        else if (request.call === "cancel") running.get(request.id)?.abort();
        else if (request.call === "end") {
          channel.end();
          resolve();
        } else void answer(request);
      },
    });

    async function answer(request: Extract<Request, { id: number; call: unknown }>): Promise<void> {
      if (request.call === "cancel") return;
      const { id } = request;
      const controller = new AbortController();
      running.set(id, controller);
      try {
        let value: unknown;
        if (request.call === "open") learner = await openLearner(request.source, ranks);
        else value = await call(request, controller.signal);
        channel.send({ id, value } satisfies Reply);
      } catch (error) {
        const code = error instanceof NlacError ? error.code : "ERR_INTERNAL";
        const message = messageOf(error);
        channel.send({ id, code, message } satisfies Reply);
        // The others may wait for this rank in a collective: they continue when its sockets close.
        if (code === "ERR_PEER") end(message);
      } finally {
        running.delete(id);
      }
    }

    function call(
      { call, args }: { call: SplitMethod | CommonMethod; args: unknown[] },
      signal: AbortSignal,
    ): Promise<unknown> {
      const method = (learner as unknown as Record<string, AnyMethod>)[call]!.bind(learner);
      if (call !== "generate" && call !== "generateTogether") return method(...args);
      const [requests, options, ...rest] = args as [unknown, object, ...unknown[]];
      return method(requests, { ...options, signal }, ...rest);
    }
  }).finally(() => clearInterval(watch));
  await learner?.dispose();
}
