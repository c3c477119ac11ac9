/** Splits an episode into the token sequences that a policy gradient trains on. */

import { isFaulty, type Trajectory } from "../episodes/trajectory.ts";
import type { ScoredText } from "../model/language-model.ts";

/** Consecutive turns scored in one forward pass. Every list is [response tokens]. */
export interface EpisodeText extends ScoredText {
  /**
   * 1 for tokens that the policy generated, 0 for those of the environment or the chat template.
   */
  weight: number[];
  /**
   * Position of each turn's own tokens, [start, end) of the response, and the reward it received.
   */
  turns: { start: number; end: number; reward: number }[];
  /**
   * The prompt of the state after the last turn, to bootstrap a value from; absent if the episode
   * terminated there.
   */
  next?: number[];
}

/**
 * The episode's sequences, each from the policy's first token in it to its last. If every state
 * extends the one before, there is one sequence. If the chat history drops the reasoning of earlier
 * turns, a state does not extend the turn before it, and a new sequence begins there. The last turn
 * of a faulty episode has no known outcome and is left out, as in `transitionsOf`. Empty if no turn
 * remains.
 *
 * @param maxPositions context length of a model that predicts values. The last sequence of a
 *   truncated episode then has `next`, the state at which it was cut; if the context has no room
 *   for it, the sequence ends one turn earlier. Default: nothing is bootstrapped at the end
 */
export function episodeTexts(trajectory: Trajectory, maxPositions?: number): EpisodeText[] {
  let turns = isFaulty(trajectory) ? trajectory.turns.slice(0, -1) : trajectory.turns;
  let next: number[] | undefined;
  if (maxPositions !== undefined && turns.at(-1)?.truncated) {
    next = trajectory.conversation.prompt();
    if (next.length >= maxPositions) {
      next = turns.at(-1)!.state.prompt();
      turns = turns.slice(0, -1);
    }
  }
  const texts: (EpisodeText & { response: number[] })[] = [];
  for (const { state, tokens, reward } of turns) {
    const prompt = state.prompt();
    let text = texts.at(-1);
    if (text === undefined || !extendsText(prompt, text)) {
      if (text !== undefined) text.next = prompt;
      text = { prompt, response: [], weight: [], turns: [] };
      texts.push(text);
    }
    const { response, weight } = text;
    for (const id of prompt.slice(text.prompt.length + response.length)) {
      response.push(id);
      weight.push(0);
    }
    const start = response.length;
    for (const id of tokens) {
      response.push(id);
      weight.push(1);
    }
    text.turns.push({ start, end: response.length, reward });
  }
  const last = texts.at(-1);
  if (last !== undefined && next !== undefined) last.next = next;
  return texts;
}

/** Whether `prompt` starts with the whole sequence. */
function extendsText(prompt: readonly number[], { prompt: first, response }: EpisodeText): boolean {
  return (
    prompt.length >= first.length + response.length &&
    first.every((id, i) => prompt[i] === id) &&
    response.every((id, i) => prompt[first.length + i] === id)
  );
}
