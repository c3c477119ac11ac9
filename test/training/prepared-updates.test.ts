import { expect, test } from "vitest";
import { plainUpdates, preparedUpdates, prepareUpdates } from "../../lib/training/prepared-updates.ts";
import { errandEnvironment } from "../support/errand.ts";
import { roleWriter, scriptedRoles, transitionsFrom } from "../support/roles.ts";

/** Updates of the transitions [0, 1] and [2], or of others, as prepareUpdates wrote them. */
async function prepare(
  replies: Parameters<typeof scriptedRoles>[0] = {},
  { batches = [[0, 1], [2]], first = 5, shuffleOutcomes = false } = {},
) {
  const model = scriptedRoles(replies);
  const environment = errandEnvironment();
  const transitions = await transitionsFrom(model, environment);
  const config = { ...roleWriter(model).config, shuffleOutcomes };
  const replay = { get: (indices: readonly number[]) => indices.map((i) => transitions[i]!) };
  const run = { signal: new AbortController().signal };
  const draws = batches.map((indices) => ({ indices, probabilities: [], weights: [] }));
  return prepareUpdates({ model, environment, replay, config, run }, draws, first);
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

test("shuffled outcomes depend on the number of the update, not on those prepared with it", async () => {
  const batch = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2];
  const teachers = async (first: number, count: number) => {
    const batches = new Array<number[]>(count).fill(batch);
    const updates = await prepare({}, { batches, first, shuffleOutcomes: true });
    return updates.map(({ targets }) => targets.map(({ text }) => String(text!.teacher)));
  };
  const [fifth, sixth] = await teachers(5, 2);
  expect(fifth).toEqual((await teachers(5, 1))[0]);
  expect(sixth).toEqual((await teachers(6, 1))[0]);
  expect(sixth).not.toEqual(fifth);
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
