/** The calls and passes that the work of a training consists of. */

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

/** A call that generates `texts` completions, done `times` times. */
export interface GenerationCall {
  what:
    | "actions"
    | "futures"
    | "targets"
    | "attempts"
    | "next actions"
    | "critiques"
    | "refinements"
    | "corrected targets"
    | "branches"
    | "summaries"
    | "proposals"
    | "candidates"
    | "samples"
    | "other actions"
    | "corrected refinements";
  weights: "θ" | "θ̄";
  times: number;
  texts: number;
  /** Tokens of a prompt, and those that no earlier call with the same weights has read. */
  prompt: number;
  fresh: number;
  /** Generated tokens. */
  generated: number;
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
  /** Reward models trained beside θ, each with its own moments. */
  rewardModels: number;
  lengths: TextLengths;
  /** The recipe's limits within the model's context: prompt, and text of each kind, in tokens. */
  limits: { prompt: number; action: number; critique: number };
  /**
   * Generation of an iteration's episodes, of one update, and of each diagnosis or measurement of a
   * reward model.
   */
  playing: GenerationCall[];
  generation: GenerationCall[];
  diagnosis: { times: number; generation: GenerationCall[]; passes?: Pass[] };
  /** Evaluations during training, which belong to no iteration. */
  evaluation: { times: number; generation: GenerationCall[] };
  passes: Pass[];
  /** Before all iterations; the steps of all models together. */
  warmup: { steps: number; pass: Pass };
}

/** For texts of the assumed lengths. */
export interface Texts {
  lengths: TextLengths;
  limits: Work["limits"];
  /** Tokens before a transition's action. */
  state: number;
  /** The model's context, tokens. */
  context: number;
}

export function generationCall(
  { lengths, limits, context }: Texts,
  what: GenerationCall["what"],
  weights: GenerationCall["weights"],
  prompt: number,
  fresh: number,
  more: Pick<GenerationCall, "texts"> & Partial<GenerationCall>,
): GenerationCall {
  const generated = isAction(what) ? lengths.action : lengths.critique;
  // Roles other than the policy are limited only by the context (lib/roles/role-writer.ts).
  const acting = ["actions", "attempts", "branches", "candidates", "samples"].includes(what);
  const longest = acting ? limits.prompt : context - 1;
  // Prompt and completion fit the context together.
  const held = (tokens: number) => Math.max(1, Math.min(tokens, longest, context - generated));
  return { what, weights, times: 1, prompt: held(prompt), fresh: held(fresh), generated, ...more };
}

function isAction(what: GenerationCall["what"]): boolean {
  const others = ["summaries", "proposals", "futures", "targets", "critiques", "corrected targets"];
  return !others.includes(what);
}

export function pass(
  { context }: Texts,
  what: string,
  texts: number,
  prompt: number,
  scored: number,
  backward = true,
): Pass {
  return { what, texts, tokens: Math.min(prompt + scored, context), scored, backward };
}

export type Update = Pick<
  Work,
  | "updates"
  | "steps"
  | "moments"
  | "averages"
  | "references"
  | "rewardModels"
  | "generation"
  | "passes"
  | "diagnosis"
>;

/** For a recipe that ends after its warm-up, except θ̄. */
export const resting: Update = {
  updates: 0,
  steps: 0,
  moments: 1,
  averages: 0,
  references: 0,
  rewardModels: 0,
  generation: [],
  passes: [],
  diagnosis: { times: 0, generation: [] },
};
