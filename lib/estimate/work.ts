/**
 * The work of a training: all generations and losses of an iteration, with expected token counts.
 */

import type { NlacConfig } from "../algorithms/nlac.ts";
import type { SacConfig } from "../algorithms/sac.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { type EpochConfig, updatesPerRound } from "../training/rounds.ts";
import type { ModelShape } from "./shape.ts";

/** Assumed lengths in tokens. */
export interface TextLengths {
  /** The policy's prompt at the start of an episode. */
  opening: number;
  action: number;
  observation: number;
  /** A future, a target or a critique. */
  critique: number;
  /** A role's instructions, with the template's tokens. */
  request: number;
  /** The reasoning before an answer, for reasoning models; not part of the history. */
  thought: number;
  /** Turns per episode. */
  turns: number;
}

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
 * What is known better. Openings and requests: measured with SmolLM2's tokenizer, for errands with
 * its model's own. `turns`: the environment's limit. twentyQuestions: actions and critiques of a
 * one-hour run (docs/experiments.md). tauBench: half of its observations are the records that its
 * retail tasks look up. math: solutions and thoughts are guessed to be longer.
 */
const assumed: Readonly<Record<string, Partial<TextLengths>>> = {
  twentyQuestions: { opening: 225, action: 40, observation: 10, critique: 50, turns: 20 },
  math: { opening: 110, action: 400, observation: 0, request: 70, thought: 4000, turns: 1 },
  tauBench: { opening: 4200, observation: 250 },
  errands: { opening: 24, action: 8, observation: 8, critique: 12, request: 8, thought: 0, turns: 6 },
};

/** A call that generates `texts` completions, done `times` times. */
export interface Writing {
  what:
    | "actions"
    | "futures"
    | "targets"
    | "attempts"
    | "next actions"
    | "critiques"
    | "refinements"
    | "corrected targets"
    | "corrected refinements";
  weights: "θ" | "θ̄";
  times: number;
  texts: number;
  /** Tokens of a prompt, and those that no earlier call with the same weights has read. */
  prompt: number;
  fresh: number;
  /** Generated tokens. */
  written: number;
}

/** A training pass over `texts` texts. */
export interface Pass {
  what: string;
  texts: number;
  /** Tokens read per text. */
  tokens: number;
  /** Tokens of these that have a loss. */
  scored: number;
  backward: boolean;
}

export interface Work {
  /** Iterations; episodes and updates per iteration, and optimizer steps per update. */
  iterations: number;
  episodes: number;
  updates: number;
  steps: number;
  /** Sets of AdamW moments; copies of θ that are moving averages, and constant ones. */
  moments: number;
  averages: number;
  references: number;
  lengths: TextLengths;
  /** The recipe's limits within the model's context: prompt, and text of each kind, in tokens. */
  limits: { prompt: number; action: number; critique: number };
  /** Generation of an iteration's episodes, of one update, and of each diagnosis. */
  playing: Writing[];
  writing: Writing[];
  diagnosis: { times: number; writing: Writing[] };
  passes: Pass[];
  /** Before all iterations. */
  warmup: { steps: number; pass: Pass };
}

/** Figures of the environment, if it could be opened. */
export interface Play {
  turns: number;
}

/**
 * Assumes that every episode uses all its turns, and that no text exceeds the recipe's limits or
 * the model's context.
 */
export function workOf(recipe: Recipe, { maxPositions }: ModelShape, play?: Play): Work {
  const { config } = recipe;
  const expected = { ...guessed, ...assumed[recipe.environment.name], ...play };
  const critic =
    recipe.algorithm === "nlac"
      ? recipe.config
      : { reasoning: false, maxCriticTokens: config.maxActionTokens };
  const thought = critic.reasoning ? expected.thought : 0;
  const limits = {
    prompt: Math.min(config.maxPromptTokens, maxPositions - 1),
    action: Math.min(config.maxActionTokens, maxPositions - 1),
    critique: Math.min(critic.maxCriticTokens, maxPositions - 1),
  };
  const lengths: TextLengths = {
    ...expected,
    thought,
    action: Math.min(thought + expected.action, limits.action),
    critique: Math.min(thought + expected.critique, limits.critique),
  };
  const { opening, observation, critique, request, turns } = lengths;
  const action = answerTokens(lengths.action, lengths);
  // The state of a transition: on average, half of the other turns precede it.
  const state = Math.min(opening + ((turns - 1) / 2) * (action + observation), limits.prompt);
  const texts: Texts = { lengths, limits, state, context: maxPositions };
  const { steps, batchSize } = recipe.warmup;
  const work = {
    iterations: config.iterations,
    episodes: config.episodesPerIteration,
    lengths,
    limits,
    playing: [
      writing(texts, "actions", "θ", state, opening / turns + action + observation, {
        texts: config.episodesPerIteration,
        times: turns,
      }),
    ],
    // A text is a conversation up to the reply of one of its roles.
    warmup: { steps, pass: pass(texts, "warm-up", batchSize, state + action + request, critique) },
  };
  return config.iterations === 0
    ? { ...work, ...resting, averages: updateOf(recipe, texts).averages, playing: [] }
    : { ...work, ...updateOf(recipe, texts) };
}

