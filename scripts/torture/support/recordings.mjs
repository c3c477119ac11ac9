// Recordings of served episodes: an uncut one, and the checks of one that was cut.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { readEpisodeRecords } from "../../../dist/episodes/records.js";
import { readCounts, runChild, shimmed, told } from "./sandbox.mjs";

const episodes = 6;
const made = new Map();

/** The uncut recording, made once per `directory`; see `uncutRuns`. */
export async function uncutRecording(directory, library) {
  if (!made.has(directory)) {
    const path = join(directory, "uncut-recording.jsonl");
    const counts = `${path}.counts`;
    const ending = await runChild("record.mjs", [episodes, path], {
      env: shimmed(library, path, { counts }),
    });
    if (!ending.result?.done) throw new Error(`the uncut recording failed: ${told(ending)}`);
    const { ready, cpu } = ending.result;
    made.set(directory, {
      bytes: readFileSync(path),
      ready,
      cpu,
      episodes,
      counts: readCounts(counts, path),
    });
  }
  return made.get(directory);
}

/** Undefined if the recording has every acknowledged episode, and none twice; else the problem. */
export function checkRecording(path, acknowledged) {
  let names;
  try {
    names = [...readEpisodeRecords(path)].map(({ task }) => task);
  } catch (error) {
    return `the recording cannot be read: ${error.message}`;
  }
  const lost = [...acknowledged].filter((name) => !names.includes(name));
  if (lost.length > 0) return `acknowledged episodes are missing: ${lost.join(", ")}`;
  if (new Set(names).size < names.length) return "an episode was recorded twice";
  return undefined;
}
