import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { FromCheckpoint } from "../../lib/dash/from-checkpoint.ts";
import type { DashRun } from "../../lib/dash/run.ts";
import { DashRuns } from "../../lib/dash/runs.ts";
import { sampleView } from "../../lib/dash/views.ts";
import { loadRecipe } from "../../lib/recipe/recipe.ts";
import { trainRecipe } from "../../lib/recipe/train-recipe.ts";
import { wholeRun, writeRun } from "../support/recorded-run.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-from-checkpoint-"));
const computed = new FromCheckpoint();
afterAll(async () => {
  await computed.dispose();
  rmSync(root, { recursive: true, force: true });
});

/** A run whose weights do not change, so that its checkpoint has the weights of every update. */
async function unchangedRun(name: string, ...settings: string[]): Promise<DashRun> {
  const recipe = await loadRecipe("errands", [
    ...["config.iterations=1", "config.episodesPerIteration=4", "config.updatesPerIteration=2"],
    ...["config.batchSize=4", "config.rehearsal=0", "run.detailEvery=1"],
    ...["config.criticLearningRate=0", "config.policyLearningRate=0", "config.targetRate=0"],
    ...settings,
  ]);
  await trainRecipe(recipe, { directory: join(root, name) });
  const runs = new DashRuns([join(root, name)]);
  await runs.poll();
  return runs.all[0]!;
}

let plain: DashRun;
beforeAll(async () => {
  plain = await unchangedRun("plain");
});

const close = (given: (number | null)[] = [], wanted: (number | null)[] = []) => {
  expect(given.length).toBe(wanted.length);
  for (const [i, value] of given.entries()) expect(value).toBeCloseTo(wanted[i]!, 2);
};

test("figures from a checkpoint of the same weights are the recorded ones", async () => {
  const recorded = [];
  for (let i = 0; i < plain.samples.items.length; i++) {
    const { tokens } = sampleView(await plain.sample(i), undefined, null);
    if (tokens.target === undefined) continue;
    const { updates, target } = await computed.target(plain, i);
    expect(updates).toBe(2);
    expect(target.pieces).toEqual(tokens.target.pieces);
    close(target.l1, tokens.target.l1);
    close(target.online, tokens.target.online);
    close(target.target, tokens.target.target);
    expect(target.best?.online).toHaveLength(target.pieces.length);
    if (tokens.target.best !== undefined)
      expect(target.best?.target.map(([best]) => best?.text)).toEqual(
        tokens.target.best.target.map(([best]) => best?.text),
      );
    recorded.push(tokens.target.best !== undefined);
  }
  // Targets with the most probable tokens, and targets that were recorded without them.
  expect(recorded).toContain(true);
  expect(recorded).toContain(false);
});

test("a future that the successor predicted after the target policy's action is part of the prompt", async () => {
  const run = await unchangedRun("successor", "config.bootstrap=successor");
  let compared = 0;
  for (let i = 0; i < run.samples.items.length; i++) {
    const { tokens, texts } = sampleView(await run.sample(i), undefined, null);
    if (tokens.target === undefined || texts.future === undefined) continue;
    close((await computed.target(run, i)).target.l1, tokens.target.l1);
    compared++;
  }
  expect(compared).toBeGreaterThan(0);
});

test("a sample without recorded ids, or a run without a checkpoint, is an error that says so", async () => {
  const bare = await unchangedRun("bare", "run.tokenBytes=0");
  await expect(computed.target(bare, 0)).rejects.toThrow(/was not recorded/);
  const shuffled = await unchangedRun("shuffled", "config.shuffleOutcomes=true");
  await expect(computed.target(shuffled, 0)).rejects.toThrow(/was not recorded/);
  const { recipe } = plain;
  writeRun(join(root, "early"), { ...wholeRun(), recipe });
  const runs = new DashRuns([join(root, "early")]);
  await runs.poll();
  await expect(computed.target(runs.all[0]!, 0)).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
  // Later requests are not affected.
  expect((await computed.target(plain, 0)).updates).toBe(2);
});
