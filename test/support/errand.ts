/**
 * A tiny environment for tests: say the hidden word. The desk answers every wrong word with the
 * right one.
 */

import { uniform } from "../../lib/base/random.ts";
import type { Action, Environment, Episode, Message, StepResult } from "../../lib/contract/environment.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { ScriptedModel } from "./scripted-model.ts";

export interface Errand {
  word: string;
}

/**
 * With one turn it is a task with a solution, unless `singleStep` makes it one of a single action.
 */
export function errandEnvironment(
  options: {
    turns?: number;
    words?: string[];
    singleStep?: boolean;
    /** Whether the limit of turns is a rule (default), or cuts the episode. */
    turnLimitEnds?: boolean;
  } = {},
): Environment<Errand> {
  const { turnLimitEnds = true } = options;
  const turns = options.turns ?? 3;
  const words = options.words ?? ["key", "lamp", "map"];
  const start = async (task: Errand): Promise<Episode> => {
    let turn = 0;
    return {
      observation: {
        messages: [
          { role: "system", content: "You run errands." },
          { role: "user", content: "What do you bring?" },
        ],
      },
      step: async (action: Action): Promise<StepResult> => {
        turn++;
        const right = action.text === task.word;
        const observation: Message[] = [
          { role: "user", content: right ? "OBSERVED thanks" : `OBSERVED wants ${task.word}` },
        ];
        const atLimit = turn >= turns;
        const terminated = right || (atLimit && turnLimitEnds);
        const truncated = atLimit && !terminated;
        return { observation, reward: right ? 1 : 0, terminated, truncated, info: { turn } };
      },
      close: async () => undefined,
    };
  };
  return {
    name: "errand",
    actionFormat: turns === 1 && options.singleStep === undefined ? "solution" : "text",
    ...(options.singleStep === undefined ? {} : { singleStep: options.singleStep }),
    maxTurns: turns,
    turnLimitEnds,
    tasks: async (split) => words.map((word) => ({ word: split === "train" ? word : `${word}s` })),
    taskId: (task) => task.word,
    start,
    close: async () => undefined,
  };
}

/** Counts the actions that `environment` is given from now on. */
export function countActions<Task>(environment: Environment<Task>): { actions: number } {
  const count = { actions: 0 };
  const { start } = environment;
  environment.start = async (...args) => {
    const episode = await start(...args);
    const step: Episode["step"] = (action) => {
      count.actions++;
      return episode.step(action);
    };
    return { ...episode, step };
  };
  return count;
}

/**
 * Brings soap, and then what the desk asked for in a share of the episodes: chance decides by the
 * request's seed.
 */
export function luckyReply(share: () => number) {
  return (prompt: string, _weights: unknown, _i: number, { seed }: { seed?: number | bigint }): string => {
    const asked = /OBSERVED wants (\w+)/.exec(prompt)?.[1];
    const word = asked !== undefined && uniform(Number(seed), 0, 0) < share() ? asked : "soap";
    return `Thought:\nhm\nAction:\n${word}`;
  };
}

/** One episode in which the model replies by a script. */
export function play(reply: (prompt: string) => string, environment = errandEnvironment()) {
  return collectTrajectories({
    model: new ScriptedModel(reply),
    environment,
    episodes: [{ id: 0, task: { word: "key" } }],
    seed: 0,
    maxActionTokens: 100,
    maxPromptTokens: 10_000,
    temperature: 1,
  });
}
