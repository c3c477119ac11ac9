import { expect, test } from "vitest";
import { ServedRun, type ServedRunOptions } from "../../lib/agents/served-run.ts";
import type { LanguageModel } from "../../lib/model/language-model.ts";

test("a checkpoint has no texts of the update in progress, which could be deleted later", async () => {
  const saved: unknown[] = [];
  let checkpoints = 0;
  const options = {
    directory: {
      signal: new AbortController().signal,
      checkpoint: async (checkpoint: object) => void saved.push(checkpoint),
    },
    recipe: { algorithm: "nlac" },
    model: { version: "2.7" },
    corrections: { imitate: async () => undefined, counts: { a: 1 } },
    guard: { quality: {} },
    onCheckpoint: () => checkpoints++,
  } as unknown as ServedRunOptions;
  const state = { updates: 3, drawn: [1], pending: { texts: [{ prompt: [71, 72], response: [73] }] } };
  const model = {} as LanguageModel;
  await new ServedRun(options).checkpoint({ state, model }, true);
  const served = { start: 2, changes: 7, corrections: { a: 1 }, quality: {} };
  expect(saved).toEqual([{ model, state: { training: { updates: 3, drawn: [1] }, served } }]);
  expect(state.pending.texts).toHaveLength(1); // the running update goes on with it
  expect(checkpoints).toBe(1);
});
