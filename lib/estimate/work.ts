/**
 * The work of a training: all generations and losses of an iteration, with expected token counts.
 */

import type { ArcherConfig } from "../algorithms/archer.ts";
import { batching, type CritiqueGrpoConfig } from "../algorithms/critique-grpo.ts";
import type { NlacConfig } from "../algorithms/nlac.ts";
import type { SacConfig } from "../algorithms/sac.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { type EpochConfig, updatesPerRound } from "../training/rounds.ts";
import {
  type GenerationCall,
  generationCall,
  type Pass,
  pass,
  resting,
  type TextLengths,
  type Texts,
  type Update,
  type Work,
} from "./calls.ts";
import { branchCalls, hopeUpdate, preferencePasses } from "./preference-work.ts";
import type { ModelShape } from "./shape.ts";

export type { GenerationCall, Pass, TextLengths, Work } from "./calls.ts";

/** Guesses for an instruct model of some billion parameters; `thought` for a reasoning model. */
const guessed: TextLengths = {
  opening: 1000,
  action: 100,
  observation: 100,
  critique: 100,
  request: 120,
  thought: 2000,
  turns: 15,
};

/**
 * Known figures by environment. Openings and requests: measured with SmolLM2's tokenizer. `turns`:
 * the environment's limit. twentyQuestions: actions and critiques of a one-hour run
 * (docs/experiments.md). tauBench: half of its observations are the records that its retail tasks
 * look up. math: solutions and thoughts are guessed to be longer. errands: as composed.
 */
const assumed: Readonly<Record<string, Partial<TextLengths>>> = {
  twentyQuestions: { opening: 225, action: 40, observation: 10, critique: 50, turns: 20 },
  math: { opening: 110, action: 400, observation: 0, request: 70, thought: 4000, turns: 1 },
  tauBench: { opening: 4200, observation: 250 },
  errands: { opening: 160, action: 4, observation: 32, critique: 32, turns: 5 },
};

/** Errands with the model made for it, whose tokens are whole sentences. */
const errandsOwn: TextLengths = {
  opening: 24,
  action: 8,
  observation: 8,
  critique: 12,
  request: 8,
  thought: 0,
  turns: 6,
};

function expectedLengths(environment: string, vocabulary: number): TextLengths {
  if (environment === "errands" && vocabulary < 1000) return errandsOwn;
  return { ...guessed, ...assumed[environment] };
}

/** Figures of the environment, if it could be opened. */
export interface Play {
  turns: number;
  /** Training tasks; default 100, for methods whose data grows with them. */
  tasks?: number;
}

/** Rounds of a recipe, and the episodes that the policy plays in each. */
function roundsOf(recipe: Recipe, tasks: number): { iterations: number; episodes: number } {
  const { config } = recipe;
  if ("episodesPerIteration" in config)
    return { iterations: config.iterations, episodes: config.episodesPerIteration };
  if ("epochs" in config) return { iterations: config.epochs, episodes: 0 };
  const chosen = config.tasksPerIteration === 0 ? tasks : config.tasksPerIteration;
  return { iterations: config.iterations, episodes: chosen * config.episodesPerTask };
}

/**
 * `recipe` with the iterations after which its number of environment steps ends it, if they are
 * fewer. A turn is one step; those of branches are not counted.
 */
function endedBySteps(recipe: Recipe, tasks: number, turns: number): Recipe {
  const { config } = recipe;
  const { episodes } = roundsOf(recipe, tasks);
  if (!("environmentSteps" in config) || config.environmentSteps === 0 || episodes === 0) return recipe;
  const iterations = Math.min(config.iterations, Math.ceil(config.environmentSteps / (episodes * turns)));
  return { ...recipe, config: { ...config, iterations } } as Recipe;
}

/**
 * Assumes that every episode uses all its turns, and that no text exceeds the recipe's limits or
 * the model's context.
 */
