// Hostile model directories: a valid tiny model with faults in its configuration, tokenizer,
// template, index, safetensors or GGUF. A run is one directory, opened in a child process within 10
// s of processor time and 4 GB. Every failure has a code, and no shard outside the directory is
// opened.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { processorSeconds, startChild } from "./support/forked-child.mjs";
import { randomSource, writeHostileModel } from "./support/hostile-models.mjs";

export const about = "hostile model directories: no crash, no hang, no uncoded error";

/** Of processor time, so that the machine's other work does not count. */
const limitSeconds = 10;
/** Of real time: a child that waits for a device or a pipe uses no processor time, nor does one on a busy machine. */
const hangMs = 300_000;
const limitBytes = 4 * 2 ** 30;

export async function run({ runs, seed, first = 0, report }) {
  const parent = mkdtempSync(join(tmpdir(), "nlac-models-"));
  let child;
  try {
    for (let number = first; number < first + runs; number++) {
      child ??= await startChild("model-child.mjs");
      const { path, faults, mustFail } = writeHostileModel(parent, randomSource(seed, number));
      const began = processorSeconds(child.pid);
      const reply = await ask(child, path, began + limitSeconds);
      const seconds = (reply.outcomes ? processorSeconds(child.pid) : reply.seconds) - began;
      const problem = problemOf(reply, mustFail);
      if (reply.outcomes === undefined || problem !== undefined) {
        child.kill("SIGKILL");
        child = undefined;
      }
      const outcome = reply.outcomes?.load ?? "none";
      report({
        runs: 1,
        counts: { directories: 1, [outcome === "ok" ? "opened" : "refused"]: 1 },
        worst: { "s of processor time": seconds, "GB of memory": (reply.rss ?? 0) / 1e9 },
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

/**
 * Resolves to the child's reply, or to how it died and the processor time that it had used by then.
 */
function ask(child, path, limit) {
  return new Promise((resolve) => {
    let phase = "start";
    let seconds = 0;
    const began = performance.now();
    const finish = (reply) => {
      clearInterval(timer);
      child.removeAllListeners();
      resolve(reply);
    };
    const timer = setInterval(() => {
      seconds = processorSeconds(child.pid);
      const hangs = performance.now() - began > hangMs;
      if (hangs || seconds > limit)
        finish({ died: `more than ${hangs ? hangMs / 1000 : limitSeconds} s in ${phase}`, seconds });
    }, 100);
    child.on("message", (message) => {
      if (message.phase === undefined) finish(message);
      else phase = message.phase;
    });
    child.once("exit", (code, signal) =>
      finish({ died: `ended with ${signal ?? code} in ${phase}`, seconds }),
    );
    child.send({ path });
  });
}
