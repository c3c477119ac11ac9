import { describe, expect, test } from "vitest";
import { renderDryRun } from "../../lib/cli/dry-run.ts";
import { estimate } from "../../lib/estimate/estimate.ts";
import { memoryOf, type Split } from "../../lib/estimate/memory.ts";
import { loadRecipe } from "../../lib/recipe/recipe.ts";

/** Bytes of weights, gradients, moments and θ̄ of one rank. */
async function weights(name: string, split: Split): Promise<number> {
  const recipe = await loadRecipe(name, ["learner.device=cuda"]);
  const { shape, work } = estimate(recipe);
  return memoryOf(recipe, shape, work, "cuda", split)
    .held.filter(({ name: part }) => part !== "keys and values")
    .reduce((sum, { bytes }) => sum + bytes, 0);
}

describe("the memory of a rank", () => {
  // Qwen2.5-7B has 7.6 billion parameters: 24 bytes each alone; 8 + 16 / N at stage 1; 4 + 20 / N
  // at stage 2, and 4 more for each of the 1.09 billion of embeddings and head; 20 / N at stage 3,
  // and 8 more for these.
  test.each([
    [1, "none", 183],
    [8, "none", 183],
    [8, 1, 76],
    [8, 2, 55],
    [8, 3, 29],
  ] as const)(
    "over %i ranks with sharding %s is %i GB for NLAC of 7 billion parameters",
    async (ranks, sharding, gb) => {
      const bytes = await weights("paper/qwen2.5-7b-tau-bench", { ranks, sharding });
      expect(Math.abs(bytes / 1e9 - gb)).toBeLessThan(1.5);
    },
  );

  test("is that of one device for one rank, with every sharding up to a few layers", async () => {
    const alone = await weights("paper/qwen2.5-7b-tau-bench", { ranks: 1, sharding: "none" });
    expect(await weights("paper/qwen2.5-7b-tau-bench", { ranks: 1, sharding: 1 })).toBe(alone);
    const two = await weights("paper/qwen2.5-7b-tau-bench", { ranks: 1, sharding: 2 });
    expect(two / alone).toBeGreaterThan(1);
    expect(two / alone).toBeLessThan(1.02);
    // Without the layers' copies of θ and θ̄ in bfloat16, but with buffers for two of the 28 layers.
    const three = await weights("paper/qwen2.5-7b-tau-bench", { ranks: 1, sharding: 3 });
    expect((two - three) / 1e9).toBeCloseTo(6.525 * (4 - 2 * (2 / 28)), 1);
  });
});

test("32 billion parameters fit on 16 cards of 80 GB only if generation collects layer by layer", async () => {
  // At stage 3 over 16 ranks: 20 / 16 bytes each, 8 more for each of the 1.56 billion of embeddings
  // and head, and the gathered layers' 2 for generation.
  const recipe = await loadRecipe("paper/qwq-32b-tau-bench", ["learner.device=cuda"]);
  const { ranks } = estimate(recipe);
  const of16 = ranks!.plans.filter(({ ranks: count, sharding }) => count === 16 && sharding === 3);
  const [gathered, layerwise] = of16;
  expect(of16.map(({ layerwise: by = false }) => by)).toEqual([false, true]);
  expect(gathered!.assumed / 1e9).toBeGreaterThan(120);
  expect(layerwise!.assumed / 1e9).toBeLessThan(78);
  const others = ranks!.plans.filter((plan) => !plan.layerwise);
  expect(others.every(({ assumed }) => assumed > ranks!.device.memory)).toBe(true);
  expect(ranks!.fewestAssumed).toBe(layerwise);
  // Texts of 24,576 tokens, as the recipe allows, need more.
  expect(ranks!.plans.every(({ atLimits }) => atLimits > ranks!.device.memory)).toBe(true);
  expect(ranks!.fewest).toMatchObject({ device: { name: "H200" }, plan: { ranks: 16, sharding: 3 } });
  // 2 bytes of each of the layers' 31.2 billion parameters, 15 / 16 of them from other ranks: per
  // token, or without it per change of the weights.
  for (const plan of of16) expect(Math.round(plan.gathered / 1e8)).toBe(585);
  const text = renderDryRun({ recipe, environment: { fault: "" }, estimate: estimate(recipe) });
  expect(text).toMatch(/^ {2}16 +3, layerwise .* 58\.5 GB, 0\.24 s$/m);
});

test("a dry run for GPUs plans ranks, one for a CPU does not", async () => {
  const shown = async (...changes: string[]) => {
    const recipe = await loadRecipe("paper/qwen2.5-7b-tau-bench", changes);
    return renderDryRun({ recipe, environment: { fault: "not opened" }, estimate: estimate(recipe) });
  };
  const planned = await shown("learner.device=cuda");
  expect(planned).toMatch(/^ {2}8 +2 /m);
  expect(planned).toMatch(/^ {2}8 +3 /m);
  expect(planned).toContain("The fewest H100s");
  expect(await shown("learner.device=cpu")).not.toContain("ranks (GPUs)");
});