export function workOf(given: Recipe, { maxPositions, vocabulary }: ModelShape, play?: Play): Work {
  const { tasks = 100, ...known } = play ?? {};
  const expected = { ...expectedLengths(given.environment.name, vocabulary), ...known };
  const recipe = endedBySteps(given, tasks, expected.turns);
  const { config } = recipe;
  const { iterations, episodes } = roundsOf(recipe, tasks);
  const critic = criticLimits(recipe);
  const thought = critic.reasoning ? expected.thought : 0;
  const limits = {
    prompt: Math.min(config.maxPromptTokens, maxPositions - 1),
    action: Math.min(config.maxActionTokens, maxPositions - 1),
    critique: Math.min(critic.maxCriticTokens, maxPositions - 1),
  };
  const lengths: TextLengths = {
    ...expected,
    thought,
    opening: Math.min(expected.opening, limits.prompt),
    action: Math.min(thought + expected.action, limits.action),
    critique: Math.min(thought + expected.critique, limits.critique),
  };
  const { opening, observation, critique, request, turns } = lengths;
  const action = answerTokens(lengths.action, lengths);
  // The state of a transition: on average, half of the other turns precede it.
  const state = Math.min(opening + ((turns - 1) / 2) * (action + observation), limits.prompt);
  const texts: Texts = { lengths, limits, state, context: maxPositions };
  const { steps, batchSize } = recipe.warmup;
  const update = updateOf(recipe, texts, episodes, tasks);
  const { averages, rewardModels } = update;
  const work = {
    ...{ iterations, episodes },
    lengths,
    limits,
    evaluation: evaluationOf(recipe, texts, iterations),
    // A text is a conversation up to the reply of one of its roles.
    warmup: {
      steps: steps * (1 + rewardModels),
      pass: pass(texts, "warm-up", batchSize, state + action + request, critique),
    },
  };
  if (iterations === 0) return { ...work, ...resting, averages, rewardModels, playing: [] };
  return { ...work, ...update, playing: episodes === 0 ? [] : playingOf(recipe, texts, episodes) };
}

/** Whether the roles reason, and the longest text of a role other than the policy. */
function criticLimits({ algorithm, config }: Recipe): { reasoning: boolean; maxCriticTokens: number } {
  if (algorithm === "nlac" || algorithm === "critique-grpo") return config;
  if (algorithm !== "hope") return { reasoning: false, maxCriticTokens: config.maxActionTokens };
  const { maxSummaryTokens, maxProposalTokens } = config;
  return { reasoning: false, maxCriticTokens: Math.max(maxSummaryTokens, maxProposalTokens) };
}

/** The policy's completions in `count` episodes. */
function episodeCall(texts: Texts, count: number): GenerationCall {
  const { lengths, state } = texts;
  const { opening, observation, turns } = lengths;
  const fresh = opening / turns + answerTokens(lengths.action, lengths) + observation;
  return generationCall(texts, "actions", "θ", state, fresh, { texts: count, times: turns });
}

function playingOf(recipe: Recipe, texts: Texts, episodes: number): GenerationCall[] {
  return [
    episodeCall(texts, episodes),
    ...(recipe.algorithm === "critique-grpo" ? refinedGroupCalls(recipe.config, texts) : []),
    ...(recipe.algorithm === "hope" ? branchCalls(recipe.config, texts, episodes) : []),
  ];
}

/** lib/training/periodic-evaluation.ts: before every n-th iteration, and the final policy. */
function evaluationOf({ config }: Recipe, texts: Texts, iterations: number): Work["evaluation"] {
  const { every, episodes } = config.evaluation;
  if (every === 0) return { times: 0, generation: [] };
  return { times: Math.ceil(iterations / every) + 1, generation: [episodeCall(texts, episodes)] };
}

/** The part of a text that stays in the history. */
function answerTokens(generated: number, { thought }: TextLengths): number {
  return Math.max(0, generated - thought);
}

