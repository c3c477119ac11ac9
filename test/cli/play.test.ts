import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { PassThrough } from "node:stream";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, describe, expect, test, vi } from "vitest";
import { Person } from "../../lib/cli/person.ts";
import { playYourself } from "../../lib/cli/play-yourself.ts";
import type { Action, Environment, StepResult } from "../../lib/contract/environment.ts";
import { nlac } from "../support/command-line.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-play-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));
afterEach(() => vi.restoreAllMocks());

const program = fileURLToPath(new URL("../../lib/cli/main.ts", import.meta.url));
function play(input: string, ...argv: string[]) {
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    ["--import", "jiti/register", program, "play", ...argv],
    { input, encoding: "utf8", env: { ...process.env, OPENAI_API_KEY: "" } },
  );
  return { status, stdout, stderr };
}

/** An environment whose steps the test gives; it remembers the actions. */
function scripted(format: Environment["actionFormat"], ...steps: (Partial<StepResult> | Promise<never>)[]) {
  const actions: Action[] = [];
  let closed = 0;
  const fetch = { name: "fetch", description: "Fetches a thing.", parameters: { type: "object" } };
  const environment: Environment = {
    name: "scripted",
    actionFormat: format,
    maxTurns: steps.length,
    tasks: async () => ["one"],
    taskId: String,
    start: async () => ({
      observation: {
        messages: [
          { role: "system", content: "The rules." },
          { role: "user", content: "Begin." },
        ],
        ...(format === "tool" || format === "call" ? { tools: [fetch] } : {}),
      },
      step: async (action) => {
        const step = await steps[actions.push(action) - 1]!;
        return {
          observation: [{ role: "tool", content: "Done." }],
          reward: 0,
          terminated: false,
          truncated: false,
          info: {},
          ...step,
        };
      },
      close: async () => void closed++,
    }),
    close: async () => undefined,
  };
  return { environment, actions, closed: () => closed };
}

/** Types `lines` and what ends them; returns what was shown. */
async function sit(environment: Environment, lines: readonly string[], end: "eof" | "ctrl-c" = "eof") {
  const input = new PassThrough();
  const output = Object.assign(new PassThrough(), { isTTY: end === "ctrl-c", columns: 80 });
  let shown = "";
  vi.spyOn(console, "log").mockImplementation((text) => {
    shown += `${text}\n`;
  });
  const person = new Person(input, output);
  for (const line of lines) input.write(`${line}\n`);
  if (end === "eof") input.end();
  else setTimeout(() => input.write("\x03"), 50);
  const playing = playYourself(environment, "one", { seed: 0, person });
  const failure = await playing.then(
    () => undefined,
    (error: unknown) => error,
  );
  person.close();
  return { shown, failure };
}

describe("a line of a person", () => {
  test("is the utterance, or the solution", async () => {
    for (const format of ["text", "solution"] as const) {
      const { environment, actions } = scripted(format, {}, { terminated: true });
      await sit(environment, ["", "  fetch {} ", "two"]);
      expect(actions).toMatchObject([{ text: "fetch {}" }, { text: "two" }]);
      expect(actions[0]).not.toHaveProperty("tool");
    }
  });

  test("calls a tool, with its numbers as they were typed", async () => {
    for (const format of ["tool", "call"] as const) {
      const { environment, actions } = scripted(format, {}, {}, { terminated: true });
      await sit(environment, ['fetch {"price": 250.0}', "fetch", 'other/one{"a": [1, "}"]}']);
      expect(actions).toEqual([
        {
          text: '{"name": "fetch", "arguments": {"price": 250.0}}',
          tool: { name: "fetch", arguments: { price: 250 } },
        },
        { text: '{"name": "fetch", "arguments": {}}', tool: { name: "fetch", arguments: {} } },
        {
          text: '{"name": "other/one", "arguments": {"a": [1, "}"]}}',
          tool: { name: "other/one", arguments: { a: [1, "}"] } },
        },
      ]);
    }
  });

  test("without a tool is an utterance if the environment has them, else it is requested again", async () => {
    const call = scripted("call", {}, { terminated: true });
    await sit(call.environment, ["Fetch it, please.", "hello"]);
    expect(call.actions).toEqual([{ text: "Fetch it, please." }, { text: "hello" }]);
    const tool = scripted("tool", { terminated: true });
    const { shown } = await sit(tool.environment, ["Fetch it.", 'fetch {"a": }', 'fetch {"a": 1}']);
    expect(shown).toContain("Invalid action: it must be a call");
    expect(shown).toContain("Invalid action: the action is not valid JSON");
    expect(tool.actions).toHaveLength(1);
  });

  test("of ? shows help, and is no turn", async () => {
    const { environment, actions } = scripted("call", {});
    const { shown } = await sit(environment, ["?", "hello"]);
    expect(shown).toContain('fetch: Fetches a thing.\n    { "type": "object" }');
    expect(actions).toEqual([{ text: "hello" }]);
  });
});

