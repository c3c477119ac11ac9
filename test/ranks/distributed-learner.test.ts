/** Two ranks, this process and one more, against one learner. */

import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { Learner } from "../../lib/learner/learner.ts";
import type { DistilledText, ScoredText } from "../../lib/model/language-model.ts";
import { DistributedLearner } from "../../lib/ranks/distributed-learner.ts";
import type { LearnerSource } from "../../lib/ranks/protocol.ts";
import { joinAsFirst, openRanks, withRanks } from "../support/ranks.ts";
import { inDirectory } from "../support/tiny.ts";

// Starting a process takes long on a busy machine.
vi.setConfig({ testTimeout: 600_000 });

const options = { dtype: "float32", seed: 3, heads: "value", microBatchTokens: 64 } as const;
// With a small epsilon the rounding of a gradient that is nearly 0 would decide the sign of a whole
// step.
const step = { learningRate: 1e-3, weightDecay: 0.01, epsilon: 1e-4 };

const load = (sharding: "none" | 1 | 2 | 3, layerwiseGeneration = false): LearnerSource => ({
  kind: "load",
  model: "errands-base",
  options: { ...options, sharding, layerwiseGeneration },
});

const ids = (length: number, seed: number) =>
  Array.from({ length }, (_, i) => (((i + 1) * 7919 * (seed + 1)) % 70) + 3);
const scored: ScoredText[] = Array.from({ length: 7 }, (_, i) => ({
  prompt: ids(5 + 3 * i, i),
  response: ids(4 + i, 20 + i),
  weight: 0.1,
}));
const distilled: DistilledText[] = scored.map(({ prompt, response }, i) => ({
  ...{ student: prompt, teacher: ids(9, 40 + i), response, weight: 0.1 },
}));
const surrogates = scored.map((text) => ({
  ...text,
  oldLogProbs: text.response.map(() => -3),
  advantages: text.response.map((_, j) => 0.5 - 0.1 * j),
  returns: text.response.map(() => 0.4),
  oldValues: text.response.map(() => 0.1),
}));

async function train(model: DistributedLearner | Learner): Promise<number[][]> {
  const figures: number[][] = [];
  await model.updateTarget(1);
  await model.keepReference();
  for (let update = 0; update < 3; update++) {
    const [detail] = await model.tokenKl(distilled, { detail: 2, withGradient: false });
    const l1 = await model.tokenKl(distilled);
    expect(detail!.losses).toEqual(l1[0]);
    expect(detail!.target.top).toHaveLength(2 * l1[0]!.length);
    const first = await model.step({ ...step, moments: "critic" });
    await model.tokenNll(scored);
    const { length } = await model.tokenSurrogate(surrogates, { value: { coefficient: 0.5 } });
    expect(length).toBe(scored.length);
    const second = await model.step({ ...step, moments: "policy", targetRate: 0.1 });
    figures.push([...l1.flatMap((losses) => [...losses]), first.gradNorm, second.gradNorm]);
    figures.push([await model.targetDistance()]);
  }
  const reference = await model.logProbs(scored, { weights: "reference" });
  figures.push([...reference, ...(await model.values(scored))].flatMap((list) => [...list]));
  await model.restoreReference();
  figures.push((await model.logProbs(scored)).flatMap((list) => [...list]));
  return figures;
}

function expectClose(actual: number[][], expected: number[][]): void {
  expect(actual.map((list) => list.length)).toEqual(expected.map((list) => list.length));
  for (const [i, list] of actual.entries())
    for (const [j, value] of list.entries()) {
      const limit = 1e-4 * Math.max(1, Math.abs(expected[i]![j]!));
      expect(Math.abs(value - expected[i]![j]!)).toBeLessThan(limit);
    }
}