function updateOf(recipe: Recipe, texts: Texts, episodes: number, tasks: number): Update {
  switch (recipe.algorithm) {
    case "nlac":
      return nlacUpdate(recipe.config, texts);
    case "rft": {
      const { updatesPerIteration, batchSize } = recipe.config;
      const { state, lengths } = texts;
      const passes = [pass(texts, "NLL", batchSize, state, lengths.action)];
      if (recipe.config.rehearsal > 0) passes.push(rehearsalPass(texts, recipe.config.rehearsal));
      const references = recipe.config.restart ? 1 : 0;
      return { ...resting, updates: updatesPerIteration, steps: 1, references, passes };
    }
    case "grpo":
      return surrogateUpdate(recipe.config, texts, false);
    case "ppo":
      return surrogateUpdate(recipe.config, texts, true);
    case "sac":
      return softQUpdate(recipe.config, texts);
    case "critique-grpo": {
      const { klCoefficient, episodesPerIteration: first } = recipe.config;
      const together = batching(recipe.config);
      const { episodesPerIteration: all, batchSize } = together;
      const update = surrogateUpdate({ ...together, klCoefficient }, texts, false);
      // A step first computes the probabilities of its refinements.
      const refined = (Math.min(batchSize, all) * (all - first)) / all;
      const read = pass(texts, "refinements", refined, texts.state, texts.lengths.action, false);
      return { ...update, passes: [...update.passes, read] };
    }
    case "archer":
      return archerUpdate(recipe.config, texts);
    case "sft": {
      const { demonstrationsPerTask, batchSize, recorded } = recipe.config;
      // A recorded file is not read here: one game per task is assumed for each. A served run has
      // neither: one full batch of corrections is assumed.
      const named = (demonstrationsPerTask + recorded.length) * tasks * texts.lengths.turns;
      const actions = named === 0 ? batchSize : named;
      const passes = [pass(texts, "NLL", Math.min(batchSize, actions), texts.state, texts.lengths.action)];
      return { ...resting, updates: Math.ceil(actions / batchSize), steps: 1, passes };
    }
    case "dpo": {
      const { pairsPerGroup, batchSize, pairs } = recipe.config;
      const { opening, action, observation, turns } = texts.lengths;
      const all = pairsPerGroup * tasks;
      const whole = pairs === "episodes";
      const prompt = whole ? opening + turns * observation : texts.state;
      const size = 2 * Math.min(batchSize, all);
      const passes = preferencePasses(texts, size, prompt, whole ? turns * action : action);
      return { ...resting, updates: Math.ceil(all / batchSize), steps: 1, references: 1, passes };
    }
    case "hope":
      return hopeUpdate(recipe.config, texts, episodes);
  }
}

/** lib/algorithms/nlac.ts: per transition, two conversations that grow, under θ̄ and under θ. */
function nlacUpdate(config: NlacConfig, texts: Texts): Update {
  const { lengths, state } = texts;
  const { observation, request, turns } = lengths;
  const [action, critique] = [answerTokens(lengths.action, lengths), answerTokens(lengths.critique, lengths)];
  // Completions of several updates are generated in one call.
  const together = config.batchSize * config.updatesAhead;
  const batch = { texts: together };

  // With a single step, a score takes the place of the future.
  const bootstrapped = turns > 1 && (config.bootstrap === "request" || config.bootstrap === "successor");
  // On average, half of the other turns follow a transition.
  const followed = ((turns - 1) / 2) * (action + observation);
  const rest = config.bootstrap === "monte-carlo" ? Math.min(followed, config.maxRestTokens) : 0;
  const outcome = state + action + observation + rest + request;
  const backup = bootstrapped ? outcome + critique + request : outcome;
  const calls = bootstrapped ? futureCalls(config, texts, together) : [];
  calls.push(generationCall(texts, "targets", "θ̄", backup, bootstrapped ? request : backup, batch));
  if (config.reasoning)
    calls.push(
      generationCall(texts, "corrected targets", "θ̄", backup + lengths.critique + request, request, batch),
    );
  calls.push(...refineCalls(config, texts, together));

  const student = state + action + request;
  const passes = [
    pass(texts, "L1 by θ", config.batchSize, student, lengths.critique),
    pass(texts, "L2", config.batchSize, state, lengths.action),
  ];
  if (!config.reasoning && config.support !== "sampled") {
    passes.push(pass(texts, "L1 by θ̄", config.batchSize, backup, critique, false));
  }
  if (config.rehearsal > 0) passes.push(rehearsalPass(texts, config.rehearsal));
  return {
    ...resting,
    updates: config.updatesPerIteration,
    steps: 2,
    moments: config.optimizerState === "separate" ? 2 : 1,
    averages: 1,
    generation: calls.map((call) => ({ ...call, times: call.times / config.updatesAhead })),
    passes,
    diagnosis: diagnosisOf(config, texts),
  };
}

/** lib/training/rehearsal.ts: `count` demonstrated targets and refinements. */
function rehearsalPass(texts: Texts, count: number): Pass {
  const { lengths, state } = texts;
  const [action, critique] = [answerTokens(lengths.action, lengths), answerTokens(lengths.critique, lengths)];
  return pass(texts, "rehearsal", count, state + action + lengths.request, critique);
}

/** lib/roles/futures.ts: d' of `count` transitions. */
function futureCalls(config: NlacConfig, texts: Texts, count: number): GenerationCall[] {
  const { lengths, state } = texts;
  const { observation, request } = lengths;
  const action = answerTokens(lengths.action, lengths);
  const batch = { texts: count };
  const next = state + action + observation;
  if (config.bootstrap !== "successor")
    return [generationCall(texts, "futures", "θ̄", next + request, next + request, batch)];
  return [
    generationCall(texts, "next actions", "θ̄", next, next, batch),
    generationCall(texts, "futures", "θ̄", next + action + request, request, batch),
  ];
}

