/**
 * One model under several prompts: writes the texts of one update for the roles of NLAC, all conversations of
 * a batch together, and keeps count of what was written and how much of it could be read.
 */

import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { derivedSeed, streams } from "../base/random.ts";
import type { Environment, Message } from "../contract/environment.ts";
import type { Generation, LanguageModel, WeightSet } from "../model/language-model.ts";
import { actingConfig } from "../playing/config.ts";
import { withoutThought } from "../prompts/corrected-thought.ts";
import { evaluatorRequest } from "../prompts/evaluator.ts";
import type { Conversation } from "../tokens/conversation.ts";

const count = z.int().min(1);
const temperature = z.number().min(0);

/** Every field: meaning, unit, default; the paper's value where it gives one. */
export const rolesConfig = z.strictObject({
  /** k: futures that a critique rests on; 1 is the critic in one generation. Paper: 1. */
  futures: count.default(1),
  /** m: rounds of critique and refinement; 0 is an ablation, L2 of the attempt itself. Paper: 1. */
  refinements: z.int().min(0).default(1),
  /** ã of the refinement: written afresh by the policy (eq. 6), or the stored action. Paper: fresh. */
  attempt: z.enum(["fresh", "stored"]).default("fresh"),
  /**
   * d', which targets are bootstrapped from: written on request after the observation (the paper's appendix A.2),
   * foretold at s' after an action of the target policy, as L1 trains it (its eq. 1), or, an ablation, none. Paper:
   * request.
   */
  bootstrap: z.enum(["request", "successor", "none"]).default("request"),
  /** Train on unparseable targets too (the KL is defined for any text), or leave them out. Paper: not given. */
  targets: z.enum(["all", "parsed"]).default("all"),
  /** Which refinements L2 trains on: all that can be read, or those whose last critique said Yes. Paper: all. */
  refinementsKept: z.enum(["all", "approved"]).default("all"),
  /** The model thinks between <think> tags before it answers (appendix A). Default false. */
  reasoning: z.boolean().default(false),
  ...actingConfig.shape,
  /** Softmax temperature of futures, targets and critiques. Paper: not given. */
  criticTemperature: temperature.default(1),
  /** Softmax temperature of refinements. Paper: not given. */
  refinerTemperature: temperature.default(1),
  /** Longest future, target or critique, tokens. Paper: 24,576. */
  maxCriticTokens: count.default(24_576),
});

export type RolesConfig = z.infer<typeof rolesConfig> & { seed: number };

/** Who writes; "next" is the target policy at s', where `bootstrap` is "successor". */
export type Role = "next" | "future" | "target" | "attempt" | "critique" | "refinement" | "correction";

const roleStreams: Record<Role, number> = {
  next: streams.next,
  future: streams.future,
  target: streams.target,
  attempt: streams.attempt,
  critique: streams.critique,
  refinement: streams.refinement,
  correction: streams.correction,
};

/**
 * A model that was made for a few requests (tokens/phrases.ts) reads others as nothing, and would answer at random.
 * @throws NlacError ERR_CONFIG for one that has no words for the evaluator, where k > 1 asks for it
 */
export function requireWords(
  model: Pick<LanguageModel, "encode" | "decode">,
  { futures }: Pick<RolesConfig, "futures">,
): void {
  if (futures === 1) return;
  const visible = (text: string) => text.replaceAll(/\s/g, "");
  const request = evaluatorRequest([""]);
  if (visible(model.decode(model.encode(request))) === visible(request)) return;
  throw new NlacError(
    "ERR_CONFIG",
    `futures: ${futures} ask for an evaluator, and the model's vocabulary has no words for its request. ` +
      "Set futures to 1, or take a model with an ordinary tokenizer.",
  );
}

/** Generates for the roles of one update and keeps count of what they wrote. */
export class RoleWriter {
  readonly model: LanguageModel;
  readonly actionFormat: Environment["actionFormat"];
  readonly singleStep: boolean;
  readonly rewardRange: readonly [low: number, high: number];
  readonly config: RolesConfig;
  readonly #update: number;
  readonly #signal: AbortSignal;
  readonly #tokens: Partial<Record<Role, number>> = {};
  readonly #surprise: Partial<Record<Role, number>> = {};
  readonly #parsed: Partial<Record<Role, [ok: number, all: number]>> = {};
  readonly #yes: Partial<Record<Role, [yes: number, all: number]>> = {};
  #calls = 0;
  #prompted = 0;
  #cached = 0;

