/** An episode as texts that a policy gradient learns from. */

import { isFaulty, type Trajectory } from "../episodes/trajectory.ts";
import type { ScoredText } from "../model/language-model.ts";

/** Turns of an episode that are read at once: every list is [response tokens]. */
export interface EpisodeText extends ScoredText {
  /** 1 where the policy wrote the id, 0 where the environment or the template did. */
  weight: number[];
  /** Where the turns' own ids stand, [start, end) of the response, and what each turn received. */
  turns: { start: number; end: number; reward: number }[];
  /**
   * The prompt of the state after the last turn, to bootstrap a value from; absent where the
   * episode terminated there.
   */
  next?: number[];
}

/**
 * The episode as texts, each from the policy's first id in it to its last: one text where every
 * state holds all that was written before it. Where the history leaves out the reasoning of earlier
 * turns, a state does not extend the turn before it, and a text begins anew there. A fault's last
 * turn has no known outcome, so it is left out, as `transitionsOf` leaves it out. Empty when no
 * turn is left.
 *
 * @param maxPositions of a model that values states. The last text of a truncated episode then has
 *   a `next`, the state at which it was cut; where the model has no room for that, the turn before
 *   it is the last. Default: nothing is bootstrapped at the end
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

/** Whether `prompt` begins with all of the text. */
function extendsText(prompt: readonly number[], { prompt: first, response }: EpisodeText): boolean {
  return (
    prompt.length >= first.length + response.length &&
    first.every((id, i) => prompt[i] === id) &&
    response.every((id, i) => prompt[first.length + i] === id)
  );
}
