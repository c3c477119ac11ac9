import { setTimeout } from "node:timers/promises";
import { expect, test } from "vitest";
import { type ErrorCode, NlacError } from "../../lib/base/errors.ts";
import type { Environment } from "../../lib/contract/environment.ts";
import { fromRecord, toRecord } from "../../lib/episodes/records.ts";
import type { Trajectory } from "../../lib/episodes/trajectory.ts";
import { playBranches } from "../../lib/playing/branch.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { type Errand, errandEnvironment, luckyReply } from "../support/errand.ts";
import { endOfTurn, ScriptedModel } from "../support/scripted-model.ts";

const act = (word: string) => `Thought:\nhm\nAction:\n${word}`;
const limits = { seed: 0, maxActionTokens: 50, maxPromptTokens: 10_000, temperature: 0 };
const task = { word: "key" };

async function recorded(environment: Environment<Errand>, words: string[]): Promise<Trajectory> {
  const model = new ScriptedModel(() => words.shift()!);
  const [trajectory] = await collectTrajectories({
    model,
    environment,
    episodes: [{ id: 4, task }],
    ...limits,
  });
  return trajectory!;
}

/** Plays `word` instead of the action of each of `turns`, then soap. */
async function branch(
  environment: Environment<Errand>,
  trajectory: Trajectory,
  turns: number[],
  word = "lamp",
  more: { stepTimeout?: number; signal?: AbortSignal; maxPromptTokens?: number } = {},
) {
  const model = new ScriptedModel(() => act("soap"));
  const response = [...model.encode(act(word)), endOfTurn];
  const branches = turns.map((turn) => ({ task, trajectory, turn, response, action: { text: word } }));
  const episodes = await playBranches(branches, { model, environment, ...limits, ...more });
  return { episodes, rewards: episodes.map((episode) => episode?.reward), model };
}

test("a branch has the recorded turns before it, the other action, and the same number of turns in all", async () => {
  const environment = { ...errandEnvironment({ turns: 10 }), maxTurns: 4 };
  const trajectory = await recorded(environment, ["map", "form", "stamp", "fee"].map(act));
  const { rewards, model } = await branch(environment, trajectory, [1]);
  expect(rewards).toEqual([0]);
  expect(model.calls).toHaveLength(2); // turns 3 and 4
  const prompts = model.calls.map(({ prompt }) => prompt);
  const state = model.decode(trajectory.turns[1]!.state.tokens);
  expect(prompts[0]!.startsWith(state)).toBe(true);
  expect([...prompts[1]!.matchAll(/Action:\n(\w+)</g)].map(([, word]) => word)).toEqual([
    "map",
    "lamp",
    "soap",
  ]);
  // The state is unchanged: another branch can start from it.
  expect(model.decode(trajectory.turns[1]!.state.tokens)).toBe(state);
});

test("an episode continues from its state, and does not change the conversation passed in", async () => {
  const environment = errandEnvironment();
  const model = new ScriptedModel(() => act("soap"));
  const trajectory = await recorded(environment, ["map", "form", "stamp"].map(act));
  const episode = await environment.start(task, { seed: 0 });
  await episode.step({ text: "map" });
  const conversation = trajectory.turns[1]!.state.fork();
  const before = [...conversation.tokens];
  const from = { episode, conversation, turns: 1, reward: 0 };
  const [rest] = await collectTrajectories({
    model,
    environment,
    episodes: [{ id: 0, task, from }],
    ...limits,
  });
  expect(rest).toMatchObject({ outcome: "done", reward: 0 });
  expect(rest!.turns.map(({ info }) => info)).toEqual([{ turn: 2 }, { turn: 3 }]);
  expect(conversation.tokens).toEqual(before);
});

test("an action that ends the episode needs no more turns; neither does the last one", async () => {
  const environment = errandEnvironment();
  const trajectory = await recorded(environment, ["map", "form", "stamp"].map(act));
  const right = await branch(environment, trajectory, [0, 1, 2], "key");
  expect(right.rewards).toEqual([1, 1, 1]);
  expect(right.model.calls).toHaveLength(0);
  const last = await branch({ ...errandEnvironment({ turns: 10 }), maxTurns: 3 }, trajectory, [2]);
  expect(last.rewards).toEqual([0]);
  expect(last.model.calls).toHaveLength(0);
});

