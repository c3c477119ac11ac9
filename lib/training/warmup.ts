/**
 * Supervised warm-up before training: a small model learns the reply forms of all roles from
 * scripted episodes that the environment judges. It is not part of the method, and
 * instruction-tuned models do not need it.
 */

import { z } from "zod";
import { messageOf, NlacError, throwIfAborted } from "../base/errors.ts";
import { derivedSeed, permutation, streams } from "../base/random.ts";
import { checkConfig } from "../base/validation.ts";
import { type Action, type Demonstration, type Environment, isSingleStep } from "../contract/environment.ts";
import { withTimeout } from "../contract/timeout.ts";
import type { LanguageModel, ScoredText } from "../model/language-model.ts";
import {
  futureRequest,
  observedTargetRequest,
  solutionTargetRequest,
  targetRequest,
  terminalTargetRequest,
} from "../prompts/backup.ts";
import { criticRequest } from "../prompts/critic.ts";
import { actionSummary, policyConversation, turnTokens, unreadableReason } from "../prompts/policy.ts";
import { refinerRequest } from "../prompts/refiner.ts";
import { type Role, user } from "../roles/role-writer.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { requireDemonstrations, requireTasks } from "./requirements.ts";

const decay = z.number().min(0).lt(1);

export const warmupConfig = z.strictObject({
  /** Optimizer steps. Default 0: no warm-up. */
  steps: z.int().min(0).default(0),
  /** Examples per step, drawn from all roles. Default 16. */
  batchSize: z.int().min(1).default(16),
  /** Peak learning rate; it decays to 0 over the steps. Default 1e-4. */
  learningRate: z.number().min(0).default(1e-4),
  /**
   * First steps, over which the learning rate rises; needed by models with random initial weights.
   * Default 0.
   */
  rampSteps: z.int().min(0).default(0),
  /** AdamW's decay rates of the first and second moments. Default [0.9, 0.999]. */
  betas: z.tuple([decay, decay]).default([0.9, 0.999]),
  /** Scripted episodes to take examples from. Default 64. */
  episodes: z.int().min(1).default(64),
  /**
   * Includes examples of targets without a bootstrapped future, for NLAC's `bootstrap: "none"` and
   * "monte-carlo". Default false.
   */
  observedTargets: z.boolean().default(false),
});

/** Settings of a warm-up. */
export type WarmupConfigInput = z.input<typeof warmupConfig>;

/** Options of `warmUp`. */
export interface WarmupOptions<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  config: WarmupConfigInput;
  seed: number;
  signal?: AbortSignal;
  /** Steps that were taken before it was interrupted. Default 0. */
  stepsDone?: number;
  /**
   * Called after every step with the mean NLL of its examples, in nats per token. The next step
   * waits for a promise that it returns.
   */
  onStep?: (step: number, nll: number, tokens: number) => unknown;
}

/**
 * Takes `config.steps` steps on demonstrated examples. θ̄ does not move: methods that have one set
 * it. A warm-up that was interrupted continues from `stepsDone`, with the model as it was then.
 * @throws NlacError ERR_CONFIG for a bad field of `config`, and if the environment has no
 *   demonstrations or no tasks; ERR_ABORTED
 */
export async function warmUp<Task>(options: WarmupOptions<Task>): Promise<void> {
  const { model, environment, seed, stepsDone = 0 } = options;
  const config = checkConfig(warmupConfig, options.config);
  const tasks = await requireTasks(environment, "train");
  const order = permutation(tasks.length, seed, streams.warmup);
  const texts: ScoredText[] = [];
  for (let i = 0; i < config.episodes; i++) {
    const task = tasks[order[i % tasks.length]!]!;
    const shown = await demonstrated(model, environment, task, derivedSeed(seed, streams.warmup, i), config);
    texts.push(...shown);
  }
  let shuffled: number[] = [];
  let shuffledFor = -1;
  for (let step = stepsDone; step < config.steps; step++) {
    throwIfAborted(options.signal);
    const batch = Array.from({ length: config.batchSize }, (_, i) => {
      const at = step * config.batchSize + i;
      const epoch = Math.floor(at / texts.length); // may begin within a batch
      if (epoch !== shuffledFor) {
        shuffled = permutation(texts.length, derivedSeed(seed, streams.warmup, epoch), streams.warmup);
        shuffledFor = epoch;
      }
      const text = texts[shuffled[at % texts.length]!]!;
      return { ...text, weight: 1 / (text.response.length * config.batchSize) };
    });
    const losses = await model.tokenNll(batch);
    const risen = Math.min(1, (step + 1) / Math.max(1, config.rampSteps));
    const fallen = 1 - step / config.steps;
    const learningRate = config.learningRate * risen * fallen;
    await model.step({ learningRate, betas: config.betas, moments: "warmup" });
    const tokens = losses.reduce((sum, { length }) => sum + length, 0);
    const total = losses.reduce((sum, loss) => sum + loss.reduce((a, b) => a + b, 0), 0);
    await options.onStep?.(step + 1, total / tokens, tokens);
  }
  await model.discardMoments("warmup");
}

/** Which examples of a scripted episode are used. */
export interface Shown {
  observedTargets: boolean;
}