/** The part of a text that stays in the history. */
function answerTokens(written: number, { thought }: TextLengths): number {
  return Math.max(0, written - thought);
}

type Update = Pick<
  Work,
  "updates" | "steps" | "moments" | "averages" | "references" | "writing" | "passes" | "diagnosis"
>;

/** For a recipe that ends after its warm-up, except θ̄. */
const resting: Update = {
  updates: 0,
  steps: 0,
  moments: 1,
  averages: 0,
  references: 0,
  writing: [],
  passes: [],
  diagnosis: { times: 0, writing: [] },
};

function updateOf(recipe: Recipe, texts: Texts): Update {
  switch (recipe.algorithm) {
    case "nlac":
      return nlacUpdate(recipe.config, texts);
    case "rft": {
      const { updatesPerIteration, batchSize } = recipe.config;
      const { state, lengths } = texts;
      const passes = [pass(texts, "NLL", batchSize, state, lengths.action)];
      return { ...resting, updates: updatesPerIteration, steps: 1, passes };
    }
    case "grpo":
      return surrogateUpdate(recipe.config, texts, false);
    case "ppo":
      return surrogateUpdate(recipe.config, texts, true);
    case "sac":
      return softQUpdate(recipe.config, texts);
  }
}

/** For texts of the assumed lengths. */
interface Texts {
  lengths: TextLengths;
  limits: Work["limits"];
  /** Tokens before a transition's action. */
  state: number;
  /** The model's context, tokens. */
  context: number;
}

function writing(
  { lengths, limits, context }: Texts,
  what: Writing["what"],
  weights: Writing["weights"],
  prompt: number,
  fresh: number,
  more: Pick<Writing, "texts"> & Partial<Writing>,
): Writing {
  const written = isAction(what) ? lengths.action : lengths.critique;
  // Roles other than the policy are limited only by the context (lib/roles/role-writer.ts).
  const longest = what === "actions" || what === "attempts" ? limits.prompt : context - 1;
  const held = (tokens: number) => Math.min(tokens, longest);
  return { what, weights, times: 1, prompt: held(prompt), fresh: held(fresh), written, ...more };
}

function isAction(what: Writing["what"]): boolean {
  return ["actions", "attempts", "next actions", "refinements", "corrected refinements"].includes(what);
}

function pass(
  { context }: Texts,
  what: string,
  texts: number,
  prompt: number,
  scored: number,
  backward = true,
): Pass {
  return { what, texts, tokens: Math.min(prompt + scored, context), scored, backward };
}

/** lib/algorithms/nlac.ts: per transition, two conversations that grow, under θ̄ and under θ. */
function nlacUpdate(config: NlacConfig, texts: Texts): Update {
  const { lengths, state } = texts;
  const { observation, request, turns } = lengths;
  const [action, critique] = [answerTokens(lengths.action, lengths), answerTokens(lengths.critique, lengths)];
  const batch = { texts: config.batchSize };

  // With a single step, a score takes the place of the future.
  const bootstrapped = turns > 1 && config.bootstrap !== "none";
  const outcome = state + action + observation + request;
  const backup = bootstrapped ? outcome + critique + request : outcome;
  const calls = bootstrapped ? futureCalls(config, texts, config.batchSize) : [];
  calls.push(writing(texts, "targets", "θ̄", backup, bootstrapped ? request : backup, batch));
  if (config.reasoning)
    calls.push(writing(texts, "corrected targets", "θ̄", backup + lengths.critique + request, request, batch));
  calls.push(...refineCalls(config, texts, config.batchSize));

  const student = state + action + request;
  const passes = [
    pass(texts, "L1 by θ", config.batchSize, student, lengths.critique),
    pass(texts, "L2", config.batchSize, state, lengths.action),
  ];
  if (!config.reasoning && config.support !== "sampled") {
    passes.push(pass(texts, "L1 by θ̄", config.batchSize, backup, critique, false));
  }
  if (config.rehearsal > 0) passes.push(pass(texts, "rehearsal", config.rehearsal, student, critique));
  return {
    ...resting,
    updates: config.updatesPerIteration,
    steps: 2,
    moments: config.optimizerState === "separate" ? 2 : 1,
    averages: 1,
    writing: calls,
    passes,
    diagnosis: diagnosisOf(config, texts),
  };
}

