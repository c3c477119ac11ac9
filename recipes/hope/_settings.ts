/**
 * Settings of the HOPE paper (its Table 3). Values that it does not give are nlac's defaults; the
 * configuration says for every field which of the two it is. The paper starts from a policy that
 * was fine-tuned on games of GPT-4o: train hope/twenty-questions-sft first and add --set
 * model=runs/<its run>.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";

/** The paper used up to six GPUs of 48 GB; nlac uses one. */
export const learner = { device: "cuda", dtype: "bfloat16", gradientCheckpointing: true } as const;

/** The hub asks for a login (HF_TOKEN) and for consent to its terms. */
export const model = "meta-llama/Llama-3.2-3B-Instruct";

/** GPT-4o writes summaries and proposals, at $OPENAI_BASE_URL or OpenAI's own address. */
export const proposer = { model: "gpt-4o" };

/** The longest text, in tokens; the paper gives no other limit to summaries and proposals. */
const limits = (maxTokens: number, maxActionTokens: number) => ({
  ...{ maxTokens, maxActionTokens, maxPromptTokens: maxTokens - maxActionTokens },
  ...{ maxSummaryTokens: maxTokens, maxProposalTokens: maxTokens },
});

/**
 * The best reward model and the best policy are chosen by validation tasks: `tasks` of them, each
 * played `times` times for the policy. The paper does not give the temperature; here it is that of
 * the actor's candidates.
 */
const chosen = (tasks: number, times: number) => ({
  rewardEvaluation: { every: 40, episodes: tasks },
  evaluation: { every: 1, episodes: tasks * times, temperature: 0.7 },
  keepBest: true,
});

export const twentyQuestions = {
  ...limits(2048, 128),
  ...chosen(28, 3),
  proposer,
  branchRange: { shares: [0.3, 0.6] as [number, number] },
};

export const guessMyCity = {
  ...limits(3000, 128),
  ...chosen(30, 10),
  ...{ branchShare: 0.5, proposer },
  branchRange: { shares: [0.3, 0.8] as [number, number] },
};

/**
 * A step of the paper is a database call and a reply, which are two turns here: 2 steps are 4
 * turns, and t in [2, T - 1], from 0, begins at turn 4.
 */
export const carDealer = {
  ...limits(3500, 256),
  ...chosen(30, 3),
  ...{ branchShare: 0.5, proposer, summary: "negotiation" as const },
  ...{ turnsPerEpisode: 4, points: 20_000, batchSize: 2 },
  branchRange: { turns: [4, 0] as [number, number] },
};

/** The warm start: three games per task, of the environment's scripted player unless recorded. */
const sft = (maxTokens: number, maxActionTokens: number) => ({
  ...{ demonstrationsPerTask: 3, maxTokens, maxActionTokens },
  maxPromptTokens: maxTokens - maxActionTokens,
});

export const twentyQuestionsSft = sft(2048, 128);
export const guessMyCitySft = sft(3000, 128);
export const carDealerSft = { ...sft(3500, 256), batchSize: 24 };

/**
 * The paper's words and rules, where the data is; else nlac's own words, which have no validation
 * split.
 */
const data = process.env.NLAC_DATA;
const hasWords =
  data !== undefined && existsSync(join(data, "dialogue", "lmrl_twenty_questions_objects.json"));

/**
 * Tasks other than those for training are the validation tasks here. For the paper's test tasks:
 * nlac eval RUN --options '{"testSplit":"test"}', with the recipe's other options.
 */
const testSplit = "validation";

export const environments = {
  twentyQuestions: {
    name: "twentyQuestions",
    options: hasWords ? { rules: "hope", testSplit } : { reward: "turns" },
  },
  guessMyCity: { name: "guessMyCity", options: { testSplit } },
  carDealer: { name: "carDealer", options: { testSplit } },
};
