import { describe, expect, it } from "vitest";
import { NlacError, throwIfAborted } from "../../lib/base/errors.ts";
import type { Action, Environment, Episode, StepResult } from "../../lib/contract/environment.ts";
import { checkEnvironment } from "../../lib/environments/check.ts";
import { environmentNames, makeEnvironment } from "../../lib/environments/registry.ts";

/** A two-turn environment; `fault` violates one rule of the contract. */
function sample(fault?: string): Environment<string> {
  let shared = 0;
  const start = async (task: string, { signal }: { signal?: AbortSignal }): Promise<Episode> => {
    if (fault !== "ignores aborts") throwIfAborted(signal);
    let turn = 0;
    return {
      observation: { messages: [{ role: fault === "ends with system" ? "system" : "user", content: task }] },
      async step(_: Action): Promise<StepResult> {
        if (turn === 2 && fault !== "goes on after the end") throw new NlacError("ERR_ENVIRONMENT", "over");
        turn++;
        shared++;
        const over = turn === 2 && fault !== "never ends";
        const content = fault === "episodes share state" ? `turn ${shared}` : `turn ${turn}`;
        return {
          observation: fault === "silent" ? [] : [{ role: "user", content }],
          reward: over ? (fault === "reward of 2" ? 2 : fault === "NaN" ? Number.NaN : 1) : 0,
          terminated: over && fault !== "truncates by rule",
          truncated: fault === "says done" ? (undefined as never) : over && fault === "truncates by rule",
          info: {},
        };
      },
      privileged: () => ({
        secret: "key",
        ...(fault === "secret alone" ? {} : { hidden: fault === "hides nothing" ? [[]] : ["keys"] }),
      }),
      async close() {},
    };
  };
  return {
    name: "sample",
    actionFormat: fault === "solution of two turns" ? "solution" : "text",
    singleStep: fault === "single step of two turns",
    maxTurns: 2,
    turnLimitEnds: fault === "truncates by rule",
    tasks: async (split) =>
      fault === "splits overlap" ? ["same"] : fault === "no tasks" ? [] : [`${split} a`, `${split} b`],
    taskId: (task) => (fault === "ids clash" ? "id" : task),
    start,
    close: async () => {},
  };
}

