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
  // at stage 2, and 4 more for each of the 1.09 billion of embeddings and head; 24 / N at stage 3,
  // and 8 more for these.
  test.each([
    [1, "none", 183],
    [8, "none", 183],
    [8, 1, 76],
    [8, 2, 55],
    [8, 3, 32],
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
    const three = await weights("paper/qwen2.5-7b-tau-bench", { ranks: 1, sharding: 3 });
    expect(three).toBeGreaterThan(two);
    expect(three / alone).toBeLessThan(1.03);
  });
});

test("what does not fit on 80 GB is planned on larger cards", async () => {
  // 32 billion parameters at stage 3 over 16 ranks: 24 / 16 bytes each, the gathered layers' 2 for
  // generation, and 8 more for each of the 1.56 billion of embeddings and head.
  const recipe = await loadRecipe("paper/qwq-32b-tau-bench", ["learner.device=cuda"]);
  const { ranks } = estimate(recipe);
  const plan = ranks!.plans.find(({ ranks: count, sharding }) => count === 16 && sharding === 3)!;
  expect(plan.assumed / 1e9).toBeGreaterThan(124);
  expect(ranks!.plans.every(({ atLimits }) => atLimits > ranks!.device.memory)).toBe(true);
  expect(ranks!.fewest).toMatchObject({ device: { name: "H200" }, plan: { ranks: 16, sharding: 3 } });
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
  expect(await shown("learner.device=cpu")).not.toContain("ranks, each on one GPU");
});
