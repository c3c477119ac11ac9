import { join } from "node:path";
import { afterEach, describe, expect, it, vi } from "vitest";
import type { Action } from "../../../lib/contract/environment.ts";
import { checkEnvironment } from "../../../lib/environments/check.ts";
import { environments } from "../../../lib/environments/index.ts";
import {
  type TauBenchOptions,
  type TauBenchTask,
  tauBench,
} from "../../../lib/environments/tau-bench/index.ts";
import { stopWord, type User } from "../../../lib/environments/tau-bench/user.ts";

const data = join(import.meta.dirname, "../../fixtures/tau-bench");

/** Answers "Go on." until the agent says good-bye. */
function patient(): { user: User; heard: string[] } {
  const heard: string[] = [];
  const user: User = {
    async start(task) {
      return {
        opening: `I am ${task.userId}.`,
        async respond(text) {
          heard.push(text);
          return text.includes("Good-bye") ? `Thanks. ${stopWord}` : "Go on.";
        },
      };
    },
  };
  return { user, heard };
}

function call(name: string, args: Record<string, unknown>): Action {
  const tool = { name, arguments: args };
  return { text: JSON.stringify(tool), tool };
}

const say = (content: string) => call("respond", { content });
const changeLamp = call("modify_pending_order_items", {
  order_id: "#W10",
  item_ids: ["201"],
  new_item_ids: ["202"],
  payment_method_id: "credit_card_4",
});

async function open(options: TauBenchOptions = {}, index = 0, split: "train" | "test" = "test") {
  const environment = tauBench({ data, user: patient().user, ...options });
  const task = (await environment.tasks(split))[index]!;
  return { environment, task, episode: await environment.start(task, { seed: 0 }) };
}

async function rewards(actions: Action[], options?: TauBenchOptions, index?: number) {
  const { episode } = await open(options, index);
  const results = [];
  for (const action of actions) results.push(await episode.step(action));
  return results.map(({ reward, terminated, truncated }) => (terminated || truncated ? reward : "going on"));
}

