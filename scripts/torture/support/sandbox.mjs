// Shared by the campaigns on trainings: child processes under the fault shim, uncut runs to compare
// with, and the parts of two runs that must be equal.
import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { readRecords } from "../../../dist/files/records.js";
import { findLibtorch } from "../../../dist/native/libtorch.js";
import { processorSeconds } from "./forked-child.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
/** A child that prints nothing for this long, in milliseconds, hangs. The machine may be busy. */
const longest = 600_000;
/** Children are told where libtorch is, because they would start Python to search for it. */
const libtorch = findLibtorch().found?.torch;

/** Calls `body` with a new directory that is removed afterwards. */
export async function inDirectory(body) {
  const directory = mkdtempSync(join(tmpdir(), "nlac-torture-"));
  try {
    return await body(directory);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Compiles the fault shim into `directory`. Returns the library's path. */
export function buildShim(directory) {
  const library = join(directory, "fault-shim.so");
  const source = join(here, "../fault-shim.c");
  const { status, stderr } = spawnSync("cc", ["-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"]);
  if (status !== 0) throw new Error(`cc failed: ${stderr}`);
  return library;
}

/** Kinds of file operations, in the order of fault-shim.c. */
export const operationKinds = ["write", "fsync", "rename", "open", "mkdir", "ftruncate", "unlink", "link"];

/**
 * The counts of operations below `root` that a child under the shim has written to `path`, by kind;
 * undefined if there are none.
 */
export function readCounts(path, root) {
  const lines = readFileSync(path, "utf8").split("\n");
  const line = lines.findLast((line) => line.endsWith(` ${root}`));
  if (line === undefined) return undefined;
  const counts = line.split(" ").map(Number);
  return Object.fromEntries(operationKinds.map((kind, i) => [kind, counts[i]]));
}

/** Environment variables of a child under the shim; see fault-shim.c. */
export function shimmed(library, root, { fault, kill, log, counts } = {}) {
  return {
    LD_PRELOAD: library,
    NLAC_SHIM_ROOT: root,
    ...(fault === undefined ? {} : { NLAC_SHIM_FAULT: fault }),
    ...(kill === undefined ? {} : { NLAC_SHIM_KILL: String(kill) }),
    ...(counts === undefined ? {} : { NLAC_SHIM_COUNTS: counts }),
    ...(log === undefined ? {} : { NLAC_SHIM_LOG: log }),
  };
}

/**
 * Runs a script of this folder. `killAtCpu`: seconds of CPU time at which it gets SIGKILL, which do
 * not depend on what else the machine does. Resolves to its exit code, signal, output lines, and the
 * JSON value of its last line.
 */
export function runChild(script, args, { env = {}, killAtCpu } = {}) {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [join(here, script), ...args.map(String)], {
      env: { ...process.env, ...(libtorch && { NLAC_LIBTORCH: libtorch }), ...env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    let hangs = false;
    const timer = setTimeout(() => {
      hangs = true;
      child.kill("SIGKILL");
    }, longest);
    const watch =
      killAtCpu !== undefined &&
      setInterval(() => cpuSeconds(child.pid) >= killAtCpu && child.kill("SIGKILL"), 2);
    let output = "";
    let errors = "";
    child.stdout.on("data", (data) => {
      output += data;
      timer.refresh();
    });
    child.stderr.on("data", (data) => {
      errors += data;
    });
    child.on("close", (code, signal) => {
      clearTimeout(timer);
      clearInterval(watch);
      const lines = output.split("\n").filter((line) => line !== "");
      resolve({ code, signal, hangs, lines, errors, result: lastJson(lines) });
    });
  });
}

/** As `processorSeconds`; 0 when the process has ended. */
function cpuSeconds(pid) {
  try {
    return processorSeconds(pid);
  } catch {
    return 0;
  }
}

function lastJson(lines) {
  try {
    return JSON.parse(lines.at(-1));
  } catch {
    return undefined;
  }
}

/**
 * The parts of a run that must not depend on interruptions: every checkpointed byte of weights,
 * optimizer, priorities and tokenizer; episodes and samples; metrics without times.
 */
export function fingerprint(run) {
  const latest = readFileSync(join(run, "latest"), "utf8").trim();
  const checkpoint = join(run, "checkpoints", latest);
  const compared =
    /^(trajectories|samples)\.jsonl$|\.safetensors$|^(sampler\.bin|replay\.json|learner\.json|sampling\.json)$|^tokenizer|^config\.json$/;
  const hashes = { latest };
  for (const directory of [run, checkpoint, join(checkpoint, "learner")])
    for (const file of readdirSync(directory)
      .filter((name) => compared.test(name))
      .sort())
      hashes[file] = createHash("sha256")
        .update(readFileSync(join(directory, file)))
        .digest("hex");
  const metrics = [...readRecords(join(run, "metrics.jsonl"))].map(({ step, values }) => ({
    step,
    values: Object.fromEntries(
      Object.entries(values).filter(([name]) => !name.startsWith("time/") && name !== "tokens/cached"),
    ),
  }));
  return { hashes, metrics: JSON.stringify(metrics) };
}

/** Where two fingerprints differ, in one line; undefined if they are equal. */
export function difference(expected, found) {
  const names = new Set([...Object.keys(expected.hashes), ...Object.keys(found.hashes)]);
  // Runs that were cut may have numbered their checkpoints differently.
  names.delete("latest");
  const different = [...names].filter((name) => expected.hashes[name] !== found.hashes[name]);
  if (expected.metrics !== found.metrics) different.push("metrics");
  return different.length === 0 ? undefined : `other contents of ${different.join(", ")}`;
}

/**
 * Runs a script of this folder on several targets, one after another, each with arguments of its
 * own: a process costs more than what it does with one. `options` are those of `runChild`. Resolves
 * to the result of each, its lines, and how its process ended. A process that ends early is replaced
 * for those that it has not reached.
 */
export async function runChildOnAll(script, args, targets, options) {
  const results = [];
  while (results.length < targets.length) {
    const ending = await runChild(script, [...args, ...targets.slice(results.length).flat()], options);
    let lines = [];
    for (const line of ending.lines) {
      const result = lastJson([line]);
      if (result === undefined) lines.push(line);
      else {
        results.push({ ...ending, lines, result });
        lines = [];
      }
    }
    if (results.length < targets.length) results.push({ ...ending, lines, result: undefined });
  }
  return results;
}

/**
 * The CPU time at which to kill a child, for a number `at` from 0 to 1. A tenth of them while it
 * starts: nothing can be lost then.
 */
export function cpuMoment(at, { ready, cpu }) {
  return at < 0.1 ? 10 * at * ready : ready + ((at - 0.1) / 0.9) * (cpu - ready);
}

/**
 * Uncut runs, made once each in `directory`: their fingerprints, CPU time when they were ready and
 * at the end, and counts of file operations by kind.
 */
export function uncutRuns(directory, library) {
  const made = new Map();
  return async (name) => {
    if (made.has(name)) return made.get(name);
    const path = join(directory, "uncut", name);
    mkdirSync(join(directory, "uncut"), { recursive: true });
    const counts = `${path}.counts`;
    const ending = await runChild("train.mjs", [name, path], { env: shimmed(library, path, { counts }) });
    if (!ending.result?.done) throw new Error(`the uncut ${name} run failed: ${told(ending)}`);
    const { ready, cpu } = ending.result;
    const uncut = { fingerprint: fingerprint(path), ready, cpu, counts: readCounts(counts, path) };
    made.set(name, uncut);
    rmSync(path, { recursive: true });
    return uncut;
  };
}

/** One line on how a child ended. */
export function told({ code, signal, hangs, errors, result }) {
  if (hangs) return `no result within ${longest / 1000} s`;
  if (result?.code !== undefined || result?.message !== undefined) return `${result.code}: ${result.message}`;
  return `exit code ${code}, signal ${signal}, ${errors.trim().split("\n").slice(-5).join(" / ")}`;
}

/** Continues a run without faults and compares its end. Returns the fault, or undefined. */
export async function endsAsUncut(path, name, uncut) {
  const ending = await runChild("train.mjs", [name, path]);
  if (!ending.result?.done) return { fault: `the run cannot be resumed: ${told(ending)}`, ending };
  if (!existsSync(join(path, "latest"))) return { fault: "the finished run has no checkpoint", ending };
  const differs = difference(uncut.fingerprint, fingerprint(path));
  return { fault: differs && `the resumed run ends differently: ${differs}`, ending };
}
