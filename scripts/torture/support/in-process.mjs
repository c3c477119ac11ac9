// Shared by the campaigns that attack a learner or an environment in this process, and by the child
// processes of the others.
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, unlinkSync } from "node:fs";
import { join } from "node:path";
import { NlacError } from "../../../dist/base/errors.js";

/** SHA-256 of everything that `learner` saves: weights, EMA, moments, pending gradients. */
export async function stateOf(learner, directory) {
  const path = join(directory, "state");
  mkdirSync(path);
  await learner.save(path);
  const hash = createHash("sha256");
  for (const file of readdirSync(path).sort()) hash.update(file).update(readFileSync(join(path, file)));
  rmSync(path, { recursive: true });
  return hash.digest("hex");
}

/**
 * How a promise settled: { value }, { code } of an NlacError, or { uncoded } with another error.
 */
export async function ending(promise) {
  try {
    return { value: await promise };
  } catch (error) {
    if (error instanceof NlacError && error.code !== "ERR_INTERNAL") return { code: error.code, error };
    return { uncoded: error?.stack ?? String(error) };
  }
}

/** Rejects with an error that names `what` if `promise` has not settled within `seconds`. */
export async function within(seconds, what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: no end within ${seconds} s`)), seconds * 1000);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** A generator of numbers in [0, 1), and of choices among the items of a list. */
export function randomOf(uniform, seed, number) {
  let draw = 0;
  const random = () => uniform(seed, number, draw++);
  const pick = (list) => list[Math.floor(random() * list.length)];
  return { random, pick };
}

/** CPU time of this process so far, in seconds. */
export function cpuSeconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

/** Throws an error with `message` unless `condition`. */
export function expect(condition, message) {
  if (!condition) throw new Error(message);
}

/**
 * Takes apart an argument "PATH" or "PATH=FAULT" of a child, and makes that fault happen below PATH
 * from now on, if the process runs under fault-shim.c.
 */
export function underFault(argument) {
  const [path, fault] = argument.split("=");
  if (fault !== undefined) unlinkSync(`nlac-shim:${fault}:${path}`);
  return { path, fault };
}
