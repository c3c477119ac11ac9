import { describe, expect, test } from "vitest";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { memoryRun, newCounters } from "../../lib/run/training-run.ts";
import { deviation } from "../../lib/statistics/mean.ts";
import { type EpisodeText, episodeTexts } from "../../lib/training/episode-texts.ts";
import {
  collectEpisodes,
  completionMetrics,
  episodesFrom,
  minibatch,
  stepsOf,
  updatesPerRound,
} from "../../lib/training/rounds.ts";
import { errandEnvironment } from "../support/errand.ts";
import { endOfTurn, ScriptedModel } from "../support/scripted-model.ts";

const act = (word: string) => `Thought:\nhm\nAction:\n${word}`;

function play(reply: (prompt: string) => string, environment = errandEnvironment()) {
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

const model = new ScriptedModel(() => "");

describe("an episode as one sequence", () => {
  test("begins with the first prompt, ends with the last action, with weight 1 on each turn's own ids", async () => {
    // Unreadable once, wrong once, then right.
    const [trajectory] = await play((prompt) =>
      prompt.includes("could not be read") ? act(prompt.includes("wants key") ? "key" : "lamp") : "lamp!",
    );
    const { turns } = trajectory!;
    expect(turns).toHaveLength(3);
    const [text, ...others] = episodeTexts(trajectory!) as [EpisodeText, ...EpisodeText[]];
    expect(others).toEqual([]);
    expect(text.prompt).toEqual(turns[0]!.state.prompt());
    const all = [...text.prompt, ...text.response];
    expect(all).toEqual(trajectory!.conversation.tokens.slice(0, all.length));
    expect(text.weight).toHaveLength(text.response.length);
    // Turn by turn, as generated after its own prompt.
    for (const [i, { start, end, reward }] of text.turns.entries()) {
      const turn = turns[i]!;
      expect(all.slice(0, text.prompt.length + start)).toEqual(turn.state.prompt());
      expect(text.response.slice(start, end)).toEqual(turn.tokens);
      expect(reward).toBe(turn.reward);
    }
    expect(text.response.filter((_, t) => text.weight[t] === 1)).toEqual(
      turns.flatMap(({ tokens }) => tokens),
    );
    expect(model.decode(text.response.filter((_, t) => text.weight[t] === 0))).toContain(
      "OBSERVED wants key",
    );
    expect(text.response.at(-1)).toBe(endOfTurn);
    expect(model.decode(text.response)).not.toContain("OBSERVED thanks"); // nobody reads what came last
    expect(text.turns.map(({ reward }) => reward)).toEqual([0, 0, 1]);
  });

  test("a scripted assistant's turn among the observations is not the policy's", async () => {
    const environment = errandEnvironment();
    const start = environment.start;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      return {
        ...episode,
        step: async (action) => {
          const result = await episode.step(action);
          const said = { role: "assistant", content: "Let me think." } as const;
          return {
            ...result,
            observation: [...result.observation, said, { role: "user", content: "Go on." }],
          };
        },
      };
    };
    const [trajectory] = await play(() => act("lamp"), environment);
    const [text, ...others] = episodeTexts(trajectory!) as [EpisodeText, ...EpisodeText[]];
    expect(others).toEqual([]);
    expect(text.response.filter((_, t) => text.weight[t] === 1)).toEqual(
      trajectory!.turns.flatMap(({ tokens }) => tokens),
    );
    expect(model.decode(text.response)).toContain("Let me think.");
  });

  test("a fault's last turn is left out; an episode without turns has no sequence", async () => {
    const environment = errandEnvironment();
    const start = environment.start;
    let steps = 0;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      return {
        ...episode,
        step: (action) => (++steps === 2 ? Promise.reject(new Error("closed")) : episode.step(action)),
      };
    };
    const [broken] = await play(() => act("lamp"), environment);
    expect(broken!.outcome).toBe("environment-fault");
    expect(broken!.turns).toHaveLength(2);
    const [text] = episodeTexts(broken!) as [EpisodeText];
    expect(text.turns).toHaveLength(1);
    expect(text.response).toEqual(broken!.turns[0]!.tokens);
    expect(text.weight.every((one) => one === 1)).toBe(true);
    environment.start = () => Promise.reject(new Error("closed"));
    const [never] = await play(() => act("lamp"), environment);
    expect(episodeTexts(never!)).toEqual([]);
  });
});

