import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { z } from "zod";
import { NlacError } from "../../lib/base/errors.ts";
import type { Action, Environment } from "../../lib/contract/environment.ts";
import { checkEnvironment } from "../../lib/environments/check.ts";
import { defineEnvironment } from "../../lib/environments/define.ts";
import { type ToolContext, ToolError, tool } from "../../lib/environments/define-tool.ts";
import type { EnvironmentDefinition } from "../../lib/environments/definition.ts";
import { collectTrajectories } from "../../lib/playing/collect.ts";
import { callAction } from "../../lib/prompts/calls.ts";
import { CallingModel } from "../support/calling-model.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

interface Job {
  id: string;
  item: string;
  count: number;
}

interface Desk {
  stock: Map<string, number>;
  sent: string[];
  closed: number;
}

const opened: Desk[] = [];

const find = tool({
  name: "find",
  description: "How many of an item are in stock.",
  parameters: z.object({ item: z.string() }),
  handler: ({ item }, { state }: ToolContext<Desk>) => {
    const count = state.stock.get(item);
    if (count === undefined) throw new ToolError(`${item} is unknown`);
    return { item, count };
  },
});

const send = tool({
  name: "send",
  description: "Sends items and ends the job.",
  parameters: z
    .object({ item: z.string(), count: z.int().min(1).default(1) })
    .refine(({ count }) => count < 100, {
      path: ["count"],
      message: "that many do not fit",
    }),
  handler: ({ item, count }, { state, end }: ToolContext<Desk>) => {
    state.sent.push(`${count} ${item}`);
    end();
    return "Sent.";
  },
});

/** A tool without a schema of its own that runs a test's handler. */
const odd = (handler: (context: ToolContext<Desk, Job>) => unknown, timeout = 60_000) =>
  tool({
    name: "odd",
    description: "Odd.",
    parameters: { type: "object", properties: {} },
    timeout,
    handler: (_, context: ToolContext<Desk, Job>) => handler(context),
  });

function desk(more: Partial<EnvironmentDefinition<Job, Desk>> = {}): Environment<Job> {
  return defineEnvironment({
    name: "desk",
    system: "You run a desk.",
    tasks: {
      train: [{ id: "pens", item: "pen", count: 2 }],
      test: async () => [{ id: "cups", item: "cup", count: 1 }],
    },
    taskId: ({ id }: Job) => id,
    start: (): Desk => {
      const state = { stock: new Map([["pen", 3]]), sent: [], closed: 0 };
      opened.push(state);
      return state;
    },
    prompt: ({ item, count }) => `Send ${count} of ${item}.`,
    tools: [find, send],
    score: ({ sent }, { item, count }) => (sent.includes(`${count} ${item}`) ? 1 : 0),
    close: (state) => {
      state.closed++;
    },
    maxTurns: 4,
    ...more,
  });
}

const call = (name: string, args: object) => callAction(name, args as Record<string, unknown>);

async function play(environment: Environment<Job>, ...actions: Action[]) {
  const [task] = await environment.tasks("train");
  const episode = await environment.start(task!, { seed: 0 });
  const results = [];
  for (const action of actions) results.push(await episode.step(action));
  await episode.close();
  return results;
}

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
      /from 0 to 1, but is 1.5/,
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
      fault(/train tasks cannot be had: no file/),
    );
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

  it("is named if its demonstration fails or has another shape", async () => {
    const tasks = { train: ["a"], test: ["b"] };
    const shows = (demonstrate: () => unknown) =>
      defineEnvironment({ ...least, tasks, demonstrate: demonstrate as never }).demonstrate!("a", {
        seed: 0,
      });
    const shape = /least: demonstrate must return a list of \{ action, future \}/;
    await expect(shows(() => [callAction("find", {})])).rejects.toThrow(shape);
    await expect(shows(() => undefined)).rejects.toThrow(shape);
    const failed = shows(() => {
      throw new TypeError("no pen");
    });
    await expect(failed).rejects.toMatchObject({
      code: "ERR_ENVIRONMENT",
      message: "least: demonstrate failed: no pen",
    });
  });

  it("is rejected with the name of the missing part", () => {
    const { score: _, ...rest } = { ...least, tasks: { train: ["a"], test: ["b"] } };
    expect(() => defineEnvironment(rest as never)).toThrow("defineEnvironment: score is missing.");
  });
});