describe("a learner of two ranks", () => {
  let alone: Learner;
  let expected: number[][];
  beforeAll(async () => {
    alone = await Learner.load("errands-base", options);
    expected = await train(alone);
  });
  afterAll(() => alone.dispose());

  test.each(["none", 1, 2, 3] as const)(
    "trains as one does, and saves what one saves: sharding %s",
    async (sharding) => {
      await withRanks(2, load(sharding), async (whole) => {
        expectClose(await train(whole), expected);
        await inDirectory(async (directory) => {
          await whole.save(directory);
          await whole.exportHuggingFace(`${directory}-export`);
          const resumed = await Learner.resume(directory, { dtype: "float32" });
          const scores = await whole.logProbs(scored, { weights: "target" });
          expect(await resumed.logProbs(scored, { weights: "target" })).toEqual(scores);
          const saved = { kind: "resume", directory, options: { ...options, sharding } } as const;
          await withRanks(2, saved, async (again) => {
            expect(await again.logProbs(scored, { weights: "target" })).toEqual(scores);
          });
          const exported = await Learner.load(`${directory}-export`, { dtype: "float32" });
          expect(await exported.logProbs(scored)).toEqual(await whole.logProbs(scored));
          await exported.dispose();
          await resumed.dispose();
        });
      });
    },
  );

  test.each([
    [1, false],
    [3, false],
    [3, true],
  ] as const)(
    "generates the completions of one learner, stops them, and stays usable after an error: sharding %s, layerwise %s",
    async (sharding, layerwise) => {
      await withRanks(2, load(sharding, layerwise), async (whole) => {
        const one = await Learner.load("errands-base", options);
        const requests = Array.from({ length: 9 }, (_, i) => ({ tokens: ids(20 + i, i), maxNewTokens: 12 }));
        for (let call = 0; call < 2; call++) {
          const generations = await whole.generate(requests);
          const wanted = await one.generate(requests);
          expect(generations.map(({ tokens }) => tokens)).toEqual(wanted.map(({ tokens }) => tokens));
          expect(generations.map(({ text }) => text)).toEqual(wanted.map(({ text }) => text));
          expect(generations.map(({ logProbs }) => logProbs)).toEqual(wanted.map(({ logProbs }) => logProbs));
        }
        // θ and θ̄ in one call and in calls at the same time, with losses between.
        const mixed = requests.map((request, i) => ({
          ...{ ...request, seed: 40 + i },
          weights: i % 3 === 0 ? ("target" as const) : ("online" as const),
        }));
        const wanted = (await one.generate(mixed)).map(({ tokens }) => tokens);
        const calls = [mixed, mixed.slice(0, 1), mixed.slice(1, 3), mixed.slice(3)];
        const [all, , , rest] = await Promise.all([
          ...calls.map((call) => whole.generate(call)),
          whole.logProbs(scored),
        ]);
        expect(all!.map((generation) => (generation as { tokens: number[] }).tokens)).toEqual(wanted);
        expect(rest!.map((generation) => (generation as { tokens: number[] }).tokens)).toEqual(
          wanted.slice(3),
        );
        const seen: number[][] = mixed.map(() => []);
        await whole.generate(mixed, { onToken: (request, token) => seen[request]!.push(token) });
        expect(seen).toEqual(wanted);

        const streamed: number[] = [];
        await whole.generate(requests.slice(0, 1), { onToken: (_, token) => streamed.push(token) });
        expect(streamed.length).toBeGreaterThan(0);

        const [kept] = await whole.generate([{ ...mixed[0]!, keepHidden: true }]);
        expect(kept!.tokens).toEqual(wanted[0]);
        expect(kept!.hidden!.shape).toEqual([kept!.tokens.length, 128]);
        kept!.hidden!.dispose();

        const controller = new AbortController();
        const long = requests.map((request) => ({ ...request, maxNewTokens: 400, stopTokenIds: [] }));
        const stopped = whole.generate(long, { signal: controller.signal });
        controller.abort();
        await expect(stopped).rejects.toMatchObject({ code: "ERR_ABORTED" });

        const wrong = [...scored, { prompt: [1], response: [80_000] }];
        await expect(whole.tokenNll(wrong)).rejects.toMatchObject({ code: "ERR_VALUE" });
        await expect(whole.logProbs(wrong)).rejects.toMatchObject({ code: "ERR_VALUE" });
        // The gradients of that call are discarded on every rank.
        await whole.updateTarget(1);
        await whole.tokenNll(scored);
        await one.updateTarget(1);
        await one.tokenNll(scored);
        const [{ gradNorm }, own] = [await whole.step(step), await one.step(step)];
        expect(gradNorm).toBeCloseTo(own.gradNorm, 4);
        await one.dispose();
      });
    },
  );

  test("three ranks that generate layer by layer write the texts of one learner", async () => {
    await withRanks(3, load(3, true), async (model) => {
      const requests = Array.from({ length: 4 }, (_, i) => ({
        ...{ tokens: ids(12 + 5 * i, i), maxNewTokens: 4 + 6 * i, seed: i },
        weights: i % 2 === 0 ? ("target" as const) : ("online" as const),
      }));
      const one = await Learner.load("errands-base", options);
      const wanted = await one.generate(requests);
      await one.dispose();
      // One request leaves two ranks without any; calls at the same time wait for each other.
      const calls = [requests, requests.slice(3), requests.slice(0, 1)].map((call) => model.generate(call));
      const [all, last, first] = await Promise.all(calls);
      const written = (list: typeof wanted) => list.map(({ tokens, logProbs }) => ({ tokens, logProbs }));
      expect(written(all!)).toEqual(written(wanted));
      expect(written([...first!, ...last!])).toEqual(written([wanted[0]!, wanted[3]!]));
    });
  });

  test.each([
    [2, false],
    [3, false],
    [3, true],
  ] as const)(
    "ends with ERR_PEER when the other rank is killed: sharding %s, layerwise %s",
    async (sharding, layerwise) => {
      const { model: whole, others } = await openRanks(2, load(sharding, layerwise));
      await whole.updateTarget(1);
      const long = { tokens: ids(9, 1), maxNewTokens: 400, forbidden: whole.endOfTurnIds };
      const started = performance.now();
      others[0]!.child.kill("SIGKILL");
      await expect(
        (async () => {
          for (;;) {
            if (layerwise) await whole.generate([long, long]);
            await whole.tokenNll(scored);
            await whole.step(step);
          }
        })(),
      ).rejects.toMatchObject({ code: "ERR_PEER" });
      expect(performance.now() - started).toBeLessThan(60_000);
      await expect(whole.generate([{ tokens: [1] }])).rejects.toMatchObject({ code: "ERR_PEER" });
      await whole.dispose();
    },
  );
});

test("a learner that no rank can open ends all", async () => {
  const source: LearnerSource = { kind: "resume", directory: "/nowhere", options: { ...options } };
  const { ranks, others } = await joinAsFirst(2);
  await expect(DistributedLearner.open(source, ranks)).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
  expect(await others[0]!.exited).toMatchObject({ code: 1, errors: expect.stringContaining("ERR_PEER") });
});
