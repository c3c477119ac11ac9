// Images: directories that a crash of the machine, or a kill of the process, may leave of a logged
// session. Many are checked in one process, because its start costs more than what it does with one.
import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { permutation, uniform } from "../../../dist/base/random.js";
import { differenceFrom, replay, writeImage } from "./crash-image.mjs";
import { runChild, runChildOnAll, shimmed, told } from "./sandbox.mjs";
import { readShimLog } from "./shim-log.mjs";

/** Images of one kind that one process opens. */
const together = 8;

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
 * Checks return any of { fault, counts }.
 */
export async function attackImages({ directory, library, kinds, runs, seed, first, report }) {
  const names = Object.keys(kinds);
  const logged = {};
  const chunk = together * names.length;
  for (let start = first; start < first + runs; start += chunk) {
    const images = [];
    for (let number = start; number < Math.min(start + chunk, first + runs); number++) {
      const name = names[number % names.length];
      logged[name] ??= await kinds[name].log(join(directory, name), library);
      const nth = Math.floor(number / names.length);
      const root = join(directory, `image-${number}`);
      const image = { number, name, root, ...makeImage(root, logged[name], seed, number, nth) };
      images.push({ ...image, ...kinds[name].before(image, logged[name]) });
    }
    for (const name of names) {
      const group = images.filter((image) => image.name === name && image.fault === undefined);
      if (group.length === 0) continue;
      const { script, args, target, after } = kinds[name];
      const targets = group.map((image) => target(image, logged[name]));
      const endings = await runChildOnAll(script, args, targets);
      for (const [i, ending] of endings.entries()) {
        const { counts, fault } = after(group[i], ending, logged[name]);
        Object.assign(group[i], { fault, counts: { ...group[i].counts, ...counts } });
        group[i].seconds = ending.result?.seconds ?? 0;
        group[i].megabytes = ending.result?.megabytes ?? 0;
      }
    }
    for (const { number, name, root, isKill, count, counts, fault, seconds = 0, megabytes = 0 } of images) {
      const how = isKill ? "kill" : "power failure";
      const at = `operation ${count} of ${logged[name].operations.length}`;
      report({
        runs: 1,
        counts: { [`${how}s`]: 1, ...counts },
        worst: { "s to continue": seconds, megabytes },
        ...(fault && { failure: { number, message: `${name}, ${how} after ${at}: ${fault}` } }),
      });
      rmSync(root, { recursive: true });
    }
  }
}

/**
 * Writes the directory that a kill or a power failure may leave, in turns. Kills take each operation
 * of the session once before they repeat one.
 */
function makeImage(root, logged, seed, number, nth) {
  const { operations, root: from } = logged;
  let draw = 0;
  const random = () => uniform(seed, number, draw++);
  mkdirSync(root);
  const isKill = (nth + number) % 2 === 0;
  if (!isKill) {
    const count = Math.floor(random() * (operations.length + 1));
    writeImage(replay(operations, count, from), root, random);
    return { isKill, count };
  }
  logged.order ??= permutation(operations.length, seed, 1);
  const count = logged.order[Math.floor(nth / 2) % operations.length];
  writeImage(afterKill(operations, count, from, random()), root);
  return { isKill, count };
}

/**
 * The file system after a kill during operation number `count` (from 0): of a write, the part `at`
 * may be there.
 */
function afterKill(operations, count, from, at) {
  const top = replay(operations, count, from);
  const next = operations[count];
  if (next.kind !== "write") return top;
  return replay([{ ...next, data: next.data.subarray(0, Math.floor(at * (next.data.length + 1))) }], 1, from, top);
}

/** The lines that were printed before an image's moment. */
export function printedBefore({ printed }, { count }) {
  return printed.flatMap(({ line, after }) => (after <= count ? [line] : []));
}
