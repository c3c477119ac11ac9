import { describe, expect, it } from "vitest";
import { z } from "zod";
import { NlacError } from "../../lib/base/errors.ts";
import type { Action } from "../../lib/contract/environment.ts";
import { checkEnvironment } from "../../lib/environments/check.ts";
import { defineEnvironment } from "../../lib/environments/define.ts";
import { tool } from "../../lib/environments/define-tool.ts";
import type { EnvironmentDefinition } from "../../lib/environments/definition.ts";
import { callAction } from "../../lib/prompts/calls.ts";
import { call, type Desk, desk, find, type Job, odd, opened, play } from "../support/job-desk.ts";

const said = (content: string, role = "tool") => [{ role, content }];

describe("defineEnvironment", () => {
  it("makes an environment that satisfies the contract", async () => {
    expect(await checkEnvironment(desk())).toEqual([]);
    expect(await checkEnvironment(desk({ actionFormat: "call", respond: (text) => `${text}?` }))).toEqual([]);
    expect(await checkEnvironment(desk({ respond: () => "Yes." }))).toEqual([]);
    expect(opened.length).toBeGreaterThan(20);
    for (const { closed } of opened) expect(closed).toBe(1);
  });

  it("plays an episode: the tools' answers, the end, the score", async () => {
    const [found, sent] = await play(
      desk(),
      call("find", { item: "pen" }),
      call("send", { item: "pen", count: 2 }),
    );
    expect(found).toEqual({
      observation: said('{"item":"pen","count":3}'),
      reward: 0,
      terminated: false,
      truncated: false,
      info: { tool: "find" },
    });
    expect(sent).toEqual({
      observation: said("Sent."),
      reward: 1,
      terminated: true,
      truncated: false,
      info: { tool: "send" },
    });
    const late = await play(desk(), ...Array<Action>(4).fill(call("find", { item: "pen" })));
    // The turn limit truncates the episode; it does not terminate it.
    expect(late.map(({ terminated, truncated, reward }) => [terminated, truncated, reward])).toEqual([
      [false, false, 0],
      [false, false, 0],
      [false, false, 0],
      [false, true, 0],
    ]);
  });

  it("does not reward a truncated turn with the score, which counts in the episode", async () => {
    const ending = async (more: Partial<EnvironmentDefinition<Job, Desk>>) =>
      (
        await play(
          desk({ maxTurns: 2, score: () => 0.5, ...more }),
          ...Array(2).fill(call("find", { item: "pen" })),
        )
      ).at(-1);
    expect(await ending({})).toMatchObject({ terminated: false, truncated: true, reward: 0, score: 0.5 });
    const rule = await ending({ turnLimitEnds: true });
    expect(rule).toMatchObject({ terminated: true, truncated: false, reward: 0.5 });
    expect(rule).not.toHaveProperty("score");
    expect(await checkEnvironment(desk({ maxTurns: 2, score: () => 0.5 }))).toEqual([]);
  });

  it("says what an episode begins with, and which tools there are", async () => {
    const [task] = await desk().tasks("train");
    const { messages, tools } = (await desk().start(task!, { seed: 0 })).observation;
    expect(messages).toEqual([
      { role: "system", content: "You run a desk." },
      { role: "user", content: "Send 2 of pen." },
    ]);
    expect(tools?.map(({ name }) => name)).toEqual(["find", "send"]);
    expect(tools?.[1]?.parameters).toEqual({
      type: "object",
      properties: {
        item: { type: "string" },
        count: { type: "integer", minimum: 1, maximum: 2 ** 53 - 1, default: 1 },
      },
      required: ["item"],
    });
  });

  it.each([
    ["an unknown tool", call("fetch", {}), 'there is no tool "fetch"; there are find, send'],
    ["an inherited name", call("constructor", {}), 'there is no tool "constructor"; there are find, send'],
    ["arguments that break the schema", call("find", { item: 3 }), "arguments.item must be string"],
    ["a missing argument", call("find", {}), "arguments must have required property 'item'"],
    [
      "what only zod can refuse",
      call("send", { item: "pen", count: 200 }),
      "arguments.count: that many do not fit",
    ],
    ["what the handler refuses", call("find", { item: "cup" }), "cup is unknown"],
  ])("answers %s", async (_, action, reason) => {
    const [result] = await play(desk(), action);
    expect(result).toEqual({
      observation: said(`Error: ${reason}`),
      reward: 0,
      terminated: false,
      truncated: false,
      info: { tool: action.tool!.name, toolError: true },
    });
  });

  it("applies zod's defaults, and passes on a copy of the arguments", async () => {
    const [sent] = await play(
      desk({ score: ({ sent }) => (sent[0] === "1 pen" ? 1 : 0) }),
      call("send", { item: "pen" }),
    );
    expect(sent?.reward).toBe(1);
    const given = { list: [1] };
    const spoiler = tool({
      name: "spoil",
      description: "Spoils.",
      parameters: { type: "object" },
      handler: (args) => (args.list as number[]).push(2),
    });
    await play(desk({ tools: [spoiler] }), call("spoil", given));
    expect(given).toEqual({ list: [1] });
  });

  it.each([
    [undefined, "Done."],
    ["", "(empty)"],
    [null, "null"],
    [[1, { a: 2 }], '[1,{"a":2}]'],
  ])("shows %j as %s", async (answer, shown) => {
    const [result] = await play(desk({ tools: [odd(() => answer)] }), call("odd", {}));
    expect(result?.observation).toEqual(said(shown));
  });

  it("lets the agent speak, with or without a call", async () => {
    const respond: EnvironmentDefinition<Job, Desk>["respond"] = async (text, { task, end }) => {
      if (text === "Bye.") end();
      return `You said ${text} about ${task.id}.`;
    };
    const [spoken, over] = await play(
      desk({ respond }),
      call("respond", { content: "Hi." }),
      call("respond", { content: "Bye." }),
    );
    expect(spoken?.observation).toEqual(said("You said Hi. about pens.", "user"));
    expect(over?.terminated).toBe(true);
    const [plain] = await play(desk({ respond, actionFormat: "call" }), { text: "Hi." });
    expect(plain?.observation).toEqual(said("You said Hi. about pens.", "user"));
    const [named] = await play(desk({ respond, actionFormat: "call" }), call("respond", { content: "Hi." }));
    expect(named?.info.toolError).toBe(true);
    const [unheard] = await play(desk({ actionFormat: "call" }), { text: "Hi." });
    expect(unheard?.observation).toEqual(said("Nobody listens here. Use the tools: find, send.", "user"));
  });

  it("makes the tools of every episode from its state if they are a function", async () => {
    const [result] = await play(
      desk({ tools: (state, task) => [odd(() => `${state.stock.get("pen")} for ${task.id}`)] }),
      call("odd", {}),
    );
    expect(result?.observation).toEqual(said("3 for pens"));
  });
});

