// Hostile requests to `nlac serve`: large, deep, malformed and broken-off ones of every kind in
// support/hostile-requests.mjs, several at once, while another client asks small questions. Every
// answer must have a code and none may be a 500; the other client must be answered; and the server
// must stay.
import { fork } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { Agent, request } from "node:http";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { uniform } from "../../dist/base/random.js";
import { kinds } from "./support/hostile-requests.mjs";

export const about = "hostile requests to the server";

/**
 * Requests come in batches of one kind that are sent together: one of 4 large requests, with bodies up
 * to 15 MiB, then `smallBatches` of 16 small ones, up to 31 KiB.
 */
const [smallCount, largeCount] = [16, 4];
const smallest = 0.002;
/** Milliseconds within which everything must be answered. The machine may be busy. */
const patience = 300_000;
/** Milliseconds for which the event loop is held up at p99 that fail. */
const longestHold = 50;
const child = fileURLToPath(new URL("support/server-child.mjs", import.meta.url));

/**
 * A run is one request. `only` names kinds; `smallBatches` follow a large one, by default so many that
 * one request in 961 is large, because they take some hundred times longer; `largest` is the size of the
 * largest bodies, where 1 is the server's limit; `hold` is the longest time for which the event loop may
 * be held up at p99, in milliseconds of processor time.
 */
export async function run(options) {
  const {
    runs,
    seed,
    first = 0,
    report,
    only = Object.keys(kinds),
    smallBatches = 240,
    largest = 1,
    hold = longestHold,
  } = options;
  const directory = mkdtempSync(join(tmpdir(), "nlac-torture-"));
  let server = await start(join(directory, "episodes.jsonl"));
  try {
    for (let number = first; number < first + runs; ) {
      const { index, left, isLarge } = batchOf(number, smallBatches);
      const kind = only[index % only.length];
      const count = Math.min(left, first + runs - number);
      const failures = [];
      await server.measure();
      const attempts = Array.from({ length: count }, (_, i) =>
        attempt(server.url, kinds[kind](randomOf(seed, number + i, largest, isLarge))).catch(
          (error) => failures.push(`${kind}: ${error.message}`) && [],
        ),
      );
      const { slowest = 0, statuses = [] } = await bystander(server.url, Promise.all(attempts)).catch(
        (error) => failures.push(`another client: ${error.message}`) && {},
      );
      const answers = await Promise.all(attempts);
      const measured = await server.measure();
      for (const failure of failures) report({ failure: { number, message: failure } });
      const { p99 = 0, max = 0, collection = 0, delay = 0, rss = 0 } = measured ?? {};
      for (const status of answers.flat()) report({ counts: { [`status ${status}`]: 1 } });
      for (const status of statuses) report({ counts: { [`status ${status} for another client`]: 1 } });
      report({
        runs: count,
        worst: {
          [`ms held up, p99: ${kind}`]: p99,
          [`ms held up, most: ${kind}`]: max,
          ...{ "ms of delay": delay, "ms of garbage collection": collection },
          ...{ "MB of memory": rss, [`ms for another client: ${kind}`]: slowest },
        },
      });
      if (p99 > hold) {
        const cause = `the longest garbage collection took ${collection.toFixed(1)} ms`;
        const message = `${kind}: the event loop was held up for ${p99.toFixed(1)} ms at p99; ${cause}`;
        report({ failure: { number, message } });
      }
      if (measured === undefined) {
        report({ failure: { number, message: `${kind}: the server ended` } });
        server = await start(join(directory, `episodes-${number}.jsonl`));
      }
      number += count;
    }
    await sleep(3000);
    const { rss = 0 } = (await server.measure()) ?? {};
    report({ worst: { "MB of memory at the end": rss } });
  } finally {
    server.end();
    rmSync(directory, { recursive: true, force: true });
  }
}

async function start(recording) {
  const server = fork(child, [recording], { stdio: ["ignore", "ignore", "inherit", "ipc"] });
  const ended = new Promise((resolve) => server.once("exit", () => resolve(undefined)));
  server.on("error", () => {}); // a message to a server that has just ended
  const next = () => Promise.race([new Promise((resolve) => server.once("message", resolve)), ended]);
  const told = await next();
  if (told === undefined) throw new Error("the server did not start");
  return {
    url: new URL(told.url),
    /** Undefined if the server has ended. */
    measure: () => {
      if (server.exitCode !== null || server.signalCode !== null) return Promise.resolve(undefined);
      server.send("measure");
      return next();
    },
    end: () => {
      if (server.connected) server.disconnect();
    },
  };
}

