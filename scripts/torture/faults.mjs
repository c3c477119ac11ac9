// File operations that fail: each write, fsync, rename, open, mkdir, ftruncate and unlink once over
// a new training, a resumed training, a new recording and a continued one. The fault is one error
// (ENOSPC, EIO, EMFILE), a short write followed by one, or a disk that stays broken. The process
// must continue, or end with a code and the name of a file; continued without faults, it must end
// as an uncut run. Run number n takes point n of a shuffled list of all points.
import { cpSync, existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import { permutation, uniform } from "../../dist/base/random.js";
import { checkRecording, uncutRecording } from "./support/recordings.mjs";
import {
  buildShim,
  difference,
  endsAsUncut,
  fingerprint,
  inDirectory,
  readCounts,
  runChild,
  shimmed,
  told,
  uncutRuns,
} from "./support/sandbox.mjs";

export const about = "failing writes, fsyncs, renames, opens, mkdirs, ftruncates and unlinks";

const { ENOSPC, EIO, EMFILE } = constants.errno;
const codes = {
  write: [ENOSPC, EIO],
  fsync: [EIO, ENOSPC],
  rename: [EIO, ENOSPC],
  open: [EMFILE, EIO, ENOSPC],
  mkdir: [ENOSPC, EMFILE],
  ftruncate: [EIO],
  unlink: [EIO],
  link: [EIO, ENOSPC],
};

export async function run({ runs, seed, first = 0, report }) {
  await inDirectory(async (directory) => {
    const library = buildShim(directory);
    const targets = await makeTargets(directory, library);
    const points = Object.entries(targets).flatMap(([name, { counts }]) =>
      Object.entries(counts).flatMap(([kind, count]) =>
        Array.from({ length: count }, (_, i) => ({ name, kind, nth: i + 1 })),
      ),
    );
    const order = permutation(points.length, seed, 1);
    for (let number = first; number < first + runs; number++) {
      const { name, kind, nth } = points[order[number % points.length]];
      const modes = kind === "write" ? ["once", "onwards", "torn"] : ["once", "onwards"];
      const pick = (list, draw) => list[Math.floor(uniform(seed, number, draw) * list.length)];
      const fault = [kind, nth, pick(codes[kind], 0), pick(modes, 1)].join(":");
      const path = join(directory, `run-${number}`);
      const target = targets[name];
      target.prepare(path);
      const again = !fault.endsWith("onwards");
      const { outcome, failure } = await attack(target, path, shimmed(library, path, { fault }), again);
      report({
        runs: 1,
        counts: { [`${kind} faults`]: 1, ...(outcome && { [outcome]: 1 }) },
        worst: { points: points.length },
        ...(failure && { failure: { number, message: `${name}, ${fault}: ${failure}` } }),
      });
      rmSync(path, { recursive: true, force: true });
    }
  });
}

/** `again`: continue in the same process after an error, which is then not repeated. */
async function attack(target, path, env, again) {
  const ending = await target.start(path, env, again);
  const { done, code, message = "", refused } = ending.result?.first ?? ending.result ?? {};
  const named = /^ERR_/.test(code ?? "") && message.includes(path);
  if (!done && !named && !refused)
    return { failure: `no coded error that names a file: ${told(ending)} ${message}` };
  return { outcome: done ? "went on" : "ended with a code", failure: await target.finish(path, ending) };
}

/** The four processes that are attacked, with the counts of their file operations. */
async function makeTargets(directory, library) {
  const uncut = await uncutRuns(directory, library)("short");
  const recording = await uncutRecording(directory, library);
  const half = join(directory, "half");
  const all = Object.values(uncut.counts).reduce((sum, count) => sum + count, 0);
  await runChild("train.mjs", ["short", half], {
    env: shimmed(library, half, { kill: Math.floor(all * 0.7) }),
  });
  if (!existsSync(join(half, "latest"))) throw new Error("the killed run has no checkpoint");
  const halfFile = join(directory, "half.jsonl");
  writeFileSync(halfFile, recording.bytes.subarray(0, Math.floor(recording.bytes.length * 0.6)));

  const training = {
    start: (path, env, again) =>
      runChild("train.mjs", [...(again ? ["--again"] : []), "short", path], { env }),
    finish: async (path, { result }) =>
      result?.done
        ? difference(uncut.fingerprint, fingerprint(path))
        : (await endsAsUncut(path, "short", uncut)).fault,
  };
  const acknowledged = ({ lines }) =>
    new Set(lines.flatMap((line) => (line.startsWith("ack ") ? [line.slice(4)] : [])));
  const served = {
    start: (path, env) => runChild("record.mjs", [recording.episodes, path], { env }),
    finish: async (path, before) => {
      const had = acknowledged(before);
      const lost = had.size > 0 ? checkRecording(path, had) : undefined;
      if (lost !== undefined) return lost;
      const ending = await runChild("record.mjs", [recording.episodes, path]);
      if (!ending.result?.done) return `the recording cannot be continued: ${told(ending)}`;
      return readFileSync(path).equals(recording.bytes)
        ? undefined
        : "the recording differs from an uncut one";
    },
  };
  const copy = (from) => (path) => cpSync(from, path, { recursive: true });
  const nothing = () => undefined;
  const targets = {
    training: { ...training, prepare: nothing, counts: uncut.counts },
    "resumed training": { ...training, prepare: copy(half) },
    recording: { ...served, prepare: nothing, counts: recording.counts },
    "continued recording": { ...served, prepare: copy(halfFile) },
  };
  for (const [name, target] of Object.entries(targets)) {
    if (target.counts !== undefined) continue;
    const path = join(directory, name);
    const counts = `${path}.counts`;
    target.prepare(path);
    await target.start(path, shimmed(library, path, { counts }));
    target.counts = readCounts(counts);
  }
  return targets;
}