describe("contradictory definitions are rejected", () => {
  it.each([
    ["two tools of one name", () => desk({ tools: [find, find] }), /same name/],
    [
      "a tool that is called respond where a person is spoken to",
      () => desk({ tools: [{ ...find, schema: { ...find.schema, name: "respond" } }], respond: () => "" }),
      /same name/,
    ],
    ["a misspelt part", () => desk({ maxTurn: 3 } as never), /maxTurn/],
    [
      "a name that no model could write",
      () => tool({ ...definition, name: "find it" }),
      /"find it" is not a usable tool name/,
    ],
    ["a tool without a name", () => tool({ ...definition, name: undefined as never }), /usable tool name/],
    [
      "a tool without a description",
      () => tool({ ...definition, description: undefined as never }),
      /The tool "a" needs a description/,
    ],
    [
      "a tool without parameters",
      () => tool({ ...definition, parameters: undefined as never }),
      /The tool "a" needs parameters: a zod object/,
    ],
    [
      "parameters of zod 3",
      () => tool({ ...definition, parameters: { _def: { typeName: "ZodObject" } } }),
      /The tool "a" needs parameters of zod 4/,
    ],
    [
      "a tool without a handler",
      () => tool({ ...definition, handler: undefined as never }),
      /The tool "a" needs a handler/,
    ],
    [
      "a tool that tool() did not make",
      () => desk({ tools: [definition as never] }),
      /tools must be a list of tools, each made by tool/,
    ],
    ["tools by name", () => desk({ tools: { find } as never }), /tools must be a list/],
    ["one list of tasks", () => desk({ tasks: ["a"] as never }), /tasks must be \{ train, test \}/],
    [
      "tasks without a split",
      () => desk({ tasks: { train: [] } as never }),
      /tasks.test must be a list, or a function that returns one; it is undefined/,
    ],
    ["a misspelt split", () => desk({ tasks: { train: [], tests: [] } as never }), /tasks has no "tests"/],
    ["a prompt that is a text", () => desk({ prompt: "Go." as never }), /prompt must be a function/],
    ["a system that is a function", () => desk({ system: (() => "") as never }), /system must be a text/],
    ["a turn limit that is a text", () => desk({ maxTurns: "3" as never }), /maxTurns must be an integer/],
    [
      "an unknown action format",
      () => desk({ actionFormat: "tools" as never }),
      /actionFormat must be one of/,
    ],
    ["no definition", () => defineEnvironment(undefined as never), /takes a definition, not undefined/],
    ["parameters that are no object", () => tool({ ...definition, parameters: z.string() }), /"object"/],
    [
      "parameters without JSON Schema",
      () => tool({ ...definition, parameters: z.object({ a: z.date() }) }),
      /JSON Schema/,
    ],
  ])("%s", (_, make, message) => {
    expect(make).toThrow(message);
    expect(make).toThrow(NlacError);
  });
  const definition = { name: "a", description: "A.", parameters: z.object({}), handler: () => "" };
});

