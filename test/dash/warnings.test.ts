import { expect, test } from "vitest";
import { warningsOf } from "../../lib/dash/warnings.ts";

const symptoms = (metrics: Record<string, number[]>) =>
  warningsOf((metric) => metrics[metric] ?? []).map(({ symptom }) => symptom);

const constant = (value: number, count = 24) => Array.from({ length: count }, () => value);

test("a run that learns has no warnings", () => {
  expect(
    symptoms({
      "rollout/success": [0, 0.1, 0.2, 0.4, 0.5, 0.7, 0.8, 0.9],
      "eval/success": [0, 0.8],
      "parse/action": constant(0.99),
      "yes/critique": constant(0.6),
      "loss/l1": [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3],
      "entropy/target": [0.03, 0.03, 0.04, 0.04, 0.05, 0.05, 0.05, 0.05],
      "targets/dropped": constant(0),
      "rollout/faults": constant(0),
    }),
  ).toEqual([]);
});

test.each([
  ["parse/refinement is 30 %", { "parse/refinement": constant(0.3) }],
  ["No episode of 3 iterations succeeded", { "rollout/success": [0, 0, 0] }],
  [
    "The critic always says No, and refinements repeat the attempt",
    { "yes/critique": constant(0), "refinements/changed": constant(0) },
  ],
  [
    "L1 falls and success does not rise",
    { "loss/l1": [1, 1, 0.9, 0.8, 0.7, 0.6, 0.4, 0.3], "rollout/success": constant(0.2, 8) },
  ],
  [
    // Means of 144 updates each of a run on errands without rehearsal, at τ = 0.02.
    "Targets become random while L1 falls",
    {
      "entropy/target": [0.07, 0.39, 0.83, 1.12, 1.24, 1.31, 1.33, 1.49],
      "loss/l1": [0.25, 0.21, 0.07, 0.05, 0.04, 0.03, 0.02, 0.04],
    },
  ],
  ["Success fell from 90 % to 20 %", { "rollout/success": [0.1, 0.2, 0.5, 0.6, 0.9, 0.9, 0.3, 0.1] }],
  ["60 targets were dropped in the last 20 updates", { "targets/dropped": constant(3) }],
  ["1 target was dropped in the last 20 updates", { "targets/dropped": [...constant(0), 1] }],
  ["Episodes failed", { "rollout/faults": [0, 1] }],
  ["Episodes failed", { "rollout/faults": [0, 0], "eval/faults": [2] }],
  ["Steps were skipped", { skipped: [0, 1, 0] }],
  ["Steps of the policy were skipped", { "skipped/policy": [0, 1, 0] }],
  [
    "Success in training, none on held-out tasks",
    { "rollout/success": constant(0.9, 8), "eval/success": [0, 0.02] },
  ],
])("%s", (symptom, metrics) => {
  expect(symptoms(metrics)).toEqual([symptom]);
});
