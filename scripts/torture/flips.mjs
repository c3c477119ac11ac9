// A run damages a random file of a small training run, by a bit, a byte, a cut, a removal or a
// swap, and resumes it. The result must be an error, a warning, or exactly the state that the
// undamaged run resumes to. Damage is found, with an error or a warning, before a model is loaded.
// Loading costs ten times more; therefore it is done once for many damages that were not found: if
// the state is the undamaged one, all of them are harmless, else each is tried alone. Of the runs that
// warn, one in 16 is loaded.
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

/** Damages that are looked at before a model is loaded. */
const together = 64;

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
    const damageOf = (number) => ({
      number,
      file: files[Math.floor(uniform(seed, number, 0) * files.length)],
      random: (n) => uniform(seed, number, n),
    });
    const tell = ({ number, told }, result) => {
      const failed = result === "silent" || result === "uncoded";
      const failure = failed && { number, message: `${told}: ${result}` };
      report({ ...{ runs: 1, counts: { [result]: 1 } }, ...(failure && { failure }) });
    };
    const alone = async (damage) => {
      const path = copy(whole, join(root, "alone"));
      harm(path, other, damage);
      return outcome(await resume(path), expected.state);
    };
    for (let start = first; start < first + runs; start += together) {
      const unnoticed = [];
      const path = copy(whole, join(root, "copy"));
      for (let number = start; number < Math.min(start + together, first + runs); number++) {
        const damage = damageOf(number);
        damage.told = harm(path, other, damage);
        const { error, warnings } = await find(path);
        cpSync(join(whole, damage.file), join(path, damage.file));
        if (error === undefined && warnings.length === 0) unnoticed.push(damage);
        else if (error === undefined && number % 16 === 0) tell(damage, await alone(damage));
        else tell(damage, outcome({ error, warnings }));
      }
      while (unnoticed.length > 0) {
        const path = copy(whole, join(root, "copy"));
        const damages = oneOfEachFile(unnoticed);
        for (const damage of damages) harm(path, other, damage);
        const all = outcome(await resume(path), expected.state);
        for (const damage of damages) tell(damage, all === "harmless" ? all : await alone(damage));
      }
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

/** Takes the first damage of each file out of the list. */
function oneOfEachFile(damages) {
  const taken = new Map(damages.toReversed().map((damage) => [damage.file, damage]));
  const rest = damages.filter((damage) => taken.get(damage.file) !== damage);
  damages.splice(0, damages.length, ...rest);
  return [...taken.values()];
}

/** Damages a file of the run; returns what was done. */
function harm(path, other, { file, random }) {
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

/** What training reads before it loads a model: the recipe, and the checkpoint to continue from. */
async function find(path) {
  const warnings = [];
  try {
    const recipe = recipeOf(path);
    const from = await chooseCheckpoint(path, { warn: (line) => warnings.push(line) });
    return { warnings, recipe, from };
  } catch (error) {
    return { warnings, error: `${error.code}: ${error.message}` };
  }
}

/**
 * Resumes the run as training does, up to its first step; `state` is a digest of everything that it
 * continues from.
 */
async function resume(path) {
  const { warnings, error, recipe, from } = await find(path);
  if (error !== undefined) return { warnings, error };
  const digest = createHash("sha256").update(JSON.stringify(recipe));
  let model;
  let directory;
  try {
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
