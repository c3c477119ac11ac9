import { expect, test } from "vitest";
import type { RewardText } from "../../lib/model/language-model.ts";
import type { LabelledAction } from "../../lib/training/reward-data.ts";
import { heldOutMetrics } from "../../lib/training/reward-evaluation.ts";

/** An action `id` after the state `place`. */
const action = (place: number, id: number, label: number) =>
  ({
    state: { tokens: [place], prompt: () => [place] },
    ...{ action: [id], label },
  }) as unknown as LabelledAction;

test("a reward model is compared with labels that it has not seen", async () => {
  const actions = [
    action(1, 10, 1),
    action(1, 20, 0),
    action(1, 30, 0.6),
    action(2, 40, 0),
    action(2, 60, 1),
    action(3, 90, 0),
  ];
  const rewards = async (texts: readonly RewardText[]) =>
    Float32Array.from(texts, ({ response }) => response[0]! / 100);
  const metrics = await heldOutMetrics({ rewards }, actions);
  const squares = [0.9 ** 2, 0.2 ** 2, 0.3 ** 2, 0.4 ** 2, 0.4 ** 2, 0.9 ** 2];
  expect(metrics["held_out/brier"]).toBeCloseTo(squares.reduce((a, b) => a + b) / 6, 6);
  // Right: 20 and 40 are low, 60 is high.
  expect(metrics["held_out/accuracy"]).toBe(0.5);
  // High 10, 30, 60 against low 20, 40, 90: 30 > 20, 60 > 20, 60 > 40.
  expect(metrics["held_out/auc"]).toBeCloseTo(3 / 9, 12);
  // In state 1: 10 above 20 and above 30, 30 above 20; in state 2: 60 above 40. Two are as scored.
  expect(metrics).toMatchObject({ "held_out/pairs": 4, "held_out/pair_accuracy": 0.5 });
});

test("labels that differ by rounding are no pair", async () => {
  const rewards = async (texts: readonly RewardText[]) => new Float32Array(texts.length);
  const actions = [action(1, 10, 0.7), action(1, 20, (0.7 + 0.7 + 0.7) / 3)];
  expect(await heldOutMetrics({ rewards }, actions)).toMatchObject({ "held_out/pairs": 0 });
});
