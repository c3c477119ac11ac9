import { setTimeout as wait } from "node:timers/promises";
import { describe, expect, test, vi } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import type { Environment } from "../../lib/contract/environment.ts";
import { toRecord } from "../../lib/episodes/records.ts";
import { succeeded, type Trajectory } from "../../lib/episodes/trajectory.ts";
import { servicePlayer } from "../../lib/playing/service-player.ts";
import { actionGrammar } from "../../lib/prompts/policy.ts";
import type { ChatService } from "../../lib/services/chat-service.ts";
import { openService } from "../../lib/services/open-service.ts";
import { type Errand, errandEnvironment } from "../support/errand.ts";
import { act, changed, play, reply, words } from "../support/errand-play.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

/** The sizes of the batches generated. */
function batchesOf(model: ScriptedModel): number[] {
  const sizes: number[] = [];
  const generate = model.generate.bind(model);
  model.generate = (requests, options) => {
    sizes.push(requests.length);
    return generate(requests, options);
  };
  return sizes;
}

test.each([
  ["model", undefined],
  ["environment", undefined],
  ["episodes", undefined],
  ["episodes[0].id", [{ word: "keys" }]], // tasks instead of episodes
  [
    "episodes[1].id",
    [
      { id: 0, task: { word: "keys" } },
      { id: 0.5, task: { word: "keys" } },
    ],
  ],
  ["seed", undefined],
  ["maxActionTokens", undefined],
  ["maxPromptTokens", undefined],
  ["temperature", undefined],
  ["temperature", -1],
  ["concurrency", 0],
])("a bad %s is an error that names it: %j", async (where, value) => {
  const [name] = where.split("[");
  await expect(play({ [name!]: value })).rejects.toMatchObject({
    code: "ERR_VALUE",
    message: expect.stringMatching(new RegExp(`^${where.replace(/\W/g, "\\$&")} must be`)),
  });
});

describe("many at once", () => {
  test("an episode does not depend on concurrency, on order, or on the environment's speed", async () => {
    const expected = (await play()).map(toRecord);
    expect(new Set(expected.map(({ outcome, reward }) => `${outcome} ${reward}`)).size).toBeGreaterThan(1);
    for (const concurrency of [1, 3, 100])
      expect((await play({ concurrency })).map(toRecord)).toEqual(expected);
    const slow = changed((step, _, turn) => async (action) => {
      await wait((action.text.length * 7 + turn * 5) % 11);
      return step(action);
    });
    for (const patience of [0, 3, undefined]) {
      const environment = { ...slow };
      const played = await play({
        environment,
        concurrency: 4,
        ...(patience === undefined ? {} : { patience }),
      });
      expect(played.map(toRecord)).toEqual(expected);
    }
    const episodes = Array.from({ length: 10 }, (_, i) => ({
      id: 9 - i,
      task: { word: words[(9 - i) % words.length]! },
    }));
    const backwards = await play({ episodes, concurrency: 3 });
    expect(backwards.map(toRecord).reverse()).toEqual(expected);
  });

  test("when one ends, the next begins: at most `concurrency` run, and no fewer while any remain", async () => {
    let running = 0;
    const seen: number[] = [];
    const environment = errandEnvironment();
    const start = environment.start;
    environment.start = async (task, options) => {
      running++;
      const episode = await start(task, options);
      return { ...episode, close: async () => void running-- };
    };
    const model = new ScriptedModel((prompt, ...rest) => {
      seen.push(running);
      return reply(prompt, ...rest);
    });
    const sizes = batchesOf(model);
    await play({ model, environment, concurrency: 4 });
    expect(Math.max(...seen)).toBe(4);
    expect(running).toBe(0);
    // Full batches, until fewer than four episodes remain.
    const full = sizes.lastIndexOf(4) + 1;
    expect(sizes.slice(0, full)).toEqual(new Array(full).fill(4));
    expect(sizes.length - full).toBeLessThan(4);
  });

  const usage = () => ({ requests: 0, promptTokens: 0, completionTokens: 0, cost: 0 });
  test.each([
    ["without patience for it", {}, { patience: 1 }],
    ["that a service answers", { usage }, {}],
  ])("a slow episode does not hold up the others: one %s", async (_, more, options) => {
    let answer = () => {};
    const slow = new Promise<void>((resolve) => {
      answer = resolve;
    });
    const environment = changed((step, task) => async (action) => {
      if (task.word === "key") await slow;
      return step(action);
    });
    const episodes = ["key", "lamp", "map"].map((word, id) => ({ id, task: { word } }));
    const over: number[] = [];
    const onEpisode = ({ id }: Trajectory) => {
      over.push(id);
      if (over.length === 2) answer();
    };
    const model = new ScriptedModel(() => act("soap"));
    await play({ model, environment: { ...environment, ...more }, episodes, onEpisode, ...options });
    expect(over.slice(0, 2).sort()).toEqual([1, 2]);
    expect(over[2]).toBe(0);
  });

  test("without a service the batches wait for all episodes, so that they are reproducible", async () => {
    const environment = changed((step, task) => async (action) => {
      await wait(task.word === "key" ? 80 : 0);
      return step(action);
    });
    const episodes = ["key", "lamp"].map((word, id) => ({ id, task: { word } }));
    const model = new ScriptedModel(() => act("soap"));
    const sizes = batchesOf(model);
    await play({ model, environment, episodes });
    expect(sizes).toEqual([2, 2, 2]);
  });

  test("reports every turn's tokens, and every episode when it ends", async () => {
    const told: number[] = [];
    const ended: Trajectory[] = [];
    let tokens = 0;
    const played = await play({
      concurrency: 3,
      onTurn: (finished, written) => {
        told.push(finished);
        tokens += written;
      },
      onEpisode: (trajectory) => ended.push(trajectory),
    });
    expect(told).toEqual([...told].sort((a, b) => a - b));
    expect(told.at(-1)).toBe(10);
    expect(tokens).toBe(
      played.flatMap(({ turns }) => turns).reduce((sum, turn) => sum + turn.tokens.length, 0),
    );
    expect(ended.map(({ id }) => id).sort()).toEqual(played.map(({ id }) => id));
    expect(new Set(ended)).toEqual(new Set(played));
  });
});

