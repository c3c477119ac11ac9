/**
 * Settings that the paper's training runs share (section 6.2 and appendix A.4). Section 6.2 gives
 * k, m and GRPO's four rollouts; all other values are from its table of hyperparameters. Values
 * that the paper does not give are nlac's defaults. Each algorithm's file says for every field
 * which of the two it is. One default matters: replay buffers do not hold all of a run on 20
 * Questions or tau-bench (docs/paper-recipes.md).
 */

/** The paper trained on 64 GPUs; nlac uses one. */
export const learner = { device: "cuda", dtype: "bfloat16", gradientCheckpointing: true } as const;

/** 30 rounds of a batch of 1,024: every method learns from 30,720 samples (docs/decisions/0016). */
const rounds = { iterations: 30, episodesPerIteration: 1024 };

/** Algorithm 1: a gradient step for each training sample, 30,720 in all. */
const stepForEachSample = { updatesPerIteration: 1024, batchSize: 1 };

/**
 * PPO and GRPO step on mini-batches. The paper's baselines ran in verl, whose default is 256 of a
 * batch of 1,024 in one epoch, and which cannot step on a single episode on the paper's 64 GPUs.
 */
const miniBatches = { batchSize: 256, epochs: 1 };

const limits = { maxPromptTokens: 8192, maxActionTokens: 24_576 };

const target = { targetRate: 0.005 }; // τ

const learningRate = 5e-6;

export const nlac = {
  ...rounds,
  ...stepForEachSample,
  ...limits,
  ...target,
  futures: 1, // k
  refinements: 1, // m
  priorityExponent: 0.1, // α
  criticLearningRate: learningRate,
  policyLearningRate: learningRate,
  maxCriticTokens: 24_576,
};

/** QwQ-32B is a reasoning model: thoughts are corrected, and L1 is a cross entropy (appendix A). */
export const nlacReasoning = { ...nlac, reasoning: true };

export const rft = { ...rounds, ...stepForEachSample, ...limits, learningRate };

/** KL to the initial model: verl's 0.001 for GRPO. NLAC has no such term. */
export const grpo = {
  ...rounds,
  ...miniBatches,
  ...limits,
  learningRate,
  groupSize: 4,
  klCoefficient: 0.001,
};

/**
 * Monte-Carlo returns: λ = 1. As in verl, no KL penalty: it adds up over an episode's tokens, and
 * TRL's 0.05, made for completions of 53 tokens, would outweigh the reward of a thousand tokens.
 */
export const ppo = {
  ...rounds,
  ...miniBatches,
  ...limits,
  learningRate,
  lambda: 1,
  klCoefficient: 0,
};

/**
 * The ablation: twin soft Q heads, with the same EMA for their target network as NLAC. The entropy
 * bonus adds up over an episode's tokens too: at the default α of 0.01 that of 800 tokens, a game
 * of 20 Questions, would be worth more than winning it.
 */
export const sac = {
  ...rounds,
  ...stepForEachSample,
  ...limits,
  ...target,
  learningRate,
  temperature: 0.001,
};