/** Seeds that a demonstration is tried with: an environment, or a service behind it, may fail at times. */
const demonstrationTries = 3;

/**
 * Examples of a scripted episode on `task`, a function of the seed.
 * @throws NlacError ERR_CONFIG if the environment has no demonstrations; ERR_ENVIRONMENT or
 *   ERR_SERVICE if the demonstration fails with three seeds in a row
 */
export async function demonstrated<Task>(
  model: LanguageModel,
  environment: Environment<Task>,
  task: Task,
  seed: number,
  shown: Shown = { observedTargets: false },
): Promise<DemonstratedText[]> {
  requireDemonstrations(environment);
  const { stepTimeout = Number.POSITIVE_INFINITY, maxTurns } = environment;
  // It may play an episode: its start and its turns.
  const patience = { stepTimeout: stepTimeout * (1 + maxTurns) };
  for (let tried = 1; ; tried++) {
    const own = tried === 1 ? seed : derivedSeed(seed, streams.warmup, tried);
    let demonstration: Demonstration;
    try {
      demonstration = await withTimeout(() => environment.demonstrate!(task, { seed: own }), patience);
    } catch (error) {
      const code = error instanceof NlacError ? error.code : "ERR_ENVIRONMENT";
      if (code !== "ERR_ENVIRONMENT" && code !== "ERR_SERVICE") throw error;
      if (tried < demonstrationTries) continue;
      const name = JSON.stringify(environment.taskId(task));
      const message = `The demonstration of the task ${name} failed three times: ${messageOf(error)}`;
      throw new NlacError(code, message, { cause: error });
    }
    return demonstratedTexts(model, environment, demonstration, shown);
  }
}

/** An example from a scripted episode, and its role. */
export interface DemonstratedText extends ScoredText {
  role: Exclude<Role, "next" | "correction">;
}

/** The examples of all roles in one scripted episode. */
export function demonstratedTexts(
  model: LanguageModel,
  environment: Pick<Environment, "actionFormat" | "singleStep" | "rewardRange">,
  demonstration: Demonstration,
  { observedTargets }: Shown = { observedTargets: false },
): DemonstratedText[] {
  const { actionFormat: format, rewardRange } = environment;
  const singleStep = isSingleStep(environment);
  const texts: DemonstratedText[] = [];
  /** Continues the conversation with `written` and adds it as an example. */
  const teach = (
    role: DemonstratedText["role"],
    conversation: Conversation,
    written: string | Action,
  ): Conversation => {
    const reason = typeof written === "string" ? undefined : unreadableReason(written, format);
    if (reason !== undefined)
      throw new NlacError(
        "ERR_ENVIRONMENT",
        `A demonstration has an action that the policy could not take (${reason}): ${actionSummary(written as Action)}`,
      );
    const response =
      typeof written === "string"
        ? [...conversation.writeAnswer(written), model.endOfTurn]
        : turnTokens(model, conversation, written, format);
    texts.push({ role, prompt: conversation.prompt(), response });
    return conversation.appendGeneration({ tokens: response });
  };
  const conversation = policyConversation(model, demonstration.observation, format);
  let received = 0; // before the turn
  for (const { action, judged, observation } of demonstration.turns) {
    for (const { action: judgedAction, future, advice, foreseeable, better, outcome } of judged) {
      const tokens = turnTokens(model, conversation, judgedAction, format);
      const acted = conversation.fork().appendGeneration({ tokens });
      const asked = acted.fork().append(user(criticRequest(singleStep, format)));
      const critique = critiqueText(singleStep ? undefined : future, advice);
      if (foreseeable ?? true) teach("critique", asked.fork(), critique);
      if (better !== undefined) {
        asked.appendAssistantText(critique).append(user(refinerRequest(format)));
        teach("refinement", asked, better);
      }
      if (outcome === undefined) continue;
      const target = critiqueText(singleStep ? undefined : outcome.joined, advice);
      if (singleStep) {
        const request = solutionTargetRequest(outcome.reward, outcome.observation, format, rewardRange);
        teach("target", acted.append(user(request)), target);
      } else if (outcome.terminated) {
        const total = received + outcome.reward;
        const request = terminalTargetRequest(outcome.observation, total, true, rewardRange);
        teach("target", acted.append(user(request)), target);
      } else {
        const { observation: answer, reward } = outcome;
        if (observedTargets)
          teach("target", acted.fork().append(user(observedTargetRequest(answer, true, reward))), target);
        teach("future", acted.append(user(futureRequest(answer, reward))), outcome.future ?? "");
        teach("target", acted.append(user(targetRequest(true))), target);
      }
    }
    teach("attempt", conversation, action);
    conversation.append(...observation);
    received += judged.find((one) => one.action.text === action.text)?.outcome?.reward ?? 0;
  }
  return texts;
}

/** A single-step task has no future. */
function critiqueText(future: string | undefined, advice: string | undefined): string {
  const verdict = advice === undefined ? "Yes" : `No. ${advice}`;
  return future === undefined ? `Correctness:\n${verdict}` : `Future:\n${future}\nOptimality:\n${verdict}`;
}