describe("stopping", () => {
  test("reports finished episodes, closes running ones, and begins no more", async () => {
    const controller = new AbortController();
    const kept: Trajectory[] = [];
    let started = 0;
    const environment = changed((step) => step);
    const start = environment.start;
    environment.start = (task, options) => {
      started++;
      return start(task, options);
    };
    const onEpisode = (trajectory: Trajectory) => {
      kept.push(trajectory);
      if (kept.length === 4) controller.abort();
    };
    const { signal } = controller;
    await expect(play({ environment, concurrency: 2, onEpisode, signal })).rejects.toMatchObject({
      code: "ERR_ABORTED",
    });
    expect(kept.length).toBeGreaterThanOrEqual(4);
    expect(kept.length).toBeLessThan(10);
    expect(started).toBeLessThan(10);
    expect(environment.closed()).toBe(started);
    const whole = await play();
    for (const trajectory of kept) expect(toRecord(trajectory)).toEqual(toRecord(whole[trajectory.id]!));
  });

  test("does not wait for an environment that does not answer", async () => {
    const controller = new AbortController();
    const environment = changed(() => () => new Promise(() => {}));
    const playing = play({ environment, signal: controller.signal });
    setTimeout(() => controller.abort(), 20);
    await expect(playing).rejects.toMatchObject({ code: "ERR_ABORTED" });
    expect(environment.closed()).toBe(10);
  });

  test("does not wait for an episode that does not close, but closes each", async () => {
    const controller = new AbortController();
    let closing = 0;
    const environment = errandEnvironment();
    const start = environment.start;
    environment.start = async (...asked) => ({
      ...(await start(...asked)),
      step: () => new Promise(() => {}),
      close: () => {
        closing++;
        return new Promise(() => {});
      },
    });
    const playing = play({ environment, signal: controller.signal });
    setTimeout(() => controller.abort(), 20);
    await expect(playing).rejects.toMatchObject({ code: "ERR_ABORTED" });
    expect(closing).toBe(10);
  });

  test("a model that fails stops the call with its own error, and closes every episode", async () => {
    const environment = changed((step) => step);
    let calls = 0;
    const model = new ScriptedModel(() => {
      if (++calls > 5) throw new NlacError("ERR_OUT_OF_MEMORY", "full");
      return act("soap");
    });
    await expect(play({ model, environment, concurrency: 3 })).rejects.toMatchObject({
      code: "ERR_OUT_OF_MEMORY",
    });
    expect(environment.closed()).toBe(3);
  });
});

