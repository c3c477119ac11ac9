// Crash images of trainings and of a recording. The fault shim records the file operations of an
// uncut run. Each run of the campaign builds a directory that a power failure or a kill may leave of
// it (support/crash-image.mjs), and continues from it: the result must equal the uncut run's, a
// checkpoint that was complete must be found, and no acknowledged reward may be lost. An error that
// names a damaged file counts as "named"; it is a failure once a checkpoint was complete.
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import {
  attackImages,
  completeBefore,
  logSession,
  lostCheckpoint,
  printedBefore,
  savedCheckpoints,
} from "./support/images.mjs";
import { trainings } from "./support/recipes.mjs";
import { checkRecording } from "./support/recordings.mjs";
import { buildShim, difference, fingerprint, inDirectory, told } from "./support/sandbox.mjs";

export const about = "crash images (torn, reordered and lost writes) and kills of trainings and a recording";

const episodes = 6;

export async function run({ runs, seed, first = 0, report }) {
  await inDirectory(async (directory) => {
    const library = buildShim(directory);
    const kinds = { short: training("short"), recording };
    for (const name of trainings) kinds[name] = training(name);
    await attackImages({ directory, library, kinds, together: 60, runs, seed, first, report });
  });
}

function training(name) {
  const runOf = (root) => join(root, "run");
  return {
    async log(root, library) {
      const logged = await logSession(root, library, (start) => start("train.mjs", [name, runOf(root)]));
      return {
        ...logged,
        saved: savedCheckpoints(logged, runOf(root)),
        fingerprint: fingerprint(runOf(root)),
      };
    },
    before(image, { saved }) {
      const path = runOf(image.root);
      const fault = lostCheckpoint(path, image, saved);
      const outcome = existsSync(join(path, "latest")) ? "resumed" : "started anew";
      return { fault, counts: { [outcome]: 1, [`of ${name}`]: 1 } };
    },
    script: "train.mjs",
    args: [name],
    target: ({ root }) => [runOf(root)],
    after(image, ending, { fingerprint: expected, saved }) {
      const { done, code, message } = ending.result ?? {};
      if (done) return { fault: difference(expected, fingerprint(runOf(image.root))) };
      const named = /^ERR_/.test(code) && message.includes(image.root);
      if (named && completeBefore(image, saved) === undefined) return { counts: { named: 1 } };
      return { fault: `the run cannot be resumed: ${told(ending)}` };
    },
  };
}

const fileOf = (root) => join(root, "episodes.jsonl");

const recording = {
  async log(root, library) {
    const logged = await logSession(root, library, (start) => start("record.mjs", [episodes, fileOf(root)]));
    return { ...logged, file: readFileSync(fileOf(root)) };
  },
  before(image, logged) {
    const path = fileOf(image.root);
    const counts = { continued: 1, "of a recording": 1 };
    const acknowledged = printedBefore(logged, image).flatMap((line) =>
      line.startsWith("ack ") ? [line.slice(4)] : [],
    );
    if (existsSync(path)) return { counts, fault: checkRecording(path, new Set(acknowledged)) };
    if (acknowledged.length === 0) return { counts };
    return { counts, fault: `the file is missing, with ${acknowledged.length} acknowledged episodes` };
  },
  script: "record.mjs",
  args: [episodes],
  target: ({ root }) => [fileOf(root)],
  after({ root }, ending, { file: expected }) {
    if (!ending.result?.done) return { fault: `the recording cannot be continued: ${told(ending)}` };
    const same = readFileSync(fileOf(root)).equals(expected);
    return { fault: same ? undefined : "the recording differs from an uncut one" };
  },
};
