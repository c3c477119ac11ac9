// Hostile arguments to the native addon itself, without the checks of lib/: every export and every
// method of its handles. Each call must return, or throw or reject with a code; the process must stay.
import { fork } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

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
      child ??= await startChild(directory, trace);
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

async function startChild(directory, trace) {
  const child = fork(new URL("./support/binding-child.mjs", import.meta.url), [trace], {
    cwd: directory,
    serialization: "advanced",
    stdio: ["ignore", "ignore", "ignore", "ipc"],
  });
  await new Promise((resolve, reject) => {
    child.once("message", resolve);
    child.once("exit", () => reject(new Error("the child does not start")));
  });
  child.removeAllListeners("exit");
  return child;
}

/** Processor time that a process has used so far, in seconds; Linux counts it in hundredths. */
function processorSeconds(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1).split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
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