test("a branch begins with its episode's seed, on which the environment may depend", async () => {
  const environment = errandEnvironment();
  const start = environment.start;
  const seeds: number[] = [];
  environment.start = (...args) => {
    seeds.push(args[1].seed);
    return start(...args);
  };
  const trajectory = await recorded(environment, ["map", "form", "stamp"].map(act));
  const { episodes } = await branch(environment, trajectory, [0, 2]);
  expect(seeds).toEqual(Array(3).fill(trajectory.seed));
  expect(episodes.map((episode) => episode!.seed)).toEqual(Array(2).fill(trajectory.seed));
});

test("a branch whose action the environment truncates has no outcome, but its score", async () => {
  const environment = errandEnvironment({ turns: 4 });
  const trajectory = await recorded(environment, ["map", "form", "stamp", "fee"].map(act));
  const start = environment.start;
  environment.start = async (...args) => {
    const episode = await start(...args);
    const step: typeof episode.step = async (action) => {
      const result = await episode.step(action);
      return action.text === "lamp" ? { ...result, truncated: true, score: 0.25 } : result;
    };
    return { ...episode, step };
  };
  const { episodes, model } = await branch(environment, trajectory, [1]);
  expect(model.calls).toHaveLength(0);
  expect(episodes[0]).toMatchObject({ outcome: "truncated", reward: 0.25 });
  expect(episodes[0]!.turns.map(({ terminated, truncated }) => [terminated, truncated])).toEqual([
    [false, false],
    [false, true],
  ]);
});

test("unreadable actions never reached the environment, and are not repeated", async () => {
  const seen: string[] = [];
  const environment = errandEnvironment();
  const start = environment.start;
  environment.start = async (...args) => {
    const episode = await start(...args);
    return {
      ...episode,
      step: (action) => {
        seen.push(action.text);
        return episode.step(action);
      },
    };
  };
  const trajectory = await recorded(environment, [act("map"), "stamp please", act("form")]);
  seen.length = 0;
  const { rewards } = await branch(environment, trajectory, [2], "key");
  expect(seen).toEqual(["map", "key"]);
  expect(rewards).toEqual([1]);
});

test("at most `concurrency` branches are open at once, and rewards do not depend on it", async () => {
  const environment = errandEnvironment({ turns: 10 });
  const trajectory = await recorded(environment, Array(10).fill(act("map")));
  let open = 0;
  let most = 0;
  const counted: typeof environment.start = async (...given) => {
    const episode = await environment.start(...given);
    most = Math.max(most, ++open);
    return { ...episode, close: async () => void open-- };
  };
  const turns = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
  const play = async (concurrency?: number) => {
    const model = new ScriptedModel(luckyReply(() => 0.2));
    const response = [...model.encode(act("lamp")), endOfTurn];
    const branches = turns.map((turn) => ({ task, trajectory, turn, response, action: { text: "lamp" } }));
    const episodes = await playBranches(branches, {
      ...{ model, environment: { ...environment, start: counted }, ...limits },
      ...(concurrency === undefined ? {} : { concurrency }),
    });
    return episodes.map((episode) => episode?.reward);
  };
  const rewards = await play();
  expect([most, open]).toEqual([10, 0]);
  expect(new Set(rewards)).toEqual(new Set([0, 1]));
  most = 0;
  expect(await play(3)).toEqual(rewards);
  expect([most, open]).toEqual([3, 0]);
  await expect(play(0)).rejects.toMatchObject({ code: "ERR_VALUE" });
});

