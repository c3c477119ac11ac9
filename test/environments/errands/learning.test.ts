import { afterEach, describe, expect, it } from "vitest";
import { trainNlac } from "../../../lib/algorithms/nlac.ts";
import { errands, errandsModel } from "../../../lib/environments/errands/index.ts";
import { Learner } from "../../../lib/learner/learner.ts";
import { memoryRun } from "../../../lib/run/training-run.ts";
import { Tokenizer } from "../../../lib/tokens/tokenizer.ts";
import { warmUp, warmupConfig } from "../../../lib/training/warmup.ts";

const open: Learner[] = [];
afterEach(() => Promise.all(open.splice(0).map((learner) => learner.dispose())));

/** A few seconds of both recipes: the forms from random weights, then one iteration of NLAC. */
async function train() {
  const { config, tokenizer } = errandsModel();
  const model = await Learner.create(config, {
    tokenizer: new Tokenizer(tokenizer),
    dtype: "float32",
    threads: 1,
  });
  open.push(model);
  const environment = errands();
  const nlls: number[] = [];
  await warmUp({
    model,
    environment,
    config: warmupConfig.parse({
      steps: 50,
      batchSize: 24,
      learningRate: 5e-3,
      rampSteps: 5,
      betas: [0.9, 0.98],
      episodes: 24,
    }),
    seed: 1,
    onStep: (_, nll) => nlls.push(nll),
  });
  const run = memoryRun();
  const result = await trainNlac({
    model,
    environment,
    run,
    config: {
      iterations: 1,
      episodesPerIteration: 4,
      updatesPerIteration: 2,
      batchSize: 4,
      criticLearningRate: 1e-3,
      policyLearningRate: 1e-3,
      rehearsal: 4,
      // At temperature 1, a model of fifty steps still makes mistakes.
      actionTemperature: 0.3,
      criticTemperature: 0.3,
      refinerTemperature: 0.3,
      maxActionTokens: 8,
      maxCriticTokens: 16,
    },
  });
  const timeless = run.rows.map(({ values }) =>
    Object.fromEntries(Object.entries(values).filter(([name]) => !name.startsWith("time/"))),
  );
  const turns = run.trajectories.flatMap((trajectory) => trajectory.turns);
  return { model, nlls, result, turns, metrics: timeless, samples: run.samples };
}

describe("a model of errands", () => {
  it("learns the forms in seconds, and all roles then work together; the same seed gives the same bits", async () => {
    const first = await train();
    expect(first.model.info.parameters).toBeGreaterThan(450_000);
    expect(first.model.info.parameters).toBeLessThan(600_000);
    // From uniform guessing over all tokens to knowing the forms.
    expect(first.nlls[0]).toBeCloseTo(Math.log(first.model.info.vocabSize), 0);
    expect(first.nlls.slice(-5).every((nll) => nll < 1.6)).toBe(true);
    expect(first.result).toMatchObject({ updates: 2, episodes: 4, stopped: false });
    const readable = first.turns.filter(({ action }) => action !== undefined);
    expect(readable.length / first.turns.length).toBeGreaterThan(0.7);
    for (const metrics of first.metrics.slice(1)) {
      for (const name of ["loss/l1", "loss/l2", "loss/rehearsal"]) {
        expect(metrics[name]).toBeGreaterThan(0);
        expect(metrics[name]).toBeLessThan(4);
      }
      expect(metrics["parse/target"]).toBeGreaterThan(0.4);
    }
    const second = await train();
    expect(second.nlls).toEqual(first.nlls);
    expect(second.metrics).toEqual(first.metrics);
    expect(second.samples).toEqual(first.samples);
  });
});
