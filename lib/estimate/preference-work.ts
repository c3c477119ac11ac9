/** The work of methods that learn from preferences. */

import type { HopeConfig } from "../algorithms/hope.ts";
import { shownSamples } from "../roles/hindsight-proposer.ts";
import {
  type GenerationCall,
  generationCall,
  type Pass,
  pass,
  resting,
  type Texts,
  type Update,
  type Work,
} from "./calls.ts";

/** Both texts of each pair: gradients of θ, and the reference's log probabilities. */
export function preferencePasses(texts: Texts, size: number, prompt: number, scored: number): Pass[] {
  return [
    pass(texts, "preferences", size, prompt, scored),
    pass(texts, "reference", size, prompt, scored, false),
  ];
}

/**
 * lib/roles/hindsight-proposer.ts: what the policy writes for `count` proposals at each of
 * `places`, and summaries of `episodes`. A service or the environment's code costs the policy
 * nothing.
 */
function proposalCalls(
  config: HopeConfig,
  texts: Texts,
  episodes: number,
  places: number,
  count: number,
): GenerationCall[] {
  const { lengths, state } = texts;
  const { opening, action, observation, request, turns } = lengths;
  if (config.proposer === "different") {
    const asked = (1 + shownSamples) * action + request;
    return [
      // The samples of a place share its prompt.
      generationCall(texts, "samples", "θ", state, state / shownSamples, { texts: shownSamples * places }),
      generationCall(texts, "other actions", "θ", state + asked, asked / count, { texts: count * places }),
    ];
  }
  if (config.proposer !== "policy") return [];
  if (!config.hindsight)
    return [generationCall(texts, "samples", "θ", state, state / count, { texts: count * places })];
  const whole = opening + turns * (action + observation);
  const summary = { texts: episodes, generated: Math.min(config.maxSummaryTokens, 4 * lengths.critique) };
  const list = { texts: places, generated: Math.min(config.maxProposalTokens, 4 * lengths.critique) };
  return [
    generationCall(texts, "summaries", "θ", whole, whole, summary),
    generationCall(texts, "proposals", "θ", state + lengths.critique, state, list),
  ];
}

/** lib/algorithms/hope.ts: summaries, proposals, and branches played to their ends. */
export function branchCalls(config: HopeConfig, texts: Texts, episodes: number): GenerationCall[] {
  const { lengths, state } = texts;
  const { opening, action, observation, turns } = lengths;
  const branched = Math.min(episodes, (episodes / config.episodesPerTask) * config.branchedEpisodes);
  if (branched === 0) return [];
  const places = branched * config.turnsPerEpisode;
  const calls = proposalCalls(config, texts, branched, places, config.proposalsPerTurn);
  if (config.actor === "preference")
    calls.push(
      // A branch has half of the turns on average; each prompt is one turn longer.
      generationCall(texts, "branches", "θ", state, opening / turns + action + observation, {
        texts: places * config.proposalsPerTurn,
        times: turns / 2,
      }),
    );
  return calls;
}

/** An update is a step of the actor; the reward model's passes are divided among them. */
export function hopeUpdate(config: HopeConfig, texts: Texts, episodes: number): Update {
  const { state, lengths } = texts;
  const { action, turns } = lengths;
  const { candidates, batchSize, rewardEpochs, rewardEvaluation } = config;
  const branched = (episodes / config.episodesPerTask) * config.branchedEpisodes * config.turnsPerEpisode;
  if (config.actor === "imitate") {
    const passes = [pass(texts, "NLL", batchSize, state, action)];
    return {
      ...{ ...resting, steps: 1, references: 1, passes },
      updates: Math.ceil((branched * config.proposalsPerTurn) / batchSize),
    };
  }
  const points = Math.min(config.points, (episodes + (branched * config.proposalsPerTurn) / 2) * turns);
  const states = config.actorStates === 0 ? points : Math.min(points, config.actorStates);
  const updates = Math.max(1, Math.ceil(states / batchSize));
  const rewardUpdates = (rewardEpochs * points) / config.rewardBatchSize;
  const reward = {
    ...pass(texts, "reward model", (rewardEpochs * points) / updates, state, action),
    scored: 0,
  };
  // In each update, a share β of the states has a proposal; an episode is summarized once.
  const explored = config.proposalShare * batchSize;
  const summarized = Math.min(
    explored,
    (episodes + branched * config.proposalsPerTurn - branched / config.turnsPerEpisode) / updates,
  );
  const exploring = explored === 0 ? [] : proposalCalls(config, texts, summarized, explored, 1);
  const judged = { ...pass(texts, "rewards", candidates * batchSize, state, action, false), scored: 0 };
  return {
    ...resting,
    updates,
    steps: 1 + rewardUpdates / updates,
    // The reward model's reference is its best checkpoint so far.
    references: 1 + (rewardEvaluation.episodes > 0 && rewardEvaluation.every > 0 ? 1 : 0),
    rewardModels: 1,
    generation: [
      generationCall(texts, "candidates", "θ", state, state, { texts: candidates * batchSize }),
      ...exploring,
    ],
    passes: [...preferencePasses(texts, 2 * batchSize, state, action), judged, reward],
    diagnosis: rewardMeasurement(config, texts, rewardUpdates),
  };
}

/** lib/training/reward-evaluation.ts: episodes in which the best of several actions is taken. */
function rewardMeasurement(
  { iterations, rewardEvaluation }: HopeConfig,
  texts: Texts,
  rewardUpdates: number,
): Work["diagnosis"] {
  const { every, episodes, bestOf } = rewardEvaluation;
  if (episodes === 0) return resting.diagnosis;
  const { opening, action, observation, turns } = texts.lengths;
  const fresh = (opening / turns + action + observation) / bestOf;
  const count = episodes * bestOf;
  const judged = pass(texts, "rewards", turns * count, texts.state, action, false);
  return {
    times: iterations * (every === 0 ? 1 : Math.ceil(rewardUpdates / every)),
    generation: [generationCall(texts, "actions", "θ", texts.state, fresh, { texts: count, times: turns })],
    passes: [{ ...judged, scored: 0 }],
  };
}
