// Hostile model directories: a valid tiny model with faults in its configuration, tokenizer,
// template, index, safetensors or GGUF. A run is one directory, opened in a child process within 10
// s and 4 GB. Every failure has a code, and no shard outside the directory is opened.
import { fork } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { randomSource, writeHostileModel } from "./support/hostile-models.mjs";

export const about = "hostile model directories: no crash, no hang, no uncoded error";

const limitMs = 10_000;
const limitBytes = 4 * 2 ** 30;

export async function run({ runs, seed, first = 0, report }) {
  const parent = mkdtempSync(join(tmpdir(), "nlac-models-"));
  let child;
  try {
    for (let number = first; number < first + runs; number++) {
      child ??= await startChild();
      const { path, faults, mustFail } = writeHostileModel(parent, randomSource(seed, number));
      const began = performance.now();
      const reply = await ask(child, path);
      const seconds = (performance.now() - began) / 1000;
      const problem = problemOf(reply, mustFail);
      if (reply.outcomes === undefined || problem !== undefined) {
        child.kill("SIGKILL");
        child = undefined;
      }
      const outcome = reply.outcomes?.load ?? "none";
      report({
        runs: 1,
        counts: { directories: 1, [outcome === "ok" ? "opened" : "refused"]: 1 },
        worst: { "s a directory": seconds, "GB of memory": (reply.rss ?? 0) / 1e9 },
        ...(problem && { failure: { number, message: `${faults.join(", ")}: ${problem}` } }),
      });
    }
  } finally {
    child?.kill("SIGKILL");
    rmSync(parent, { recursive: true, force: true });
  }
}

function problemOf({ outcomes, died, rss }, mustFail) {
  if (outcomes === undefined) return died;
  const uncoded = Object.entries(outcomes).find(([, code]) => /^uncoded|^ERR_INTERNAL/.test(code));
  if (uncoded !== undefined) return uncoded.join(": ");
  if (mustFail && outcomes.load === "ok") return "a shard outside the directory was opened";
  if (rss > limitBytes) return `${rss} bytes of memory`;
  return undefined;
}

async function startChild() {
  const child = fork(new URL("./support/model-child.mjs", import.meta.url), {
    stdio: ["ignore", "ignore", "ignore", "ipc"],
  });
  await new Promise((resolve, reject) => {
    child.once("message", resolve);
    child.once("exit", () => reject(new Error("the child does not start")));
  });
  child.removeAllListeners("exit");
  return child;
}

function ask(child, path) {
  return new Promise((resolve) => {
    let phase = "start";
    const finish = (reply) => {
      clearTimeout(timer);
      child.removeAllListeners();
      resolve(reply);
    };
    const timer = setTimeout(() => finish({ died: `more than ${limitMs / 1000} s in ${phase}` }), limitMs);
    child.on("message", (message) => {
      if (message.phase === undefined) finish(message);
      else phase = message.phase;
    });
    child.once("exit", (code, signal) => finish({ died: `ended with ${signal ?? code} in ${phase}` }));
    child.send({ path });
  });
}
