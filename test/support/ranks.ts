/** Starts the ranks of a training as processes of this machine. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";
import { expect } from "vitest";
import { DistributedLearner } from "../../lib/ranks/distributed-learner.ts";
import { joinRanks, type Ranks } from "../../lib/ranks/join.ts";
import type { RankPlace } from "../../lib/ranks/place.ts";
import type { LearnerSource } from "../../lib/ranks/protocol.ts";

export interface Exited {
  code: number | null;
  output: string;
  errors: string;
}

export interface RankProcess {
  child: ChildProcess;
  exited: Promise<Exited>;
}

const root = fileURLToPath(new URL("../..", import.meta.url));
const rankChild = "test/support/rank-child.ts";

/** A port that nothing listens on. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}

/** Runs a TypeScript file of the checkout as one of `ranks`. */
export function startRank(
  rank: number,
  ranks: number,
  port: number,
  file: string,
  ...args: string[]
): RankProcess {
  const child = spawn(process.execPath, ["--import", "jiti/register", file, ...args], {
    cwd: root,
    env: {
      ...process.env,
      RANK: String(rank),
      WORLD_SIZE: String(ranks),
      LOCAL_RANK: String(rank),
      MASTER_ADDR: "127.0.0.1",
      MASTER_PORT: String(port),
      NLAC_THREADS: "1",
    },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let output = "";
  let errors = "";
  child.stdout.on("data", (chunk) => {
    output += chunk;
  });
  child.stderr.on("data", (chunk) => {
    errors += chunk;
  });
  const exited = new Promise<Exited>((resolve) => {
    child.on("close", (code) => resolve({ code, output, errors }));
  });
  return { child, exited };
}

/** Starts a command line of nlac on `ranks` ranks. */
export async function startNlac(ranks: number, ...argv: string[]): Promise<RankProcess[]> {
  const port = await freePort();
  return Array.from({ length: ranks }, (_, rank) => startRank(rank, ranks, port, "lib/cli/main.ts", ...argv));
}

function placeOf(rank: number, ranks: number, port: number): RankPlace {
  return {
    ...{ rank, ranks, localRank: rank, localRanks: undefined, address: "127.0.0.1", port },
    ...{ serves: rank === 0, restart: 0, timeoutMs: 300_000 },
  };
}

/** Starts ranks 1 to `count` - 1 of a learner, and joins them as rank 0. */
export async function joinAsFirst(
  count: number,
  device = "cpu",
): Promise<{ ranks: Ranks; others: RankProcess[] }> {
  const port = await freePort();
  const others = Array.from({ length: count - 1 }, (_, i) => startRank(i + 1, count, port, rankChild));
  return { ranks: await joinRanks(placeOf(0, count, port), device), others };
}

/** Opens a learner of `count` ranks, of which this process is the first. */
export async function openRanks(
  count: number,
  source: LearnerSource,
  device = "cpu",
): Promise<{ model: DistributedLearner; others: RankProcess[] }> {
  const { ranks, others } = await joinAsFirst(count, device);
  return { model: await DistributedLearner.open(source, ranks), others };
}

/** Calls `body` with a learner of `count` ranks. All ranks must end without an error. */
export async function withRanks(
  count: number,
  source: LearnerSource,
  body: (model: DistributedLearner, others: RankProcess[]) => Promise<void>,
): Promise<void> {
  const { model, others } = await openRanks(count, source);
  await body(model, others);
  await model.dispose();
  for (const { exited } of others) expect(await exited).toMatchObject({ code: 0, errors: "" });
}

/** Processes that serve as ranks of several learners, one learner after the other. */
export class RankPool {
  readonly #processes: ChildProcess[] = [];

  /** Opens a learner of `count` ranks, of which this process is the first. */
  async open(count: number, source: LearnerSource): Promise<DistributedLearner> {
    while (this.#processes.length < count - 1) {
      const { RANK, WORLD_SIZE, ...env } = process.env;
      const options = { cwd: root, env: { ...env, NLAC_THREADS: "1" } };
      const args = ["--import", "jiti/register", rankChild];
      this.#processes.push(
        spawn(process.execPath, args, { ...options, stdio: ["pipe", "ignore", "inherit"] }),
      );
    }
    const port = await freePort();
    for (const [i, { stdin }] of this.#processes.slice(0, count - 1).entries())
      stdin!.write(`${JSON.stringify(placeOf(i + 1, count, port))}\n`);
    return DistributedLearner.open(source, await joinRanks(placeOf(0, count, port), "cpu"));
  }

  /** Ends the processes. Resolves with their exit codes. */
  async close(): Promise<(number | null)[]> {
    const ended = this.#processes.map((child) => once(child, "close") as Promise<[number | null]>);
    for (const { stdin } of this.#processes) stdin!.end();
    return (await Promise.all(ended)).map(([code]) => code);
  }
}