/**
 * lib/roles/refinements.ts: for `count` states, attempts (unless stored), critiques, refinements.
 * Without refinements, critiques only if they must approve the attempts.
 */
function refineCalls(config: NlacConfig, texts: Texts, count: number): GenerationCall[] {
  const { lengths, state } = texts;
  const { request, turns } = lengths;
  const [action, critique] = [answerTokens(lengths.action, lengths), answerTokens(lengths.critique, lengths)];
  const batch = { texts: count };
  const calls: GenerationCall[] = [];
  if (config.attempt === "fresh") calls.push(generationCall(texts, "attempts", "θ", state, state, batch));
  let chain = state + action;
  // The part of (s, a) that no call with these weights has read.
  let unread = config.attempt === "fresh" ? 0 : chain;
  const futures = config.futures > 1 && turns > 1 ? config.futures : 0;
  const approves = config.refinements === 0 && config.refinementsKept === "approved";
  for (let round = 0; round < (approves ? 1 : config.refinements); round++) {
    const acted = state + action;
    if (futures > 0) {
      const each = { texts: count * futures };
      calls.push(generationCall(texts, "futures", "θ", acted + request, unread + request, each));
      unread = futures * critique;
    }
    const asked = futures * critique + request;
    calls.push(generationCall(texts, "critiques", "θ", acted + asked, unread + request, batch));
    if (approves) return calls;
    // The first critique stays in the refiner's conversation; later ones are read again there.
    chain += asked + critique + request;
    const fresh = round === 0 ? request : asked + critique + request;
    calls.push(generationCall(texts, "refinements", "θ", chain, fresh, batch));
    chain += action;
    unread = action;
  }
  if (config.reasoning && config.refinements > 0)
    calls.push(
      generationCall(texts, "corrected refinements", "θ", chain + lengths.thought + request, request, batch),
    );
  return calls;
}

/**
 * lib/training/diagnose.ts: critiques, refinements and futures of recorded actions, and branches.
 */
function diagnosisOf(config: NlacConfig, texts: Texts): Work["diagnosis"] {
  const { every, transitions, branches } = config.diagnostics;
  if (every === 0) return resting.diagnosis;
  const { opening, observation, turns } = texts.lengths;
  const action = answerTokens(texts.lengths.action, texts.lengths);
  const count = Math.min(transitions, config.episodesPerIteration * turns);
  const refinements = Math.max(1, config.refinements);
  const calls = refineCalls({ ...config, attempt: "stored", refinements }, texts, count);
  if (turns > 1) {
    // The last transition of an episode has no future; the turns after one are later on average.
    calls.push(...futureCalls(config, texts, count * (1 - 1 / turns)));
    const turn = action + observation;
    const prompt = opening + ((2 * turns - 1) / 3) * turn;
    const going = { texts: count * branches, times: (turns - 1) / 2 };
    if (branches > 0) calls.push(generationCall(texts, "actions", "θ", prompt, turn, going));
  }
  return { times: Math.ceil(config.iterations / every), generation: calls };
}

/** lib/algorithms/grpo.ts and ppo.ts: an episode is one text, scored once before the first step. */
function surrogateUpdate(
  config: EpochConfig & { klCoefficient: number },
  texts: Texts,
  values: boolean,
): Update {
  const { opening, action, observation, turns } = texts.lengths;
  const scored = turns * action;
  const prompt = opening + turns * observation;
  const updates = updatesPerRound(config);
  const reference = config.klCoefficient > 0;
  // Scoring the episodes of an iteration, divided by its updates.
  const scorings = (1 + (reference ? 1 : 0) + (values ? 1 : 0)) * (config.episodesPerIteration / updates);
  return {
    ...resting,
    updates,
    steps: 1,
    references: reference ? 1 : 0,
    passes: [
      pass(texts, "surrogate", Math.min(config.batchSize, config.episodesPerIteration), prompt, scored),
      pass(texts, "scores", scorings, prompt, scored, false),
    ],
  };
}

/** lib/algorithms/sac.ts: replayed episodes, read under θ̄ and trained under θ. */
function softQUpdate(config: SacConfig, texts: Texts): Update {
  const { opening, action, observation, turns } = texts.lengths;
  const scored = turns * action;
  const prompt = opening + turns * observation;
  return {
    ...resting,
    updates: config.updatesPerIteration,
    steps: 1,
    averages: 1,
    passes: [
      pass(texts, "Q and policy by θ", config.batchSize, prompt, scored),
      pass(texts, "Q by θ̄", config.batchSize, prompt, scored, false),
    ],
  };
}