describe("an iteration's episodes", () => {
  const config = {
    episodesPerIteration: 6,
    actionTemperature: 1,
    maxActionTokens: 100,
    maxPromptTokens: 10_000,
    constrainActions: false,
    seed: 4,
  };
  const collect = async (first: number, perTask?: number) => {
    const run = memoryRun();
    const environment = errandEnvironment();
    const tasks = await environment.tasks("train");
    const scripted = new ScriptedModel(() => act("soap"));
    const trajectories = await collectEpisodes(
      { model: scripted, environment, tasks, config, run },
      first,
      perTask,
    );
    expect(run.trajectories).toEqual(trajectories);
    return trajectories;
  };

  test("play every task once before any repeats", async () => {
    const trajectories = await collect(6);
    expect(trajectories.map(({ id }) => id)).toEqual([6, 7, 8, 9, 10, 11]);
    const names = trajectories.map(({ task }) => task);
    expect(new Set(names.slice(0, 3)).size).toBe(3);
    expect(new Set(names.slice(3)).size).toBe(3);
    expect(stepsOf(trajectories)).toBe(18);
  });

  test("in groups, play a task several times in a row, with different seeds", async () => {
    const trajectories = await collect(0, 3);
    const names = trajectories.map(({ task }) => task);
    expect(new Set(names.slice(0, 3)).size).toBe(1);
    expect(new Set(names.slice(3)).size).toBe(1);
    expect(names[0]).not.toBe(names[3]);
    expect(new Set(trajectories.map(({ seed }) => seed)).size).toBe(6);
  });

  test("are the last of the run when it is resumed", async () => {
    const all = [...(await collect(0)), ...(await collect(6))];
    expect(episodesFrom(all, 6).map(({ id }) => id)).toEqual([6, 7, 8, 9, 10, 11]);
  });
});

test("minibatches: every epoch visits each episode once, in its own order", () => {
  const config = { episodesPerIteration: 10, epochs: 3, batchSize: 4, seed: 5 };
  expect(updatesPerRound(config)).toBe(9);
  const round = (iteration: number, episodes: number) =>
    Array.from({ length: 9 }, (_, updatesDone) =>
      minibatch(config, { ...newCounters(), iteration, updatesDone }, episodes),
    );
  const batches = round(1, 10);
  expect(batches.map(({ length }) => length)).toEqual([4, 4, 2, 4, 4, 2, 4, 4, 2]);
  const epochs = [0, 3, 6].map((from) => batches.slice(from, from + 3).flat());
  for (const order of epochs)
    expect([...order].sort((a, b) => a - b)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  expect(new Set([...epochs, round(2, 10).slice(0, 3).flat()].map(String)).size).toBe(4);
  // With four episodes lost to faults, the last batch of each epoch is empty.
  expect(round(0, 6).map(({ length }) => length)).toEqual([4, 2, 0, 4, 2, 0, 4, 2, 0]);
});

test("metrics of completions", async () => {
  const whole = await play(() => act("key"));
  const cut = await play(() => `${act("lamp")}…`);
  const metrics = completionMetrics([...whole, ...cut], model);
  const own = (text: string) => model.encode(text).length;
  expect(metrics).toMatchObject({
    reward: 0.5,
    "completions/mean_length": (own(act("key")) + 1 + 3 * own(act("lamp"))) / 2,
    "completions/clipped_ratio": 3 / 4,
  });
  expect(metrics.reward_std).toBeCloseTo(Math.SQRT1_2, 12);
  // A model may end its turns with any of several ids.
  const other = model.encode("p").at(-1)!; // lamp's
  expect(completionMetrics([...whole, ...cut], { endOfTurnIds: [other, endOfTurn] })).toMatchObject({
    "completions/clipped_ratio": 0,
  });
});

test("the standard deviation of a sample", () => {
  expect(deviation([2, 4, 4, 4, 5, 5, 7, 9])).toBeCloseTo(Math.sqrt(32 / 7), 12);
  expect(deviation([3])).toBeNaN();
});
