/**
 * A supervised warm-up: before training, a small model learns the forms in which all roles are to answer, from
 * scripted episodes that the environment judges itself. It is no part of the method; a model that follows
 * instructions needs none.
 */

import { z } from "zod";
import type { Action, Demonstration, Environment, JudgedAction, Message } from "../environments/contract.ts";
import { NlacError, throwIfAborted } from "../errors.ts";
import type { LanguageModel, ScoredText } from "../model.ts";
import { futureRequest, targetRequest, terminalTargetRequest } from "../prompts/backup.ts";
import { criticRequest } from "../prompts/critic.ts";
import { actionText, policyMessages } from "../prompts/policy.ts";
import { refinerRequest } from "../prompts/refiner.ts";
import { derivedSeed, permutation, streams } from "../random.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { user } from "./roles.ts";

export const warmupConfig = z.strictObject({
  /** Optimizer steps; 0 is no warm-up. */
  steps: z.int().min(0).default(0),
  /** Texts a step, drawn from all roles. */
  batchSize: z.int().min(1).default(16),
  /** Peak learning rate; it falls to 0 over the steps. */
  learningRate: z.number().min(0).default(1e-4),
  /** Scripted episodes the texts are taken from. */
  episodes: z.int().min(1).default(64),
});

export type WarmupConfig = z.infer<typeof warmupConfig>;

export interface WarmupOptions<Task> {
  model: LanguageModel;
  environment: Environment<Task>;
  config: WarmupConfig;
  seed: number;
  signal?: AbortSignal;
  /** Called after every step with the mean NLL of its texts, nats a token. */
  onStep?: (step: number, nll: number, tokens: number) => void;
}

/**
 * Takes `config.steps` steps on demonstrated texts and sets θ̄ to θ.
 * @throws NlacError ERR_CONFIG when the environment cannot demonstrate or has no tasks, ERR_ABORTED
 */
export async function warmUp<Task>(options: WarmupOptions<Task>): Promise<void> {
  const { model, environment, config, seed } = options;
  if (environment.demonstrate === undefined) {
    throw new NlacError("ERR_CONFIG", `${environment.name} has no scripted episodes to warm up on.`);
  }
  const tasks = await environment.tasks("train");
  if (tasks.length === 0) throw new NlacError("ERR_CONFIG", `${environment.name} has no training tasks.`);
  const order = permutation(tasks.length, seed, streams.warmup);
  const texts: ScoredText[] = [];
  for (let i = 0; i < config.episodes; i++) {
    const demonstration = await environment.demonstrate(tasks[order[i % tasks.length]!]!, {
      seed: derivedSeed(seed, streams.warmup, i),
    });
    texts.push(...demonstratedTexts(model, environment, demonstration));
  }
  for (let step = 0; step < config.steps; step++) {
    throwIfAborted(options.signal);
    const epoch = Math.floor((step * config.batchSize) / texts.length);
    const shuffled = permutation(texts.length, derivedSeed(seed, streams.warmup, epoch), streams.warmup);
    const batch = Array.from({ length: config.batchSize }, (_, i) => {
      const text = texts[shuffled[(step * config.batchSize + i) % texts.length]!]!;
      return { ...text, weight: 1 / (text.response.length * config.batchSize) };
    });
    const losses = await model.tokenNll(batch);
    await model.step({ learningRate: config.learningRate * (1 - step / config.steps), state: "warmup" });
    const tokens = losses.reduce((sum, { length }) => sum + length, 0);
    const total = losses.reduce((sum, loss) => sum + loss.reduce((a, b) => a + b, 0), 0);
    options.onStep?.(step + 1, total / tokens, tokens);
  }
  await model.discardMoments("warmup");
  await model.updateTarget(1);
}

/** The texts of all roles that one scripted episode shows. */
export function demonstratedTexts(
  model: LanguageModel,
  environment: Pick<Environment, "actionFormat">,
  demonstration: Demonstration,
): ScoredText[] {
  const format = environment.actionFormat;
  const texts: ScoredText[] = [];
  const write = (action: Action) => actionText(action, format);
  /** Adds `text` as what the model should answer to `conversation`, and lets the conversation go on with it. */
  const teach = (conversation: Conversation, text: string): Conversation => {
    const response = [...model.encode(text), model.endOfTurn];
    texts.push({ prompt: conversation.prompt(), response });
    return conversation.appendGeneration({ tokens: response });
  };
  const backUp = (chain: Conversation, action: JudgedAction, observation: readonly Message[]) => {
    teach(chain.append(user(futureRequest(observation))), action.future);
    teach(chain.append(user(targetRequest(true))), targetText(action, observation, action.future));
  };
  const conversation = model.conversation(policyMessages(demonstration.observation, format), {
    tools: demonstration.observation.tools,
  });
  for (const { good, poor, observation, reward, done } of demonstration.turns) {
    const judged = (action: JudgedAction) =>
      conversation
        .fork()
        .appendAssistantText(write(action.action))
        .append(user(criticRequest(false)));
    // The critic on both actions, and the refiner on what the critic said.
    teach(judged(good), critiqueText(good));
    teach(teach(judged(poor), critiqueText(poor)).append(user(refinerRequest(format))), write(good.action));
    const before = conversation.fork();
    teach(conversation, write(good.action));
    // The backup: from what came of the good action, and from what would have come of the poor one.
    if (done) {
      const ended = conversation.fork().append(user(terminalTargetRequest(observation, reward, true)));
      teach(ended, targetText(good, observation, ""));
    } else {
      backUp(conversation.fork(), good, observation);
      backUp(before.appendAssistantText(write(poor.action)), poor, poor.observation);
    }
    conversation.append(...observation);
  }
  return texts;
}

function critiqueText({ future, advice }: JudgedAction): string {
  return `Future:\n${future}\nOptimality:\n${advice === undefined ? "Yes" : `No. ${advice}`}`;
}

/** What was seen first, then what is expected. */
function targetText(action: JudgedAction, observation: readonly Message[], future: string): string {
  const seen = observation.map(({ content }) => content.trim()).join(" ");
  return critiqueText({ ...action, future: `The answer is: ${seen} ${future}`.trim() });
}