  /** `update` numbers the update: with the seed it determines every text. */
  constructor(
    model: LanguageModel,
    environment: Pick<Environment, "actionFormat" | "singleStep" | "rewardRange">,
    config: RolesConfig,
    update: number,
    signal: AbortSignal,
  ) {
    this.model = model;
    this.actionFormat = environment.actionFormat;
    this.singleStep = environment.singleStep ?? environment.actionFormat === "solution";
    this.rewardRange = environment.rewardRange ?? [0, 1];
    this.config = config;
    this.#update = update;
    this.#signal = signal;
  }

  /**
   * Lets every conversation grow by one text. Undefined in, or a prompt that does not fit:
   * undefined out, and the conversation stays as it was. Only the policy's own prompt has the limit
   * of the configuration: a role that reads a long action would be lost at it, and with it what
   * long actions teach.
   */
  async write(
    role: Role,
    weights: WeightSet,
    conversations: readonly (Conversation | undefined)[],
  ): Promise<(Generation | undefined)[]> {
    const { config, model } = this;
    const limit = this.#longest(role);
    const context = model.maxPositions - 1;
    const longestPrompt = role === "attempt" ? Math.min(config.maxPromptTokens, context) : context;
    const call = this.#calls++;
    const writing = conversations.flatMap((conversation, i) => {
      const tokens = conversation?.prompt();
      if (tokens === undefined || tokens.length > longestPrompt) return [];
      return [{ i, conversation: conversation!, tokens }];
    });
    const generations = await model.generate(
      writing.map(({ i, tokens }) => ({
        tokens,
        maxNewTokens: Math.min(limit, model.maxPositions - tokens.length),
        temperature: this.#temperature(role),
        seed: derivedSeed(
          derivedSeed(config.seed, roleStreams[role], this.#update),
          roleStreams[role],
          call * conversations.length + i,
        ),
        weights,
      })),
      { signal: this.#signal },
    );
    const result: (Generation | undefined)[] = conversations.map(() => undefined);
    for (const [j, { i, conversation, tokens }] of writing.entries()) {
      const generation = generations[j]!;
      conversation.appendGeneration(generation);
      result[i] = generation;
      this.#tokens[role] = (this.#tokens[role] ?? 0) + generation.tokens.length;
      const logProb = generation.logProbs.reduce((sum, value) => sum + value, 0);
      this.#surprise[role] = (this.#surprise[role] ?? 0) - logProb;
      this.#prompted += tokens.length;
      this.#cached += generation.cachedTokens;
    }
    return result;
  }

  /** What `parse` reads in the answer of a text; counts whether it could be read, and its verdict if it has one. */
  read<T extends { ok: boolean; yes?: boolean }>(
    role: Role,
    generation: Generation,
    parse: (answer: string) => T,
  ): T {
    const parsed = parse(this.answer(generation));
    const count = this.#parsed[role] ?? [0, 0];
    this.#parsed[role] = count;
    count[1]++;
    if (!parsed.ok) return parsed;
    count[0]++;
    if (parsed.yes !== undefined) {
      const verdicts = this.#yes[role] ?? [0, 0];
      this.#yes[role] = verdicts;
      verdicts[1]++;
      if (parsed.yes) verdicts[0]++;
    }
    return parsed;
  }

  /** A text without its thought. */
  answer({ text }: Generation): string {
    return this.config.reasoning ? withoutThought(text) : text;
  }

  metrics(): Record<string, number> {
    const metrics: Record<string, number> = {};
    for (const [role, [ok, all]] of Object.entries(this.#parsed)) metrics[`parse/${role}`] = ok / all;
    for (const [role, [yes, all]] of Object.entries(this.#yes)) metrics[`yes/${role}`] = yes / all;
    const generated = Object.values(this.#tokens).reduce((sum, tokens) => sum + tokens, 0);
    for (const [role, tokens] of Object.entries(this.#tokens)) {
      metrics[`tokens/${role}`] = tokens;
      metrics[`share/${role}`] = tokens / generated;
      metrics[`entropy/${role}`] = this.#surprise[role as Role]! / tokens;
    }
    metrics["tokens/generated"] = generated;
    metrics["tokens/prompted"] = this.#prompted;
    metrics["tokens/cached"] = this.#cached;
    return metrics;
  }

  /** Most new tokens of a text. A corrected thought may be as long as what it corrects. */
  #longest(role: Role): number {
    const { maxActionTokens, maxCriticTokens } = this.config;
    if (role === "correction") return Math.max(maxActionTokens, maxCriticTokens);
    return role === "next" || role === "attempt" || role === "refinement" ? maxActionTokens : maxCriticTokens;
  }

  #temperature(role: Role): number {
    if (role === "attempt" || role === "next") return this.config.actionTemperature;
    return role === "refinement" ? this.config.refinerTemperature : this.config.criticTemperature;
  }
}

/** A request to the model. */
export function user(content: string): Message {
  return { role: "user", content };
}
