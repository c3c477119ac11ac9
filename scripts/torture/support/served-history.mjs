// What clients of a server that trains were told, over several processes, and what its run must
// therefore have.
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { readEpisodeRecords } from "../../../dist/episodes/records.js";
import { readRecords } from "../../../dist/files/records.js";
import { isDeleted } from "../../../dist/serve/deleted-episodes.js";
import { OpenLog } from "../../../dist/serve/open-log.js";

/** The methods of the served runs that are attacked. */
export const methods = ["nlac", "rft", "sft"];

/**
 * `said`: the answers that the long episode got. `acknowledged`, `requested`: the lines of served.mjs
 * about requests that were answered, and about deletions and rollbacks that were requested.
 */
export const newHistory = () => ({ said: [], acknowledged: new Set(), requested: [] });

/** Adds what a process has printed. */
export function remember({ said, acknowledged, requested }, lines) {
  for (const line of lines) {
    if (/^(turn|correction|end|delete|rollback) /.test(line)) acknowledged.add(line);
    if (/^(deleting|rolling) /.test(line)) requested.push(line);
    // A kill may cut the last line.
    if (line.startsWith("said {") && line.endsWith("}")) said.push(JSON.parse(line.slice(5)));
  }
}

/** The plan of a process, for served.mjs. */
export function planOf({ said, acknowledged, requested }, plan) {
  return JSON.stringify({ ...plan, said, acknowledged: [...acknowledged], requested });
}

/** Of a server's files: the recorded episodes, the open ones and the corrections, by episode. */
function contentsOf(run) {
  const records = new Map();
  const corrections = new Map();
  for (const record of readEpisodeRecords(join(run, "episodes.jsonl"))) {
    if (isDeleted(record)) continue;
    if (records.has(record.task)) return { fault: `${record.task} was recorded twice` };
    records.set(record.task, record);
  }
  for (const { episode } of readRecords(join(run, "corrections.jsonl"))) {
    if (corrections.has(episode)) return { fault: `the correction of ${episode} was stored twice` };
    corrections.set(episode, true);
  }
  const log = new OpenLog(join(run, "open.jsonl"));
  const open = new Map(log.read().map((record) => [record.name, record]));
  log.close();
  return { records, open, corrections };
}

const rewardOf = (name) => (name === "long" ? 0.25 : 0.5);

/** What is missing, doubled or has another value in a run whose server is closed; undefined if nothing is. */
export function wrongIn(run, { acknowledged, requested }) {
  const { fault, records, open, corrections } = contentsOf(run);
  if (fault !== undefined) return fault;
  const deleting = new Set(
    requested.flatMap((line) => (line.startsWith("deleting ") ? [line.slice(9)] : [])),
  );
  for (const line of acknowledged) {
    const [what, name, turn] = line.split(" ");
    if (what === "rollback") continue;
    if (what === "delete") {
      if (records.has(name) || open.has(name) || corrections.has(name))
        return `${name} is there after ${line}`;
      continue;
    }
    if (deleting.has(name)) continue;
    if (what === "end" && !records.has(name)) return `the episode of ${line} is not recorded`;
    if (what === "correction" && !corrections.has(name)) return `the correction of ${name} is missing`;
    const { turns, acknowledged: known = [] } = records.get(name) ?? open.get(name) ?? {};
    if (turns === undefined) return `the episode of ${line} is missing`;
    if (what !== "correction" && !known.some(({ key }) => key === line))
      return `${line} would not be recognized if it were sent again`;
    if (what === "turn" && !(turn < turns.length)) return `the turn of ${line} is missing`;
  }
  for (const name of open.keys()) if (records.has(name)) return `${name} is open, and recorded`;
  for (const [name, { turns }] of [...records, ...open])
    for (const [turn, { reward }] of turns.entries()) {
      const isLast = records.has(name) && turn === turns.length - 1;
      const isRewarded = name === "long" || turn === 0;
      const added = isRewarded ? rewardOf(name) : 0;
      const least = acknowledged.has(`turn ${name} ${turn}`) ? added : 0;
      const rest = reward - (isLast ? 1 : 0);
      if (rest !== least && rest !== added) return `turn ${turn} of ${name} has the reward ${reward}`;
    }
  return undefined;
}

/** As `wrongIn`, after a process that ended all of `episodes` episodes. */
export function wrongAtEnd(run, history, episodes) {
  const fault = wrongIn(run, history);
  if (fault !== undefined) return fault;
  const { records } = contentsOf(run);
  for (let number = 0; number < episodes; number++) {
    const name = `episode-${number}`;
    if (history.acknowledged.has(`delete ${name}`)) continue;
    if (!records.has(name)) return `${name} was not ended`;
    if (records.get(name).reward !== 1.5)
      return `${name} has the reward ${records.get(name).reward}, not 1.5`;
  }
  const turns = records.get("long")?.turns.length ?? 0;
  if (turns < history.said.length) return `the long episode has ${turns} of ${history.said.length} turns`;
  if (existsSync(join(run, "rollback.json"))) return "a version that was requested is not restored";
  return undefined;
}

/** A fault if the text of a deleted episode is still in a file. */
export function deletedTextIn(run, { acknowledged }) {
  for (const line of acknowledged) {
    if (!line.startsWith("delete ")) continue;
    const text = JSON.stringify(line.slice(7));
    for (const file of ["episodes.jsonl", "open.jsonl", "corrections.jsonl"])
      if (existsSync(join(run, file)) && readFileSync(join(run, file), "utf8").includes(text))
        return `${file} has ${text} after ${line}`;
  }
  return undefined;
}
