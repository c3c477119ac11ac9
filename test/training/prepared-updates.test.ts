import { expect, test } from "vitest";
import { plainUpdates, preparedUpdates, prepareUpdates } from "../../lib/training/prepared-updates.ts";
import { errandEnvironment } from "../support/errand.ts";
import { roleWriter, scriptedRoles, transitionsFrom } from "../support/roles.ts";

/** Two updates of the transitions [0, 1] and [2], as prepareUpdates wrote them. */
async function prepare(replies: Parameters<typeof scriptedRoles>[0] = {}) {
  const model = scriptedRoles(replies);
  const environment = errandEnvironment();
  const transitions = await transitionsFrom(model, environment);
  const config = { ...roleWriter(model).config, shuffleOutcomes: false };
  const replay = { get: (indices: readonly number[]) => indices.map((i) => transitions[i]!) };
  const run = { signal: new AbortController().signal };
  const draws = [[0, 1], [2]].map((indices) => ({ indices, probabilities: [], weights: [] }));
  return prepareUpdates({ model, environment, replay, config, run }, draws, 5);
}

test("updates get the completions of their own transitions", async () => {
  const [first, second] = await prepare();
  expect([first!.targets.length, first!.refinements.length]).toEqual([2, 2]);
  expect([second!.targets.length, second!.refinements.length]).toEqual([1, 1]);
  const prompts = [...first!.refinements, ...second!.refinements].map(({ text }) => text!.prompt.length);
  expect(new Set(prompts).size).toBe(3); // three states of one episode
  expect(first!.metrics["tokens/generated"]).toBeGreaterThan(0);
  expect(second!.metrics).toEqual({});
});

test.each([
  ["", {}],
  [" with unreadable ones", { refiner: "no action at all", backup: "no verdict" }],
])("completions%s are the same after a checkpoint", async (_, replies) => {
  const updates = await prepare(replies);
  updates[1]!.targets[0]!.target!.logProbs.set([-0.1, 1 / 3]);
  const read = preparedUpdates.parse(JSON.parse(JSON.stringify(plainUpdates(updates))));
  expect(read).toEqual(updates);
  expect(read[1]!.targets[0]!.target!.logProbs).toBeInstanceOf(Float32Array);
});

test("a damaged checkpoint is refused", async () => {
  const [update] = JSON.parse(JSON.stringify(plainUpdates(await prepare())));
  delete update.targets[0].target.tokens;
  expect(preparedUpdates.safeParse([update]).success).toBe(false);
});