/** lib/roles/futures.ts: d' of `count` transitions. */
function futureCalls(config: NlacConfig, texts: Texts, count: number): Writing[] {
  const { lengths, state } = texts;
  const { observation, request } = lengths;
  const action = answerTokens(lengths.action, lengths);
  const batch = { texts: count };
  const next = state + action + observation;
  if (config.bootstrap !== "successor")
    return [writing(texts, "futures", "θ̄", next + request, next + request, batch)];
  return [
    writing(texts, "next actions", "θ̄", next, next, batch),
    writing(texts, "futures", "θ̄", next + action + request, request, batch),
  ];
}

/**
 * lib/roles/refinements.ts: for `count` states, attempts (unless stored), critiques, refinements.
 */
function refineCalls(config: NlacConfig, texts: Texts, count: number): Writing[] {
  const { lengths, state } = texts;
  const { request, turns } = lengths;
  const [action, critique] = [answerTokens(lengths.action, lengths), answerTokens(lengths.critique, lengths)];
  const batch = { texts: count };
  const calls: Writing[] = [];
  if (config.attempt === "fresh") calls.push(writing(texts, "attempts", "θ", state, state, batch));
  let chain = state + action;
  // The part of (s, a) that no call with these weights has read.
  let unread = config.attempt === "fresh" ? 0 : chain;
  const futures = config.futures > 1 && turns > 1 ? config.futures : 0;
  for (let round = 0; round < config.refinements; round++) {
    const acted = state + action;
    if (futures > 0) {
      const each = { texts: count * futures };
      calls.push(writing(texts, "futures", "θ", acted + request, unread + request, each));
      unread = futures * critique;
    }
    const asked = futures * critique + request;
    calls.push(writing(texts, "critiques", "θ", acted + asked, unread + request, batch));
    // The first critique stays in the refiner's conversation; later ones are read again there.
    chain += asked + critique + request;
    const fresh = round === 0 ? request : asked + critique + request;
    calls.push(writing(texts, "refinements", "θ", chain, fresh, batch));
    chain += action;
    unread = action;
  }
  if (config.reasoning)
    calls.push(
      writing(texts, "corrected refinements", "θ", chain + lengths.thought + request, request, batch),
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
    if (branches > 0) calls.push(writing(texts, "actions", "θ", prompt, turn, going));
  }
  return { times: Math.ceil(config.iterations / every), writing: calls };
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

/** All calls of a run. */
export function allWriting({ playing, writing, diagnosis }: Work): Writing[] {
  return [...playing, ...writing, ...diagnosis.writing];
}

/**
 * The same work with every text as long as the recipe allows, but observations and requests as
 * assumed: if this fits, no text can exhaust the memory. NLAC's roles read a prompt and an action
 * of maximum length, and the texts generated about them.
 */
export function atLimits(work: Work, recipe: Recipe, { maxPositions }: ModelShape): Work {
  const { limits } = work;
  const stretch = (call: Writing): Writing => {
    const written = isAction(call.what) ? limits.action : limits.critique;
    return { ...call, prompt: Math.min(limits.prompt, maxPositions - written), written };
  };
  const playing = work.playing.map(stretch);
  if (recipe.algorithm === "nlac") {
    const lengths = { ...work.lengths, thought: 0, action: limits.action, critique: limits.critique };
    const texts: Texts = { lengths, limits, state: limits.prompt, context: maxPositions };
    const { writing, diagnosis, passes } =
      recipe.config.iterations === 0 ? resting : nlacUpdate(recipe.config, texts);
    // A prompt leaves room for the completion.
    const within = (call: Writing): Writing => ({
      ...call,
      prompt: Math.min(call.prompt, Math.max(1, maxPositions - call.written)),
    });
    return {
      ...work,
      playing,
      writing: writing.map(within),
      diagnosis: { ...diagnosis, writing: diagnosis.writing.map(within) },
      passes,
    };
  }
  const tokens = Math.min(limits.prompt + Math.max(limits.action, limits.critique), maxPositions);
  return {
    ...work,
    playing,
    writing: work.writing.map(stretch),
    diagnosis: { ...work.diagnosis, writing: work.diagnosis.writing.map(stretch) },
    passes: work.passes.map((part) => ({ ...part, tokens })),
  };
}
