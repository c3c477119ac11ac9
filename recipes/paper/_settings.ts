/**
 * What the paper's trainings have in common (section 6.2 and appendix A.4). It gives k and m in section 6.2, GRPO's four
 * rollouts there too; all other figures are of its table of hyperparameters. What it does not give is nlac's default, and
 * each algorithm's file says of every field which of the two it is.
 */

/** The paper trained on 64 GPUs; nlac uses one. */
export const learner = { device: "cuda", dtype: "bfloat16", gradientCheckpointing: true } as const;

const limits = { maxPromptTokens: 8192, maxActionTokens: 24_576 };

export const nlac = {
  iterations: 30,
  updatesPerIteration: 1024, // 30,720 in all
  batchSize: 1024,
  futures: 1, // k
  refinements: 1, // m
  targetRate: 0.005, // τ
  priorityExponent: 0.1, // α
  criticLearningRate: 5e-6,
  policyLearningRate: 5e-6,
  ...limits,
  maxCriticTokens: 24_576,
};

/** QwQ-32B thinks before it answers: thoughts are corrected, and L1 is a cross entropy (appendix A). */
export const nlacReasoning = { ...nlac, reasoning: true };

export const rft = {
  iterations: 30,
  updatesPerIteration: 1024,
  batchSize: 1024,
  learningRate: 5e-6,
  ...limits,
};

/** A round's 1,024 episodes, a step each: the one way in which its batch, rounds and steps all come to their figures. */
const onPolicy = {
  iterations: 30,
  episodesPerIteration: 1024,
  epochs: 1,
  batchSize: 1,
  learningRate: 5e-6,
  ...limits,
};

export const grpo = { ...onPolicy, groupSize: 4 };

/** Monte-Carlo returns: λ = 1. */
export const ppo = { ...onPolicy, lambda: 1 };

/** The ablation: twin soft Q heads, their target by the same average as NLAC's. */
export const sac = {
  iterations: 30,
  updatesPerIteration: 1024,
  batchSize: 1024,
  targetRate: 0.005,
  learningRate: 5e-6,
  ...limits,
};
