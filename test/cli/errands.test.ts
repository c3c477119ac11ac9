import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { Learner } from "../../lib/learner/learner.ts";
import { learnerDirectory } from "../../lib/run/checkpoints.ts";
import { nlac } from "../support/command-line.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-errands-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const set = (fields: Record<string, unknown>) =>
  Object.entries(fields).flatMap(([field, value]) => ["--set", `${field}=${JSON.stringify(value)}`]);

test("the errands recipes, shortened: a new model, and NLAC starting from its run", async () => {
  const base = join(root, "base");
  const made = await nlac(
    ...["train", "errands-base", "--run", base, "--json"],
    ...set({ "warmup.steps": 3, "warmup.batchSize": 8, "warmup.episodes": 2 }),
  );
  expect(made.errors).not.toContain("ERR_");
  expect(JSON.parse(made.output)).toMatchObject({ updates: 0, episodes: 0, stopped: false });

  const run = join(root, "run");
  const trained = await nlac(
    ...["train", "errands", "--run", run, "--json"],
    ...set({
      model: base,
      "config.iterations": 1,
      "config.episodesPerIteration": 2,
      "config.updatesPerIteration": 1,
      "config.batchSize": 2,
      "config.criticLearningRate": 0,
      "config.policyLearningRate": 0,
      "config.rehearsal": 2,
    }),
  );
  expect(trained.errors).not.toContain("ERR_");
  expect(JSON.parse(trained.output)).toMatchObject({ updates: 1, episodes: 2, stopped: false });
  expect(readFileSync(join(run, "metrics.jsonl"), "utf8")).toContain("loss/rehearsal");

  // At a rate of zero nothing moved: the second run began with the weights that the first one left.
  await using before = await Learner.resume(learnerDirectory(base), { dtype: "float32" });
  await using after = await Learner.resume(learnerDirectory(run), { dtype: "float32" });
  expect(after.encode("passport")).toEqual(before.encode("passport"));
  expect(await after.logits([[1, 2, 3]])).toEqual(await before.logits([[1, 2, 3]]));
  expect((await before.logits([[1, 2, 3]]))[0]!.length).toBe(3 * before.tokenizer!.vocabSize);
});
