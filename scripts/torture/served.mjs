// A server that trains is killed, or meets a full disk, several times in a row, and is then continued
// to its end. At the end every acknowledged reward, correction and episode must be there, once, with
// its value, and all training must have been done. Runs take turns with NLAC, RFT and SFT.
import { existsSync, rmSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import { uniform } from "../../dist/base/random.js";
import { readEpisodeRecords } from "../../dist/episodes/records.js";
import { readRecords } from "../../dist/files/records.js";
import {
  buildShim,
  cpuMoment,
  inDirectory,
  readCounts,
  runChild,
  shimmed,
  told,
} from "./support/sandbox.mjs";

export const about = "SIGKILL and full disks while a server trains on its episodes";

const methods = ["nlac", "rft", "sft"];
/** Processes per run that may be killed, new episodes in each, and how many may stay open. */
const [lives, episodesPerLife, kept] = [16, 3, 8];

export async function run({ runs, seed, first = 0, report }) {
  await inDirectory(async (directory) => {
    const library = buildShim(directory);
    const uncut = new Map();
    for (let number = first; number < first + runs; number++) {
      const method = methods[number % methods.length];
      if (!uncut.has(method)) uncut.set(method, await runUncut(directory, library, method));
      const path = join(directory, `run-${number}`);
      const random = (draw) => uniform(seed, number, draw);
      const { counts, failure } = await attack({ path, library, method }, uncut.get(method), random);
      report({
        runs: 1,
        counts,
        ...(failure === undefined ? {} : { failure: { number, message: failure } }),
      });
      rmSync(path, { recursive: true, force: true });
    }
  });
}

function planOf(method, episodes, history, finish) {
  const { said, acknowledged } = history;
  return JSON.stringify({ method, episodes, kept, said, acknowledged: [...acknowledged], finish });
}

const newHistory = () => ({ said: [], acknowledged: new Set() });

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
    const plan = planOf(method, life * episodesPerLife, history, false);
    ending = await runChild("served.mjs", [path, plan], { env: shimmed(library, path, { counts }) });
    if (!ending.result?.done) throw new Error(`the uncut run failed: ${told(ending)}`);
    remember(history, ending.lines);
  }
  rmSync(path, { recursive: true });
  const ready = Number(ending.lines.find((line) => line.startsWith("ready ")).slice(6));
  return { counts: readCounts(counts), ready, cpu: ending.result.cpu };
}

/** Adds what a life has printed to the history. */
function remember({ said, acknowledged }, lines) {
  for (const line of lines) {
    if (/^(turn|correction|end) /.test(line)) acknowledged.add(line);
    // A kill may cut the last line.
    if (line.startsWith("said {") && line.endsWith("}")) said.push(JSON.parse(line.slice(5)));
  }
}

async function attack({ path, library, method }, uncut, random) {
  const { counts: operations } = uncut;
  const all = Object.values(operations).reduce((sum, count) => sum + count, 0);
  const history = newHistory();
  const counts = { kills: 0, "kills within a file operation": 0, "full disks": 0 };
  const end = (failure) => {
    const count = (what) => [...history.acknowledged].filter((line) => line.startsWith(`${what} `)).length;
    counts["acknowledged rewards"] = count("turn") + count("end");
    counts["acknowledged corrections"] = count("correction");
    counts["ended episodes"] = count("end");
    return { counts, failure };
  };
  for (let life = 1; life <= lives; life++) {
    const [kind, at] = [random(2 * life), random(2 * life + 1)];
    const nth = 1 + Math.floor(at * operations.write);
    const [isFull, isWithin] = [kind >= 0.9, kind >= 0.45 && kind < 0.9];
    const how = isFull
      ? { env: shimmed(library, path, { fault: `write:${nth}:${constants.errno.ENOSPC}:once` }) }
      : isWithin
        ? { env: shimmed(library, path, { kill: 1 + Math.floor(at * all) }) }
        : { killAtCpu: cpuMoment(at, uncut) };
    const ending = await runChild("served.mjs", [path, planOf(method, life * episodesPerLife, history)], how);
    remember(history, ending.lines);
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
      rmSync(path, { recursive: true });
    }
  }
  const ending = await runChild("served.mjs", [path, planOf(method, lives * episodesPerLife, history, true)]);
  remember(history, ending.lines);
  if (!ending.result?.done) return end(`it cannot be continued: ${told(ending)}`);
  return end(wrong(path, history));
}

/** What is missing, doubled or has another value; undefined if nothing is. */
function wrong(path, { acknowledged, said }) {
  const records = new Map();
  for (const record of readEpisodeRecords(join(path, "episodes.jsonl"))) {
    if (records.has(record.task)) return `${record.task} was recorded twice`;
    records.set(record.task, record);
  }
  const corrections = new Map();
  for (const { episode } of readRecords(join(path, "corrections.jsonl")))
    corrections.set(episode, (corrections.get(episode) ?? 0) + 1);
  for (const line of acknowledged) {
    const [what, name, key] = line.split(" ");
    const record = records.get(name);
    if (record === undefined) return `the episode of ${line} is missing`;
    if (what === "correction" && !corrections.has(name)) return `the correction of ${name} is missing`;
    if (what !== "turn") continue;
    const rest = Number(key) === record.turns.length - 1 ? 1 : 0; // the last reward
    const expected = (name === "long" ? 0.25 : 0.5) + rest;
    const { reward } = record.turns[Number(key)] ?? {};
    if (reward !== expected) return `${line}: its reward is ${reward}, not ${expected}`;
  }
  for (let number = 0; number < lives * episodesPerLife; number++) {
    const name = `episode-${number}`;
    if (!acknowledged.has(`end ${name}`) && !records.has(name)) return `${name} was not ended`;
    if (records.get(name).reward !== 1.5)
      return `${name} has the reward ${records.get(name).reward}, not 1.5`;
  }
  const long = records.get("long");
  if (long.turns.length < said.length)
    return `the long episode has ${long.turns.length} of ${said.length} turns`;
  return undefined;
}