describe("a definition", () => {
  const least = {
    name: "least",
    start: () => ({}),
    prompt: () => "Go.",
    tools: [],
    score: () => 0,
  };

  it("needs no taskId if a task is a string or has an id", async () => {
    const texts = defineEnvironment({ ...least, tasks: { train: ["a"], test: ["b"] } });
    expect((await texts.tasks("train")).map((task) => texts.taskId(task))).toEqual(["a"]);
    const named = defineEnvironment({ ...least, tasks: { train: [{ id: "a" }], test: [] } });
    expect((await named.tasks("train")).map((task) => named.taskId(task))).toEqual(["a"]);
    const numbers = defineEnvironment({ ...least, tasks: { train: [1], test: [2] } });
    expect(() => numbers.taskId(1)).toThrow(/Name it with taskId/);
  });

  it("is named if a function of tasks or the score returns something else", async () => {
    const tasks = { train: (() => undefined) as never, test: ["b"] };
    await expect(defineEnvironment({ ...least, tasks }).tasks("train")).rejects.toMatchObject({
      code: "ERR_ENVIRONMENT",
      message: "least: the train tasks cannot be listed: the function returned undefined instead of a list",
    });
    const scored = desk({ maxTurns: 1, score: () => true as never });
    await expect(play(scored, call("find", { item: "pen" }))).rejects.toThrow(
      /must return a number from 0 to 1; it returned true/,
    );
  });

  it("is named if its demonstration fails or has another shape", async () => {
    const tasks = { train: ["a"], test: ["b"] };
    const find = tool({
      name: "find",
      description: "Finds.",
      parameters: { type: "object" },
      handler: () => "Here.",
    });
    const shows = (demonstrate: () => unknown) =>
      defineEnvironment({ ...least, tools: [find], tasks, demonstrate: demonstrate as never }).demonstrate!(
        "a",
        {
          seed: 0,
        },
      );
    const turn = (name: string) => ({ action: callAction(name, {}, "So."), future: "It is found." });
    const shape = /least: demonstrate must return a list of \{ action, future \}/;
    await expect(shows(() => [callAction("find", {})])).rejects.toThrow(shape);
    await expect(shows(() => undefined)).rejects.toThrow(shape);
    await expect(shows(() => [turn("nope"), turn("find")])).rejects.toMatchObject({
      code: "ERR_ENVIRONMENT",
      message: expect.stringMatching(
        /^least: demonstrate, turn 1: the call was refused\. Error: there is no tool "nope"; there are find/,
      ),
    });
    await expect(shows(() => Array.from({ length: 31 }, () => turn("find")))).rejects.toMatchObject({
      code: "ERR_ENVIRONMENT",
      message: "least: demonstrate, turn 31: the episode ended after turn 30.",
    });
    const failed = shows(() => {
      throw new TypeError("no pen");
    });
    await expect(failed).rejects.toMatchObject({
      code: "ERR_ENVIRONMENT",
      message: "least: demonstrate failed: no pen",
    });
  });

  it("plays in plain text: every action is answered by `respond`", async () => {
    const guess = (more: object = {}) =>
      defineEnvironment<string, { guesses: number; found: boolean }>({
        name: "guess",
        tasks: { train: ["7"], test: ["3"] },
        start: () => ({ guesses: 0, found: false }),
        prompt: () => "Guess my digit.",
        actionFormat: "text",
        respond: (text, { state, task, end }) => {
          state.guesses++;
          if (text === task) {
            state.found = true;
            end();
          }
          return text < task ? "More." : text > task ? "Less." : "Yes.";
        },
        score: ({ guesses, found }) => (found ? 1 / guesses : 0),
        maxTurns: 3,
        demonstrate: (task) => [{ action: { text: task, thought: "A digit." }, future: "It is found." }],
        ...more,
      });
    expect(await checkEnvironment(guess())).toEqual([]);
    const environment = guess();
    expect(environment.actionFormat).toBe("text");
    const episode = await environment.start("7", { seed: 0 });
    expect(episode.observation).toEqual({ messages: [{ role: "user", content: "Guess my digit." }] });
    const [first, second] = [await episode.step({ text: "4" }), await episode.step({ text: "7" })];
    expect([first.observation, first.reward, first.terminated]).toEqual([said("More.", "user"), 0, false]);
    expect([second.observation, second.reward, second.terminated]).toEqual([said("Yes.", "user"), 0.5, true]);
    // JSON that looks like a call is text too.
    const other = await environment.start("7", { seed: 0 });
    expect((await other.step(call("find", {}))).observation).toEqual(said("Less.", "user"));

    const refused = (more: object) => expect(() => guess(more));
    refused({ respond: undefined }).toThrow("defineEnvironment: respond is missing.");
    refused({ tools: [] }).toThrow('guess: the action format "text" has no calls: leave out the tools.');
  });

  it("is rejected with the name of the missing part", () => {
    const { score: _, ...rest } = { ...least, tasks: { train: ["a"], test: ["b"] } };
    expect(() => defineEnvironment(rest as never)).toThrow("defineEnvironment: score is missing.");
  });
});
