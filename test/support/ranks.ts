/** Starts the ranks of a training as processes of this machine. */

import { type ChildProcess, spawn } from "node:child_process";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";

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