describe("tauBench", () => {
  afterEach(() => vi.unstubAllEnvs());

  it("satisfies the contract, in both action formats", async () => {
    const written = tauBench({ data, turns: 6 });
    expect(await checkEnvironment(written, undefined, { tasks: 1 })).toEqual([]);
    const called = tauBench({ data, turns: 4, actionFormat: "call" });
    expect(await checkEnvironment(called, () => ({ text: "What is it?" }), { tasks: 1 })).toEqual([]);
    expect(environments.tauBench).toBe(tauBench);
  }, 60_000);

  it("begins with the policy and the customer, and has the tools, including one for speaking", async () => {
    const { episode, environment } = await open();
    expect(environment).toMatchObject({ name: "tauBench", actionFormat: "tool", maxTurns: 30 });
    expect(episode.observation.messages).toEqual([
      { role: "system", content: expect.stringContaining("# A lamp and mug shop") },
      { role: "user", content: "I am mara_quist_12." },
    ]);
    const names = episode.observation.tools!.map(({ name }) => name);
    expect(names).toHaveLength(17);
    expect(names.at(-1)).toBe("respond");
    const native = await open({ actionFormat: "call" });
    expect(native.episode.observation.tools!.map(({ name }) => name)).toEqual(names.slice(0, -1));
  });

  it("gives 1 if the database is right and the required outputs were said", async () => {
    expect(await rewards([changeLamp, say("It costs 1,7.0 more. Good-bye.")])).toEqual(["going on", 1]);
    expect(await rewards([changeLamp, say("It costs more. Good-bye.")])).toEqual(["going on", 0]);
    expect(await rewards([say("It costs 17.0 more. Good-bye.")])).toEqual([0]);
    // Said without a call.
    expect(await rewards([changeLamp, { text: "17.0" }, { text: "Good-bye" }])).toEqual([
      "going on",
      "going on",
      1,
    ]);
  });

  it("judges at a transfer too, whatever its arguments", async () => {
    const transfer = call("transfer_to_human_agents", { summary: "" });
    expect(await rewards([transfer], {}, 1)).toEqual([1]);
    expect(await rewards([call("transfer_to_human_agents", {})], {}, 1)).toEqual([1]);
    expect(await rewards([changeLamp, transfer], {}, 1)).toEqual(["going on", 0]);
  });

  it("gives nothing when the turns are used up", async () => {
    expect(await rewards([changeLamp, say("17.0"), say("Well?")], { turns: 3 })).toEqual([
      "going on",
      "going on",
      0,
    ]);
    // The limit is not the customer's: the episode is truncated, not terminated.
    const { episode } = await open({ turns: 2 });
    await episode.step(say("17.0"));
    expect(await episode.step(say("Well?"))).toMatchObject({ terminated: false, truncated: true });
    const served = await open({ turns: 2 });
    await served.episode.step(say("17.0"));
    const last = await served.episode.step(say("Good-bye."));
    expect(last).toMatchObject({ terminated: true, truncated: false });
  });

  it("reports events in info, and marks refusals", async () => {
    const { episode } = await open();
    const looked = await episode.step(call("get_order_details", { order_id: "#W10" }));
    expect(looked.observation).toEqual([{ role: "tool", content: expect.stringContaining('"price": 54.0') }]);
    const sha = /^[\da-f]{64}$/;
    expect(looked.info).toEqual({
      source: "get_order_details",
      databaseSha256: expect.stringMatching(sha),
      databaseReferenceHash: expect.stringMatching(sha),
    });
    const wrong = [
      call("get_order_details", { order_id: "#W0" }),
      call("get_order_details", {}),
      call("get_weather", {}),
      call("respond", { text: "Hello" }),
    ];
    for (const action of wrong) {
      const { info, observation } = await episode.step(action);
      expect(info).toMatchObject({ source: action.tool!.name, toolError: true });
      expect(observation[0]!.content).toMatch(/^(Error: |Unknown action get_weather$)/);
      expect(info.databaseSha256).toBe(looked.info.databaseSha256);
    }
    const changed = await episode.step(changeLamp);
    const said = await episode.step(say("Good-bye."));
    // Also if it is read later, and as JSON.
    expect(JSON.parse(JSON.stringify(looked.info)).databaseSha256).toBe(looked.info.databaseSha256);
    expect(changed.info.databaseSha256).not.toBe(looked.info.databaseSha256);
    expect(said.info).toEqual({
      source: "user",
      databaseSha256: changed.info.databaseSha256,
      databaseReferenceHash: changed.info.databaseReferenceHash,
      databaseCorrect: true,
      missingOutputs: ["17.0"],
    });
    await expect(episode.step(changeLamp)).rejects.toMatchObject({ code: "ERR_ENVIRONMENT" });
  });

  it("preserves how a call's numbers are written", async () => {
    const hash = async (text: string) => {
      const { episode } = await open({ domain: "airline" });
      const { info } = await episode.step({ text, tool: JSON.parse(text) });
      return [info.databaseReferenceHash, info.databaseSha256];
    };
    const text = JSON.stringify(call("send_certificate", { user_id: "noa_berg_5", amount: 50 }).tool);
    const [whole, float] = [await hash(text), await hash(text.replace("50", "50.0"))];
    expect(float[0]).not.toBe(whole[0]);
    expect(float[1]).toBe(whole[1]);
    const { episode } = await open({ domain: "airline" });
    const other = await episode.step({ text: "a certificate", tool: JSON.parse(text) });
    expect(other.info.databaseReferenceHash).toBe(whole[0]);
  });

  it("shows Python's None if a tool ends without a return, and continues", async () => {
    const { episode } = await open({ domain: "airline" });
    const send = () => episode.step(call("send_certificate", { user_id: "noa_berg_5", amount: 50 }));
    const [, , third, fourth] = [await send(), await send(), await send(), await send()];
    expect(fourth).toMatchObject({
      observation: [{ role: "tool", content: "None" }],
      reward: 0,
      terminated: false,
      truncated: false,
    });
    expect(fourth!.info).not.toHaveProperty("toolError");
    expect(fourth!.info.databaseReferenceHash).toBe(third!.info.databaseReferenceHash);
    expect((await episode.step(say("That is all."))).info.source).toBe("user");
  });

  it("plays many episodes over the same data", async () => {
    const { environment, task } = await open();
    const episodes = await Promise.all([0, 1, 2, 3].map((seed) => environment.start(task, { seed })));
    await Promise.all(episodes.map((episode, i) => (i % 2 === 0 ? episode.step(changeLamp) : undefined)));
    const ends = await Promise.all(episodes.map((episode) => episode.step(say("17.0. Good-bye."))));
    expect(ends.map(({ reward }) => reward)).toEqual([1, 0, 1, 0]);
  });

  it("reads tasks from other files, and reports missing ones", async () => {
    expect((await tauBench({ data }).tasks("train")).map(({ id }) => id)).toEqual(["train-0", "train-1"]);
    const own = tauBench({ data, domain: "airline", train: join(data, "airline/tasks_test.json") });
    const [task] = await own.tasks("train");
    expect(own.taskId(task as TauBenchTask)).toBe("train-0");
    const refused = (options: object, message: RegExp) =>
      expect(tauBench(options as TauBenchOptions).tasks("train")).rejects.toMatchObject({
        code: "ERR_CONFIG",
        message: expect.stringMatching(message),
      });
    await refused({ data, domain: "airline" }, /Set the option "train" to a file of airline tasks/);
    await refused({ data, train: "wiki.md" }, /wiki\.md is not JSON/);
    await refused({ data, train: "users.json" }, /must be a list of tasks/);
    await refused({ data, train: "tools.json" }, /task 0 "actions" must be a list/);
  });

  it("says how to get the data, and reports invalid options", async () => {
    vi.stubEnv("NLAC_DATA", "");
    await expect(tauBench().tasks("test")).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining("nlac data import tau-bench"),
    });
    vi.stubEnv("NLAC_DATA", join(data, "nowhere"));
    await expect(tauBench().tasks("test")).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringMatching(/retail has no orders\.json.*git clone/s),
    });
    for (const options of [{ domain: "hotel" }, { turns: 0 }, { dat: "x" }, { user: 3 }]) {
      expect(() => tauBench(options as never)).toThrowError(expect.objectContaining({ code: "ERR_CONFIG" }));
    }
  });

  it("ends the episode when the customer fails, and closes the customer", async () => {
    let closed = 0;
    const user: User = {
      start: async () => ({ opening: "Hello.", respond: () => Promise.reject(new Error("gone")) }),
      usage: () => ({ requests: 3, promptTokens: 0, completionTokens: 0, cost: 0 }),
      close: async () => {
        closed++;
      },
    };
    const { environment, episode } = await open({ user });
    await expect(episode.step(say("Hello."))).rejects.toThrow("gone");
    await expect(episode.step(say("Hello?"))).rejects.toMatchObject({ code: "ERR_ENVIRONMENT" });
    expect(environment.usage!().requests).toBe(3);
    expect(tauBench({ data, user: patient().user }).usage).toBeUndefined();
    await environment.close();
    expect(closed).toBe(1);
  });
});
