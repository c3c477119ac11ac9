/** A tiny environment for tests: say the hidden word. The desk answers every wrong word with the right one. */

import type { Action, Environment, Episode, Message, StepResult } from "../../lib/environments/contract.ts";

export interface Errand {
  word: string;
}

export function errandEnvironment(options: { turns?: number; words?: string[] } = {}): Environment<Errand> {
  const turns = options.turns ?? 3;
  const words = options.words ?? ["key", "lamp", "map"];
  let current: Episode | undefined;
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
        return { observation, reward: right ? 1 : 0, done: right || turn >= turns, info: { turn } };
      },
      close: async () => undefined,
    };
  };
  return {
    name: "errand",
    actionFormat: turns === 1 ? "solution" : "text",
    maxTurns: turns,
    tasks: async (split) => words.map((word) => ({ word: split === "train" ? word : `${word}s` })),
    taskId: (task) => task.word,
    start,
    reset: async (task) => {
      current = await start(task);
      return current.observation;
    },
    step: (action) => current!.step(action),
    close: async () => undefined,
  };
}
