/**
 * Long use of one process: memory must not grow with the number of requests, and the event loop
 * must stay free while the core computes. Measured with library calls and through the server, whose
 * clients are a separate process (clients.ts).
 */

import { spawn } from "node:child_process";
import { monitorEventLoopDelay } from "node:perf_hooks";
import { setImmediate } from "node:timers/promises";
import { moduleArguments } from "../../base/child-process.ts";
import { isAborted } from "../../base/errors.ts";
import { DEFAULT_MODEL } from "../../hub/resolve-model.ts";
import { Learner } from "../../learner/learner.ts";
import type { GenerateRequest } from "../../model/language-model.ts";
import { serve } from "../../serve/server.ts";
import type { Plan } from "../clients.ts";
import {
  type GrowthBound,
  growthPerRequest,
  heapBound,
  heldBytes,
  type MemorySample,
  maxGrowth,
  processBound,
} from "../growth.ts";
import { randomBits } from "../inputs.ts";
import { prompts } from "../prompts.ts";
import type { Case, CaseOptions, Figure, Job, Subject, Suite } from "../suite.ts";

type Parameters = {
  watched: "memory" | "loop";
  through: "calls" | "server";
  model: string;
  /** Memory: number of requests. Event loop: texts to generate and then train on, 8 at a time. */
  requests: number;
  /** Concurrent callers or clients. */
  atOnce: number;
  /** Whether the run is long enough to check the limits. */
  bounded: boolean;
};

/** The package's smallest model: the benchmark is about everything around it. */
const tiny = "errands-base";
/** Small enough to be full after a tenth of the requests. */
const cacheBytes = 16 * 2 ** 20;
const rememberedIds = 2000;
/** Milliseconds. */
const maxDelay = 10;

export const soak: Suite = {
  name: "soak",
  summary: "memory over many requests, and the event loop under load",
  trials: 1,

  cases({ quick }: CaseOptions): Case[] {
    const bounded = !quick;
    const make = (id: string, title: string, parameters: Parameters): Case => ({
      ...{ id, title: `${parameters.model} · ${title}`, parameters },
      timing: { warmup: 0, calls: 1, seconds: 0 },
      work: { amount: parameters.requests, unit: "requests/s" },
      tolerance: 0,
      rows: [{ name: "nlac", role: "ours", implementation: "nlac", resultBytes: null }],
    });
    const memory = (through: Parameters["through"], requests: number, atOnce: number) =>
      make(
        `memory-${through}`,
        `${requests.toLocaleString("en")} short requests through ${words[through]}, ${atOnce} at once`,
        { watched: "memory", through, model: tiny, requests, atOnce, bounded },
      );
    const loop = (through: Parameters["through"], title: string, requests: number, atOnce: number) =>
      make(`loop-${through}`, title, {
        watched: "loop",
        through,
        model: quick ? tiny : DEFAULT_MODEL,
        requests,
        atOnce,
        bounded,
      });
    return [
      memory("calls", quick ? 2000 : 100_000, 8),
      memory("server", quick ? 500 : 100_000, 16),
      loop("calls", "8 completions generated and trained on, repeatedly", quick ? 16 : 32, 8),
      loop("server", "16 clients that read streams", quick ? 32 : 64, 16),
    ];
  },

  async prepare({ parameters, device, threads }: Job): Promise<Subject> {
    const given = parameters as Parameters;
    const memory = given.watched === "memory";
    const learner = await Learner.load(given.model, { device, threads, ...(memory && { cacheBytes }) });
    await learner.updateTarget(1);
    const held: MemorySample[] = [];
    const heap: MemorySample[] = [];
    const delays = monitorEventLoopDelay({ resolution: 1 });
    const load = given.through === "server" ? serveClients : memory ? askMuch : learnMuch;
    return {
      async call() {
        await load(learner, given, {
          begin: () => delays.enable(),
          answered(requests) {
            if (!memory) return;
            const bytes = heldBytes();
            held.push({ requests, bytes: bytes.process });
            heap.push({ requests, bytes: bytes.heap });
          },
        });
        delays.disable();
      },
      figures() {
        const figures = memory
          ? [growthFigure("growth", held, processBound), growthFigure("of objects", heap, heapBound)]
          : delayFigures(delays);
        return given.bounded ? figures : figures.map((figure) => ({ ...figure, most: null }));
      },
    };
  },
};

const words = { calls: "calls", server: "the server" };

function growthFigure(name: string, samples: readonly MemorySample[], bound: GrowthBound): Figure {
  const most = maxGrowth(samples.at(-1)!.requests, bound);
  return { name, value: growthPerRequest(samples), unit: "bytes a request", most };
}

