import { afterEach, describe, expect, test } from "vitest";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { evaluateReact, type ReactConfigInput } from "../../lib/algorithms/react.ts";
import type { Environment } from "../../lib/contract/environment.ts";
import { servicePlayer } from "../../lib/playing/service-player.ts";
import { chatService } from "../../lib/services/chat-service.ts";
import { type Answer, type ChatRequest, type ChatServer, chatServer } from "../support/chat-server.ts";
import { nlac } from "../support/command-line.ts";
import { errandEnvironment } from "../support/errand.ts";
import { small } from "../support/nlac-training.ts";
import { scriptedRoles } from "../support/roles.ts";
import { ScriptedModel } from "../support/scripted-model.ts";

let server: ChatServer | undefined;
afterEach(async () => {
  await server?.close();
  server = undefined;
});

const act = (word: string) => `Thought:\nhm\nAction:\n${word}`;
/** Brings what the desk asks for. */
const obey = (text: string) => act(/OBSERVED wants (\w+)/.exec(text)?.[1] ?? "soap");

/** Plays with `handler` as the service; returns its requests too. */
async function play(
  handler: (body: ChatRequest) => Answer,
  config: ReactConfigInput = {},
  environment: Environment<never> = errandEnvironment() as Environment<never>,
) {
  const asked: ChatRequest[] = [];
  server = await chatServer((body) => {
    asked.push(body);
    return handler(body);
  });
  const service = chatService({ model: "m", baseURL: server.baseURL, maxRetries: 0, temperature: 0.9 });
  const evaluation = await evaluateReact({ model: servicePlayer(service), environment, config });
  return { evaluation, asked };
}

describe("a service that plays", () => {
  test("reads the episode as messages and has an evaluation's statistics", async () => {
    const { evaluation, asked } = await play(({ messages }) => ({ text: obey(messages.at(-1)!.content) }), {
      temperature: 0.5,
      maxActionTokens: 40,
    });
    expect(evaluation).toMatchObject({
      episodes: 3,
      tasks: 3,
      parseRate: 1,
      outcomes: { done: 3 },
      success: { estimate: 1 },
      turns: { estimate: 2 },
    });
    expect(asked).toHaveLength(6);
    for (const { temperature, max_tokens } of asked) expect([temperature, max_tokens]).toEqual([0.5, 40]);
    const last = asked.find(({ messages }) => messages.length > 2)!;
    expect(last.messages.map(({ role }) => role)).toEqual(["system", "user", "assistant", "user"]);
    expect(last.messages[0]!.content).toMatch(/^You run errands\.\n\n.*Thought:/s);
    expect(last.messages.slice(1, 3).map(({ content }) => content)).toEqual([
      "What do you bring?",
      act("soap"),
    ]);
    expect(last.messages[3]!.content).toMatch(/^OBSERVED wants \w+$/);
  });

  test("replies are returned unchanged, including names of control tokens and other alphabets", async () => {
    const said = "Thought:\n<|end|><|assistant|> ключ 鍵 🗝\nAction:\nsoap";
    const { asked, evaluation } = await play(() => ({ text: said }), { episodes: 1 });
    expect(asked.at(-1)!.messages.filter(({ role }) => role === "assistant")).toEqual([
      { role: "assistant", content: said },
      { role: "assistant", content: said },
    ]);
    expect(evaluation.trajectories[0]!.turns.map(({ text }) => text)).toEqual([said, said, said]);
  });

  test("tools are described in the first message", async () => {
    const environment = errandEnvironment();
    const start = environment.start;
    environment.start = async (task, options) => {
      const episode = await start(task, options);
      const fetch = { name: "fetch", description: "Fetches.", parameters: { type: "object" } };
      return { ...episode, observation: { ...episode.observation, tools: [fetch] } };
    };
    const { asked } = await play(() => ({ text: act("soap") }), { episodes: 1 }, environment as never);
    expect(asked[0]!.messages[0]!.content).toMatch(/"name": ?"fetch".*"type": ?"object"/);
    expect(asked[0]!.messages.slice(1)).toEqual([{ role: "user", content: "What do you bring?" }]);
  });

  test("a failure ends only its own episode", async () => {
    let first: string | undefined;
    const { evaluation } = await play(({ messages }) => {
      const text = messages.at(-1)!.content;
      const told = /OBSERVED wants (\w+)/.exec(text)?.[1];
      first ??= told;
      return told !== undefined && told === first ? { status: 400 } : { text: obey(text) };
    });
    expect(evaluation).toMatchObject({
      episodes: 3,
      outcomes: { "service-fault": 1, done: 2 },
      success: { estimate: 1 }, // of the episodes that were judged
    });
    const broken = evaluation.trajectories.find(({ fault }) => fault !== undefined)!;
    expect(broken.fault).toMatchObject({ code: "ERR_SERVICE" });
    expect(broken.turns).toHaveLength(1);
  });

  test("stops when the signal fires", async () => {
    server = await chatServer(() => ({ text: act("soap"), delay: 5000 }));
    const controller = new AbortController();
    const model = servicePlayer(chatService({ model: "m", baseURL: server.baseURL }));
    const playing = evaluateReact({ model, environment: errandEnvironment(), signal: controller.signal });
    setTimeout(() => controller.abort(), 50);
    await expect(playing).rejects.toMatchObject({ code: "ERR_ABORTED" });
  });

  test("by the command line", async () => {
    server = await chatServer(({ messages }) => ({ text: act(`Is it ${messages.length}?`) }));
    process.env.OPENAI_BASE_URL = server.baseURL;
    try {
      const settings = ["--environment", "twentyQuestions", "--options", '{"turns": 2}', "--episodes", "2"];
      const { output, errors, code } = await nlac("eval", "service:m", ...settings, "--json");
      expect(errors).not.toContain("ERR_");
      expect(code).toBe(0);
      expect(JSON.parse(output)).toMatchObject({ episodes: 2, parseRate: 1, outcomes: { done: 2 } });
      expect(server.calls()).toBe(4);
      const refused = await nlac("eval", "service:m", "--critic", "x.jsonl");
      expect(refused.errors).toContain("ERR_VALUE");
    } finally {
      delete process.env.OPENAI_BASE_URL;
    }
  });
});