/**
 * lib/training/refine-groups.ts: critiques, refinements, and the episodes that continue from them.
 */
function refinedGroupCalls(config: CritiqueGrpoConfig, texts: Texts): GenerationCall[] {
  const { episodesPerIteration, groupSize, refinedPerGroup, maxRestTokens, reasoning } = config;
  const { lengths, state } = texts;
  const { observation, request, turns } = lengths;
  const [action, critique] = [answerTokens(lengths.action, lengths), answerTokens(lengths.critique, lengths)];
  const count = (episodesPerIteration / groupSize) * refinedPerGroup;
  const rest = Math.min(((turns - 1) / 2) * (action + observation), maxRestTokens);
  const asked = state + action + observation + rest + request;
  // The refiner reads the critic's request instead of the outcome.
  const refining = state + action + request + critique + request;
  const batch = { texts: count };
  const calls = [
    generationCall(texts, "critiques", "θ", asked, observation + rest + request, batch),
    generationCall(texts, "refinements", "θ", refining, critique + 2 * request, batch),
  ];
  if (reasoning) {
    const correcting = refining + lengths.action + request;
    calls.push(generationCall(texts, "corrected refinements", "θ", correcting, request, batch));
  }
  if (turns > 1) {
    const going = { texts: count, times: (turns - 1) / 2 };
    calls.push(generationCall(texts, "actions", "θ", state, action + observation, going));
  }
  return calls;
}

/** lib/algorithms/archer.ts: critic steps, whose targets are computed ahead, and policy steps. */
function archerUpdate(config: ArcherConfig, texts: Texts): Update {
  const { criticUpdatesPerIteration: critic, policyUpdatesPerIteration: policy, batchSize } = config;
  const { lengths, state } = texts;
  const { action, observation } = lengths;
  const updates = critic + policy;
  // Averaged over both kinds of update. At most, every drawn transition is another one.
  const ofCritic = (critic / updates) * batchSize;
  const ofPolicy = (policy / updates) * batchSize;
  return {
    ...resting,
    updates,
    steps: 1,
    moments: 2,
    generation: [generationCall(texts, "attempts", "θ", state, state, { texts: batchSize })],
    passes: [
      pass(texts, "J_Q and J_V", ofCritic, state, action),
      pass(texts, "J_π", ofPolicy, state, action),
      pass(texts, "Q of sampled actions", ofCritic, state, action, false),
      pass(texts, "V of next states", ofCritic, state + action, observation, false),
      pass(texts, "Q, V and log probabilities", ofPolicy, state, action, false),
    ],
  };
}

/** All calls of a run. */
export function allGenerationCalls({ playing, generation, diagnosis, evaluation }: Work): GenerationCall[] {
  return [...playing, ...generation, ...diagnosis.generation, ...evaluation.generation];
}

/**
 * The same work with every text as long as the recipe allows, but observations and requests as
 * assumed: if this fits, no text can exhaust the memory. Roles other than the policy read a prompt
 * and an action of maximum length, and the texts generated about them.
 */
export function atLimits(work: Work, recipe: Recipe, { maxPositions }: ModelShape): Work {
  const { limits, iterations, episodes } = work;
  const lengths = { ...work.lengths, thought: 0, action: limits.action, critique: limits.critique };
  const texts: Texts = { lengths, limits, state: limits.prompt, context: maxPositions };
  // The number of tasks decides how many updates there are, not how large one is.
  const update = iterations === 0 ? resting : updateOf(recipe, texts, episodes, 1);
  // A prompt leaves room for the completion.
  const within = (call: GenerationCall): GenerationCall => ({
    ...call,
    prompt: Math.min(call.prompt, Math.max(1, maxPositions - call.generated)),
  });
  const tokens = Math.min(limits.prompt + limits.action, maxPositions);
  return {
    ...work,
    playing: work.playing.length === 0 ? [] : playingOf(recipe, texts, episodes).map(within),
    generation: update.generation.map(within),
    diagnosis: { ...work.diagnosis, generation: update.diagnosis.generation.map(within) },
    evaluation: {
      ...work.evaluation,
      generation: evaluationOf(recipe, texts, iterations).generation.map(within),
    },
    // Other methods train on states and actions only.
    passes: recipe.algorithm === "nlac" ? update.passes : work.passes.map((part) => ({ ...part, tokens })),
  };
}
