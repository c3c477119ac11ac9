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
  runChildOnAll,
  shimmed,
  told,
} from "./support/sandbox.mjs";
import { readShimLog } from "./support/shim-log.mjs";

export const about = "crash images (torn, reordered and lost writes) of a training and of a recording";

const episodes = 6;
/** Images that one process resumes. */
const together = 24;

export async function run({ runs, seed, first = 0, report }) {
  await inDirectory(async (directory) => {
    const library = buildShim(directory);
    const logged = { training: undefined, recording: undefined };
    const kinds = {
      training: { log: logTraining, before: beforeTraining, resume: resumeTrainings },
      recording: { log: logRecording, before: beforeRecording, resume: resumeRecordings },
    };
    for (let start = first; start < first + runs; start += together) {
      const images = [];
      for (let number = start; number < Math.min(start + together, first + runs); number++) {
        const kind = number % 3 === 2 ? "recording" : "training";
        logged[kind] ??= await kinds[kind].log(join(directory, kind), library);
        const image = makeImage(join(directory, `image-${number}`), logged[kind], seed, number);
        images.push({ number, kind, ...image, ...kinds[kind].before(image, logged[kind]) });
      }
      for (const [kind, { resume }] of Object.entries(kinds)) {
        const group = images.filter((image) => image.kind === kind && image.fault === undefined);
        const endings = group.length > 0 ? await resume(group, logged[kind]) : [];
        for (const [i, ending] of endings.entries()) Object.assign(group[i], ending);
      }
      for (const { number, kind, count, root, outcome, fault, seconds = 0 } of images) {
        const message = `${kind}, crash after operation ${count}: ${fault}`;
        report({
          runs: 1,
          counts: { [`${kind} images`]: 1, ...(outcome && { [outcome]: 1 }) },
          worst: { "s to resume": seconds },
          ...(fault && { failure: { number, message } }),
        });
        rmSync(root, { recursive: true });
      }
    }
  });
}

/** A directory that a crash may leave, at a random moment of the logged run. */
function makeImage(root, { operations, root: from }, seed, number) {
  let draw = 0;
  const random = () => uniform(seed, number, draw++);
  const count = Math.floor(random() * (operations.length + 1));
  mkdirSync(root);
  writeImage(replay(operations, count, from), root, random);
  return { root, count };
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
  const logged = await logRun(root, library, "train.mjs", ["short", join(root, "run")]);
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

function beforeTraining({ root, count }, { saved }) {
  const path = join(root, "run");
  const latest = existsSync(join(path, "latest")) ? readFileSync(join(path, "latest"), "utf8") : "";
  const complete = saved.filter((operation) => operation <= count).length;
  // Checkpoints are numbered from 0.
  if (complete > 0 && !(Number(latest || "-1") >= complete - 1))
    return { fault: `checkpoint ${complete - 1} was complete, but \`latest\` is "${latest}"` };
  return { path, complete, outcome: latest === "" ? "started anew" : "resumed" };
}

async function resumeTrainings(images, { fingerprint: expected }) {
  const endings = await runChildOnAll(
    "train.mjs",
    ["short"],
    images.map(({ path }) => path),
  );
  return endings.map((ending, i) => {
    const { path, root, complete } = images[i];
    const { seconds, done, code, message } = ending.result ?? {};
    if (done) return { seconds, fault: difference(expected, fingerprint(path)) };
    const named = /^ERR_/.test(code) && message.includes(root);
    if (named && complete === 0) return { seconds, outcome: "named" };
    return { seconds, fault: `the run cannot be resumed: ${told(ending)}` };
  });
}

async function logRecording(root, library) {
  const file = join(root, "episodes.jsonl");
  const logged = await logRun(root, library, "record.mjs", [episodes, file]);
  return { ...logged, file: readFileSync(file) };
}

function beforeRecording({ root, count }, { operations, root: from }) {
  const path = join(root, "episodes.jsonl");
  // The client waits for each acknowledgement, so every episode before the last one written has its
  // own.
  const isWrite = ({ kind, path: file }) => kind === "write" && file === join(from, "episodes.jsonl");
  const written = operations.slice(0, count).filter(isWrite).length;
  const sure = count === operations.length ? episodes : Math.max(0, written - 1);
  const acknowledged = new Set(Array.from({ length: sure }, (_, i) => `episode-${i}`));
  if (existsSync(path)) return { path, outcome: "continued", fault: checkRecording(path, acknowledged) };
  if (sure > 0) return { fault: `the file is missing, with ${sure} acknowledged episodes` };
  return { path, outcome: "continued" };
}

async function resumeRecordings(images, { file: expected }) {
  const endings = await runChildOnAll(
    "record.mjs",
    [episodes],
    images.map(({ path }) => path),
  );
  return endings.map((ending, i) => {
    const { done, seconds } = ending.result ?? {};
    if (!done) return { seconds, fault: `the recording cannot be continued: ${told(ending)}` };
    const same = readFileSync(images[i].path).equals(expected);
    return { seconds, fault: same ? undefined : "the recording differs from an uncut one" };
  });
}
