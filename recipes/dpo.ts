/**
 * Preference optimization on recorded episodes: --set 'config.recorded=["…/trajectories.jsonl"]',
 * for example of a run of hope/errands, whose branches give pairs of actions in the same state.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "dpo",
  description: "DPO on recorded errands with a model of half a million parameters, on the CPU",
  model: "errands-base",
  learner: { dtype: "float32" },
  environment: { name: "errands" },
  algorithm: "dpo",
  config: {
    recorded: ["runs/hope-errands/trajectories.jsonl"],
    pairs: "actions",
    batchSize: 32,
    learningRate: 1e-4,
    maxTokens: 256,
    maxPromptTokens: 240,
    maxActionTokens: 8,
  },
});
