// The ranks of a training as processes of this machine, each `nlac` with one command line.
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const nlac = fileURLToPath(new URL("../../../bin/nlac.js", import.meta.url));
/** Seconds after which ranks that do not end are killed; many, for machines with other work. */
const longest = 900;

/** A port that nothing listens on. */
export function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer().once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/**
 * Starts `count` ranks that meet at `port` of this machine.
 *   connected: resolves when every rank has opened its learner
 *   ended: how each rank ended, in order: { rank, code, signal, output, errors, at }; `at` is
 *     performance.now() of its end
 *   kill(rank): sends SIGKILL; false if the rank has ended
 *   wait(seconds): resolves then, or when all ranks have ended
 */
export function startRanks(count, port, args, env = {}) {
  let connect = () => {};
  let isConnected = false;
  const connected = new Promise((resolve) => {
    connect = () => {
      isConnected = true;
      resolve();
    };
  });
  const place = { WORLD_SIZE: String(count), MASTER_ADDR: "127.0.0.1", MASTER_PORT: String(port) };
  const children = Array.from({ length: count }, (_, rank) =>
    spawn(process.execPath, [nlac, ...args], {
      env: {
        ...process.env,
        ...place,
        NLAC_THREADS: "1",
        ...env,
        RANK: String(rank),
        LOCAL_RANK: String(rank),
      },
      stdio: ["ignore", "pipe", "pipe"],
    }),
  );
  const ended = Promise.all(
    children.map((child, rank) => ending(child, rank, rank === 0 ? connect : () => {})),
  );
  return {
    connected,
    ended,
    isConnected: () => isConnected,
    kill: (rank) => children[rank].exitCode === null && children[rank].kill("SIGKILL"),
    wait: (seconds) => Promise.race([setTimeout(1000 * seconds), ended]),
  };
}

function ending(child, rank, connect) {
  let output = "";
  let errors = "";
  child.stdout.on("data", (data) => {
    output += data;
  });
  child.stderr.on("data", (data) => {
    errors += data;
    // Rank 0 names the run's directory when all learners are open.
    if (errors.includes("run directory: ")) connect();
  });
  const limit = globalThis.setTimeout(() => child.kill("SIGKILL"), 1000 * longest);
  return new Promise((resolve) => {
    let at;
    child.on("exit", () => {
      at = performance.now();
      clearTimeout(limit);
    });
    child.on("close", (code, signal) => resolve({ rank, code, signal, output, errors, at }));
  });
}
