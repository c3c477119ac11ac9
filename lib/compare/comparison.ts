/**
 * The definition of a comparison: methods × seeds on one environment, compared after the same
 * number of environment steps. `nlac compare` runs it.
 */

import { existsSync, readdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { z } from "zod";
import { didYouMean } from "../base/did-you-mean.ts";
import { NlacError } from "../base/errors.ts";
import { clearMessage, isObject } from "../base/validation.ts";
import {
  applyChange,
  importExported,
  isFile,
  loadRecipe,
  type Recipe,
  shippedRecipes,
} from "../recipe/recipe.ts";

/** Nested fields of a recipe: { config: { batchSize: 8 } } changes only this field. */
const changes = z.record(z.string(), z.unknown()).default({});

/** Part of the names of directories and files. */
const name = z.string().regex(/^\w[\w.-]*$/, "It may have letters, digits, dots, dashes and underscores.");

const comparisonSchema = z
  .strictObject({
    /** Also the name of the default directory. */
    name: z.string().min(1),
    /** One line: what it shows, and how long it takes. */
    description: z.string().default(""),
    /** Environment steps per run, after which the methods are compared. */
    environmentSteps: z.int().min(1),
    /** Every method is trained once with each seed, as `config.seed`. */
    seeds: z.array(z.int().min(0)).min(1).refine(unique, "A seed is listed twice."),
    /**
     * Other recipe fields that are set to the seed, such as "environment.options.seed" for an
     * environment that is generated from a seed. Default: none.
     */
    seedFields: z.array(z.string().min(1)).default([]),
    /** Changes to all methods' recipes. */
    set: changes,
    methods: z
      .array(
        z.strictObject({
          /** The method's directory, and its name in tables and charts. */
          name,
          /** A recipe's name, or its file, relative to the comparison's. */
          recipe: z.string().min(1),
          /**
           * Changes to its recipe, applied after those for all methods. Methods may have different
           * environments only through these changes, so that such a difference is intentional.
           */
          set: changes,
          /** Environment steps of this method, instead of the comparison's. */
          environmentSteps: z.int().min(1).optional(),
          /**
           * Methods of one group have a chart and a table of their own, and are compared with each
           * other only. Either all methods have a group, or none.
           */
          group: name.optional(),
        }),
      )
      .min(1)
      .refine((methods) => unique(methods.map(({ name }) => name)), "A method is listed twice.")
      .refine(
        (methods) => new Set(methods.map(({ group }) => group === undefined)).size === 1,
        "Some methods have a group, others have none.",
      ),
    /** The method that the others (of its group) are compared with. Default: the first one. */
    reference: z.string().optional(),
    /**
     * Whether runs with the same seed are pairs, because it sets more than their random draws, such
     * as the environment or the base model. Tests then permute within pairs. Default false.
     */
    paired: z.boolean().default(false),
    /** What readers need to know about the figures; printed below every table. */
    notes: z.array(z.string().min(1)).default([]),
  })
  .refine(
    ({ methods, reference }) => reference === undefined || methods.some(({ name }) => name === reference),
    { path: ["reference"], message: "It is not one of the methods." },
  )
  .transform((comparison) => ({
    ...comparison,
    reference: comparison.reference ?? comparison.methods[0]!.name,
  }));

/** A comparison with all defaults filled in. */
export type Comparison = z.infer<typeof comparisonSchema>;
/** A comparison, as a file defines it. */
export type ComparisonInput = z.input<typeof comparisonSchema>;

/** Gives a comparison file its types: `export default defineComparison({ … })`. */
export function defineComparison(comparison: ComparisonInput): ComparisonInput {
  return comparison;
}

const shipped = join(shippedRecipes, "comparisons");

/**
 * Loads a comparison by name ("errands") or by the path of its file, and applies `--set` changes.
 * @throws NlacError ERR_CONFIG that names every bad field
 */
export async function loadComparison(nameOrPath: string, set: readonly string[] = []): Promise<Comparison> {
  const path = isFile(nameOrPath) ? resolve(nameOrPath) : join(shipped, `${nameOrPath}.ts`);
  if (!existsSync(path)) {
    const names = readdirSync(shipped).flatMap((file) =>
      /^[^_].*\.ts$/.test(file) ? [file.slice(0, -3)] : [],
    );
    throw new NlacError(
      "ERR_CONFIG",
      `There is no comparison ${JSON.stringify(nameOrPath)}${didYouMean(nameOrPath, names)}: ` +
        `give the path of a file, or one of ${names.sort().join(", ")}.`,
    );
  }
  const input = await importExported(path, "Comparison");
  for (const change of set) applyChange(input, change);
  const comparison = parseComparison(input, path);
  const methods = comparison.methods.map((method) => ({
    ...method,
    recipe: isFile(method.recipe) ? resolve(dirname(path), method.recipe) : method.recipe,
  }));
  return { ...comparison, methods };
}

/** Throws ERR_CONFIG that names `source` and every bad field. */
export function parseComparison(input: unknown, source: string): Comparison {
  const parsed = comparisonSchema.safeParse(input, { error: clearMessage });
  if (parsed.success) return parsed.data;
  throw new NlacError(
    "ERR_CONFIG",
    `The comparison of ${source} is not valid.\n${z.prettifyError(parsed.error)}`,
  );
}

/** One run of a comparison. */
export interface PlannedRun {
  method: string;
  seed: number;
  recipe: string;
  /** Values for `nlac train --set`. */
  changes: readonly string[];
  /** The recipe with these changes. */
  resolved: Recipe;
}

/**
 * Every run of a comparison. All methods of a seed come before the next seed, so that a partial
 * comparison is useful. All recipes are loaded first, so that errors show up before training.
 *
 * @throws NlacError ERR_CONFIG for a bad recipe or change, and if environments differ
 */
export async function planRuns(comparison: Comparison): Promise<PlannedRun[]> {
  const runs: PlannedRun[] = [];
  for (const seed of comparison.seeds) {
    for (const { name: method, recipe, set } of comparison.methods) {
      const seeded = ["config.seed", ...comparison.seedFields].map((field) => `${field}=${seed}`);
      const changes = [...fieldsOf(comparison.set), ...fieldsOf(set), ...seeded];
      let resolved = await loadRecipe(recipe, changes);
      // Some algorithms cannot end at a number of steps. The report shows where they ended.
      if (Object.hasOwn(resolved.config, "environmentSteps")) {
        changes.push(`config.environmentSteps=${stepsOf(comparison, method)}`);
        resolved = await loadRecipe(recipe, changes);
      }
      runs.push({ method, seed, recipe, changes, resolved });
    }
  }
  const ownEnvironment = new Set(
    comparison.methods.flatMap(({ name, set }) => ("environment" in set ? [name] : [])),
  );
  const [first, ...others] = runs.filter(
    ({ method, seed }) => seed === comparison.seeds[0] && !ownEnvironment.has(method),
  );
  const other = others.find(
    ({ resolved }) => !isDeepStrictEqual(resolved.environment, first!.resolved.environment),
  );
  if (other === undefined) return runs;
  throw new NlacError(
    "ERR_CONFIG",
    `${first!.method} and ${other.method} are trained on different environments: ` +
      `${JSON.stringify(first!.resolved.environment)} and ${JSON.stringify(other.resolved.environment)}.`,
  );
}

/**
 * The comparison of each group: its methods with their reference. The whole comparison, if it has
 * no groups.
 */
export function groupsOf(comparison: Comparison): Comparison[] {
  const groups = [...new Set(comparison.methods.map(({ group }) => group))];
  if (groups.length === 1) return [comparison];
  return groups.map((group) => {
    const methods = comparison.methods.filter((method) => method.group === group);
    const reference = (methods.find(({ name }) => name === comparison.reference) ?? methods[0]!).name;
    return { ...comparison, name: `${comparison.name}, ${group}`, methods, reference };
  });
}

/** Environment steps after which runs of `method` are compared. */
export function stepsOf({ methods, environmentSteps }: Comparison, method: string): number {
  return methods.find(({ name }) => name === method)?.environmentSteps ?? environmentSteps;
}

/** The most environment steps that any method takes. */
export function mostStepsOf(comparison: Comparison): number {
  return Math.max(...comparison.methods.map(({ name }) => stepsOf(comparison, name)));
}

/** Flattens { config: { batchSize: 8 } } to ["config.batchSize=8"]. */
function fieldsOf(changes: Record<string, unknown>, prefix = ""): string[] {
  return Object.entries(changes).flatMap(([key, value]) =>
    isObject(value) ? fieldsOf(value, `${prefix}${key}.`) : [`${prefix}${key}=${JSON.stringify(value)}`],
  );
}

function unique(values: readonly unknown[]): boolean {
  return new Set(values).size === values.length;
}
