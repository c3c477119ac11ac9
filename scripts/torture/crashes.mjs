// Crash images of a training and of a recording. The fault shim records the file operations of an
// uncut run. Each run of the campaign picks a moment, builds a directory that a crash at that
// moment may leave (support/crash-image.mjs), and continues from it: the result must equal the
// uncut run's, a checkpoint that was complete on disk must be found, and no acknowledged reward may
// be lost. An error that names a damaged file counts as "named"; it is a failure once a checkpoint
// was complete.
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { uniform } from "../../dist/base/random.js";
import { replay, writeImage } from "./support/crash-image.mjs";
import { checkRecording } from "./support/recordings.mjs";
import {
  buildShim,
  difference,
  fingerprint,
  inDirectory,
  runChild,
  shimmed,
  told,
} from "./support/sandbox.mjs";
import { readShimLog } from "./support/shim-log.mjs";

export const about = "crash images (torn, reordered and lost writes) of a training and of a recording";

const episodes = 6;

export async function run({ runs, seed, first = 0, report }) {
  await inDirectory(async (directory) => {
    const library = buildShim(directory);
    const logged = { training: undefined, recording: undefined };
    const kinds = { training: [logTraining, crashTraining], recording: [logRecording, crashRecording] };
    for (let number = first; number < first + runs; number++) {
      const kind = number % 3 === 2 ? "recording" : "training";
      const [log, crash] = kinds[kind];
      logged[kind] ??= await log(join(directory, kind), library);
      let draw = 0;
      const random = () => uniform(seed, number, draw++);
      const count = Math.floor(random() * (logged[kind].operations.length + 1));
      const root = join(directory, `image-${number}`);
      mkdirSync(root);
      writeImage(replay(logged[kind].operations, count, logged[kind].root), root, random);
      const { outcome, fault, seconds } = await crash(root, count, logged[kind]);
      report({
        runs: 1,
        counts: { [`${kind} images`]: 1, ...(outcome === undefined ? {} : { [outcome]: 1 }) },
        worst: { "s to resume": seconds ?? 0 },
        ...(fault && { failure: { number, message: `${kind}, crash after operation ${count}: ${fault}` } }),
      });
      rmSync(root, { recursive: true });
    }
  });
}

/**
 * Runs a child under the shim in a new directory `root`. Checks that the log is complete.
 */
async function logRun(root, library, script, args) {
  mkdirSync(root);
  const log = `${root}.log`;
  const ending = await runChild(script, args, { env: shimmed(library, root, { log }) });
  if (!ending.result?.done) throw new Error(`the uncut ${script} failed: ${told(ending)}`);
  const operations = readShimLog(log);
  rmSync(log);
  const again = `${root}-again`;
  mkdirSync(again);
  writeImage(replay(operations, operations.length, root), again);
  const differs = treeDifference(root, again);
  if (differs !== undefined) throw new Error(`the log of ${script} is incomplete: ${differs}`);
  rmSync(again, { recursive: true });
  return { root, operations };
}

function treeDifference(expected, found) {
  const files = (root) => readdirSync(root, { recursive: true, withFileTypes: true });
  const names = (root) =>
    files(root)
      .map((entry) => join(entry.parentPath ?? entry.path, entry.name).slice(root.length))
      .sort();
  const [a, b] = [names(expected), names(found)];
  const missing = a.find((name) => !b.includes(name)) ?? b.find((name) => !a.includes(name));
  if (missing !== undefined) return missing;
  for (const entry of files(expected)) {
    if (!entry.isFile()) continue;
    const name = join(entry.parentPath ?? entry.path, entry.name).slice(expected.length);
    if (!readFileSync(expected + name).equals(readFileSync(found + name))) return name;
  }
  return undefined;
}

async function logTraining(root, library) {
  const logged = await logRun(root, library, "train.mjs", [join(root, "run"), "short"]);
  const { operations } = logged;
  const saved = [];
  for (const [i, { kind, second }] of operations.entries()) {
    if (kind !== "rename" || second !== join(root, "run/latest")) continue;
    const synced = operations.findIndex(
      (operation, j) => j > i && operation.kind === "fsync" && operation.path === join(root, "run"),
    );
    if (synced >= 0) saved.push(synced + 1);
  }
  return { ...logged, saved, fingerprint: fingerprint(join(root, "run")) };
}

async function crashTraining(root, count, { saved, fingerprint: expected }) {
  const path = join(root, "run");
  const latest = () => (existsSync(join(path, "latest")) ? readFileSync(join(path, "latest"), "utf8") : "");
  const complete = saved.filter((operation) => operation <= count).length;
  // Checkpoints are numbered from 0.
  if (complete > 0 && !(Number(latest() || "-1") >= complete - 1))
    return { fault: `checkpoint ${complete - 1} was complete, but \`latest\` is "${latest()}"` };
  const outcome = latest() === "" ? "started anew" : "resumed";
  const ending = await runChild("train.mjs", [path, "short"]);
  const { seconds } = ending;
  if (!ending.result?.done) {
    const named = /^ERR_/.test(ending.result?.code) && ending.result.message.includes(root);
    if (named && complete === 0) return { outcome: "named", seconds };
    return { fault: `the run cannot be resumed: ${told(ending)}`, seconds };
  }
  const differs = difference(expected, fingerprint(path));
  return { outcome, fault: differs, seconds };
}

async function logRecording(root, library) {
  const file = join(root, "episodes.jsonl");
  const logged = await logRun(root, library, "record.mjs", [file, episodes]);
  return { ...logged, file: readFileSync(file) };
}

async function crashRecording(root, count, { operations, root: from, file: expected }) {
  const file = join(root, "episodes.jsonl");
  // The client waits for each acknowledgement, so every episode before the last one written has its
  // own.
  const isWrite = ({ kind, path }) => kind === "write" && path === join(from, "episodes.jsonl");
  const written = operations.slice(0, count).filter(isWrite).length;
  const sure = count === operations.length ? episodes : Math.max(0, written - 1);
  const acknowledged = new Set(Array.from({ length: sure }, (_, i) => `episode-${i}`));
  if (!existsSync(file)) {
    if (sure > 0) return { fault: `the file is missing, with ${sure} acknowledged episodes` };
  } else {
    const fault = checkRecording(file, acknowledged);
    if (fault !== undefined) return { fault };
  }
  const ending = await runChild("record.mjs", [file, episodes]);
  const { seconds } = ending;
  if (!ending.result?.done) return { fault: `the recording cannot be continued: ${told(ending)}`, seconds };
  const same = readFileSync(file).equals(expected);
  return {
    outcome: "continued",
    fault: same ? undefined : "the recording differs from an uncut one",
    seconds,
  };
}
