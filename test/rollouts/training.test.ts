/** `rollouts` of a recipe: trainings whose episodes inference servers play. */

import { readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { EpisodeRecord } from "../../lib/episodes/records.ts";
import { readRecords } from "../../lib/files/records.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { parseRecipe, type RecipeInput } from "../../lib/recipe/recipe.ts";
import { trainRecipe } from "../../lib/recipe/train-recipe.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import { serve } from "../../lib/serve/server.ts";
import { type InferenceServer, inferenceServer } from "../support/inference-server.ts";
import { servedErrands } from "../support/served-errands.ts";
import { inDirectory } from "../support/tiny.ts";

const open = () => Learner.load("errands-base", { dtype: "float32" });

/** Tasks, completions and rewards of a run's episodes. */
const played = (run: string) =>
  [...readRecords<EpisodeRecord>(join(run, "trajectories.jsonl"))].map(({ task, reward, turns }) => ({
    ...{ task, reward, texts: turns.map(({ text }) => text) },
  }));
/** The values of a metric in a run's rows. */
const metric = (run: string, name: string) =>
  [...readRecords<MetricsRow>(join(run, "metrics.jsonl"))].flatMap(({ values }) => values[name] ?? []);

const nlac = servedErrands({ iterations: 3, evaluation: { every: 1, episodes: 4 } });
const rft: RecipeInput = {
  ...(servedErrands() as Extract<RecipeInput, { algorithm: "rft" }>),
  algorithm: "rft",
  config: {
    ...{ iterations: 3, episodesPerIteration: 8, updatesPerIteration: 4, batchSize: 4, learningRate: 1e-3 },
    ...{ imitate: "hindsight", rehearsal: 4, actionTemperature: 0.8, evaluation: { every: 1, episodes: 8 } },
    ...{ maxPromptTokens: 256, maxActionTokens: 8 },
  },
};

async function within<T>(
  directory: string,
  servers: readonly InferenceServer[],
  body: (shared: string) => Promise<T>,
): Promise<T> {
  try {
    return await body(join(directory, "shared"));
  } finally {
    await Promise.all(servers.map((server) => server.close()));
  }
}

test.each([
  ["vllm", "nlac", nlac, 2],
  ["sglang", "rft", rft, 1],
] as const)(
  "%s plays the episodes and evaluations of %s that the learner would play",
  async (engine, _, recipe, count) => {
    await inDirectory(async (directory) => {
      const [here, there] = [join(directory, "here"), join(directory, "there")];
      await trainRecipe(recipe, { directory: here, log: () => {} });
      const servers = await Promise.all(
        Array.from({ length: count }, () => inferenceServer({ engine, open })),
      );
      await within(directory, servers, async (shared) => {
        const urls = servers.map(({ url }) => url);
        const lines: string[] = [];
        const log = (line: string) => void lines.push(line);
        const rollouts = { engine, urls, shared };
        await trainRecipe({ ...recipe, rollouts } as RecipeInput, { directory: there, log });
        expect(lines.filter((line) => line.startsWith("rollouts:"))).toHaveLength(count);
        expect(readdirSync(shared)).toEqual([]);
      });
      // Sampled with the same seeds: the exported weights are the learner's, bit for bit.
      expect(played(there)).toEqual(played(here));
      expect(metric(there, "eval/reward")).toEqual(metric(here, "eval/reward"));
      expect(metric(there, "loss/nll")).toEqual(metric(here, "loss/nll"));
      expect(metric(there, "rollouts/version").at(-1)).toBe(4); // three iterations and the end
      expect(Math.max(...metric(there, "rollouts/steps_behind"))).toBe(0);
      expect(metric(there, "rollouts/servers").at(-1)).toBe(count);
      const differences = metric(there, "rollouts/log_prob_difference_max");
      expect(differences.length).toBeGreaterThan(3);
      expect(Math.max(...differences)).toBeLessThan(1e-4);
      const all = servers.map((server) => server.changes());
      const change =
        engine === "vllm"
          ? ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
          : ["/pause_generation", "/update_weights_from_disk", "/continue_generation"];
      for (const changes of all) expect(changes).toEqual(Array(4).fill(change).flat());
      for (const { calls } of servers)
        expect(calls.some(({ path }) => path === "/v1/completions" || path === "/generate")).toBe(true);
    });
  },
  600_000,
);

test("nlac serve plays a training's episodes as a fixed policy, and the learner evaluates itself", async () => {
  await inDirectory(async (directory) => {
    const [here, there] = [join(directory, "here"), join(directory, "there")];
    await trainRecipe(rft, { directory: here, log: () => {} });
    const learner = await open();
    const server = await serve({ learner, name: "teacher", port: 0 });
    try {
      const rollouts = { engine: "openai" as const, urls: [server.url.replace(/\/v1\/?$/, "")] };
      await trainRecipe({ ...rft, rollouts } as RecipeInput, { directory: there, log: () => {} });
    } finally {
      await server.close();
      await learner.dispose();
    }
    // Until the first update the learner is the teacher.
    expect(played(there).slice(0, 8)).toEqual(played(here).slice(0, 8));
    expect(played(there).slice(8)).not.toEqual(played(here).slice(8));
    expect(metric(there, "eval/reward")).toHaveLength(4);
    expect(metric(there, "rollouts/answers").length).toBe(3); // no evaluation among them
    expect(metric(there, "rollouts/version")).toEqual([]);
  });
}, 600_000);

test("recipes whose episodes the servers cannot play are refused", () => {
  const urls = ["http://127.0.0.1:8000"];
  const refused = (change: object, why: RegExp) =>
    expect(() => parseRecipe({ ...servedErrands(), ...change }, "a test")).toThrow(why);
  const onPolicy = { algorithm: "ppo", config: {} };
  refused(
    { ...onPolicy, rollouts: { engine: "openai", urls } },
    /ppo does not learn from another policy's episodes/,
  );
  refused(
    { config: { constrainActions: true }, rollouts: { engine: "sglang", urls, shared: "/mnt" } },
    /grammars of constrainActions/,
  );
  const kept = parseRecipe(
    { ...servedErrands(), ...onPolicy, rollouts: { engine: "sglang", urls, shared: "/mnt" } },
    "a test",
  );
  expect(kept.rollouts).toEqual({ engine: "sglang", urls, shared: "/mnt", every: 1 });
});
