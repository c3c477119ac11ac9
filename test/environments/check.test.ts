import { describe, expect, it } from "vitest";
import { checkEnvironment } from "../../lib/environments/check.ts";
import type { Action, Environment, Episode, StepResult } from "../../lib/environments/contract.ts";
import { driver } from "../../lib/environments/driver.ts";
import { environmentNames, makeEnvironment } from "../../lib/environments/registry.ts";
import { NlacError, throwIfAborted } from "../../lib/errors.ts";

/** A two-turn environment; `fault` breaks one rule of it. */
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
        const done = turn === 2 && fault !== "never ends";
        const content = fault === "episodes share state" ? `turn ${shared}` : `turn ${turn}`;
        return {
          observation: fault === "silent" ? [] : [{ role: "user", content }],
          reward: done ? (fault === "reward of 2" ? 2 : fault === "NaN" ? Number.NaN : 1) : 0,
          done,
          info: {},
        };
      },
      async close() {},
    };
  };
  return {
    name: "sample",
    actionFormat: fault === "solution of two turns" ? "solution" : "text",
    singleStep: fault === "single step of two turns",
    maxTurns: 2,
    tasks: async (split) =>
      fault === "splits overlap" ? ["same"] : fault === "no tasks" ? [] : [`${split} a`, `${split} b`],
    taskId: (task) => (fault === "ids clash" ? "id" : task),
    start,
    ...driver("sample", start),
  };
}

describe("checkEnvironment", () => {
  it("has nothing against a sound environment", async () => {
    expect(await checkEnvironment(sample(), () => ({ text: "go" }))).toEqual([]);
  });

  it.each([
    ["ignores aborts", /ERR_ABORTED/],
    ["ends with system", /not the user's/],
    ["goes on after the end", /after the end/],
    ["never ends", /not done after 2 turns/],
    ["episodes share state", /disturb each other|another episode/],
    ["silent", /nothing to answer/],
    ["reward of 2", /outside of \[0, 1\]/],
    ["NaN", /reward NaN/],
    ["solution of two turns", /solution environment must have a single turn/],
    ["single step of two turns", /single-step environment must have a single turn/],
    ["splits overlap", /in both splits/],
    ["no tasks", /no tasks/],
    ["ids clash", /same id/],
  ])("notices: %s", async (fault, complaint) => {
    expect((await checkEnvironment(sample(fault), () => ({ text: "go" }))).join("\n")).toMatch(complaint);
  });
});

describe("makeEnvironment", () => {
  it("makes each by its name and refuses others", async () => {
    for (const name of environmentNames) expect(makeEnvironment(name).name).toBe(name);
    expect(() => makeEnvironment("toString")).toThrowError(expect.objectContaining({ code: "ERR_CONFIG" }));
    expect(() => makeEnvironment("math", { turns: 3 })).toThrow(/turns/);
  });
});
