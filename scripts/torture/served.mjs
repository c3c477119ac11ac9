// A server that trains is killed or meets a full disk, twice, and is then continued to its end.
// Every acknowledged reward of a turn, every correction and every ended episode must be there,
// once; and the training must have taken the updates of its last iteration.
import { existsSync, rmSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import { uniform } from "../../dist/base/random.js";
import { readEpisodeRecords } from "../../dist/episodes/records.js";
import { readRecords } from "../../dist/files/records.js";
import { buildShim, inDirectory, readCounts, runChild, shimmed, told } from "./support/sandbox.mjs";

export const about = "SIGKILL and full disks while a server trains on its episodes";

const episodes = 6;

export async function run({ runs, seed, first = 0, report }) {
  await inDirectory(async (directory) => {
    const library = buildShim(directory);
    const uncut = await runUncut(directory, library);
    for (let number = first; number < first + runs; number++) {
      const path = join(directory, `run-${number}`);
      const random = (draw) => uniform(seed, number, draw);
      const { killed, full, failure } = await attack(path, library, uncut, random);
      report({
        runs: 1,
        counts: { kills: killed, "full disks": full },
        ...(failure === undefined ? {} : { failure: { number, message: failure } }),
      });
      rmSync(path, { recursive: true, force: true });
    }
  });
}

async function runUncut(directory, library) {
  const path = join(directory, "uncut");
  const counts = `${path}.counts`;
  const ending = await runChild("served.mjs", [path, episodes], { env: shimmed(library, path, { counts }) });
  if (!ending.result?.done) throw new Error(`the uncut run failed: ${told(ending)}`);
  return { counts: readCounts(counts), seconds: ending.seconds };
}

async function attack(path, library, { counts, seconds }, random) {
  const operations = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const acknowledged = new Set();
  let [killed, full] = [0, 0];
  for (let time = 0; time < 2; time++) {
    const [kind, at] = [random(3 * time), random(3 * time + 1)];
    const nth = 1 + Math.floor(at * counts.write);
    const how =
      kind < 0.4
        ? { killAfter: at * seconds * 1000 }
        : kind < 0.8
          ? { env: shimmed(library, path, { kill: 1 + Math.floor(at * operations) }) }
          : { env: shimmed(library, path, { fault: `write:${nth}:${constants.errno.ENOSPC}:once` }) };
    const ending = await runChild("served.mjs", [path, episodes], how);
    for (const line of ending.lines) if (!line.startsWith("{")) acknowledged.add(line);
    if (ending.signal === "SIGKILL" && !ending.hangs) killed++;
    else if (ending.hangs) return { killed, full, failure: `it hangs: ${told(ending)}` };
    else if (kind >= 0.8) full++;
    else if (!ending.result?.done) return { killed, full, failure: told(ending) };
    // Killed before the first checkpoint, when nothing could have been acknowledged.
    if (existsSync(path) && !existsSync(join(path, "latest"))) {
      if (acknowledged.size > 0) return { killed, full, failure: "acknowledged before the first checkpoint" };
      rmSync(path, { recursive: true });
    }
  }
  const ending = await runChild("served.mjs", [path, episodes]);
  for (const line of ending.lines) if (!line.startsWith("{")) acknowledged.add(line);
  if (!ending.result?.done) return { killed, full, failure: `it cannot be continued: ${told(ending)}` };
  return { killed, full, failure: lost(path, acknowledged) };
}

/** What is missing or doubled; undefined if nothing is. */
function lost(path, acknowledged) {
  const records = [...readEpisodeRecords(join(path, "episodes.jsonl"))];
  const names = records.map(({ task }) => task);
  if (new Set(names).size < names.length) return "an episode was recorded twice";
  const corrections = [...readRecords(join(path, "corrections.jsonl"))].map(({ episode }) => episode);
  for (const line of acknowledged) {
    const [what, name] = line.split(" ");
    const record = records.find(({ task }) => task === name);
    if (record === undefined) return `the episode of ${line} is missing`;
    if (what === "turn" && record.turns[0].reward < 0.5) return `the reward of ${line} is missing`;
    if (what === "correction" && !corrections.includes(name)) return `the correction of ${line} is missing`;
    if (what === "end" && record.reward < 1) return `the last reward of ${name} is missing`;
  }
  return undefined;
}
