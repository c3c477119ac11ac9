// SIGKILL during trainings of every method and during a recording. A run is killed up to eight times,
// at a random moment or at a random file operation (in the middle of a write), then resumed to its
// end: it must end as an uncut run, byte for byte. No acknowledged reward may be lost or doubled. The
// directory that a kill leaves must be what the operations before it make, as `crashes` assumes.
import { existsSync, mkdirSync, readFileSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { uniform } from "../../dist/base/random.js";
import { followLog } from "./support/images.mjs";
import { trainings } from "./support/recipes.mjs";
import { checkRecording, uncutRecording } from "./support/recordings.mjs";
import {
  buildShim,
  cpuMoment,
  endsAsUncut,
  inDirectory,
  runChild,
  shimmed,
  told,
  uncutRuns,
} from "./support/sandbox.mjs";

export const about = "SIGKILL during trainings of every method and during a recording";

export async function run({ runs, seed, first = 0, report }) {
  await inDirectory(async (directory) => {
    const library = buildShim(directory);
    const uncut = uncutRuns(directory, library);
    const kinds = ["short", "recording", ...trainings];
    for (let number = first; number < first + runs; number++) {
      const kind = kinds[number % kinds.length];
      const root = join(directory, `run-${number}`);
      const path = join(root, kind === "recording" ? "episodes.jsonl" : "run");
      mkdirSync(root);
      const random = (draw) => uniform(seed, number, draw);
      const { killed, fault, result } =
        kind === "recording"
          ? await cutRecording(directory, path, library, random)
          : await cutTraining(path, kind, library, await uncut(kind), random);
      report({
        runs: 1,
        counts: { kills: killed, "kills compared with their log": killed, [`${kind} runs`]: 1 },
        worst: { "s to resume": result?.seconds ?? 0, megabytes: result?.megabytes ?? 0 },
        ...(fault === undefined ? {} : { failure: { number, message: `${kind}: ${fault}` } }),
      });
      rmSync(root, { recursive: true });
    }
  });
}

/** Processes per run that may be killed. */
const lives = 8;

/**
 * How a life is killed: at a random moment of its CPU time, or at a random file operation. Half of
 * them early, so that more lives of a run are killed.
 */
function cut(random, life, uncut, library, path) {
  const [kind, drawn, early] = [0, 1, 2].map((i) => random(3 * life + i));
  const at = early < 0.5 ? drawn / 3 : drawn;
  const env = (kill) => shimmed(library, dirname(path), { log: logOf(path), kill });
  if (kind < 0.5) return { env: env(), killAtCpu: cpuMoment(at, uncut) };
  const operations = Object.values(uncut.counts).reduce((sum, count) => sum + count, 0);
  return { env: env(1 + Math.floor(at * operations)) };
}

const logOf = (path) => `${dirname(path)}.log`;

/** A fault if a killed process has left anything but what it had logged. */
function unlike(differs) {
  return differs && `the directory is not what the operations before the kill make: ${differs}`;
}

async function cutTraining(path, name, library, uncut, random) {
  let killed = 0;
  const differs = followLog(dirname(path), logOf(path));
  for (let life = 0; life < lives; life++) {
    const ending = await runChild("train.mjs", [name, path], cut(random, life, uncut, library, path));
    const other = unlike(differs());
    if (other !== undefined) return { killed, fault: other };
    if (ending.signal === "SIGKILL" && !ending.hangs) killed++;
    else if (!ending.result?.done) return { killed, fault: told(ending) };
    else break;
  }
  const { fault, ending } = await endsAsUncut(path, name, uncut);
  return { killed, fault, result: ending.result };
}

async function cutRecording(directory, path, library, random) {
  const uncut = await uncutRecording(directory, library);
  let killed = 0;
  const acknowledged = new Set();
  const differs = followLog(dirname(path), logOf(path));
  for (let life = 0; life < lives; life++) {
    const how = cut(random, life, uncut, library, path);
    const ending = await runChild("record.mjs", [uncut.episodes, path], how);
    for (const line of ending.lines) if (line.startsWith("ack ")) acknowledged.add(line.slice(4));
    const other = unlike(differs());
    if (other !== undefined) return { killed, fault: other };
    const lost = existsSync(path) || acknowledged.size > 0 ? checkRecording(path, acknowledged) : undefined;
    if (lost !== undefined) return { killed, fault: lost };
    if (ending.signal === "SIGKILL" && !ending.hangs) killed++;
    else if (!ending.result?.done) return { killed, fault: told(ending) };
    else break;
  }
  const ending = await runChild("record.mjs", [uncut.episodes, path]);
  const { result } = ending;
  if (!result?.done) return { killed, fault: `the recording cannot be continued: ${told(ending)}` };
  const same = readFileSync(path).equals(uncut.bytes);
  return { killed, fault: same ? undefined : "the recording differs from an uncut one", result };
}
