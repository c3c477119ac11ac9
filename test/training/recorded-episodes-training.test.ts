/** The records of a training with the shipped model: figures of separate computations agree. */

import { beforeAll, expect, test } from "vitest";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { openEnvironment } from "../../lib/environments/registry.ts";
import { halvesFromBase64 } from "../../lib/files/half-floats.ts";
import { Learner } from "../../lib/learner/learner.ts";
import type { SampleRecord } from "../../lib/run/samples.ts";
import { type MemoryRun, memoryRun } from "../../lib/run/training-run.ts";
import { mean } from "../../lib/statistics/mean.ts";

const config = {
  ...{ iterations: 2, episodesPerIteration: 4, updatesPerIteration: 2, batchSize: 4, targetRate: 0.02 },
  ...{ criticLearningRate: 3e-4, policyLearningRate: 3e-4, evaluation: { every: 1, episodes: 2 } },
  ...{ maxPromptTokens: 256, maxActionTokens: 8, maxCriticTokens: 16, seed: 3 },
};

async function train(options: { detailEvery: number; probes: number; samples: number }): Promise<MemoryRun> {
  const model = await Learner.load("errands-base", { dtype: "float32", seed: 3 });
  const environment = await openEnvironment("errands", {});
  try {
    const run = { ...memoryRun(options), samplesPerUpdate: options.samples };
    await trainNlac({ model, environment, config, run });
    return run;
  } finally {
    await environment.close();
    await model.dispose();
  }
}

let run: MemoryRun;
beforeAll(async () => {
  run = await train({ detailEvery: 2, probes: 3, samples: 4 });
});

const untimed = ({ rows }: MemoryRun) =>
  rows.map(({ step, values }) => ({
    step,
    values: Object.fromEntries(Object.entries(values).filter(([name]) => !name.startsWith("time/"))),
  }));

test("recording does not change the training", async () => {
  const plain = await train({ detailEvery: 0, probes: 0, samples: 0 });
  expect(untimed(plain)).toEqual(untimed(run));
  expect(plain.samples).toEqual([]);
  expect(plain.probed).toEqual([]);
});

test("every draw is recorded, with the L1 of the metrics", () => {
  const l1 = run.rows.flatMap(({ values }) => values["loss/l1"] ?? []);
  expect(run.drawn.map(({ update }) => update)).toEqual([0, 1, 2, 3]);
  for (const [i, draws] of run.drawn.entries()) {
    const known = draws.l1.filter((value) => value !== null);
    expect(mean(known)).toBeCloseTo(l1[i]!, 4);
    for (const list of Object.values(draws)) if (Array.isArray(list)) expect(list).toHaveLength(4);
  }
});

test("samples come by L1, and have the L1 and L2 of the draws and the metrics", () => {
  expect(run.samples).toHaveLength(16);
  for (const { update, l1 } of run.drawn) {
    const samples = run.samples.filter((sample) => sample.update === update);
    const known = l1.filter((value) => value !== null);
    expect(samples[0]!.facts.l1).toBeCloseTo(Math.max(...known), 4);
    const l2 = samples.flatMap(({ facts }) => (typeof facts.l2 === "number" ? facts.l2 : []));
    // All four of the batch are recorded.
    const row = run.rows.find(({ step, values }) => step === update + 1 && "loss/l2" in values);
    expect(l2.length).toBeGreaterThan(0);
    expect(mean(l2)).toBeCloseTo(row!.values["loss/l2"]!, 4);
    expect(samples[0]!.texts.state).toBeUndefined();
  }
});

/** Log probabilities under θ and θ̄ from scoring and from generation agree, and bound the KL. */
function checkFigures({ tokens, facts, texts }: SampleRecord): void {
  const { pieces, l1, online, target, best } = tokens!.target!;
  expect(pieces.join("")).toContain(texts.target);
  const kl = halvesFromBase64(l1!);
  expect(mean(kl)).toBeCloseTo(facts.l1 as number, 2);
  const scored = { online: halvesFromBase64(online!), target: halvesFromBase64(target!) };
  const of = (which: "online" | "target", token: number) => {
    const [from, to] = [token * best!.count, (token + 1) * best!.count];
    const logProbs = halvesFromBase64(best![which].logProbs).slice(from, to);
    return new Map(best![which].ids.slice(from, to).map((id, k) => [id, logProbs[k]!]));
  };
  for (const [i, id] of tokens!.target!.ids.entries()) {
    for (const which of ["online", "target"] as const) {
      const listed = of(which, i).get(id);
      if (listed !== undefined) expect(listed).toBeCloseTo(scored[which][i]!, 1);
    }
    // The KL of fewer events is not larger: those that both list, and all others together.
    const [p, q] = [of("target", i), of("online", i)];
    let [bound, restP, restQ] = [0, 1, 1];
    for (const [event, logP] of p) {
      const logQ = q.get(event);
      if (logQ === undefined) continue;
      bound += Math.exp(logP) * (logP - logQ);
      restP -= Math.exp(logP);
      restQ -= Math.exp(logQ);
    }
    if (restP > 1e-3) bound += restP * Math.log(restP / Math.max(restQ, 1e-6));
    expect(bound).toBeLessThan(kl[i]! + 0.02 + 0.02 * kl[i]!);
  }
}

test("figures per token agree with each other", () => {
  const detailed = run.samples.filter(({ tokens }) => tokens?.target?.best !== undefined);
  expect(detailed.map(({ update }) => update)).toEqual([0, 2]);
  for (const sample of detailed) checkFigures(sample);
  for (const { tokens, texts, update } of run.samples) {
    expect(tokens?.target?.online).toBeDefined();
    expect(texts.critic === undefined).toBe(update % 2 === 1);
    const nll = tokens?.refinement?.nll;
    if (nll !== undefined) expect(tokens!.refinement!.pieces.join("")).toContain(texts.refinement);
  }
});

test("the same probes are explained after every evaluation", () => {
  expect(run.probed.map(({ update, probe }) => [update, probe])).toEqual(
    [0, 2, 4].flatMap((update) => [0, 1, 2].map((probe) => [update, probe])),
  );
  const places = (update: number) =>
    run.probed.filter((record) => record.update === update).map(({ trajectory, turn }) => [trajectory, turn]);
  expect(places(4)).toEqual(places(0));
  for (const record of run.probed) {
    expect(record.texts.critic).toBeDefined();
    checkFigures(record);
  }
});