describe("an episode", () => {
  test("is shown as the agent would see it, with rewards and how it ended", async () => {
    const { environment, closed } = scripted(
      "call",
      { reward: 0.25, info: { toolError: true } },
      { reward: 0.5, terminated: true, info: { success: true } },
    );
    const { shown } = await sit(environment, ["fetch", "bye"]);
    expect(shown).toMatch(/^\[system\]\nThe rules\.\n\n\[user\]\nBegin\.\n\n\[tools\]\nfetch\n/);
    expect(shown).not.toContain("Thought:");
    expect(shown).toContain("[tool]\nDone.\n(the call failed)\n(reward: 0.25)\n");
    expect(shown).toMatch(/\nReward: 0\.75, a success\.\nThe task was one\.\n$/);
    expect(closed()).toBe(1);
  });

  test("ends with its last turn, and with Ctrl-D", async () => {
    const last = scripted("text", {}, {});
    expect((await sit(last.environment, ["a", "b", "c"])).shown).toMatch(/Reward: 0, no success\./);
    expect(last.actions).toHaveLength(2);
    const costly = { ...scripted("text", {}, { reward: -1 }).environment, rewardRange: [-5, 0] as const };
    expect((await sit(costly, ["a", "b"])).shown).toMatch(/Reward: -5, no success\./);
    const { environment } = scripted("text", { reward: 0.25 });
    const start: Environment["start"] = async (...given) =>
      Object.assign(await environment.start(...given), { score: () => 0.5 });
    expect((await sit({ ...environment, start }, ["a"])).shown).toMatch(/Reward: 0\.75, /);
    const left = scripted("text", {}, {});
    const { shown, failure } = await sit(left.environment, ["a"]);
    expect(shown).toMatch(/\nLeft at turn 2\. The task was one\.\n$/);
    expect([failure, left.closed()]).toEqual([undefined, 1]);
  });

  test("names what is wrong with the environment", async () => {
    const { environment } = scripted("text", { reward: Number.NaN });
    expect((await sit(environment, ["a"])).failure).toMatchObject({
      code: "ERR_ENVIRONMENT",
      message: "The reward of a step must be a finite number; it is NaN.",
    });
    const broken = scripted("text", {});
    const failing = { ...broken.environment, start: () => Promise.reject(new TypeError("no database")) };
    expect((await sit(failing, ["a"])).failure).toMatchObject({
      code: "ERR_ENVIRONMENT",
      message: "scripted: an episode did not start: no database",
    });
  });

  test("ends with Ctrl-C, also while the environment is silent", async () => {
    const { environment, closed } = scripted("text", new Promise<never>(() => {}));
    const { failure } = await sit(environment, ["a"], "ctrl-c");
    expect(failure).toMatchObject({ code: "ERR_ABORTED" });
    expect(closed()).toBe(1);
  });
});

describe("the command", () => {
  test("takes an environment's name, and its answers from a pipe", () => {
    const { status, stdout, stderr } = play("pen\nmap\n", "errands", "--task", "loan");
    expect([status, stderr]).toEqual([0, ""]);
    expect(stdout).toMatch(/^\[system\]\nYou run errands\./);
    expect(stdout).toMatch(/1> \n\[user\]\nThe desk /);
    expect(stdout).toMatch(/Left at turn 3\. The task was loan\.\n$/);
  });

  test("accepts a user's file", () => {
    const file = join(root, "mine.mjs");
    writeFileSync(
      file,
      `const step = async ({ text }) => ({ observation: [], reward: text === "blue" ? 1 : 0, terminated: true, truncated: false, info: {} });
      const start = async () => ({ observation: { messages: [{ role: "user", content: "Which colour?" }] }, step, close: async () => {} });
      export default { name: "mine", actionFormat: "text", maxTurns: 1, tasks: async () => [1], taskId: String,
        start, close: async () => {} };`,
    );
    const { status, stdout } = play("blue\n", file);
    expect(status).toBe(0);
    expect(stdout).toContain("There is one turn; ");
    expect(stdout).toMatch(/Reward: 1, a success\./);
  });

  test("rejects options of models", async () => {
    for (const flags of [["--oracle"], ["--environment", "math"]]) {
      const { errors, code } = await nlac("play", "errands", ...flags);
      expect([code, errors]).toEqual([1, expect.stringMatching(/ERR_VALUE: errands is an environment/)]);
    }
    expect((await nlac("play", "errands", "--task", "none")).errors).toContain("ERR_CONFIG");
  });
});

test.each(["SIGINT", "SIGTERM"] as const)(
  "%s ends a model's episode, also while the environment is silent, and closes the environment",
  async (name) => {
    const closed = join(root, `closed-${name}`);
    const file = join(root, `silent-${name}.mjs`);
    writeFileSync(
      file,
      `import { writeFileSync } from "node:fs";
      import { environments } from "nlac";
      const errands = environments.errands();
      export default { ...errands, start: async (task, options) => {
          const step = () => new Promise(() => {
            const timer = setTimeout(() => {}, 1e9);
            options.signal.addEventListener("abort", () => clearTimeout(timer));
            console.log("silent");
          });
          return { ...(await errands.start(task, options)), step };
        },
        close: async () => writeFileSync(${JSON.stringify(closed)}, "") };`,
    );
    const child = spawn(process.execPath, [
      ...["--import", "jiti/register", program, "play", "errands-base", "--environment", file],
      ...["--temperature", "0"],
    ]);
    const ended = once(child, "exit");
    let [output, errors] = ["", ""];
    child.stdout.on("data", (chunk) => {
      output += chunk;
      if (output.includes("silent")) child.kill(name);
    });
    child.stderr.on("data", (chunk) => {
      errors += chunk;
    });
    const stuck = setTimeout(() => child.kill("SIGKILL"), 60_000); // the environment never answers
    expect(await ended).toEqual([130, null]);
    clearTimeout(stuck);
    expect(errors).toMatch(new RegExp(`^${name}: stopping the episode .+\nnlac: stopped\n$`));
    expect(existsSync(closed)).toBe(true);
  },
  90_000,
);

test("an unknown model, environment or task is an error that lists the known ones", async () => {
  const nothing = await nlac("play", "nosuch");
  expect(nothing.errors).toMatch(
    /There is no model "nosuch".* It is not an environment either: there are .*errands/,
  );
  const task = await nlac("play", "errands", "--task", "nosuch");
  expect(task.errors).toMatch(/errands has no task "nosuch"; there are \w+/);
  process.exitCode = undefined; // the commands of a test are one process
});
