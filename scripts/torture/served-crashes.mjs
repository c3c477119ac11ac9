// Crash images of a server that trains. The fault shim records the file operations of five processes
// that continue one run, two of which are killed, and what was acknowledged between them. Each run of
// the campaign builds a directory that a kill or a power failure may leave of it
// (support/crash-image.mjs), and starts a server on it. Everything that was acknowledged before must
// be there, once, with its value; what was not acknowledged may be there, once; deleted episodes must
// not. On one image of 25 all acknowledged requests are sent again, and must be answered as before; it
// is then continued until all training is done.
import { existsSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import {
  attackImages,
  logSession,
  lostCheckpoint,
  printedBefore,
  savedCheckpoints,
} from "./support/images.mjs";
import { buildShim, inDirectory, told } from "./support/sandbox.mjs";
import {
  deletedTextIn,
  methods,
  newHistory,
  planOf,
  remember,
  wrongAtEnd,
  wrongIn,
} from "./support/served-history.mjs";

export const about = "crash images and kills of a server that trains on its episodes";

/** Processes of a session, new episodes in each, and how many may stay open. */
const [lives, episodesPerLife, kept] = [5, 4, 8];
const episodes = lives * episodesPerLife;
/** The file operation at which some of them are killed. */
const kills = { 2: 150, 4: 250 };
/** One image of so many is continued to the end of its training. */
const continued = 25;

export async function run({ runs, seed, first = 0, report }) {
  await inDirectory(async (directory) => {
    const library = buildShim(directory);
    const kinds = Object.fromEntries(methods.map((method) => [method, served(method)]));
    await attackImages({ directory, library, kinds, together: 120, runs, seed, first, report });
  });
}

function served(method) {
  const runOf = (root) => join(root, "run");
  const isContinued = ({ number }) => Math.floor(number / methods.length) % continued === 0;
  return {
    async log(root, library) {
      const logged = await logSession(root, library, async (start) => {
        const history = newHistory();
        for (let life = 1; life <= lives; life++) {
          const plan = { method, kept, episodes: life * episodesPerLife, finish: life === lives };
          const ending = await start("served.mjs", [runOf(root), planOf(history, plan)], {
            kill: kills[life],
          });
          remember(history, ending.lines);
        }
      });
      return { ...logged, saved: savedCheckpoints(logged, runOf(root)) };
    },
    before(image, logged) {
      const history = newHistory();
      remember(history, printedBefore(logged, image));
      const run = runOf(image.root);
      const fault =
        beforeFirst(run, history) ??
        lostCheckpoint(run, image, logged.saved) ??
        deletedTextIn(run, history) ??
        lostRollback(run, image, logged, history);
      const count = (what) => [...history.acknowledged].filter((line) => line.startsWith(`${what} `)).length;
      const counts = {
        [`of ${method}`]: 1,
        "acknowledged rewards": count("turn") + count("end"),
        "acknowledged corrections": count("correction"),
        deletions: count("delete"),
        rollbacks: count("rollback"),
        ...(isContinued(image) && { "continued to the end": 1 }),
      };
      // Of what the long episode said, its client knows what was acknowledged.
      const known = [...history.acknowledged].filter((line) => line.startsWith("turn long ")).length;
      history.said.length = Math.min(history.said.length, known);
      return { history, fault, counts };
    },
    script: "served.mjs",
    args: [],
    target(image) {
      const finish = isContinued(image);
      return [
        runOf(image.root),
        planOf(image.history, { method, kept, episodes: finish ? episodes : 0, finish }),
      ];
    },
    after(image, ending) {
      if (!ending.result?.done) return { fault: `it cannot be continued: ${told(ending)}` };
      const run = runOf(image.root);
      remember(image.history, ending.lines);
      if (isContinued(image)) return { fault: wrongAtEnd(run, image.history, episodes) };
      return { fault: wrongIn(run, image.history) };
    },
  };
}

/**
 * Removes a run without a checkpoint, which cannot be continued. A fault if something was acknowledged.
 */
function beforeFirst(run, { acknowledged }) {
  if (existsSync(join(run, "latest"))) return undefined;
  rmSync(run, { recursive: true, force: true });
  return acknowledged.size > 0 ? "acknowledged before the first checkpoint" : undefined;
}

/** A fault if a rollback that was acknowledged, and not done, is not noted. */
function lostRollback(run, { count }, { operations, printed, root }, { requested }) {
  const acknowledged = printed.findLast(({ line, after }) => after <= count && line.startsWith("rollback "));
  if (acknowledged === undefined) return undefined;
  const file = join(root, "run", "rollback.json");
  // The operation that was in progress may have happened.
  const removed = operations
    .slice(acknowledged.after, count + 1)
    .some(({ kind, path }) => kind === "unlink" && path === file);
  if (removed) return undefined;
  const last = acknowledged.line.slice("rollback ".length);
  const later = requested.slice(requested.lastIndexOf(`rolling ${last}`)).map((line) => line.slice(8));
  const noted = existsSync(join(run, "rollback.json"))
    ? JSON.parse(readFileSync(join(run, "rollback.json"), "utf8")).version
    : undefined;
  return later.includes(noted) ? undefined : `the rollback to ${last} is not noted, but ${noted}`;
}
