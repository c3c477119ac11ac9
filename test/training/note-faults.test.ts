import { expect, test } from "vitest";
import type { Environment } from "../../lib/contract/environment.ts";
import { silentProgress } from "../../lib/display/progress.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { collectEpisodes } from "../../lib/training/rounds.ts";
import { act } from "../support/roles.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

const config = {
  episodesPerIteration: 3,
  actionTemperature: 1,
  maxActionTokens: 100,
  maxPromptTokens: 10_000,
  constrainActions: false,
  seed: 0,
};

test("a training shows why episodes failed, each reason once, and at most five", async () => {
  const notes: string[] = [];
  const figures = new Map<string, number>();
  const progress = {
    ...silentProgress,
    note: (text: string) => void notes.push(text),
    show: (given: Record<string, number>) => {
      for (const [name, value] of Object.entries(given)) figures.set(name, value);
    },
    hide: (name: string) => void figures.delete(name),
  };
  let reason: (() => string) | undefined = () => "no database";
  const environment: Environment<string> = {
    name: "desk",
    actionFormat: "text",
    maxTurns: 1,
    tasks: async () => ["form"],
    taskId: String,
    start: async () => {
      if (reason !== undefined) throw new Error(reason());
      return {
        observation: { messages: [{ role: "user", content: "Go." }] },
        step: async () => ({ observation: [], reward: 1, terminated: true, truncated: false, info: {} }),
        close: async () => {},
      };
    },
    close: async () => {},
  };
  const run = memoryRun({ progress });
  const collect = () =>
    collectEpisodes(
      { model: new ScriptedModel(() => act("go")), environment, tasks: ["form"], config, run },
      3,
    );

  await collect();
  await collect();
  expect(notes).toEqual(['play: an episode on the task "form" failed with ERR_ENVIRONMENT: no database']);
  expect(figures.get("faults")).toBe(3);
  let count = 0;
  reason = () => `reason ${count++}`;
  await collect();
  await collect();
  expect(notes).toHaveLength(5);
  reason = undefined;
  await collect();
  expect(figures.has("faults")).toBe(false);
});