/** The batch of a request: its index, and how many of its requests are left. */
function batchOf(number, smallBatches) {
  const cycle = largeCount + smallBatches * smallCount;
  const at = number % cycle;
  const before = Math.floor(number / cycle) * (1 + smallBatches);
  if (at < largeCount) return { index: before, left: largeCount - at, isLarge: true };
  const small = at - largeCount;
  const index = before + 1 + Math.floor(small / smallCount);
  return { index, left: smallCount - (small % smallCount), isLarge: false };
}

function randomOf(seed, number, largest, isLarge) {
  let drawn = 0;
  const fraction = () => uniform(seed, number, drawn++);
  const whole = (below) => Math.floor(fraction() * below);
  const size = (isLarge ? largest : Math.min(largest, smallest)) * fraction() ** 2;
  return { whole, pick: (items) => items[whole(items.length)], isLarge, size };
}

/**
 * Sends a request. Returns the status, or nothing for one without an answer. Throws for a wrong
 * answer.
 */
async function attempt(url, { raw, leave, ...asked }) {
  const answer = await (raw === undefined ? ask(url, asked, leave) : sendRaw(url, raw, leave));
  if (answer === undefined) return [];
  const { status, text } = answer;
  if (status >= 500 && status !== 503) throw new Error(`status ${status}: ${text.slice(0, 300)}`);
  if (status >= 400 && asked.method !== "HEAD") {
    const { error } = JSON.parse(text);
    if (typeof error?.code !== "string")
      throw new Error(`status ${status} without a code: ${text.slice(0, 300)}`);
  }
  return [status];
}

function ask(url, { path, body, headers = {}, method = "POST" }, leave) {
  return new Promise((resolve, reject) => {
    const sent = request({
      ...{ host: url.hostname, port: url.port, path, method, agent: new Agent() },
      headers: { "content-type": "application/json", ...headers },
    });
    const timer = setTimeout(() => {
      sent.destroy();
      if (leave === undefined) reject(new Error("no answer"));
      else resolve(undefined);
    }, leave ?? patience);
    const end = (value) => {
      clearTimeout(timer);
      resolve(value);
    };
    // A server may close the connection of a request that it refuses before it has read the body.
    sent.once("error", () => end(undefined));
    sent.once("response", (reply) => {
      const chunks = [];
      reply.on("data", (chunk) => chunks.push(chunk));
      reply.once("error", () => end(undefined));
      reply.once("end", () => end({ status: reply.statusCode, text: Buffer.concat(chunks).toString() }));
    });
    sent.end(body);
  });
}

function sendRaw(url, raw, leave) {
  return new Promise((resolve) => {
    const socket = connect(Number(url.port), url.hostname, () => socket.write(raw, "latin1"));
    let text = "";
    socket.on("data", (chunk) => (text += chunk));
    socket.on("error", () => {});
    setTimeout(() => {
      socket.destroy();
      const status = Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1] ?? 0);
      // The body of a success is not checked.
      resolve(
        status < 400 ? undefined : { status, text: text.slice(text.indexOf("{"), text.lastIndexOf("}") + 1) },
      );
    }, leave);
  });
}

/**
 * Asks small questions one after another until `others` are answered. Returns the statuses of the
 * answers, and the milliseconds that the slowest took.
 */
async function bystander(url, others) {
  const body = JSON.stringify({ model: "m", prompt: "x", max_tokens: 1 });
  const statuses = [];
  let slowest = 0;
  let waiting = true;
  const answered = others.finally(() => {
    waiting = false;
  });
  while (waiting) {
    const begun = performance.now();
    const answer = await ask(url, { path: "/v1/completions", body });
    // A full server answers 429.
    if (answer?.status !== 200 && answer?.status !== 429) throw new Error(`got ${JSON.stringify(answer)}`);
    statuses.push(answer.status);
    slowest = Math.max(slowest, performance.now() - begun);
    await Promise.race([answered, sleep(20)]);
  }
  return { slowest, statuses };
}