describe("checkEnvironment", () => {
  it("reports nothing for a valid environment", async () => {
    expect(await checkEnvironment(sample(), () => ({ text: "go" }))).toEqual([]);
  });

  it.each([
    ["ignores aborts", /ERR_ABORTED/],
    ["ends with system", /not the user's/],
    ["goes on after the end", /after the end/],
    ["never ends", /neither terminated nor truncated after 2 turns/],
    ["episodes share state", /disturb each other|another episode/],
    ["silent", /nothing to answer/],
    ["says done", /truncated is not a boolean/],
    ["truncates by rule", /turnLimitEnds says is a rule/],
    ["reward of 2", /outside of \[0, 1\]/],
    ["NaN", /reward NaN/],
    ["solution of two turns", /solution environment must have a single turn/],
    ["single step of two turns", /single-step environment must have a single turn/],
    ["splits overlap", /in both splits/],
    ["no tasks", /no tasks/],
    ["ids clash", /same id/],
    ["secret alone", /does not say which texts are hidden/],
    ["hides nothing", /hidden text of privileged\(\) is empty/],
  ])("reports: %s", async (fault, complaint) => {
    expect((await checkEnvironment(sample(fault), () => ({ text: "go" }))).join("\n")).toMatch(complaint);
  });
});

/** An environment of one tool; `fault` violates one rule of the contract. */
function withTool(fault?: string): Environment<string> {
  const observation = { messages: [{ role: "user" as const, content: "Go." }] };
  const start = async (_: string, { signal }: { signal?: AbortSignal }): Promise<Episode> => {
    throwIfAborted(signal);
    let over = false;
    return {
      observation: {
        ...observation,
        tools: [
          {
            name: "go",
            description: fault === "no description" ? "" : "Goes.",
            parameters:
              fault === "no schema"
                ? { type: 3 }
                : { type: "object", properties: { far: { type: "integer" } }, required: ["far"] },
          },
        ],
      },
      async step({ text, tool }: Action): Promise<StepResult> {
        if (over) throw new NlacError("ERR_ENVIRONMENT", "over");
        if (signal?.aborted)
          throw new NlacError(fault === "another code" ? "ERR_VALUE" : "ERR_ABORTED", "aborted");
        over = true;
        if (fault === "breaks on long arguments" && text.length > 1000) throw new Error("out of room");
        if (fault === "breaks on a call" && tool?.arguments.far !== undefined) throw new Error("lost");
        if (fault === "breaks when idle" && text === "nothing") throw new Error("asleep");
        const sound = tool === undefined || (tool.name === "go" && Number.isInteger(tool.arguments.far));
        return {
          observation: [],
          reward: fault === "reward of -1" ? -1 : 0.5,
          terminated: true,
          truncated: false,
          info:
            fault === "info that is no JSON"
              ? { at: new Date(0) }
              : { toolError: !sound && fault !== "no mark" },
        };
      },
      async close() {},
    };
  };
  return {
    name: "tool",
    actionFormat: "tool",
    maxTurns: 1,
    ...(fault === "range" ? { rewardRange: [1, 1] as const } : {}),
    idle: { text: "nothing" },
    tasks: async (split) => [split],
    taskId: (task) => task,
    start,
    close: async () => {},
  };
}

it("ends if the turns of an environment are not limited", async () => {
  const endless = { ...sample("never ends"), maxTurns: undefined as never };
  expect(await checkEnvironment(endless, () => ({ text: "go" }))).toEqual([
    "maxTurns must be an integer of at least 1; it is undefined",
  ]);
});

describe("checkEnvironment without a policy", () => {
  it("names messages and names of tasks that are no texts", async () => {
    const start = async (task: string, options: object) => {
      const episode = await sample().start(task, { seed: 0, ...options });
      return {
        ...episode,
        observation: { messages: [{ role: "user" as const, content: undefined as never }] },
      };
    };
    const problems = await checkEnvironment({ ...sample(), taskId: () => 7 as never, start });
    expect(problems).toContain("train: taskId must return a text; it returned 7");
    expect(problems).toContain("train 7: the content of a message must be a text; it is undefined");
  });

  it("requests the demonstrations that a warm-up would", async () => {
    const broken = { ...sample(), demonstrate: () => Promise.reject(new Error("no such room")) };
    expect(await checkEnvironment(broken)).toContain("train train a, demonstrate: failed with no such room");
    const observation = { messages: [] };
    const thoughtless = { action: { text: "go" }, judged: [], observation: [] };
    const mute = { ...sample(), demonstrate: async () => ({ observation, turns: [thoughtless] }) };
    expect(await checkEnvironment(mute)).toContain(
      'train train a, demonstrate: an action that the policy could not take (nothing stands after "Thought:"): go',
    );
    const silent = { ...sample(), demonstrate: async () => ({ observation, turns: [] }) };
    expect(await checkEnvironment(silent)).toContain("train train a, demonstrate: no turns");
  });

  it("reports closing that never ends or fails", async () => {
    const never = () => new Promise<void>(() => {});
    const closes = (close: Episode["close"]): Environment<string> => ({
      ...sample(),
      start: async (...given) => ({ ...(await sample().start(...given)), close }),
    });
    const soon = { tasks: 1, timeout: 50 };
    expect(await checkEnvironment(closes(never), undefined, soon)).toContainEqual(
      expect.stringMatching(/^closing an episode failed: .*no answer within 50 ms/),
    );
    const broken = () => Promise.reject(new Error("no such room"));
    expect(await checkEnvironment(closes(broken), undefined, soon)).toEqual([
      "closing an episode failed: no such room",
    ]);
    expect(await checkEnvironment({ ...sample(), close: never }, undefined, soon)).toContainEqual(
      expect.stringMatching(/^close: failed with ERR_ENVIRONMENT: .*no answer within 50 ms/),
    );
  });

  it("gives a demonstration the time of an episode", async () => {
    const observation = { messages: [{ role: "user" as const, content: "Well?" }] };
    const action = { text: "go", thought: "Onwards." };
    const slow = async (ms: number) => {
      await new Promise((resolve) => setTimeout(resolve, ms));
      return { observation, turns: [{ action, judged: [], observation: [] }] };
    };
    const one = { tasks: 1, timeout: 400 };
    const late = /gave no answer/;
    const { maxTurns } = sample();
    const inTime = { ...sample(), demonstrate: () => slow(400 * maxTurns) };
    expect((await checkEnvironment(inTime, undefined, one)).filter((line) => late.test(line))).toEqual([]);
    const tooLate = { ...sample(), demonstrate: () => slow(400 * (maxTurns + 2)) };
    expect((await checkEnvironment(tooLate, undefined, one)).join("\n")).toMatch(late);
  });

  it("reports nothing for a valid environment, whatever its rewards", async () => {
    expect(await checkEnvironment(withTool())).toEqual([]);
    expect(await checkEnvironment({ ...withTool("reward of -1"), rewardRange: [-1, 0] })).toEqual([]);
  });

  it.each([
    ["no description", /the tool go has no description/],
    ["no schema", /parameters of "go" are not a usable JSON Schema/],
    ["another code", /after the signal fired: ERR_VALUE instead of ERR_ABORTED/],
    ["breaks on long arguments", /failed with out of room/],
    ["breaks on a call", /"far":\d+.*failed with lost/],
    ["breaks when idle", /idle: failed with asleep/],
    ["info that is no JSON", /info is not the same/],
    ["no mark", /an unknown tool, .*no_such_tool.*: info.toolError does not mark it/],
    ["reward of -1", /reward is -1, outside of \[0, 1\]/],
    ["range", /rewardRange is \[1, 1\]/],
  ])("reports: %s", async (fault, complaint) => {
    expect((await checkEnvironment(withTool(fault))).join("\n")).toMatch(complaint);
  });

  it("is deterministic", async () => {
    const seen: string[][] = [[], []];
    for (const actions of seen) {
      const environment = withTool();
      const start: typeof environment.start = async (task, options) => {
        const episode = await environment.start(task, options);
        const step = (action: Action) => {
          actions.push(action.text);
          return episode.step(action);
        };
        return { observation: episode.observation, step, close: () => episode.close() };
      };
      await checkEnvironment({ ...environment, start }, undefined, { seed: 7 });
    }
    expect(seen[0]).toEqual(seen[1]);
    expect(seen[0]!.length).toBeGreaterThan(20);
  });
});

describe("makeEnvironment", () => {
  it("makes each environment by its name and rejects other names", async () => {
    for (const name of environmentNames) expect((await makeEnvironment(name)).name).toBe(name);
    await expect(makeEnvironment("toString")).rejects.toMatchObject({ code: "ERR_CONFIG" });
    await expect(makeEnvironment("math", { turns: 3 })).rejects.toThrow(/turns/);
  });
});
