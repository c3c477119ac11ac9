/**
 * Supervised fine-tuning of SmolLM2-135M on scripted games of 20 Questions, or on episodes of your
 * own: --set 'config.recorded=["episodes.jsonl"]' --set config.demonstrationsPerTask=0, from a
 * run's trajectories.jsonl or from `nlac eval --split train --record`, also of a model at a service.
 */
import { defineRecipe } from "nlac";

export default defineRecipe({
  name: "sft",
  description: "supervised fine-tuning of SmolLM2-135M on recorded or scripted episodes, on the CPU",
  model: "SmolLM2-135M-Instruct",
  environment: { name: "twentyQuestions" },
  algorithm: "sft",
  config: { demonstrationsPerTask: 1, batchSize: 16, maxPromptTokens: 1920, maxActionTokens: 64 },
});
