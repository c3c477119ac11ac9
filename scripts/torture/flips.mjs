// A run damages a random file of a small training run, by a bit, a byte, a cut, a removal or a
// swap, and resumes it. The result must be an error, a warning, or exactly the state that the
// undamaged run resumes to.
import { createHash } from "node:crypto";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { uniform } from "../../dist/base/random.js";
import { silentProgress } from "../../dist/display/progress.js";
import { Learner, RunDirectory, trainRecipe } from "../../dist/index.js";
import { recipeOf } from "../../dist/recipe/run-recipe.js";
import { chooseCheckpoint } from "../../dist/run/checkpoints.js";
import { tinyModel } from "./support/tiny-model.mjs";

export const about = "damaged files of a run: an error, a warning, or no difference";

export async function run({ runs, seed, first = 0, report }) {
  const root = mkdtempSync(join(tmpdir(), "nlac-flips-"));
  try {
    const [whole, other] = [join(root, "whole"), join(root, "other")];
    await train(whole, seed);
    await train(other, seed + 1);
    const expected = await resume(copy(whole, join(root, "copy")));
    if (expected.error !== undefined || expected.warnings.length > 0)
      throw new Error(`The undamaged run does not resume: ${JSON.stringify(expected)}`);
    const files = filesOf(whole);
    for (let number = first; number < first + runs; number++) {
      const path = copy(whole, join(root, "copy"));
      const file = files[Math.floor(uniform(seed, number, 0) * files.length)];
      const damage = harm(path, other, file, (n) => uniform(seed, number, n));
      const result = outcome(await resume(path), expected.state);
      const failed = result === "silent" || result === "uncoded";
      report({
        ...{ runs: 1, counts: { [result]: 1 } },
        ...(failed && { failure: { number, message: `${damage}: ${result}` } }),
      });
    }
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}

function outcome({ error, warnings, state }, expected) {
  if (error !== undefined)
    return /^(ERR_CHECKPOINT|ERR_RUN|ERR_CONFIG|ERR_IO): /.test(error) ? "refused" : "uncoded";
  if (warnings.length > 0) return "warned or fell back";
  return state === expected ? "harmless" : "silent";
}

async function train(directory, seed) {
  await trainRecipe(
    {
      name: "flips",
      model: tinyModel, // with NLAC's complete state: θ, θ̄, two optimizers, replay
      environment: { name: "errands" },
      config: {
        ...{ iterations: 2, episodesPerIteration: 2, updatesPerIteration: 2, batchSize: 2, seed },
        ...{ maxActionTokens: 8, maxCriticTokens: 8, targetRate: 0.1, optimizerState: "separate" },
      },
      learner: { dtype: "float32" },
      run: { checkpointSeconds: 0 },
    },
    { directory },
  );
}

function copy(from, to) {
  rmSync(to, { recursive: true, force: true });
  cpSync(from, to, { recursive: true });
  return to;
}

function filesOf(directory) {
  return readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(directory, join(entry.parentPath, entry.name)));
}

/** Damages `file` of the run; returns what was done. */
function harm(path, other, file, random) {
  const at = join(path, file);
  const size = statSync(at).size;
  const offset = Math.floor(random(1) * size);
  const kind = Math.floor(random(2) * 8);
  const content = readFileSync(at);
  if (kind === 5) {
    writeFileSync(at, content.subarray(0, offset));
    return `${file} cut at ${offset} of ${size}`;
  }
  if (kind === 6) {
    rmSync(at);
    return `${file} removed`;
  }
  const theirs = join(other, file);
  if (kind === 7 && statSync(theirs, { throwIfNoEntry: false }) !== undefined) {
    cpSync(theirs, at);
    return `${file} of another run`;
  }
  const bit = Math.floor(random(3) * 8);
  content[offset] = kind === 4 ? Math.floor(random(4) * 256) : content[offset] ^ (1 << bit);
  writeFileSync(at, content);
  return `${file}: ${kind === 4 ? "byte" : `bit ${bit} of byte`} ${offset}`;
}

/**
 * Resumes the run as training does, up to its first step; `state` is a digest of everything that it
 * continues from.
 */
async function resume(path) {
  const warnings = [];
  const digest = createHash("sha256");
  let model;
  let directory;
  try {
    const recipe = recipeOf(path);
    digest.update(JSON.stringify(recipe));
    const from = await chooseCheckpoint(path, { warn: (line) => warnings.push(line) });
    model = await Learner.resume(join(from.path, "learner"), { ...recipe.learner, verify: false });
    const { signal } = new AbortController();
    directory = await RunDirectory.resume(
      path,
      model,
      { signal, progress: silentProgress, description: {} },
      from,
    );
    const { state, trajectories, replay } = await directory.restore();
    digest.update(JSON.stringify(state));
    for (const { conversation, ...episode } of trajectories)
      digest.update(JSON.stringify([episode, conversation.toJSON()]));
    for (const name of ["replay.json", "sampler.bin"]) digest.update(readFileSync(join(replay, name)));
    const saved = `${path}-saved`;
    await model.save(saved);
    for (const name of filesOf(saved).sort()) digest.update(name).update(readFileSync(join(saved, name)));
    rmSync(saved, { recursive: true });
    directory.close();
    return { warnings, state: digest.digest("hex") };
  } catch (error) {
    directory?.close();
    return { warnings, error: `${error.code}: ${error.message}` };
  } finally {
    await model?.dispose();
  }
}