test("a fault ends only its branch, a spent budget ends all", async () => {
  const environment = errandEnvironment();
  const trajectory = await recorded(environment, [act("map"), act("form"), act("stamp")]);
  const broken = (code: ErrorCode): Environment<Errand> => ({
    ...environment,
    start: () => Promise.reject(new NlacError(code, "no")),
  });
  expect((await branch(broken("ERR_SERVICE"), trajectory, [1])).rewards).toEqual([undefined]);
  await expect(branch(broken("ERR_BUDGET"), trajectory, [1])).rejects.toMatchObject({ code: "ERR_BUDGET" });
  // An episode that starts after the timeout is closed.
  let closed = false;
  const late: Environment<Errand> = {
    ...environment,
    start: async (...given) => {
      await setTimeout(20);
      const episode = await environment.start(...given);
      const close = async () => {
        closed = true;
      };
      return { ...episode, close };
    },
  };
  expect((await branch(late, trajectory, [1], "lamp", { stepTimeout: 1 })).rewards).toEqual([undefined]);
  await expect.poll(() => closed).toBe(true);
  // The environment's own timeout; neither a step nor closing is waited for longer.
  const never = () => new Promise<never>(() => {});
  const hanging: Environment<Errand> = {
    ...environment,
    stepTimeout: 10,
    start: async (...given) => ({ ...(await environment.start(...given)), step: never, close: never }),
  };
  expect((await branch(hanging, trajectory, [0, 1])).rewards).toEqual([undefined, undefined]);
  // The episodes of branches within the budget are closed.
  let open = 0;
  const poor: Environment<Errand> = {
    ...environment,
    start: async (...given) => {
      if (open === 2) throw new NlacError("ERR_BUDGET", "no");
      open++;
      return { ...(await environment.start(...given)), close: async () => void open-- };
    },
  };
  await expect(branch(poor, trajectory, [0, 1, 2])).rejects.toMatchObject({ code: "ERR_BUDGET" });
  expect(open).toBe(0);
});

test("rewards of the recorded turns count", async () => {
  const environment = errandEnvironment();
  const start = environment.start;
  environment.start = async (...args) => {
    const episode = await start(...args);
    return { ...episode, step: async (action) => ({ ...(await episode.step(action)), reward: 0.25 }) };
  };
  const trajectory = await recorded(environment, ["map", "form", "stamp"].map(act));
  const { rewards } = await branch(environment, trajectory, [0, 1, 2]);
  expect(rewards).toEqual([0.75, 0.75, 0.75]);
});

test("the score of a truncated episode counts in a branch's total", async () => {
  const plain = errandEnvironment({ turns: 10 });
  const environment: typeof plain = {
    ...plain,
    maxTurns: 4,
    start: async (...asked) => {
      const episode = await plain.start(...asked);
      let turn = 0;
      return {
        ...episode,
        step: async (action) => ({
          ...(await episode.step(action)),
          ...{ reward: 0, truncated: ++turn === 3, score: 0.5 },
        }),
      };
    },
  };
  const trajectory = await recorded(environment, ["map", "form", "stamp", "fee"].map(act));
  expect(trajectory.reward).toBe(0.5);
  // After the first turn there are two more; the third is the last.
  expect((await branch(environment, trajectory, [1, 2])).rewards).toEqual([0.5, 0.5]);
});

test("a state that cannot be reached again has no branch: other answers, another beginning, a fault", async () => {
  const sound = errandEnvironment();
  const trajectory = await recorded(sound, ["map", "form", "stamp"].map(act));
  const start = sound.start;
  const changed = (change: Partial<Awaited<ReturnType<typeof start>>>): Environment<Errand> => ({
    ...sound,
    start: async (...args) => ({ ...(await start(...args)), ...change }),
  });
  const answer = {
    observation: [{ role: "user" as const, content: "go away" }],
    reward: 0,
    terminated: false,
    truncated: false,
    info: {},
  };
  expect((await branch(changed({ step: async () => answer }), trajectory, [0, 1, 2])).rewards).toEqual([
    0,
    undefined,
    undefined,
  ]);
  const opening = { messages: [{ role: "user" as const, content: "Good morning." }] };
  expect((await branch(changed({ observation: opening }), trajectory, [0])).rewards).toEqual([undefined]);
  const broken = changed({ step: async () => Promise.reject(new Error("closed")) });
  expect((await branch(broken, trajectory, [0])).rewards).toEqual([undefined]);
});

test("a branch that is cut short has the cost of leaving, counted from the first turn", async () => {
  const plain = errandEnvironment({ turns: 10 });
  const environment: typeof plain = {
    ...plain,
    maxTurns: 4,
    rewardRange: [-7, 0],
    start: async (...asked) => {
      const episode = await plain.start(...asked);
      return { ...episode, step: async (action) => ({ ...(await episode.step(action)), reward: -1 }) };
    },
  };
  const trajectory = await recorded(environment, ["map", "form", "stamp", "fee"].map(act));
  expect(trajectory.reward).toBe(-7);
  // After the first turn there are two more; after the last none.
  expect((await branch(environment, trajectory, [1, 3])).rewards).toEqual([-7, -7]);
});

