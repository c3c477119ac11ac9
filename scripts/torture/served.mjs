// A server that trains is killed, or meets a full disk, several times in a row, and is then continued
// to its end. At the end every acknowledged reward, correction and episode must be there, once, with
// its value, deleted ones must not, and all training must have been done. Runs take turns with NLAC,
// RFT and SFT.
import { existsSync, mkdirSync, rmSync } from "node:fs";
import { constants } from "node:os";
import { dirname, join } from "node:path";
import { uniform } from "../../dist/base/random.js";
import { followLog } from "./support/images.mjs";
import {
  buildShim,
  cpuMoment,
  inDirectory,
  readCounts,
  runChild,
  shimmed,
  told,
} from "./support/sandbox.mjs";
import { methods, newHistory, planOf, remember, wrongAtEnd } from "./support/served-history.mjs";

export const about = "SIGKILL and full disks while a server trains on its episodes";

/** Processes per run that may be killed, new episodes in each, and how many may stay open. */
const [lives, episodesPerLife, kept] = [16, 3, 8];

export async function run({ runs, seed, first = 0, report }) {
  await inDirectory(async (directory) => {
    const library = buildShim(directory);
    const uncut = new Map();
    for (let number = first; number < first + runs; number++) {
      const method = methods[number % methods.length];
      if (!uncut.has(method)) uncut.set(method, await runUncut(directory, library, method));
      const root = join(directory, `run-${number}`);
      const path = join(root, "run");
      mkdirSync(root);
      const random = (draw) => uniform(seed, number, draw);
      const { counts, failure } = await attack({ path, library, method }, uncut.get(method), random);
      report({
        runs: 1,
        counts,
        ...(failure === undefined ? {} : { failure: { number, message: failure } }),
      });
      rmSync(root, { recursive: true });
    }
  });
}

/**
 * Operations and seconds of CPU time of a life that is not cut: the second one, which continues a
 * run.
 */
async function runUncut(directory, library, method) {
  const path = join(directory, `uncut-${method}`);
  const counts = `${path}.counts`;
  const history = newHistory();
  let ending;
  for (const life of [1, 2]) {
    const plan = planOf(history, { method, kept, episodes: life * episodesPerLife });
    ending = await runChild("served.mjs", [path, plan], { env: shimmed(library, path, { counts }) });
    if (!ending.result?.done) throw new Error(`the uncut run failed: ${told(ending)}`);
    remember(history, ending.lines);
  }
  rmSync(path, { recursive: true });
  const ready = Number(ending.lines.find((line) => line.startsWith("ready ")).slice(6));
  return { counts: readCounts(counts, path), ready, cpu: ending.result.cpu };
}

async function attack({ path, library, method }, uncut, random) {
  const { counts: operations } = uncut;
  const all = Object.values(operations).reduce((sum, count) => sum + count, 0);
  const history = newHistory();
  const root = dirname(path);
  const log = `${root}.log`;
  let differs = followLog(root, log);
  const counts = {
    kills: 0,
    "kills compared with their log": 0,
    "kills within a file operation": 0,
    "full disks": 0,
  };
  const end = (failure) => {
    const count = (what) => [...history.acknowledged].filter((line) => line.startsWith(`${what} `)).length;
    counts["acknowledged rewards"] = count("turn") + count("end");
    counts["acknowledged corrections"] = count("correction");
    counts["ended episodes"] = count("end");
    counts.deletions = count("delete");
    counts.rollbacks = count("rollback");
    return { counts, failure };
  };
  for (let life = 1; life <= lives; life++) {
    const [kind, at] = [random(2 * life), random(2 * life + 1)];
    const nth = 1 + Math.floor(at * operations.write);
    const [isFull, isWithin] = [kind >= 0.9, kind >= 0.45 && kind < 0.9];
    const how = isFull
      ? { env: shimmed(library, root, { log, fault: `write:${nth}:${constants.errno.ENOSPC}:once` }) }
      : isWithin
        ? { env: shimmed(library, root, { log, kill: 1 + Math.floor(at * all) }) }
        : { env: shimmed(library, root, { log }), killAtCpu: cpuMoment(at, uncut) };
    const plan = planOf(history, { method, kept, episodes: life * episodesPerLife });
    const ending = await runChild("served.mjs", [path, plan], how);
    remember(history, ending.lines);
    const other = differs();
    if (other !== undefined) return end(`the directory is not what the logged operations make: ${other}`);
    if (ending.signal === "SIGKILL") counts["kills compared with their log"]++;
    if (ending.hangs) return end(`it hangs: ${told(ending)}`);
    if (ending.result?.lost) return end(told(ending));
    if (ending.signal === "SIGKILL") {
      counts.kills++;
      if (isWithin) counts["kills within a file operation"]++;
    } else if (isFull) counts["full disks"]++;
    else if (!ending.result?.done) return end(told(ending));
    // Killed before the first checkpoint, when nothing could have been acknowledged.
    if (existsSync(path) && !existsSync(join(path, "latest"))) {
      if (history.acknowledged.size > 0) return end("acknowledged before the first checkpoint");
      rmSync(root, { recursive: true });
      mkdirSync(root);
      differs = followLog(root, log);
    }
  }
  const episodes = lives * episodesPerLife;
  const ending = await runChild("served.mjs", [
    path,
    planOf(history, { method, kept, episodes, finish: true }),
  ]);
  remember(history, ending.lines);
  if (!ending.result?.done) return end(`it cannot be continued: ${told(ending)}`);
  return end(wrongAtEnd(path, history, episodes));
}
