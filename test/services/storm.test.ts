/**
 * A service of which three replies in ten fail, in every possible way, under many concurrent
 * episodes: no episode fails, no answered request is repeated, and there are few extra requests.
 */

import { createHash } from "node:crypto";
import { afterAll, beforeAll, expect, it, vi } from "vitest";
import type { Environment, Message } from "../../lib/contract/environment.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { servicePlayer } from "../../lib/playing/service-player.ts";
import { type ChatService, chatService } from "../../lib/services/chat-service.ts";
import { openService } from "../../lib/services/open-service.ts";
import { type Answer, chatServer } from "../support/chat-server.ts";

const episodes = Number(process.env.NLAC_STORM_EPISODES ?? 500);
const turns = 2;
const requests = episodes * turns;
const atOnce = 32;
/** Timeout of a reply in milliseconds, by the clock below. */
const timeout = 6000;
const quick: Answer[] = [
  { status: 429, headers: { "retry-after": "1" } },
  { status: 429 },
  { status: 500 },
  { body: "cut" },
  { finish: null },
];
/** Three tenths of the replies in equal parts; timeouts are the rarest. */
const faults: Answer[] = [...quick, ...quick, ...quick, { delay: timeout * 2 }];
const faulty = 0.3;

// A fake clock: it stops while a reply is under way, however long that takes on a busy machine, and
// jumps when only pauses and unanswered requests remain.
vi.mock("node:timers/promises", () => ({
  setTimeout: (ms: number) => new Promise((resolve) => setTimeout(resolve, ms)),
}));
let underWay = 0;
/** Requests in flight that are not answered in time. */
const unanswered = new Set<string>();
const inTruth = { setTimeout };
let clock: NodeJS.Timeout;
const tick = () => {
  if (underWay === unanswered.size) vi.advanceTimersByTime(500);
  clock = inTruth.setTimeout(tick, 1);
};
beforeAll(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  tick();
});
afterAll(() => {
  vi.useRealTimers();
  clearTimeout(clock);
});

const spoken = (heard: string) => `Thought: I heard it.\nAction: You said ${heard}`;

/** The faulty service; `served` counts good replies per request. */
async function storm() {
  const tries = new Map<string, number>();
  const served = new Map<string, number>();
  const server = await chatServer(({ messages }) => {
    const request = JSON.stringify(messages);
    const attempt = tries.get(request) ?? 0;
    tries.set(request, attempt + 1);
    // Determined by the request, so that faults do not depend on the order.
    const drawn = createHash("sha256").update(`${request} ${attempt}`).digest().readUInt32LE() / 2 ** 32;
    const fault = faults[Math.floor((drawn / faulty) * faults.length)];
    const text = spoken(messages.at(-1)!.content);
    if (fault?.delay !== undefined) unanswered.add(request);
    if (fault !== undefined) return { text, ...fault };
    return { text, onSent: () => served.set(request, (served.get(request) ?? 0) + 1) };
  });
  return { ...server, served };
}

/** The agent repeats what it hears, and hears what `person` says. */
function conversation(person: ChatService): Environment<number> {
  const start: Environment<number>["start"] = async (episode, { signal }) => {
    const line = (turn: number) => `line ${turn} of ${episode}`;
    let turn = 0;
    return {
      observation: { messages: [{ role: "user", content: line(0) }] },
      async step({ text }) {
        const asked: Message[] = [{ role: "user", content: line(++turn) }];
        const reply = await person.complete(asked, signal === undefined ? {} : { signal });
        return {
          observation: asked,
          reward: 0,
          terminated: turn === turns,
          truncated: false,
          info: { agent: text, person: reply },
        };
      },
      close: async () => {},
    };
  };
  return {
    ...{ name: "conversation", actionFormat: "text", maxTurns: turns },
    ...{ start, tasks: async () => [], taskId: String, usage: () => person.usage() },
    close: async () => {},
  };
}

it.each(["person", "player"])(
  `survives a storm: ${episodes} episodes whose %s is a service`,
  async (role) => {
    const { baseURL, calls, served, close } = await storm();
    // Counted here, since the server learns of abandoned requests later, or not at all.
    let mostAtOnce = 0;
    let sent = 0;
    const counted: typeof fetch = async (url, request) => {
      sent++;
      mostAtOnce = Math.max(mostAtOnce, ++underWay);
      try {
        return await fetch(url, request);
      } finally {
        underWay--;
        unanswered.delete(JSON.stringify(JSON.parse(String(request!.body)).messages));
      }
    };
    const service = chatService({ model: "m", baseURL, timeout, concurrency: atOnce, fetch: counted });
    const script = openService((messages) => spoken(messages.at(-1)!.content));
    const begun = performance.now();
    const trajectories = await collectTrajectories({
      model: servicePlayer(role === "player" ? service : script),
      environment: conversation(role === "person" ? service : script),
      episodes: Array.from({ length: episodes }, (_, id) => ({ id, task: id })),
      ...{ seed: 0, maxActionTokens: 100, maxPromptTokens: 100_000, temperature: 0, concurrency: 128 },
    });
    const seconds = (performance.now() - begun) / 1000;
    await close();

    expect(trajectories.map(({ fault }) => fault).filter((fault) => fault !== undefined)).toEqual([]);
    expect(trajectories.map(({ turns }) => turns.map(({ info }) => info))).toEqual(
      Array.from({ length: episodes }, (_, episode) =>
        Array.from({ length: turns }, (_, turn) => ({
          agent: `You said line ${turn} of ${episode}`,
          person: spoken(`line ${turn + 1} of ${episode}`),
        })),
      ),
    );
    expect(served.size).toBe(requests);
    expect([...served.values()].every((times) => times === 1)).toBe(true);
    expect(service.usage().requests).toBe(sent);
    expect(calls() / requests).toBeGreaterThan(1.2);
    expect(calls() / requests).toBeLessThanOrEqual(1.6);
    expect(mostAtOnce).toBeGreaterThan(atOnce / 2);
    expect(mostAtOnce).toBeLessThanOrEqual(atOnce);
    if (process.env.NLAC_STORM_EPISODES !== undefined)
      console.log(
        `${role}: ${requests} requests in ${seconds.toFixed(1)} s, ${(calls() / requests).toFixed(3)} attempts each, ` +
          `${mostAtOnce} at once`,
      );
  },
  60_000 + episodes * 100,
);
