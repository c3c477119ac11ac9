import { expect, test } from "vitest";
import { newCounters } from "../../lib/run/training-run.ts";
import { optimizerConfig } from "../../lib/training/config.ts";
import { scheduledStep, stepPlace } from "../../lib/training/step.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

const length = { iterations: 4, environmentSteps: 0 };

test("the place of a step counts the updates of all iterations", () => {
  const counters = { ...newCounters(), iteration: 2, updatesDone: 5 };
  expect(stepPlace(counters, length, 10)).toEqual({ step: 25, over: 2.5 / 4 });
  expect(stepPlace(newCounters(), length, 10)).toEqual({ step: 0, over: 0 });
});

test("the step gets the schedule's rate, the optimizer's settings and the caller's options", async () => {
  const model = new ScriptedModel(() => "");
  const optimizer = optimizerConfig.parse({
    ...{ learningRate: 0.1, weightDecay: 0.01, betas: [0.8, 0.9], maxGradNorm: 2 },
    schedule: { shape: "linear", floor: 0.5 },
  });
  const place = { step: 3, over: 0.5 };
  const metrics = await scheduledStep(model, optimizer, place, newCounters(), { targetRate: 0.2 });
  expect(model.events[0]).toEqual({
    kind: "step",
    options: {
      learningRate: expect.closeTo(0.075),
      betas: [0.8, 0.9],
      weightDecay: 0.01,
      maxGradNorm: 2,
      targetRate: 0.2,
    },
  });
  expect(metrics).toEqual({ grad_norm: 1, skipped: 0, learning_rate: expect.closeTo(0.075) });
});

test("consecutive skipped steps end in ERR_NOT_FINITE; a step that is taken starts the count again", async () => {
  const model = new ScriptedModel(() => "");
  const optimizer = optimizerConfig.parse({ maxSkippedSteps: 3 });
  const counters = newCounters();
  const step = () => scheduledStep(model, optimizer, { step: 0, over: 0 }, counters);
  model.skip = () => true;
  for (const skipped of [1, 2]) {
    expect(await step()).toMatchObject({ skipped: 1, grad_norm: Number.NaN });
    expect(counters.skippedInARow).toBe(skipped);
  }
  model.skip = () => false;
  await step();
  expect(counters.skippedInARow).toBe(0);
  model.skip = () => true;
  for (const _ of [1, 2]) await step();
  await expect(step()).rejects.toMatchObject({ code: "ERR_NOT_FINITE" });
});
