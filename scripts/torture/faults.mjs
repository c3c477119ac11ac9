// File operations that fail: each write, fsync, rename, open, mkdir, ftruncate and unlink once over
// a new training, a resumed training, a new recording and a continued one. The fault is one error
// (ENOSPC, EIO, EMFILE), a short write followed by one, or a disk that stays broken. The process
// must continue, or end with a code and the name of a file; continued without faults, it must end
// as an uncut run. Run number n takes point n of a shuffled list of all points. One process is attacked
// many times, in a new directory each time, because its start costs ten times more than an attack.
import { cpSync, existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import { permutation, uniform } from "../../dist/base/random.js";
import { checkRecording, uncutRecording } from "./support/recordings.mjs";
import {
  buildShim,
  difference,
  fingerprint,
  inDirectory,
  readCounts,
  runChild,
  runChildOnAll,
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

/** Points that are attacked before the next report, the trainings' in one process. */
const together = 200;

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
    for (let start = first; start < first + runs; start += together) {
      const attacks = [];
      for (let number = start; number < Math.min(start + together, first + runs); number++) {
        const { name, kind, nth } = points[order[number % points.length]];
        const modes = kind === "write" ? ["once", "onwards", "torn"] : ["once", "onwards"];
        const pick = (list, draw) => list[Math.floor(uniform(seed, number, draw) * list.length)];
        const fault = [kind, nth, pick(codes[kind], 0), pick(modes, 1)].join(":");
        attacks.push({ number, name, kind, nth, fault, path: join(directory, `run-${number}`) });
      }
      for (const script of ["train.mjs", "record.mjs"]) {
        const mine = attacks.filter(({ name }) => targets[name].script === script);
        await attackAll(targets, mine, library, join(directory, `${script}-${start}.counts`));
        for (const { number, name, kind, fault, path, outcome, failure, megabytes } of mine) {
          report({
            runs: 1,
            counts: { [`${kind} faults`]: 1, ...(outcome && { [outcome]: 1 }) },
            worst: { points: points.length, megabytes },
            ...(failure && { failure: { number, message: `${name}, ${fault}: ${failure}` } }),
          });
          rmSync(path, { recursive: true, force: true });
        }
      }
    }
  });
}

/** Makes attacks on one script, in one process, and adds to each its outcome, and its failure. */
async function attackAll(targets, attacks, library, countsFile) {
  if (attacks.length === 0) return;
  const { script, args } = targets[attacks[0].name];
  for (const { name, path } of attacks) targets[name].prepare(path);
  const attacked = attacks.map(({ path, fault }) => [`${path}=${fault}`]);
  const env = shimmed(library, "", { counts: countsFile });
  const endings = await runChildOnAll(script, args, attacked, { env });
  const continued = [];
  for (const [i, attack] of attacks.entries()) {
    const { name, path, kind, nth } = attack;
    const ending = endings[i];
    const { done, code, message = "", refused } = ending.result?.first ?? ending.result ?? {};
    const named = /^ERR_/.test(code ?? "") && message.includes(path);
    const reached = readCounts(countsFile, path)?.[kind] >= nth;
    attack.megabytes = ending.result?.megabytes ?? 0;
    attack.outcome = reached ? (done ? "went on" : "ended with a code") : "not reached";
    if (!done && !named && !refused)
      attack.failure = `no coded error that names a file: ${told(ending)} ${message}`;
    else if (targets[name].hasEnded(ending)) attack.failure = targets[name].differs(path);
    else {
      attack.failure = targets[name].lost(path, ending);
      if (attack.failure === undefined) continued.push(attack);
    }
  }
  const paths = continued.map(({ path }) => [path]);
  for (const [i, ending] of (await runChildOnAll(script, args, paths)).entries()) {
    const { name, path } = continued[i];
    continued[i].failure = ending.result?.done
      ? targets[name].differs(path)
      : `it cannot be continued: ${told(ending)}`;
  }
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
    script: "train.mjs",
    args: ["short"],
    hasEnded: ({ result }) => result.done,
    lost: () => undefined,
    differs: (path) =>
      existsSync(join(path, "latest"))
        ? difference(uncut.fingerprint, fingerprint(path))
        : "the finished run has no checkpoint",
  };
  const served = {
    script: "record.mjs",
    args: [recording.episodes],
    // A server goes on after an error: what is missing is recorded by the next one.
    hasEnded: () => false,
    lost(path, { lines }) {
      const had = new Set(lines.flatMap((line) => (line.startsWith("ack ") ? [line.slice(4)] : [])));
      return had.size > 0 ? checkRecording(path, had) : undefined;
    },
    differs: (path) =>
      readFileSync(path).equals(recording.bytes) ? undefined : "the recording differs from an uncut one",
  };
  const copy = (from) => (path) => cpSync(from, path, { recursive: true });
  const nothing = () => undefined;
  const targets = {
    training: { ...training, prepare: nothing },
    "resumed training": { ...training, prepare: copy(half) },
    recording: { ...served, prepare: nothing },
    "continued recording": { ...served, prepare: copy(halfFile) },
  };
  for (const [name, target] of Object.entries(targets)) {
    const [path, counts] = [join(directory, name), join(directory, `${name}.counts`)];
    target.prepare(path);
    const { result } = await runChild(target.script, [...target.args, `${path}=`], {
      env: shimmed(library, "", { counts }),
    });
    if (!result?.done) throw new Error(`the ${name} without a fault failed`);
    target.counts = readCounts(counts, path);
    rmSync(path, { recursive: true });
  }
  return targets;
}
