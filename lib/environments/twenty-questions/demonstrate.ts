/**
 * Scripted games with judgements, for a supervised warm-up. The scripted guesser asks good
 * questions; each comes with a worse alternative (a premature guess or a repeated question) and
 * what is wrong with it.
 */

import { derivedSeed, streams, uniform } from "../../base/random.ts";
import type {
  Action,
  Demonstration,
  Episode,
  JudgedAction,
  Message,
  StartOptions,
  StepResult,
} from "../../contract/environment.ts";
import { scriptedGuesser, withArticle } from "./guesser.ts";
import { readQuestion } from "./questions.ts";

/** Plays an episode to its end. Only `words` are named, so that no test word is revealed. */
export async function demonstrate(
  start: () => Promise<Episode>,
  words: readonly string[],
  turns: number,
  options: StartOptions,
): Promise<Demonstration> {
  const episode = await start();
  const play = scriptedGuesser({ words, turns, seed: derivedSeed(options.seed, streams.policy, 0) });
  const history: { action: Action; result: StepResult }[] = [];
  const shown: Demonstration["turns"] = [];
  for (let turn = 0; turn < turns; turn++) {
    const written = await play({ observation: episode.observation, history });
    const action = { text: written.text, thought: brief(written.thought ?? "") };
    const result = await episode.step(action);
    const { observation, reward, terminated } = result;
    const future = expectation(action.text, turns - turn - 1);
    const poor: JudgedAction = { ...poorAction(action, history, words, options.seed, turn), better: action };
    if (!terminated) {
      // The oracle's answer does not depend on the turn, so a separate episode can be asked.
      const beside = await start();
      const answer = await beside.step(poor.action);
      await beside.close();
      // A premature guess may be lucky. Its outcome would contradict the judgement.
      if (!answer.terminated) poor.outcome = outcome(answer.observation, answer.reward, poor.future);
    }
    shown.push({
      action,
      judged: [
        { action, future, outcome: outcome(observation, reward, terminated ? undefined : future) },
        poor,
      ],
      observation,
    });
    history.push({ action, result });
    if (terminated) break;
  }
  await episode.close();
  return { observation: episode.observation, turns: shown };
}

/**
 * The result of an action: first what was observed, then what is expected. Without a future, the
 * game is over.
 */
function outcome(
  observation: Message[],
  reward: number,
  future: string | undefined,
): NonNullable<JudgedAction["outcome"]> {
  const seen = observation.map(({ content }) => content.trim()).join(" ");
  return {
    observation,
    reward,
    terminated: future === undefined,
    ...(future === undefined ? {} : { future }),
    joined: `The answer is: ${seen} ${future ?? ""}`.trim(),
  };
}

/** The guesser's thought up to its first conclusion: a small model learns short lines sooner. */
function brief(thought: string): string {
  const end = /[.:;] /.exec(thought);
  return end === null ? thought : `${thought.slice(0, end.index)}.`;
}

function isGuess(text: string): boolean {
  return readQuestion(text).kind === "guess";
}

function expectation(text: string, left: number): string {
  if (isGuess(text)) return "The guess fits everything that is known, so the word is probably found.";
  return left > 5
    ? "The answer rules out many things, and more questions like it lead to the word."
    : "The answer rules out some things, and the word can be guessed soon after.";
}

function poorAction(
  good: Action,
  history: readonly { action: Action }[],
  words: readonly string[],
  seed: number,
  turn: number,
): JudgedAction {
  const random = (number: number) => uniform(seed, streams.warmup, turn * 4 + number);
  const advice = isGuess(good.text)
    ? `Guess "${good.text}" now, because it fits all the answers.`
    : `Ask "${good.text}" instead, because it rules out more things at once.`;
  const repeated = history[Math.floor(random(0) * history.length)]?.action.text;
  if (repeated !== undefined && random(1) < 0.5) {
    return {
      action: { text: repeated, thought: "I want to be sure." },
      future: "The answer is the same as before, a question is lost, and the word may not be found in time.",
      advice,
    };
  }
  const word = words[Math.floor(random(2) * words.length)]!;
  return {
    action: { text: `Is it ${withArticle(word)}?`, thought: "I simply guess." },
    future: "The answer is probably no, since many other things are possible, and a question is lost.",
    advice,
  };
}