/** Time between turns of the event loop with a 1 ms timer; a little over 1 ms when idle. */
function delayFigures(delays: ReturnType<typeof monitorEventLoopDelay>): Figure[] {
  const figure = (name: string, nanoseconds: number, most: number | null): Figure => ({
    ...{ name: `event loop ${name}`, value: nanoseconds / 1e6, unit: "ms", most },
  });
  return [
    figure("p50", delays.percentile(50), null),
    figure("p99", delays.percentile(99), maxDelay),
    figure("max", delays.max, null),
  ];
}

interface Hooks {
  /** Called when everything is set up and the load starts. */
  begin(): void;
  /** Called after each hundredth of the requests, with the number of answered ones. */
  answered(requests: number): void;
}

/**
 * Calls of one to four short requests, some aborted. A training step drops all caches in between.
 */
async function askMuch(
  learner: Learner,
  { requests, atOnce }: Parameters,
  { begin, answered }: Hooks,
): Promise<void> {
  const { vocabSize } = learner.info;
  const every = requests / 100;
  let asked = 0;
  let done = 0;
  begin();
  const ask = async () => {
    while (asked < requests) {
      const first = asked;
      const [size, fate] = randomBits(first, 2);
      const count = Math.min(1 + (size! % 4), requests - first);
      asked += count;
      await callOnce(
        learner,
        Array.from({ length: count }, (_, i) => shortRequest(first + i, vocabSize)),
        fate! % 32 === 0,
      );
      done += count;
      if (Math.floor(done / every) === Math.floor((done - count) / every)) continue;
      const { tokens } = shortRequest(first, vocabSize);
      await learner.tokenNll([{ prompt: tokens!, response: tokens! }]);
      await learner.step({ learningRate: 1e-6 });
      await learner.updateTarget(0.005);
      answered(done);
    }
  };
  await Promise.all(Array.from({ length: atOnce }, ask));
}

async function callOnce(learner: Learner, requests: GenerateRequest[], breakOff: boolean): Promise<void> {
  const controller = new AbortController();
  const texts = learner.generate(requests, { signal: controller.signal });
  if (breakOff) void setImmediate().then(() => controller.abort());
  try {
    await texts;
  } catch (error) {
    if (!isAborted(error)) throw error;
  }
}

/** Sixteen ids, one of 64 prefixes, and four more. */
function shortRequest(number: number, vocabulary: number): GenerateRequest {
  const bits = randomBits(1000 + number, 16);
  const pick = <T>(i: number, values: readonly T[]) => values[bits[i]! % values.length]!;
  const ids = [...randomBits(bits[0]! % 64, 16), ...bits.subarray(1, 5)].map((id) => id % vocabulary);
  return {
    tokens: ids,
    maxNewTokens: 1 + (bits[5]! % 8),
    temperature: pick(6, [0, 0.7, 1]),
    topK: pick(7, [0, 20]),
    topP: pick(8, [1, 0.9]),
    minP: pick(9, [0, 0.05]),
    repetitionPenalty: pick(10, [1, 1.2]),
    weights: pick(11, ["online", "target"]),
    seed: bits[12]!,
  };
}

/** Generation on prompts of 200 tokens, then training: forward, backward, step, target update. */
async function learnMuch(
  learner: Learner,
  { requests, atOnce, model }: Parameters,
  { begin }: Hooks,
): Promise<void> {
  const [own, written] = model === tiny ? [40, 20] : [200, 100];
  const { vocabSize, eosTokenIds } = learner.info;
  begin();
  for (let done = 0; done < requests; done += atOnce) {
    const asked = prompts({ groups: atOnce, texts: 1, shared: 0, own }).map((ids, i) => ({
      tokens: ids.map((id) => id % vocabSize),
      ...{ maxNewTokens: written, seed: done + i, forbidden: eosTokenIds },
    }));
    const texts = await learner.generate(asked, { onToken: () => {} });
    await learner.tokenNll(texts.map(({ tokens }, i) => ({ prompt: asked[i]!.tokens, response: tokens })));
    await learner.step({ learningRate: 1e-6 });
    await learner.updateTarget(0.005);
  }
}

/** Serves clients until all requests are done. */
async function serveClients(
  learner: Learner,
  { watched, requests, atOnce, model }: Parameters,
  { begin, answered }: Hooks,
): Promise<void> {
  const server = await serve({ learner, name: model, port: 0, maxHeldTokens: rememberedIds });
  const plan: Plan = {
    ...{ url: server.url, model, requests, atOnce, vocabulary: learner.info.vocabSize },
    long: watched === "loop" && model !== tiny,
  };
  const program = moduleArguments("../clients", import.meta.url);
  const clients = spawn(process.execPath, [...program, JSON.stringify(plan)], {
    stdio: ["ignore", "ignore", "inherit", "ipc"],
  });
  // After the fork, which blocks the event loop and is not part of the server's work.
  begin();
  clients.on("message", (requests) => answered(requests as number));
  const code = await new Promise((resolve, reject) => {
    clients.once("error", reject);
    clients.once("close", resolve);
  });
  await server.close();
  if (code !== 0) throw new Error(`the clients ended by exit ${code}`);
}
