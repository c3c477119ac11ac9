import { expect, test } from "vitest";
import type { HopeConfig } from "../../lib/algorithms/hope.ts";
import type { SftConfig } from "../../lib/algorithms/sft.ts";
import type { Environment } from "../../lib/contract/environment.ts";
import { makeEnvironment } from "../../lib/environments/registry.ts";
import { loadRecipe } from "../../lib/recipe/recipe.ts";

/** Table 3 of the HOPE paper, column by column. */
const table = {
  "twenty-questions": {
    sft: { batch: 4, accumulation: 16 },
    hindsightEpisodes: 16,
    range: { shares: [0.3, 0.6] },
    alpha: 0.4,
    points: 10_000,
    actor: { batch: 2, accumulation: 6 },
    length: 2048,
    validation: { tasks: 28, times: 3 },
  },
  "guess-my-city": {
    sft: { batch: 4, accumulation: 16 },
    hindsightEpisodes: 16,
    range: { shares: [0.3, 0.8] },
    alpha: 0.5,
    points: 10_000,
    actor: { batch: 2, accumulation: 6 },
    length: 3000,
    validation: { tasks: 30, times: 10 },
  },
  "car-dealer": {
    sft: { batch: 2, accumulation: 12 },
    hindsightEpisodes: 32,
    // [2, T - 1] in steps of a call and a reply.
    range: { turns: [4, 0] },
    alpha: 0.5,
    points: 20_000,
    actor: { batch: 2, accumulation: 1 },
    length: 3500,
    validation: { tasks: 30, times: 3 },
  },
};

test.each(Object.entries(table))("%s has the numbers of the paper", async (name, paper) => {
  const config = (await loadRecipe(`hope/${name}`)).config as HopeConfig;
  expect(config).toMatchObject({
    iterations: 2,
    ...{ episodesPerTask: 14, actionTemperature: 1, branchedEpisodes: 4, proposalsPerTurn: 2 },
    ...{ branchRange: paper.range, proposerTemperature: 0.3, branchShare: paper.alpha, points: paper.points },
    ...{ balanced: true, rewardBatchSize: 4 * 16, rewardEpochs: 1, rewardLearningRate: 5e-6 },
    ...{ batchSize: paper.actor.batch * paper.actor.accumulation, learningRate: 8e-8 },
    ...{ candidateTemperature: 0.7, proposalShare: 0, schedule: { shape: "linear", floor: 0 } },
    ...{ maxTokens: paper.length, maxSummaryTokens: paper.length, maxProposalTokens: paper.length },
    rewardEvaluation: { every: 40, episodes: paper.validation.tasks, bestOf: 15, temperature: 0.7 },
    evaluation: { every: 1, episodes: paper.validation.tasks * paper.validation.times },
    ...{ keepBest: true, reference: "previous", hindsight: true },
  });
  expect(config.branchedEpisodes * config.turnsPerEpisode * config.proposalsPerTurn).toBe(
    paper.hindsightEpisodes,
  );
  expect(config.maxPromptTokens + config.maxActionTokens).toBe(paper.length);
  const sft = (await loadRecipe(`hope/${name}-sft`)).config as SftConfig;
  expect(sft).toMatchObject({
    ...{ epochs: 3, learningRate: 3e-5, schedule: { shape: "cosine", floor: 0 }, maxTokens: paper.length },
    ...{ batchSize: paper.sft.batch * paper.sft.accumulation, demonstrationsPerTask: 3 },
  });
});

test.each(["guess-my-city", "car-dealer"])("%s is validated on tasks of its own", async (name) => {
  const { environment } = await loadRecipe(`hope/${name}`);
  const opened = await makeEnvironment(environment.name, environment.options);
  const tested = await makeEnvironment(environment.name, { ...environment.options, testSplit: "test" });
  const tasks = async (one: Environment, split: "train" | "test") => (await one.tasks(split)).map(one.taskId);
  const [train, validation, test] = [
    await tasks(opened, "train"),
    await tasks(opened, "test"),
    await tasks(tested, "test"),
  ];
  expect([train.length, validation.length, test.length]).toEqual([120, 30, 30]);
  expect(new Set([...train, ...validation, ...test]).size).toBe(180);
});

test("the baselines differ from it as the paper says", async () => {
  const config = async (name: string) => (await loadRecipe(`hope/twenty-questions-${name}`)).config;
  expect(await config("prm")).toMatchObject({ branchedEpisodes: 0, branchShare: 0, episodesPerTask: 14 });
  expect(await config("high-temperature")).toMatchObject({ branchedEpisodes: 0, episodesPerTask: 30 });
  expect(await config("explore-prompt")).toMatchObject({ proposer: "different", branchedEpisodes: 4 });
  expect(await config("oracle-explore")).toMatchObject({
    hindsight: false,
    proposer: { local: expect.any(String) },
  });
  expect(await config("leap")).toMatchObject({ actor: "imitate", restart: true, learningRate: 3e-5 });
  expect(await config("reject-s")).toMatchObject({ restart: true, learningRate: 3e-5, batchSize: 64 });
});
