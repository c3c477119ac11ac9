/**
 * Clients of a measured server, in their own process so that their memory does not count: `node
 * clients.js <plan>`, with the plan as JSON. Reports progress to the parent process after each
 * hundredth of the requests.
 */

import { setImmediate } from "node:timers/promises";
import { randomBits } from "./inputs.ts";

export interface Plan {
  url: string;
  model: string;
  requests: number;
  atOnce: number;
  vocabulary: number;
  /**
   * Streams of 64 tokens on prompts of 200 (every fourth: 2,000) tokens; else short mixed requests.
   */
  long: boolean;
}

const plan = JSON.parse(process.argv[2]!) as Plan;
const every = Math.max(1, plan.requests / 100);
let asked = 0;
let answered = 0;
await Promise.all(
  Array.from({ length: plan.atOnce }, async () => {
    while (asked < plan.requests) {
      await ask(asked++);
      if (++answered % every === 0) process.send?.(answered);
    }
  }),
);
process.disconnect?.();

async function ask(number: number): Promise<void> {
  const bits = randomBits(1000 + number, 8);
  const [path, request] = plan.long ? longRequest(number) : shortRequest(number, bits);
  const controller = new AbortController();
  const body = JSON.stringify({ model: plan.model, ...request });
  const headers = { "content-type": "application/json" };
  const { signal } = controller;
  try {
    const response = fetch(`${plan.url}/v1/${path}`, { method: "POST", headers, body, signal });
    if (!plan.long && bits[0]! % 32 === 0) void setImmediate().then(() => controller.abort());
    const text = await (await response).text();
    if (!(await response).ok || text.includes('"error"')) throw new Error(text);
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

type Request = [path: string, body: object];

/** A chat, or a completion on ids that share one of 64 prefixes; streamed or not. */
function shortRequest(number: number, bits: Uint32Array): Request {
  const options = {
    max_tokens: 1 + (bits[1]! % 8),
    temperature: (bits[2]! % 3) / 2,
    stream: bits[3]! % 2 === 0,
  };
  if (bits[4]! % 2 === 0)
    return ["chat/completions", { ...options, messages: [{ role: "user", content: `Request ${number}?` }] }];
  const ids = [...randomBits(bits[5]! % 64, 16), bits[6]!, bits[7]!].map((id) => id % plan.vocabulary);
  return ["completions", { ...options, prompt: ids }];
}

function longRequest(number: number): Request {
  const words = Array.from(randomBits(number, number % 4 === 0 ? 400 : 40), (bits) => bits.toString(36));
  const messages = [{ role: "user", content: words.join(" ") }];
  return ["chat/completions", { messages, max_tokens: 64, stream: true }];
}
