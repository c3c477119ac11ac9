/**
 * Runs before every test file. Property tests draw from one seed, so that a commit is always tested
 * with the same cases; `npm run torture -- properties` uses other ones.
 */

import fc from "fast-check";

/** A whole number from the environment, or undefined. */
function fromEnvironment(name: string): number | undefined {
  const text = process.env[name];
  if (text === undefined || text === "") return undefined;
  if (!/^-?\d{1,10}$/.test(text)) throw new Error(`${name} must be a whole number, not "${text}".`);
  return Number(text);
}

const numRuns = fromEnvironment("NLAC_PROPERTY_RUNS");

fc.configureGlobal({
  seed: fromEnvironment("NLAC_PROPERTY_SEED") ?? 20261,
  // For properties without a number of their own.
  ...(numRuns !== undefined && { numRuns }),
});