test("a branch whose next prompt does not fit into the context is truncated at its own action", async () => {
  const environment = errandEnvironment({ turns: 4 });
  const trajectory = await recorded(environment, ["map", "form", "stamp", "fee"].map(act));
  const maxPromptTokens = trajectory.turns[1]!.state.prompt().length;
  const { episodes, model } = await branch(environment, trajectory, [1], "lamp", { maxPromptTokens });
  expect(model.calls).toHaveLength(0);
  expect(episodes[0]!.outcome).toBe("context-limit");
  expect(episodes[0]!.turns.map(({ terminated, truncated }) => [terminated, truncated])).toEqual([
    [false, false],
    [false, true],
  ]);
});

test("a branch is a whole episode: the recorded turns, its own action, and what the policy did then", async () => {
  const plain = errandEnvironment({ turns: 10 });
  const environment: typeof plain = {
    ...plain,
    maxTurns: 4,
    start: async (...given) => ({
      ...(await plain.start(...given)),
      privileged: () => ({ secret: given[0].word }),
    }),
  };
  const trajectory = await recorded(environment, ["map", "form", "stamp", "fee"].map(act));
  const { episodes, model } = await branch(environment, trajectory, [1]);
  const episode = episodes[0]!;
  expect(episode).toMatchObject({
    task: "key",
    seed: trajectory.seed,
    outcome: "turn-limit",
    privileged: { secret: "key" },
    branch: { trajectory: trajectory.id, turn: 1 },
  });
  expect(episode.turns.map(({ action }) => action?.text)).toEqual(["map", "lamp", "soap", "soap"]);
  expect(episode.turns.at(-1)).toMatchObject({ terminated: true, truncated: false });
  expect(model.decode(episode.conversation.tokens)).toContain("OBSERVED wants key");
  // It survives being recorded; its own action has no log probabilities.
  const again = fromRecord(JSON.parse(JSON.stringify(toRecord(episode))), model);
  expect(again.turns.map(({ tokens }) => [...tokens])).toEqual(episode.turns.map(({ tokens }) => tokens));
  expect(again).toMatchObject({ branch: episode.branch, privileged: { secret: "key" } });
  expect([...again.turns[1]!.logProbs].every(Number.isNaN)).toBe(true);
  // An action that ends the episode, and one at the turn limit.
  const right = await branch(environment, trajectory, [2], "key");
  expect(right.episodes[0]).toMatchObject({ outcome: "done", reward: 1, privileged: { secret: "key" } });
  const last = await branch(environment, trajectory, [3]);
  expect(last.episodes[0]).toMatchObject({ outcome: "turn-limit", privileged: { secret: "key" } });
  expect(last.episodes[0]!.turns).toHaveLength(4);
});

test("a branch at the turn limit has its environment's score, though an earlier turn never reached it", async () => {
  const plain = errandEnvironment({ turns: 10 });
  const environment: typeof plain = {
    ...plain,
    maxTurns: 3,
    start: async (...given) => ({ ...(await plain.start(...given)), score: () => 0.25 }),
  };
  const trajectory = await recorded(environment, [act("map"), "?", act("stamp")]);
  expect(trajectory).toMatchObject({ outcome: "turn-limit", reward: 0.25 });
  const { episodes, rewards } = await branch(environment, trajectory, [0, 2]);
  expect(rewards).toEqual([0.25, 0.25]);
  for (const episode of episodes) expect(episode!.turns.at(-1)!.reward).toBe(0.25);
});

test("many branches at once do not warn of too many listeners", async () => {
  const environment = { ...errandEnvironment({ turns: 10 }), maxTurns: 4 };
  const trajectory = await recorded(environment, ["map", "form", "stamp", "fee"].map(act));
  const warnings: string[] = [];
  const listen = (warning: Error) => warnings.push(warning.name);
  process.on("warning", listen);
  const { signal } = new AbortController();
  const turns = Array.from({ length: 24 }, (_, i) => i % 3);
  const { rewards } = await branch(environment, trajectory, turns, "lamp", { signal });
  await setTimeout(10);
  process.off("warning", listen);
  expect(rewards).toHaveLength(24);
  expect(warnings).toEqual([]);
});
