import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import type { Environment } from "../../lib/contract/environment.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { CallingModel } from "../support/calling-model.ts";
import { call, desk, type Job, odd, opened, play } from "../support/job-desk.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

describe("faults", () => {
  const fault = (message: RegExp, code = "ERR_ENVIRONMENT") =>
    expect.objectContaining({ code, message: expect.stringMatching(message) });
  const circular: { self?: unknown } = {};
  circular.self = circular;

  it.each([
    ["a handler that throws", { tools: [odd(() => JSON.parse("{"))] }, /desk: the tool "odd" failed: .*JSON/],
    ["an answer without JSON", { tools: [odd(() => circular)] }, /cannot be shown as JSON/],
    ["a function for an answer", { tools: [odd(() => () => 1)] }, /cannot be shown as JSON/],
    [
      "a call that takes too long",
      { tools: [odd(() => new Promise(() => {}), 20)] },
      /"odd" did not answer within 20 ms/,
    ],
    [
      "a score that throws",
      { tools: [odd(({ end }) => end())], score: () => Promise.reject(new Error("no")) },
      /score failed: no/,
    ],
    [
      "a score out of range",
      { tools: [odd(({ end }) => end())], score: () => 1.5 },
      /from 0 to 1; it returned 1.5/,
    ],
  ])("%s ends the episode with ERR_ENVIRONMENT", async (_, more, message) => {
    const [task] = await desk().tasks("train");
    const episode = await desk(more).start(task!, { seed: 0 });
    await expect(episode.step(call("odd", {}))).rejects.toEqual(fault(message));
    await expect(episode.step(call("odd", {}))).rejects.toEqual(fault(/is over/));
    await episode.close();
  });

  it("so do a person that fails, and a start that fails", async () => {
    const respond = () => {
      throw new Error("gone");
    };
    await expect(play(desk({ respond }), call("respond", { content: "a" }))).rejects.toEqual(
      fault(/"respond" failed: gone/),
    );
    await expect(play(desk({ start: () => Promise.reject(new Error("full")) }))).rejects.toEqual(
      fault(/did not start: full/),
    );
    const before = opened.length;
    await expect(play(desk({ prompt: () => JSON.parse("{") }))).rejects.toEqual(fault(/did not start/));
    expect(opened.slice(before).map(({ closed }) => closed)).toEqual([1]);
    const failing = { train: () => Promise.reject(new Error("no file")), test: [] };
    await expect(desk({ tasks: failing }).tasks("train")).rejects.toEqual(
      fault(/train tasks cannot be listed: no file/),
    );
  });

  it("a timeout may be infinite, but must be positive", async () => {
    const slow = () => new Promise((resolve) => setTimeout(() => resolve("late"), 20));
    const patient = { tools: [odd(slow, Number.POSITIVE_INFINITY)] };
    expect((await play(desk(patient), call("odd", {}))).at(-1)).toMatchObject({
      observation: [{ role: "tool", content: "late" }],
    });
    for (const timeout of [0, -1, Number.NaN]) {
      expect(() => odd(slow, timeout)).toThrow("must be a positive number");
      expect(() => desk({ timeout })).toThrow("must be a positive number");
    }
  });

  it("a handler gets the signals of its timeout and of its episode", async () => {
    const reasons: string[] = [];
    const waiting = odd(
      ({ signal }) =>
        new Promise((resolve) => {
          signal.addEventListener("abort", () => {
            reasons.push((signal.reason as NlacError).code);
            resolve("late");
          });
        }),
      20,
    );
    const [task] = await desk().tasks("train");
    const late = await desk({ tools: [waiting] }).start(task!, { seed: 0 });
    await expect(late.step(call("odd", {}))).rejects.toEqual(fault(/within 20 ms/));

    const controller = new AbortController();
    const patient = desk({ tools: [{ ...waiting, timeout: 60_000 }] });
    const stopped = await patient.start(task!, { seed: 0, signal: controller.signal });
    setTimeout(() => controller.abort(), 10);
    await expect(stopped.step(call("odd", {}))).rejects.toEqual(fault(/aborted/, "ERR_ABORTED"));

    const closed = await patient.start(task!, { seed: 0 });
    const step = expect(closed.step(call("odd", {}))).rejects.toEqual(fault(/aborted/, "ERR_ABORTED"));
    await closed.close();
    await step;
    expect(reasons).toEqual(["ERR_ENVIRONMENT", "ERR_ABORTED", "ERR_ABORTED"]);
  });

  it("hostile calls are answered", async () => {
    const environment = desk({ maxTurns: 1 });
    const [task] = await environment.tasks("train");
    await fc.assert(
      fc.asyncProperty(
        fc.oneof(fc.constantFrom("find", "send"), fc.string()),
        fc.dictionary(fc.oneof(fc.string(), fc.constantFrom("item", "count", "__proto__")), fc.jsonValue()),
        async (name, args) => {
          const episode = await environment.start(task!, { seed: 0 });
          const { observation, terminated, truncated } = await episode.step(call(name, args));
          await episode.close();
          expect(observation[0]!.content).not.toBe("");
          expect([terminated, truncated]).toEqual([true, false]); // its one turn
        },
      ),
    );
    expect(Object.keys(Object.prototype)).toEqual([]);
  });
});

