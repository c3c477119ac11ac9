/**
 * Does hindsight exploration help where the paper says so? HOPE and its baselines on errands, whose
 * order is the secret: five worlds, equal environment steps except for NLAC, which gets fewer. An
 * errand takes three things, so that π_0 succeeds in two thirds of the episodes, as the paper's does
 * in 20 Questions. The question is the order HOPE > PRM+RL > π_0 of its Table 1.
 */
import { defineComparison } from "nlac/compare";
import { besideTheReward, cost, knowsTheOrder } from "./_notes.ts";

/** Episodes per task of hope/errands, and its branches per task as counted in one run (642 of 8 tasks). */
const episodes = 64;
const branches = 80;

export default defineComparison({
  name: "hope",
  description:
    "HOPE and its baselines on eight errands in five worlds, half a million parameters, on the CPU",
  notes: [
    `Every seed has its own world; all start from one base model, which is π_0. high-temperature plays ${episodes + branches} episodes per task instead of branches. An iteration of hope takes 6,600 environment steps, so that the limit is one iteration. leap and reject-s start from π_0 in every iteration.`,
    "NLAC has 2,000 environment steps instead of 5,500.",
    "leap imitates one proposal per turn, which is right; the second one of hope is an item that the desk wants later.",
    "explore-prompt asks the policy for other actions; a model of this size hardly follows the request. Oracle-Explore needs a trained policy of the same world as proposer, and is left out.",
    knowsTheOrder,
    besideTheReward,
    cost,
  ],
  environmentSteps: 5500,
  seeds: [0, 1, 2, 3, 4],
  seedFields: ["environment.options.seed"],
  paired: true,
  set: {
    environment: { options: { chain: 3 } },
    config: { iterations: 200, evaluation: { every: 1, episodes: 128, temperature: 1 } },
  },
  methods: [
    { name: "hope", recipe: "hope/errands" },
    { name: "prm-rl", recipe: "hope/errands", set: { config: { branchedEpisodes: 0, branchShare: 0 } } },
    {
      name: "high-temperature",
      recipe: "hope/errands",
      set: { config: { branchedEpisodes: 0, branchShare: 0, episodesPerTask: episodes + branches } },
    },
    { name: "explore-prompt", recipe: "hope/errands", set: { config: { proposer: "different" } } },
    {
      name: "leap",
      recipe: "hope/errands",
      // The environment's first proposal is right; the second would be right later.
      set: { config: { actor: "imitate", restart: true, learningRate: 2e-4, proposalsPerTurn: 1 } },
    },
    {
      name: "reject-s",
      recipe: "errands-rft",
      set: { config: { restart: true, episodesPerIteration: 64 } },
    },
    { name: "nlac", recipe: "errands", environmentSteps: 2000 },
  ],
});
