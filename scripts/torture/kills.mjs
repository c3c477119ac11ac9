// SIGKILL during trainings of every method and during a recording. A run is killed once or twice,
// at a random time or at a random file operation (in the middle of a write), then resumed to its
// end: it must end as an uncut run, byte for byte. No acknowledged reward may be lost or doubled.
import { existsSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { uniform } from "../../dist/base/random.js";
import { trainings } from "./support/recipes.mjs";
import { checkRecording, uncutRecording } from "./support/recordings.mjs";
import {
  buildShim,
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
      const path = join(directory, `run-${number}`);
      const random = (draw) => uniform(seed, number, draw);
      const { killed, fault, seconds, megabytes } =
        kind === "recording"
          ? await cutRecording(directory, path, library, random)
          : await cutTraining(path, kind, library, await uncut(kind), random);
      report({
        runs: 1,
        counts: { kills: killed, [`${kind} runs`]: 1 },
        worst: { "s to resume": seconds ?? 0, megabytes: megabytes ?? 0 },
        ...(fault === undefined ? {} : { failure: { number, message: `${kind}: ${fault}` } }),
      });
      rmSync(path, { recursive: true, force: true });
    }
  });
}

/** How a child is killed: at a random time, or at a random file operation. */
function cut(random, draw, seconds, library, root, count) {
  if (random(draw) < 0.5) return { killAfter: random(draw + 1) * seconds * 1000 };
  return { env: shimmed(library, root, { kill: 1 + Math.floor(random(draw + 1) * count) }) };
}

async function cutTraining(path, name, library, uncut, random) {
  let killed = 0;
  const operations = Object.values(uncut.counts).reduce((sum, count) => sum + count, 0);
  for (let time = 0; time < 2; time++) {
    const ending = await runChild(
      "train.mjs",
      [path, name],
      cut(random, 2 * time, uncut.seconds, library, path, operations),
    );
    if (ending.signal === "SIGKILL" && !ending.hangs) killed++;
    else if (!ending.result?.done) return { killed, fault: told(ending) };
    else break;
  }
  const { fault, ending } = await endsAsUncut(path, name, uncut);
  return { killed, fault, seconds: ending.seconds, megabytes: ending.result?.megabytes };
}

async function cutRecording(directory, path, library, random) {
  const uncut = await uncutRecording(directory, library);
  const operations = Object.values(uncut.counts).reduce((sum, count) => sum + count, 0);
  let killed = 0;
  const acknowledged = new Set();
  for (let time = 0; time < 2; time++) {
    const how = cut(random, 2 * time, uncut.seconds, library, path, operations);
    const ending = await runChild("record.mjs", [path, uncut.episodes], how);
    for (const line of ending.lines) if (line.startsWith("ack ")) acknowledged.add(line.slice(4));
    if (ending.signal === "SIGKILL" && !ending.hangs) killed++;
    else if (!ending.result?.done) return { killed, fault: told(ending) };
    const lost = existsSync(path) || acknowledged.size > 0 ? checkRecording(path, acknowledged) : undefined;
    if (lost !== undefined) return { killed, fault: lost };
  }
  const ending = await runChild("record.mjs", [path, uncut.episodes]);
  if (!ending.result?.done) return { killed, fault: `the recording cannot be continued: ${told(ending)}` };
  const same = readFileSync(path).equals(uncut.bytes);
  const fault = same ? undefined : "the recording differs from an uncut one";
  return { killed, fault, seconds: ending.seconds, megabytes: ending.result.megabytes };
}
