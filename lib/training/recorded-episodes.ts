/**
 * Recorded episodes as training data of a model. Episodes of the same tokenizer are read as they
 * were sampled. Those of another one, such as the games of a model at a service (`nlac eval
 * service:… --record`), are rendered and tokenized again with this model's chat template and
 * tokenizer.
 */

import { NlacError } from "../base/errors.ts";
import { derivedSeed, streams } from "../base/random.ts";
import type { Environment, Observation, ToolSchema } from "../contract/environment.ts";
import { withTimeout } from "../contract/timeout.ts";
import {
  type EpisodeRecord,
  fromRecord,
  isRestOf,
  renumbered,
  trainableRecords,
} from "../episodes/records.ts";
import type { Trajectory } from "../episodes/trajectory.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { type ActionFormat, policyConversation, turnTokens } from "../prompts/policy.ts";
import type { TrainingRun } from "../run/training-run.ts";

/**
 * The trainable episodes of several files in order, numbered from 0 as by `renumbered`.
 *
 * @throws NlacError ERR_RUN for a damaged file, one that has only test episodes, or an episode of
 *   another tokenizer that lacks the task's messages; ERR_CONFIG if its tools are unknown; ERR_IO
 */
export async function* recordedEpisodes<Task>(
  paths: readonly string[],
  model: LanguageModel,
  environment: Environment<Task>,
): AsyncGenerator<Trajectory> {
  let id = 0;
  let tools: ToolSchema[] | undefined;
  for (const path of paths) {
    const numbers = new Map<number, number>();
    for (const record of trainableRecords(path)) {
      const own = asSampled(record, model, environment.actionFormat);
      if (own === undefined) tools ??= await toolsOf(environment);
      yield renumbered(own ?? tokenizedAgain(path, record, model, environment, tools!), id++, numbers);
    }
  }
}

/**
 * The episodes of `recordedEpisodes`, which `run` records too: it then resumes even if the files no
 * longer exist.
 *
 * @throws NlacError as `recordedEpisodes`
 */
export async function copyRecorded<Task>(
  run: TrainingRun,
  ...source: Parameters<typeof recordedEpisodes<Task>>
): Promise<Trajectory[]> {
  const copied: Trajectory[] = [];
  for await (const trajectory of recordedEpisodes(...source)) {
    run.trajectory(trajectory);
    copied.push(trajectory);
  }
  return copied;
}

/** The episode as it was sampled; undefined if its ids are not `model`'s. */
function asSampled(
  record: EpisodeRecord,
  model: LanguageModel,
  format: ActionFormat,
): Trajectory | undefined {
  try {
    const trajectory = fromRecord(record, model);
    const same = trajectory.turns.every(({ text, tokens }) => isRestOf(text, model.decode(tokens)));
    return same && opens(trajectory, model, format) ? trajectory : undefined;
  } catch (error) {
    // Ids beyond the vocabulary, or a conversation of another template.
    if (error instanceof NlacError) return undefined;
    throw error;
  }
}

/** Whether the conversation opens with the task's messages, as far as these were recorded. */
function opens(
  { conversation, opening, turns }: Trajectory,
  model: LanguageModel,
  format: ActionFormat,
): boolean {
  if (opening === undefined || turns.length === 0) return true;
  if (format === "tool" || format === "call") {
    // The tools were not recorded, but stand in the prompt too.
    const text = model.decode(conversation.tokens);
    return opening.every(({ content }) => text.includes(content.trim()));
  }
  const expected = policyConversation(model, { messages: [...opening] }, format).tokens;
  const { tokens } = turns[0]!.state;
  return expected.length === tokens.length && expected.every((id, i) => id === tokens[i]);
}

/** The tools of an environment, which do not differ between its tasks. */
async function toolsOf<Task>(environment: Environment<Task>): Promise<ToolSchema[]> {
  if (environment.actionFormat === "text" || environment.actionFormat === "solution") return [];
  const [task] = await environment.tasks("train");
  if (task === undefined)
    throw new NlacError(
      "ERR_CONFIG",
      `Episodes of another tokenizer must be rendered again with the tools of their environment, but ${environment.name} has no ` +
        "task to start. Name the environment in which they were played.",
    );
  const start = () => environment.start(task, { seed: derivedSeed(0, streams.episode, 0) });
  const episode = await withTimeout(start, environment);
  try {
    return episode.observation.tools ?? [];
  } finally {
    await episode.close();
  }
}

function tokenizedAgain(
  path: string,
  record: EpisodeRecord,
  model: LanguageModel,
  { actionFormat }: Pick<Environment, "actionFormat">,
  tools: ToolSchema[],
): Trajectory {
  const { opening, turns } = record;
  if (opening === undefined)
    throw new NlacError(
      "ERR_RUN",
      `${path}: episode ${record.id} was recorded with another tokenizer, and does not contain the task's messages.`,
    );
  const observation: Observation = { messages: [...opening], ...(tools.length === 0 ? {} : { tools }) };
  const conversation = policyConversation(model, observation, actionFormat);
  const written = turns.map(({ state: _, sampled: __, ...turn }) => {
    const state = conversation.fork();
    const { action, text } = turn;
    const tokens =
      actionFormat === "call" && action?.tool !== undefined
        ? turnTokens(model, conversation, action, actionFormat)
        : [...conversation.writeAnswer(text), model.endOfTurn];
    conversation.appendGeneration({ tokens }).append(...turn.observation);
    return { ...turn, state, tokens, logProbs: new Float32Array(tokens.length).fill(Number.NaN) };
  });
  return { ...record, turns: written, conversation };
}