describe("kinds of faults in a trajectory", () => {
  const jsonCall = (name: string, args: object) =>
    `Thought:\nhm\nAction:\n${JSON.stringify({ name, arguments: args })}`;

  async function collect(environment: Environment<Job>, ...replies: string[]) {
    let turn = 0;
    const model = new ScriptedModel(() => replies[Math.min(turn++, replies.length - 1)]!);
    return { trajectory: await collectWith(model, environment), prompt: model.calls.at(-1)!.prompt };
  }

  async function collectWith(model: ScriptedModel, environment: Environment<Job>) {
    const [task] = await environment.tasks("train");
    const [trajectory] = await collectTrajectories({
      model,
      environment,
      episodes: [{ id: 0, task: task! }],
      seed: 0,
      maxActionTokens: 200,
      maxPromptTokens: 100_000,
      temperature: 0,
      maxMalformed: 2,
    });
    return trajectory!;
  }

  it("the agent's own mistakes are observations", async () => {
    const { trajectory, prompt } = await collect(
      desk(),
      "I do not know.",
      jsonCall("find", { item: 5 }),
      jsonCall("send", { item: "pen", count: 2 }),
    );
    expect(trajectory.outcome).toBe("done");
    expect(trajectory.reward).toBe(1);
    expect(trajectory.turns.map(({ malformed, info }) => [malformed !== undefined, info.toolError])).toEqual([
      [true, undefined],
      [false, true],
      [false, undefined],
    ]);
    expect(prompt).toContain("That could not be read");
    expect(prompt).toContain("Error: arguments.item must be string");
    expect(prompt).toContain('"description":"How many of an item are in stock."');
  });

  it("in the form of the chat template, too", async () => {
    const tagged = (name: string, args: object) =>
      `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;
    const replies = [
      "Which pens?",
      tagged("find", { item: "pen" }) + tagged("find", { item: "cup" }),
      `I send them.\n${tagged("send", { item: "pen", count: 2 })}`,
    ];
    const model: CallingModel = new CallingModel(() => replies[model.calls.length - 1]!);
    const environment = desk({ actionFormat: "call", respond: () => "Blue ones." });
    const trajectory = await collectWith(model, environment);
    expect(trajectory).toMatchObject({ outcome: "done", reward: 1 });
    expect(trajectory.turns.map(({ action, malformed }) => action ?? malformed)).toEqual([
      { text: "Which pens?" },
      "a turn may hold one call only",
      { ...call("send", { item: "pen", count: 2 }), thought: "I send them." },
    ]);
    const { prompt } = model.calls.at(-1)!;
    expect(prompt).toContain("Functions at your disposal");
    expect(prompt).toContain("Blue ones.");
    expect(prompt).toContain("That could not be read: a turn may hold one call only.");
  });

  it("a model whose chat template knows no calls stops the run instead of failing every episode", async () => {
    const model = new ScriptedModel(() => "Hello.");
    await expect(collectWith(model, desk({ actionFormat: "call" }))).rejects.toMatchObject({
      code: "ERR_CONFIG",
    });
  });

  it("up to a limit of consecutive ones", async () => {
    expect((await collect(desk(), "I do not know.")).trajectory.outcome).toBe("malformed");
  });

  it.each([
    ["of the environment", () => JSON.parse("{"), "environment-fault", "ERR_ENVIRONMENT"],
    [
      "of the service behind it",
      () => {
        throw new NlacError("ERR_SERVICE", "The service is down.");
      },
      "service-fault",
      "ERR_SERVICE",
    ],
  ])("a fault %s ends the episode with a reason", async (_, handler, outcome, code) => {
    const { trajectory } = await collect(desk({ tools: [odd(handler)] }), jsonCall("odd", {}));
    expect(trajectory).toMatchObject({ outcome, fault: { code } });
  });
});
