// The shortest trainings that still save several checkpoints, one per method, on a model of a few
// thousand parameters.
import { tinyModel } from "./tiny-model.mjs";

const limits = { maxPromptTokens: 256, maxActionTokens: 8, seed: 5, betas: [0.9, 0.98] };
const rounds = { iterations: 2, episodesPerIteration: 4, ...limits };
const updates = { updatesPerIteration: 2, batchSize: 2 };
const epochs = { epochs: 2, batchSize: 4, learningRate: 2e-4 };

const nlac = {
  ...rounds,
  ...updates,
  targetRate: 0.1,
  criticLearningRate: 3e-4,
  policyLearningRate: 3e-4,
  optimizerState: "separate",
  maxCriticTokens: 16,
  evaluation: { every: 2, episodes: 2 },
};

const configs = {
  nlac,
  lora: nlac,
  rft: { ...rounds, ...updates, learningRate: 2e-4 },
  grpo: { ...rounds, ...epochs, groupSize: 2, klCoefficient: 0.1 },
  ppo: { ...rounds, ...epochs, klCoefficient: 0 },
  "critique-grpo": { ...rounds, ...epochs, groupSize: 2, refinedPerGroup: 2, maxCriticTokens: 16 },
  archer: {
    ...{ ...rounds, criticUpdatesPerIteration: 2, policyUpdatesPerIteration: 2, criticIterations: 0 },
    ...{ batchSize: 2, criticLearningRate: 2e-4, policyLearningRate: 2e-4 },
  },
  sac: { ...rounds, ...updates, targetRate: 0.1, temperature: 0.02, learningRate: 3e-4 },
};

/** NLAC with an adapter and two updates, the training with the fewest file operations. */
const short = { ...nlac, iterations: 1, episodesPerIteration: 2, evaluation: { every: 0, episodes: 2 } };

/** Names of the trainings: the methods, and "lora" for NLAC with an adapter. */
export const trainings = Object.keys(configs);

/** The recipe of a training, or of "short". It saves a checkpoint after every update. */
export function recipe(name) {
  const withAdapter = name === "lora" || name === "short";
  const targets = name === "short" ? { targets: ["q_proj"] } : {};
  const adapter = withAdapter ? { adapter: { rank: 2, alpha: 4, ...targets } } : {};
  return {
    name: `torture-${name}`,
    model: tinyModel,
    learner: { dtype: "float32", ...adapter },
    environment: { name: "errands" },
    algorithm: withAdapter ? "nlac" : name,
    config: name === "short" ? short : configs[name],
    run: { checkpointSeconds: 0, keepCheckpoints: 2, samplesPerUpdate: 1 },
  };
}
