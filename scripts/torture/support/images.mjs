// Images: directories that a crash of the machine, or a kill of the process, may leave of a logged
// session. Many are checked in one process, because its start costs more than what it does with one.
import { existsSync, mkdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { permutation, uniform } from "../../../dist/base/random.js";
import { differenceFrom, newFileSystem, replay, writeImage } from "./crash-image.mjs";
import { runChild, runChildOnAll, shimmed, told } from "./sandbox.mjs";
import { readShimLog } from "./shim-log.mjs";

/**
 * Runs children under the shim, one after another, in a new directory `root`. `session` gets a
 * function that starts one, with the arguments of `runChild` and what `shimmed` takes. Checks that
 * the log is complete. Returns what was logged.
 */
export async function logSession(root, library, session) {
  mkdirSync(root);
  const log = `${root}.log`;
  await session(async (script, args, { kill } = {}) => {
    const ending = await runChild(script, args, { env: shimmed(library, root, { log, kill }) });
    if (!ending.result?.done && ending.signal !== "SIGKILL")
      throw new Error(`the uncut ${script} failed: ${told(ending)}`);
    return ending;
  });
  const logged = readShimLog(log);
  rmSync(log);
  const differs = differenceFrom(replay(logged.operations, logged.operations.length, root), root);
  if (differs !== undefined) throw new Error(`the log is incomplete: ${differs}`);
  return { root, ...logged };
}

/**
 * Makes and attacks images. Run number n makes one of the kind n modulo their number. `kinds` has by
 * name
 *   log(root, library)     logs the session of which images are made, with `logSession`
 *   before(image, logged)  checks an image, { root, count, isKill, number }, before it is opened
 *   script, args           the child that opens images, and its first arguments
 *   target(image, logged)  its arguments for an image
 *   after(image, ending, logged)   checks what it has left
 * Checks return any of { fault, counts }. One process opens up to `together` images of a kind.
 */
export async function attackImages({ directory, library, kinds, together, runs, seed, first, report }) {
  const names = Object.keys(kinds);
  const chunk = together * names.length;
  const logged = {};
  for (let start = first; start < first + runs; start += chunk)
    for (const [index, name] of names.entries()) {
      const images = [];
      for (let number = start; number < Math.min(start + chunk, first + runs); number++) {
        if (number % names.length !== index) continue;
        logged[name] ??= await kinds[name].log(join(directory, name), library);
        const nth = Math.floor(number / names.length);
        const root = join(directory, `image-${number}`);
        const isKill = (nth + index) % 2 === 0;
        const image = {
          number,
          root,
          isKill,
          ...makeImage(root, logged[name], { isKill, seed, number, nth }),
        };
        images.push({ ...image, ...kinds[name].before(image, logged[name]) });
      }
      await openImages(images, kinds[name], logged[name]);
      for (const image of images) {
        const { number, root, count, counts, fault, seconds = 0, megabytes = 0 } = image;
        const how = image.isKill ? "kill" : "power failure";
        const message = `${name}, ${how} at operation ${count} of ${logged[name].operations.length}: ${fault}`;
        report({
          runs: 1,
          counts: { [`${how}s`]: 1, ...counts },
          worst: { "s to continue": seconds, megabytes },
          ...(fault && { failure: { number, message } }),
        });
        rmSync(root, { recursive: true });
      }
    }
}

/** Opens the images without a fault, and adds to each what was found. */
async function openImages(images, { script, args, target, after }, logged) {
  const opened = images.filter(({ fault }) => fault === undefined);
  if (opened.length === 0) return;
  const targets = opened.map((image) => target(image, logged));
  const endings = await runChildOnAll(script, args, targets);
  for (const [i, ending] of endings.entries()) {
    const { counts, fault } = after(opened[i], ending, logged);
    const { seconds, megabytes } = ending.result ?? {};
    Object.assign(opened[i], { seconds, megabytes, fault, counts: { ...opened[i].counts, ...counts } });
  }
}

/**
 * Writes the directory that a kill or a power failure may leave, in turns. Kills take each operation
 * of the session once before they repeat one.
 */
function makeImage(root, logged, { isKill, seed, number, nth }) {
  const { operations, root: from } = logged;
  let draw = 0;
  const random = () => uniform(seed, number, draw++);
  mkdirSync(root);
  if (!isKill) {
    const count = Math.floor(random() * (operations.length + 1));
    writeImage(replay(operations, count, from), root, random);
    return { count };
  }
  logged.order ??= permutation(operations.length, seed, 1);
  const count = logged.order[Math.floor(nth / 2) % operations.length];
  writeImage(afterKill(operations, count, from, random()), root);
  return { count };
}

/**
 * The file system after a kill during operation number `count` (from 0): of a write, the part `at`
 * may be there.
 */
export function afterKill(operations, count, from, at) {
  const top = replay(operations, count, from);
  const next = operations[count];
  if (next.kind !== "write") return top;
  return replay(
    [{ ...next, data: next.data.subarray(0, Math.floor(at * (next.data.length + 1))) }],
    1,
    from,
    top,
  );
}

/**
 * Follows the directory `root` over processes that run under the shim with the log `log`. The result
 * is called when one has ended, killed or not: it tells where the directory differs from what was
 * logged. This is what images rely on: a kill leaves all operations up to a moment.
 */
export function followLog(root, log) {
  const top = newFileSystem();
  return () => {
    const { operations } = readShimLog(log);
    rmSync(log);
    const last = operations.pop();
    replay(operations, operations.length, root, top);
    // The last operation may not have happened; of a write, a part may have.
    if (last === undefined || differenceFrom(top, root) === undefined) return differenceFrom(top, root);
    const { kind, path, offset, data } = last;
    const done =
      kind === "write" ? Math.max(0, (statSync(path, { throwIfNoEntry: false })?.size ?? 0) - offset) : 0;
    replay([{ ...last, data: data.subarray(0, done) }], 1, root, top);
    return differenceFrom(top, root);
  };
}

/** The lines that were printed before an image's moment. */
export function printedBefore({ printed }, { count }) {
  return printed.flatMap(({ line, after }) => (after <= count ? [line] : []));
}

/** The checkpoints of a session: their numbers, and after which operations a kill and a crash find them. */
export function savedCheckpoints({ operations }, run) {
  return operations.flatMap(({ kind, path: from, second }, i) => {
    if (kind !== "rename" || second !== join(run, "latest")) return [];
    const written = operations.slice(0, i).findLast(({ kind, path }) => kind === "write" && path === from);
    const synced = operations.findIndex(({ kind, path }, j) => j > i && kind === "fsync" && path === run);
    const crashed = synced < 0 ? Number.POSITIVE_INFINITY : synced + 1;
    return [{ number: Number(written.data), killed: i + 1, crashed }];
  });
}

/** The number of the last checkpoint that was complete at an image's moment. */
export function completeBefore({ isKill, count }, saved) {
  return saved.findLast(({ killed, crashed }) => (isKill ? killed : crashed) <= count)?.number;
}

/** A fault if a checkpoint was complete, but `latest` names an older one. */
export function lostCheckpoint(run, image, saved) {
  const complete = completeBefore(image, saved);
  const latest = existsSync(join(run, "latest")) ? readFileSync(join(run, "latest"), "utf8") : "";
  if (complete === undefined || Number(latest || "-1") >= complete) return undefined;
  return `checkpoint ${complete} was complete, but \`latest\` is "${latest}"`;
}
