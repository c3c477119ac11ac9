/** Texts that a GPU writes, and draws itself, are those of the CPU. */

import { expect, it } from "vitest";
import { tinyLearner } from "../support/tiny.ts";

const cuda = process.env.NLAC_TEST_DEVICE === "cuda";

it.runIf(cuda)("draws on a GPU what the CPU draws", async () => {
  await using onCpu = await tinyLearner({ seed: 7 });
  await using onGpu = await tinyLearner({ seed: 7, device: "cuda" });
  const settings = [
    { temperature: 0 },
    { temperature: 1 },
    { temperature: 0.6, topK: 20 },
    { temperature: 1.5, topP: 0.8 },
    { temperature: 1, minP: 0.1 },
    { temperature: 1, topK: 50, topP: 0.9, minP: 0.02 },
    { temperature: 1, repetitionPenalty: 1.3 },
    { temperature: 1, forbidden: [65, 66, 67] },
    { temperature: 1, grammar: { regex: "([0-9]{2}[a-z]{3})*" } },
  ];
  const requests = settings.flatMap((setting, i) =>
    [0, 1, 2].map((seed) => ({
      ...setting,
      seed,
      tokens: [..."Draw this: "].map((letter) => letter.charCodeAt(0)),
      maxNewTokens: 20 + 5 * i,
    })),
  );
  const [expected, got] = await Promise.all([onCpu.generate(requests), onGpu.generate(requests)]);
  expect(got.map(({ tokens, finishReason }) => ({ tokens, finishReason }))).toEqual(
    expected.map(({ tokens, finishReason }) => ({ tokens, finishReason })),
  );
  for (const [i, { logProbs }] of got.entries())
    for (const [t, logProb] of logProbs.entries()) expect(logProb).toBeCloseTo(expected[i]!.logProbs[t]!, 3);
});