test("a model plays the same way; tasks are spread evenly, at most trials times each", async () => {
  const model = new ScriptedModel(obey);
  const environment = errandEnvironment();
  const evaluation = await evaluateReact({
    model,
    environment,
    config: { episodes: 5, trials: 2, maxPromptTokens: 10_000 },
    weights: "target",
  });
  expect(evaluation).toMatchObject({ episodes: 5, tasks: 3, success: { estimate: 1 } });
  expect(new Set(model.calls.map(({ weights }) => weights))).toEqual(new Set(["target"]));
  expect(evaluation.trajectories.every(({ task }) => task.endsWith("s"))).toBe(true); // of the test split
  await expect(evaluateReact({ model, environment, config: { episodes: 4 } })).rejects.toMatchObject({
    code: "ERR_CONFIG",
  });
  await expect(evaluateReact({ model, environment, config: { tasks: 4 } as never })).rejects.toThrow(/tasks/);
});

test("an environment without tasks of the split is refused", async () => {
  const environment = { ...errandEnvironment(), tasks: async () => [] };
  await expect(evaluateReact({ model: scriptedRoles(), environment, config: {} })).rejects.toMatchObject({
    code: "ERR_CONFIG",
    message: expect.stringMatching(/there are no tasks\. Name another environment or split\.$/),
  });
});

test("no episode has the seed of one of training or of its evaluations, if they have the same seed", async () => {
  const environment = errandEnvironment({ turns: 2 });
  const { start } = environment;
  let seeds = new Set<number>();
  environment.start = (task, options) => {
    seeds.add(options.seed);
    return start(task, options);
  };
  const evaluation = { every: 1, episodes: 12 };
  const config = { ...small, episodesPerIteration: 12, evaluation, updatesPerIteration: 0 };
  await trainNlac({ model: scriptedRoles(), environment, config });
  const trained = seeds;
  expect(trained.size).toBe(24);
  seeds = new Set();
  await evaluateReact({ model: scriptedRoles(), environment, config: { episodes: 12, trials: 4 } });
  expect(seeds.size).toBe(12);
  expect([...seeds].filter((seed) => trained.has(seed))).toEqual([]);
});