describe("faults end only their own episode", () => {
  test("a timeout of the environment, at the start or in a step", async () => {
    const hanging = changed((step, task) => (task.word === "key" ? () => new Promise(() => {}) : step));
    const played = await play({ environment: hanging, stepTimeout: 30 });
    for (const { task, outcome, fault, turns } of played) {
      expect(outcome === "environment-fault").toBe(task === "key");
      if (task !== "key") continue;
      expect(fault).toEqual({ code: "ERR_ENVIRONMENT", message: expect.stringContaining("30 ms") });
      expect(turns).toHaveLength(1);
    }
    expect(hanging.closed()).toBe(10);

    // The environment's own timeout holds where the call has none.
    const own = { ...hanging, stepTimeout: 30 };
    const [first, second] = await play({ environment: own });
    expect(first!.fault?.message).toContain("30 ms");
    expect(second!.fault).toBeUndefined();
    expect((await play({ environment: own, stepTimeout: 20 }))[0]!.fault?.message).toContain("20 ms");

    // An episode that starts after the timeout is closed.
    let closed = 0;
    const late = errandEnvironment();
    const start = late.start;
    late.start = async (task, options) => {
      if (task.word === "key") await wait(60);
      return { ...(await start(task, options)), close: async () => void closed++ };
    };
    const [unstarted] = await play({ environment: late, stepTimeout: 20 });
    expect(unstarted).toMatchObject({ outcome: "environment-fault", turns: [] });
    await vi.waitFor(() => expect(closed).toBe(10));
  });

  test.each([
    ["nothing", undefined],
    ["no messages", { observation: "hello", reward: 0, terminated: false, truncated: false, info: {} }],
    [
      "a message without text",
      { observation: [{ role: "user" }], reward: 0, terminated: false, truncated: false, info: {} },
    ],
    [
      "a message of nobody",
      { observation: [{ content: "hello" }], reward: 0, terminated: false, truncated: false, info: {} },
    ],
    ["an empty message", { observation: [null], reward: 0, terminated: true, truncated: false, info: {} }],
    ["no word of how it stands", { observation: [], reward: 0, done: true, info: {} }],
    [
      "a reward that is none",
      { observation: [], reward: Number.NaN, terminated: false, truncated: false, info: {} },
    ],
    [
      "an info that cannot be recorded",
      { observation: [], reward: 0, terminated: false, truncated: false, info: { n: 1n } },
    ],
  ])("a step that gives %s", async (_, result) => {
    const environment = changed(() => async () => result as never);
    const [played] = await play({ environment, episodes: [{ id: 0, task: { word: "key" } }] });
    expect(played).toMatchObject({ outcome: "environment-fault", fault: { code: "ERR_ENVIRONMENT" } });
  });

  test("a message without text is named, also in an initial observation", async () => {
    const message = { role: "user", text: "hello" } as never;
    const stepping = changed((step) => async (action) => ({
      ...(await step(action)),
      observation: [message],
    }));
    const beginning = errandEnvironment();
    const start = beginning.start;
    beginning.start = async (...asked) => ({
      ...(await start(...asked)),
      observation: { messages: [message] },
    });
    for (const environment of [stepping, beginning]) {
      const [played] = await play({ environment, episodes: [{ id: 0, task: { word: "key" } }] });
      expect(played!.fault!.message).toContain('not {"role":"user","text":"hello"}');
    }
  });

  test("kinds: the service of a person, the environment, the agent", async () => {
    const environment = changed((step, task) => async (action) => {
      if (task.word === "key") throw new NlacError("ERR_SERVICE", "no answer");
      if (task.word === "lamp") throw new Error("broken");
      return step(action);
    });
    const model = new ScriptedModel((prompt, ...rest) =>
      prompt.includes("wants map") ? "?" : reply(prompt, ...rest),
    );
    const episodes = ["key", "lamp", "map"].map((word, id) => ({ id, task: { word } }));
    const played = await play({ model, environment, episodes, maxMalformed: 1 });
    expect(played.map(({ outcome }) => outcome)).toEqual(["service-fault", "environment-fault", "malformed"]);
  });
});

