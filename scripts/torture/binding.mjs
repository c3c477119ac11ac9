// Hostile arguments to the native addon itself, without the checks of lib/: every export and every
// method of its handles. Each call must return, or throw or reject with a code; the process must stay.
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { processorSeconds, startChild } from "./support/forked-child.mjs";

export const about = "hostile arguments to every function of the native addon";

/** Calls of one run. */
const calls = 100;
/** Of processor time a run, so that the machine's other work does not count. */
const limitSeconds = 60;
/** Of real time a run: a child that waits uses no processor time. */
const hangMs = 300_000;
const limitBytes = 4 * 2 ** 30;

export async function run({ runs, seed, first = 0, report }) {
  const directory = mkdtempSync(join(tmpdir(), "nlac-binding-"));
  const trace = join(directory, "last-call");
  let child;
  try {
    for (let number = first; number < first + runs; number++) {
      child ??= await startChild("binding-child.mjs", [trace], { cwd: directory, serialization: "advanced" });
      const began = processorSeconds(child.pid);
      const reply = await ask(child, { seed, number, calls }, began);
      const seconds = reply.died === undefined ? processorSeconds(child.pid) - began : 0;
      const problem = reply.died === undefined ? problemOf(reply) : `${reply.died} in ${lastCall(trace)}`;
      if (reply.died !== undefined) {
        child.kill("SIGKILL");
        child = undefined;
      }
      report({
        runs: 1,
        counts: reply.counts ?? {},
        worst: { "s of processor time": seconds, "MB of memory": (reply.rss ?? 0) / 2 ** 20 },
        ...(problem && { failure: { number, message: problem } }),
      });
    }
  } finally {
    child?.kill("SIGKILL");
    rmSync(directory, { recursive: true, force: true });
  }
}

function problemOf({ uncoded, rss }) {
  if (uncoded.length > 0) return uncoded.join("\n");
  return rss > limitBytes ? `${rss} bytes of memory` : undefined;
}

function lastCall(trace) {
  return readFileSync(trace, "utf8").split("\0")[0];
}

/** Resolves to the child's reply, or to how it died. */
function ask(child, request, processorBefore) {
  return new Promise((resolve) => {
    const began = performance.now();
    const finish = (reply) => {
      clearInterval(timer);
      child.removeAllListeners();
      resolve(reply);
    };
    const timer = setInterval(() => {
      if (performance.now() - began > hangMs) finish({ died: `no end within ${hangMs / 1000} s` });
      else if (processorSeconds(child.pid) - processorBefore > limitSeconds)
        finish({ died: `more than ${limitSeconds} s of processor time` });
    }, 200);
    child.once("message", finish);
    child.once("exit", (code, signal) => finish({ died: `ended with ${signal ?? code}` }));
    child.send(request);
  });
}
