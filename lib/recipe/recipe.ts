/**
 * A recipe: a training run as one typed value. `nlac train` runs it, `--set a.b=1` changes a field
 * of it, and the run directory stores it with all defaults filled in.
 */

import { existsSync, readdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { z } from "zod";
import { archerConfig } from "../algorithms/archer.ts";
import { critiqueGrpoConfig } from "../algorithms/critique-grpo.ts";
import { dpoConfig } from "../algorithms/dpo.ts";
import { grpoConfig } from "../algorithms/grpo.ts";
import { hopeConfig } from "../algorithms/hope.ts";
import { nlacConfig } from "../algorithms/nlac.ts";
import { ppoConfig } from "../algorithms/ppo.ts";
import { rftConfig } from "../algorithms/rft.ts";
import { sacConfig } from "../algorithms/sac.ts";
import { sftConfig } from "../algorithms/sft.ts";
import { didYouMean } from "../base/did-you-mean.ts";
import { NlacError } from "../base/errors.ts";
import { loadDefault } from "../base/load-module.ts";
import { clearMessage } from "../base/validation.ts";
import { environmentPath } from "../environments/registry.ts";
import { recipeLearner } from "../learner/options.ts";
import { rolloutsConfig } from "../rollouts/config.ts";
import { reportConfig } from "../sinks/config.ts";
import type { TokenizerParts } from "../tokens/tokenizer.ts";
import { warmupConfig } from "../training/warmup.ts";

/** Fields of all recipes. */
const common = {
  /** Names the run directory. */
  name: z.string().min(1),
  /** One line on what it shows and how long it takes. */
  description: z.string().default(""),
  /**
   * A model name, a Hugging Face directory, a .gguf file, or a run directory (its newest
   * checkpoint). For a new model with random weights: a Hugging Face config.json and a
   * tokenizer.
   */
  model: z.union([
    z.string().min(1),
    z.strictObject({
      config: z.record(z.string(), z.unknown()),
      tokenizer: z.custom<TokenizerParts>((value) => typeof value === "object" && value !== null),
    }),
  ]),
  learner: recipeLearner.prefault({}),
  environment: z.strictObject({
    /**
     * A key of `environments`, or the path of a file: relative to the recipe, or with --set to the
     * current directory.
     */
    name: z.string().min(1),
    options: z.record(z.string(), z.unknown()).default({}),
    /**
     * Timeout for starting an episode and for answering an action, in milliseconds: an environment
     * that takes longer is at fault, and only this episode ends. Default: the environment's own, or
     * none.
     */
    stepTimeout: z.int().min(1).optional(),
  }),
  /** Supervised steps on the environment's scripted episodes before training. */
  warmup: warmupConfig.prefault({}),
  run: z
    .strictObject({
      /** Seconds between checkpoints; 0 saves after every update. */
      checkpointSeconds: z.number().min(0).default(600),
      keepCheckpoints: z.int().min(1).default(2),
      /** Training samples recorded per update, with all of their texts. */
      samplesPerUpdate: z.int().min(0).default(4),
      /**
       * NLAC: updates between detailed records: the critic's prediction for stored actions, and the
       * most probable tokens of the sample with the highest L1. 0 is never. Default 8.
       */
      detailEvery: z.int().min(0).default(8),
      /**
       * Maximum bytes of an update's figures per token (L1, log probabilities) in samples.jsonl;
       * samples beyond it have none. Default 65,536.
       */
      tokenBytes: z.int().min(0).default(65_536),
      /**
       * NLAC: fixed transitions whose completions are generated again at every evaluation. Default
       * 8.
       */
      probes: z.int().min(0).default(8),
    })
    .prefault({}),
  /**
   * Inference servers that play the episodes of training and evaluation (docs/scaling.md). Default:
   * the learner plays them.
   */
  rollouts: rolloutsConfig.optional(),
  /**
   * Where metrics, episodes and the run's end are sent, besides the run directory. Default:
   * nowhere.
   */
  report: reportConfig,
};

/** The algorithm decides which fields `config` has; a recipe that names none is for NLAC. */
const recipeSchema = z.discriminatedUnion(
  "algorithm",
  [
    z.strictObject({
      ...common,
      algorithm: z.literal("nlac").default("nlac"),
      config: nlacConfig.prefault({}),
    }),
    z.strictObject({ ...common, algorithm: z.literal("rft"), config: rftConfig.prefault({}) }),
    z.strictObject({ ...common, algorithm: z.literal("grpo"), config: grpoConfig.prefault({}) }),
    z.strictObject({ ...common, algorithm: z.literal("ppo"), config: ppoConfig.prefault({}) }),
    z.strictObject({ ...common, algorithm: z.literal("sac"), config: sacConfig.prefault({}) }),
    z.strictObject({
      ...common,
      algorithm: z.literal("critique-grpo"),
      config: critiqueGrpoConfig.prefault({}),
    }),
    z.strictObject({ ...common, algorithm: z.literal("archer"), config: archerConfig.prefault({}) }),
    z.strictObject({ ...common, algorithm: z.literal("sft"), config: sftConfig }),
    z.strictObject({ ...common, algorithm: z.literal("dpo"), config: dpoConfig }),
    z.strictObject({ ...common, algorithm: z.literal("hope"), config: hopeConfig.prefault({}) }),
  ],
  {
    error: ({ code, options }) =>
      code === "invalid_union"
        ? `Expected one of ${(options as unknown[]).filter(Boolean).join(", ")}`
        : undefined,
  },
);

/** A recipe with all defaults filled in. */
export type Recipe = z.infer<typeof recipeSchema>;
/** A recipe, as a file defines it. */
export type RecipeInput = z.input<typeof recipeSchema>;

/** Gives a recipe file its types: `export default defineRecipe({ … })`. */
export function defineRecipe(recipe: RecipeInput): RecipeInput {
  return recipe;
}

/** Throws ERR_CONFIG that names `source`, where the recipe is from, and every bad field. */
export function parseRecipe(input: unknown, source: string): Recipe {
  const parsed = recipeSchema.safeParse(input, { error: clearMessage });
  if (!parsed.success)
    throw new NlacError(
      "ERR_CONFIG",
      `The recipe of ${source} (algorithm ${algorithmOf(input)}) is not valid.\n${z.prettifyError(parsed.error)}`,
    );
  requireRollouts(parsed.data, source);
  return parsed.data;
}

/**
 * Methods that can learn from episodes of another policy, whose log probabilities they do not need.
 */
const offPolicy: readonly Recipe["algorithm"][] = ["nlac", "rft", "sac"];

/** Throws ERR_CONFIG for a method whose episodes these servers cannot play. */
function requireRollouts({ rollouts, algorithm, config }: Recipe, source: string): void {
  if (rollouts === undefined) return;
  const refuse = (why: string) => {
    throw new NlacError("ERR_CONFIG", `The recipe of ${source} cannot use these rollouts: ${why}`);
  };
  if ("constrainActions" in config && config.constrainActions)
    refuse("servers do not get the grammars of constrainActions.");
  if (rollouts.engine === "openai" && !offPolicy.includes(algorithm))
    refuse(
      `a server of OpenAI's API does not take the learner's weights, and ${algorithm} does not learn from another ` +
        `policy's episodes. Use vllm or sglang, or one of ${offPolicy.join(", ")}.`,
    );
}

/** The algorithm that the recipe names; it decides which fields are known. */
function algorithmOf(input: unknown): string {
  const { algorithm = "nlac" } = (input ?? {}) as { algorithm?: unknown };
  return String(algorithm);
}

/** The package's own recipes lie in recipes/ beside dist/ (or lib/, in a checkout under test). */
export const shippedRecipes = join(dirname(fileURLToPath(import.meta.url)), "../..", "recipes");

/** Names of the package's own recipes. A file whose name begins with _ is a part of others. */
export function recipeNames(): string[] {
  const inFolder = (folder: string) =>
    readdirSync(join(shippedRecipes, folder))
      .flatMap((file) => (/^[^_].*\.ts$/.test(file) ? [join(folder, file.slice(0, -3))] : []))
      .sort();
  return [...inFolder("."), ...inFolder("hope"), ...inFolder("paper")];
}

/** The names in the folder of `asked`, and how many there are in the others. */
function listed(names: readonly string[], asked: string): string {
  return [...new Set(names.map((name) => dirname(name)))]
    .map((folder) => {
      const inside = names.filter((name) => dirname(name) === folder);
      const isAsked = folder === "." || asked.startsWith(`${folder}/`);
      return isAsked ? inside.join(", ") : `${folder}/… (${inside.length})`;
    })
    .join(", ");
}

/** Whether a recipe or comparison is given by its file, not by a name of nlac's own. */
export function isFile(nameOrPath: string): boolean {
  return /\.([cm]?[jt]s|json)$/.test(nameOrPath);
}

/**
 * Loads a recipe by name ("quickstart", "paper/qwq-32b-math") or by the path of its file, and
 * applies `--set` changes.
 */
export async function loadRecipe(nameOrPath: string, changes: readonly string[] = []): Promise<Recipe> {
  const named = join(shippedRecipes, `${nameOrPath}.ts`);
  const isPath = isFile(nameOrPath);
  const path = isPath ? resolve(nameOrPath) : named;
  if (!existsSync(path)) {
    if (isPath) throw new NlacError("ERR_CONFIG", `There is no file ${path}.`);
    const names = recipeNames();
    const file = `${nameOrPath}.ts`;
    throw new NlacError(
      "ERR_CONFIG",
      `There is no recipe ${JSON.stringify(nameOrPath)}${didYouMean(nameOrPath, existsSync(file) ? [file] : names)}: ` +
        `give the path of a file, or one of ${listed(names, nameOrPath)}.`,
    );
  }
  const input = await importExported(path, "Recipe");
  findModules(input, dirname(path));
  for (const change of changes) applyChange(input, change);
  findModules(input, process.cwd());
  return parseRecipe(input, path);
}

/** Makes paths of the user's own modules absolute, so that a resumed run finds them again. */
function findModules(input: Record<string, unknown>, directory: string): void {
  const { environment } = input as { environment?: { name?: unknown } };
  if (typeof environment?.name === "string") environment.name = environmentPath(environment.name, directory);
  // A sink of kind "module" is a file too.
  const { report } = input as { report?: unknown };
  for (const sink of Array.isArray(report) ? report : [])
    if (sink?.to === "module" && typeof sink.path === "string") sink.path = resolve(directory, sink.path);
}

/**
 * What the file exports, copied: recipes and comparisons hold plain values only.
 * @throws NlacError ERR_CONFIG that names the file
 */
export async function importExported(
  path: string,
  kind: "Recipe" | "Comparison",
): Promise<Record<string, unknown>> {
  const loaded = await loadDefault(path);
  const name = kind.toLowerCase();
  const refuse = (reason: string, cause?: unknown) =>
    new NlacError("ERR_CONFIG", `${path} ${reason}`, { cause });
  const howTo = `export a ${name}: export default define${kind}({ … }).`;
  if (loaded === undefined) throw refuse(`has no default export. It must ${howTo}`);
  if (typeof loaded !== "object" || loaded === null) throw refuse(`must ${howTo}`);
  let exported: unknown;
  try {
    exported = structuredClone(loaded);
  } catch (error) {
    throw refuse(`is not a ${name}: it must be a plain value, but it contains functions.`, error);
  }
  return exported as Record<string, unknown>;
}

/** `config.batchSize=8`: the value is JSON where it parses as such, text otherwise. */
export function applyChange(target: Record<string, unknown>, change: string): void {
  const equals = change.indexOf("=");
  const path = change.slice(0, equals).split(".");
  if (equals < 1 || path.some((key) => key === "" || key === "__proto__" || key === "constructor")) {
    throw new NlacError(
      "ERR_CONFIG",
      `--set takes FIELD=VALUE, such as config.iterations=4, not ${JSON.stringify(change)}.`,
    );
  }
  const text = change.slice(equals + 1);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    value = text;
  }
  let node = target;
  for (const key of path.slice(0, -1)) {
    if (typeof node[key] !== "object" || node[key] === null) node[key] = {};
    node = node[key] as Record<string, unknown>;
  }
  node[path.at(-1)!] = value;
}