test.each(["begins", "answers", "plays"])(
  "a budget spent where one %s ends the whole call",
  async (where) => {
    const spent = new NlacError("ERR_BUDGET", "spent");
    const environment = changed((step, task) =>
      where === "answers" && task.word === "map" ? () => Promise.reject(spent) : step,
    );
    const { start } = environment;
    environment.start = (task, options) =>
      where === "begins" && task.word === "map" ? Promise.reject(spent) : start(task, options);
    const service: ChatService = openService((messages) => {
      if (where === "plays" && messages.at(-1)!.content.includes("wants map")) throw spent;
      return act("soap");
    });
    const over: number[] = [];
    const playing = play({
      ...{ model: servicePlayer(service), environment, maxPromptTokens: 100_000, concurrency: 1 },
      onEpisode: ({ id }) => over.push(id),
    });
    await expect(playing).rejects.toBe(spent);
    expect(over).toEqual([0, 1]);
    expect(environment.closed()).toBe(where === "begins" ? 2 : 3);
  },
);

test("an episode records its initial messages", async () => {
  const [first] = await play();
  expect(first!.opening).toEqual([
    { role: "system", content: "You run errands." },
    { role: "user", content: "What do you bring?" },
  ]);
});

test("success is that of the last step's info, or else a full reward", () => {
  const ended = (reward: number, ...infos: Record<string, unknown>[]) =>
    succeeded({ reward, turns: infos.map((info) => ({ info })) });
  expect([ended(1), ended(1, {}), ended(1.5, {}), ended(0.99, {})]).toEqual([true, true, true, false]);
  expect(ended(0.2, { success: false }, { success: true })).toBe(true);
  expect(ended(3, { success: true }, { success: false })).toBe(false);
  expect(ended(1, { success: false }, {})).toBe(true);
  expect(ended(0, { success: "yes" })).toBe(false);
});

test("actions are constrained to their tools' schemas on request, in the format that is only a call", async () => {
  const tools = [{ name: "bring", description: "", parameters: { type: "object", properties: {} } }];
  const environment = (actionFormat: Environment["actionFormat"]): Environment<Errand> => {
    const errand = errandEnvironment();
    const start: typeof errand.start = async (task, options) => {
      const episode = await errand.start(task, options);
      return { ...episode, observation: { ...episode.observation, tools } };
    };
    return { ...errand, actionFormat, start };
  };
  for (const [format, constrainActions, held] of [
    ["tool", true, true],
    ["tool", undefined, false],
    ["text", true, false],
  ] as const) {
    const model = new ScriptedModel(reply);
    const grammars = new Set<unknown>();
    const generate = model.generate.bind(model);
    model.generate = (requests, options) => {
      for (const { grammar } of requests) grammars.add(grammar);
      return generate(requests, options);
    };
    await play({ model, environment: environment(format), ...(constrainActions && { constrainActions }) });
    const expected = held ? [JSON.stringify(actionGrammar(tools, "tool"))] : [undefined];
    expect([...new Set([...grammars].map((grammar) => JSON.stringify(grammar)))]).toEqual(expected);
  }
});

test("each episode starts with its own seed, which is recorded", async () => {
  const started: number[] = [];
  const environment = errandEnvironment();
  const start = environment.start;
  environment.start = (task, options) => {
    started.push(options.seed);
    return start(task, options);
  };
  const trajectories = await play({ environment });
  expect(started).toEqual(trajectories.map(({ seed }) => seed));
  expect(new Set(started).size).toBe(10);
});

test("an action may have as many new tokens as the context has room for", async () => {
  const asked = async (maxPositions: number) => {
    const model = new ScriptedModel(() => act("soap"));
    Object.assign(model, { maxPositions });
    await play({ model });
    return model.calls.map(({ request: { tokens, maxNewTokens } }) => ({
      prompt: tokens!.length,
      maxNewTokens,
    }));
  };
  const longest = Math.max(...(await asked(10_000)).map(({ prompt }) => prompt));
  const requests = await asked(longest + 50);
  for (const { prompt, maxNewTokens } of requests)
    expect(maxNewTokens).toBe(Math.min(200, longest + 50 - prompt));
  expect(new Set(requests.map(({ maxNewTokens }) => maxNewTokens)).size).toBeGreaterThan(1);
});

test.each([
  ["??s??s??s", "turn-limit", 9],
  ["s??s???ss", "malformed", 7],
])("only unreadable actions in a row end an episode: %s", async (actions, outcome, turns) => {
  const model = new ScriptedModel((prompt) => {
    const turn = prompt.split("<|im_start|>assistant").length - 2;
    return actions[turn] === "s" ? act("soap") : "?";
  });
  const episodes = [{ id: 0, task: { word: "key" } }];
  const [played] = await play({ model, episodes, environment: errandEnvironment({ turns: 9 }) });
  expect([played!.outcome, played!.turns.length]).toEqual([outcome, turns]);
});
