import { appendFileSync, readFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { afterEach, describe, expect, it, vi } from "vitest";
import { keepShelf } from "../../examples/ai-sdk-agent.ts";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { NlacError } from "../../lib/base/errors.ts";
import { recorded } from "../../lib/environments/recorded.ts";
import { readEpisodeRecords, readEpisodes } from "../../lib/episodes/records.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { Episodes } from "../../lib/serve/episodes.ts";
import { type ServeOptions, serve } from "../../lib/serve/server.ts";
import { CallingModel, callingTokenizer } from "../support/calling-model.ts";
import { closedGate } from "../support/closed-gate.ts";
import { inDirectory, tinyConfig } from "../support/tiny.ts";

const open: { close(graceMs?: number): Promise<void> }[] = [];
afterEach(async () => {
  for (const server of open.splice(0)) await server.close(20);
});

async function start(model: ServeOptions["learner"], record: string, options: Partial<ServeOptions> = {}) {
  const server = await serve({ learner: model, name: "scripted", port: 0, record, ...options });
  open.push(server);
  const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
  const reward = async (id: string, body: object) => {
    const reply = await fetch(`${server.url}/v1/episodes/${id}/reward`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    return { status: reply.status, ...((await reply.json()) as object) };
  };
  return { server, client, reward };
}

type Messages = OpenAI.ChatCompletionMessageParam[];
const say = (content: string): Messages[number] => ({ role: "user", content });

/** One turn: what the model said, and the episode's name. */
async function turn(client: OpenAI, messages: Messages, episode?: string, more: object = {}) {
  const { data, response } = await client.chat.completions
    .create(
      { model: "scripted", messages, ...more, stream: false },
      episode === undefined ? {} : { headers: { "x-episode-id": episode } },
    )
    .withResponse();
  return { said: data.choices[0]!.message, episode: response.headers.get("x-episode-id")! };
}

describe("a recording", () => {
  it("groups turns into episodes by the conversation they continue, as ids with log probabilities", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      const model = new CallingModel((prompt) => `I heard ${prompt.split("<|im_start|>user").length - 1}.`);
      const { client, reward, server } = await start(model, file);
      const [a, b]: Messages[] = [[say("Task")], [say("Task")]];
      const first = await turn(client, a!);
      const other = await turn(client, b!);
      expect(other.episode).not.toBe(first.episode);
      // Both conversations read alike so far: the one that goes on is the one that was left last.
      a!.push(first.said, say("More of a"));
      const second = await turn(client, a!);
      expect([first.episode, other.episode]).toContain(second.episode);
      expect(await reward(second.episode, { reward: 0.25, terminated: false })).toMatchObject({
        turns: 2,
        reward: 0.25,
        terminated: false,
      });
      expect(await reward(second.episode, { reward: 0.5 })).toMatchObject({
        status: 200,
        turns: 2,
        reward: 0.75,
        terminated: true,
      });
      expect(server.recorded).toBe(1);
      await server.close(20);

      const [episode, ...none] = [...readEpisodes(file, model)];
      expect(none).toEqual([]);
      expect(episode).toMatchObject({ task: second.episode, reward: 0.75, outcome: "done" });
      expect(
        episode!.turns.map(({ text, reward, terminated, observation }) => ({
          text,
          reward,
          terminated,
          observation,
        })),
      ).toEqual([
        {
          text: "I heard 1.",
          reward: 0,
          terminated: false,
          observation: [{ role: "user", content: "More of a" }],
        },
        { text: "I heard 2.", reward: 0.75, terminated: true, observation: [] },
      ]);
      for (const [i, { state, tokens, logProbs }] of episode!.turns.entries()) {
        expect(state.prompt()).toEqual(model.calls[i === 0 ? 0 : 2]!.request.tokens);
        expect(tokens).toEqual([...model.encode(`I heard ${i + 1}.`), model.endOfTurn]);
        expect(logProbs).toEqual(new Float32Array(tokens.length).fill(-0.5));
      }
    }));

  it("keeps episodes apart by their header, takes a repeated request for the same turn, and refuses what does not fit", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      let answers = 0;
      const model = new CallingModel(() => `Answer ${++answers}.`);
      const { client, reward, server } = await start(model, file);
      const messages = [say("Task")];
      await turn(client, messages, "one");
      await turn(client, messages, "two");
      const again = await turn(client, messages, "one"); // its first answer was lost on the way
      messages.push(again.said, say("Go on"));
      await turn(client, messages, "one");
      await turn(client, messages, "one");
      const foreign = turn(client, [say("Something else")], "one");
      await expect(foreign).rejects.toMatchObject({ status: 400, code: "episode_conflict" });
      const forked = client.chat.completions.create({ model: "scripted", messages, n: 2 });
      await expect(forked).rejects.toMatchObject({ status: 400, param: "n" });

      expect(await reward("nobody", { reward: 1 })).toMatchObject({ status: 404 });
      expect(await reward("one", { reward: "much" })).toMatchObject({ status: 400 });
      expect(await reward("one", { reward: 1 })).toMatchObject({ status: 200, turns: 2 });
      expect(await reward("one", { reward: 1 })).toMatchObject({ status: 400 });
      await expect(turn(client, messages, "one")).rejects.toMatchObject({ status: 400 });
      await server.close(20);
      const [episode, ...rest] = [...readEpisodes(file, model)];
      expect(rest).toEqual([]); // "two" was never rewarded
      expect(episode!.turns.map(({ text }) => text)).toEqual(["Answer 3.", "Answer 5."]);
    }));

  it("is refused a reward where there is none, and says that it does not record", async () => {
    const server = await serve({ learner: new CallingModel(() => "Hi"), name: "scripted", port: 0 });
    open.push(server);
    const reply = await fetch(`${server.url}/v1/episodes/x/reward`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: '{"reward":1}',
    });
    expect(await reply.json()).toMatchObject({
      error: { message: expect.stringContaining("Nothing is recorded") },
    });
  });
});

const same = () => new CallingModel(() => "Same");

describe("episodes without a header", () => {
  it("go on each by itself when their turns are asked for at once, and after one failed", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      const model = same();
      const { client, reward } = await start(model, file);
      const firsts = [await turn(client, [say("Task")]), await turn(client, [say("Task")])];
      const gate = closedGate(model);
      const history = [say("Task"), firsts[0]!.said];
      const asked = ["x", "y"].map((text) => turn(client, [...history, say(text)]));
      await expect.poll(() => gate.waiting).toBe(2);
      gate.open();
      const [x, y] = await Promise.all(asked);
      expect(new Set([x!.episode, y!.episode])).toEqual(new Set(firsts.map(({ episode }) => episode)));

      const { generate } = model;
      model.generate = () => Promise.reject(new Error("no luck"));
      const more = [...history, say("x"), x!.said, say("more")];
      await expect(turn(client, more)).rejects.toMatchObject({ status: 500 });
      model.generate = generate;
      expect((await turn(client, more)).episode).toBe(x!.episode);
      expect(await reward(x!.episode, { reward: 1 })).toMatchObject({ turns: 3 });
      expect(await reward(y!.episode, { reward: 1 })).toMatchObject({ turns: 2 });
      const observed = [...readEpisodeRecords(file)].map(({ turns }) => turns[0]!.observation[0]!.content);
      expect(observed).toEqual(["x", "y"]);
    }));

  it("that a limit of the agent's own cut are recorded without an outcome", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      const { client, reward } = await start(new CallingModel(() => "Well."), file);
      const { episode } = await turn(client, [say("Task")]);
      expect(await reward(episode, { reward: 0.5, truncated: true })).toMatchObject({
        ...{ status: 200, reward: 0.5, terminated: false, truncated: true },
      });
      expect(await reward(episode, { reward: 1 })).toMatchObject({ status: 400 }); // it is over
      expect(await reward("another", { reward: 1, done: true })).toMatchObject({ status: 400 });
      const [record] = [...readEpisodeRecords(file)];
      expect(record).toMatchObject({ outcome: "truncated", reward: 0.5 });
      expect(record!.turns).toMatchObject([{ terminated: false, truncated: true }]);
    }));

  it("keep the ids of reasoning that the history leaves out, whether the client sends it back or not", () =>
    inDirectory(async (directory) => {
      for (const sentBack of [true, false]) {
        const file = join(directory, `episodes-${sentBack}.jsonl`);
        const reply = "<think>\nSECRET\n</think>\n\nIt is 4.";
        const model = new CallingModel(() => reply);
        const { client, reward, server } = await start(model, file);
        const first = await turn(client, [say("2+2?")]);
        expect(first.said.content).toBe(reply);
        const content = sentBack ? reply : "It is 4.";
        const second = await turn(client, [say("2+2?"), { role: "assistant", content }, say("Sure?")]);
        expect(second.episode).toBe(first.episode);
        const { prompt } = model.calls[1]!;
        expect(prompt).not.toContain("SECRET");
        expect(prompt).toContain("<|im_start|>assistant\nIt is 4.<|im_end|>");
        expect(await reward(first.episode, { reward: 1 })).toMatchObject({ status: 200, turns: 2 });
        await server.close(20);
        const [episode] = [...readEpisodes(file, model)];
        for (const [i, { tokens, logProbs, state }] of episode!.turns.entries()) {
          expect(model.decode(tokens)).toBe(`${reply}<|im_end|>`);
          expect(logProbs).toHaveLength(tokens.length);
          expect(state.prompt()).toEqual(model.calls[i]!.request.tokens);
        }
      }
    }));

  it("take a repeated request for the same turn, where one alone was asked so", () =>
    inDirectory(async (directory) => {
      let answers = 0;
      const model = new CallingModel(() => `Answer ${++answers}.`);
      const { client, reward } = await start(model, join(directory, "episodes.jsonl"));
      const first = await turn(client, [say("Task")]);
      const messages = [say("Task"), first.said, say("go on")];
      expect((await turn(client, messages)).episode).toBe(first.episode); // its answer was lost on the way
      await reward(first.episode, { reward: 0.5, terminated: false });
      expect((await turn(client, messages)).episode).toBe(first.episode);
      expect((await turn(client, [say("Task")])).episode).not.toBe(first.episode);
      expect(await reward(first.episode, { reward: 1 })).toMatchObject({ turns: 2, reward: 1.5 });

      const twice = same();
      const other = await start(twice, join(directory, "others.jsonl"));
      const begun = [await turn(other.client, [say("Task")]), await turn(other.client, [say("Task")])];
      const both = [say("Task"), begun[0]!.said, say("go on")];
      for (let i = 0; i < 2; i++) await turn(other.client, both);
      const third = await turn(other.client, both);
      expect(begun.map(({ episode }) => episode)).not.toContain(third.episode);
    }));

  it("are not the named ones", () =>
    inDirectory(async (directory) => {
      const { client } = await start(same(), join(directory, "episodes.jsonl"));
      const { said } = await turn(client, [say("Task")], "mine");
      const aside = await turn(client, [say("Task"), said, say("Sum up.")]);
      expect(aside.episode).not.toBe("mine");
      expect((await turn(client, [say("Task"), said, say("Go on")], "mine")).episode).toBe("mine");
    }));
});

describe("an open episode", () => {
  it("that is rewarded while a turn is being answered is over, and the turn refused", () =>
    inDirectory(async (directory) => {
      for (const episode of [undefined, "mine"]) {
        const file = join(directory, `${episode}.jsonl`);
        const model = same();
        const { client, reward } = await start(model, file);
        const first = await turn(client, [say("Task")], episode);
        const gate = closedGate(model);
        const late = turn(client, [say("Task"), first.said, say("more")], episode);
        await expect.poll(() => gate.waiting).toBe(1);
        expect(await reward(first.episode, { reward: 1 })).toMatchObject({ turns: 1, terminated: true });
        gate.open();
        await expect(late).rejects.toMatchObject({ status: 400, code: "episode_conflict" });
        expect(await reward(first.episode, { reward: 1 })).toMatchObject({ status: 400 });
        expect([...readEpisodeRecords(file)].map(({ turns }) => turns.length)).toEqual([1]);
      }
    }));

  it("goes on as it was written when its conversation is no longer remembered", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      const model = same();
      // Room for both episodes, but not for what the conversations were after each of their turns.
      const { client, reward } = await start(model, file, { maxHeldTokens: 1500 });
      const messages = [say("Task")];
      messages.push((await turn(client, messages, "slow")).said, say("more"));
      const busy = [say("Other")];
      for (let i = 0; i < 8; i++) busy.push((await turn(client, busy, "busy")).said, say("z".repeat(50)));
      await turn(client, messages, "slow");
      expect(await reward("slow", { reward: 1 })).toMatchObject({ status: 200, turns: 2 });
      const [episode] = [...readEpisodes(file, model)];
      expect(episode!.turns.map(({ logProbs }) => logProbs.length)).toEqual([5, 5]);
    }));

  it("is forgotten when there is no room, the one that was answered longest ago first, and its name refused", () =>
    inDirectory(async (directory) => {
      const notes: string[] = [];
      const options = { maxHeldTokens: 500, log: (line: string) => void notes.push(line) };
      const { client, reward, server } = await start(same(), join(directory, "episodes.jsonl"), options);
      const long = say("T".repeat(150));
      const old = await turn(client, [long], "old");
      const left = await turn(client, [long], "left");
      expect(left.episode).toBe("left");
      await turn(client, [long, old.said, say("more")], "old");
      await turn(client, [long], "new");
      await expect(turn(client, [long, left.said, say("more")], "left")).rejects.toMatchObject({
        status: 400,
        code: "episode_conflict",
      });
      expect(await reward("left", { reward: 1 })).toMatchObject({ status: 400 });
      expect(await reward("old", { reward: 1 })).toMatchObject({ status: 200, turns: 2 });
      await server.close(20);
      expect(notes.join()).toMatch(/1 episodes recorded, 2 left out/);
    }));

  it("is not idle when it was rewarded", () =>
    inDirectory(async (directory) => {
      const record = join(directory, "episodes.jsonl");
      const model = new CallingModel(() => "Yes.");
      const options = { openLog: join(directory, "open.jsonl"), maxIdleMs: 3000 };
      const { client, reward, server } = await start(model, record, options);
      await turn(client, [say("Go")], "judged");
      // Together longer than an idle episode is kept.
      for (let time = 0; time < 8; time++) {
        await new Promise((resolve) => setTimeout(resolve, 500));
        expect(await reward("judged", { reward: 1, terminated: false })).toMatchObject({ status: 200 });
      }
      expect(server.recorded).toBe(0);
      expect(await reward("judged", { reward: 1 })).toMatchObject({ status: 200, reward: 9 });
    }));

  it("is one of so many, and so many names are refused", () =>
    inDirectory(async (directory) => {
      const model = same();
      const episodes = new Episodes(join(directory, "episodes.jsonl"), 1_000_000, { maxEpisodes: 2 });
      expect(() => new Episodes(join(directory, "episodes.jsonl"), 1_000_000)).toThrow(
        expect.objectContaining({ code: "ERR_RUN", message: expect.stringContaining("is in use by") }),
      );
      const messages = [{ role: "user" as const, content: "Task" }];
      const [generation] = await model.generate([{ tokens: model.encode("x") }]);
      const play = (name: string) => {
        const conversation = model.conversation(messages);
        const state = conversation.length;
        conversation.appendGeneration(generation!);
        const served = { messages, asked: name, state, generation: generation!, calls: false };
        episodes.add(episodes.place(name, [name]), { ...served, conversation, key: `${name}, answered` });
      };
      for (const name of ["a", "b", "c"]) play(name);
      expect(episodes.forgotten).toBe(1);
      for (const name of ["b", "c"]) episodes.reward(name, 1, { terminated: true, truncated: false });
      expect(() => episodes.place("b", ["b"])).toThrow(/is over/);
      expect(episodes.place("a", ["a"])).toEqual({ name: "a", named: true }); // so long ago that it is not known
      episodes.close();
    }));

  it("that a full disk kept from being written is rewarded again, and once", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      const model = new CallingModel(() => "Yes.");
      const { client, reward, server } = await start(model, file);
      const { episode } = await turn(client, [say("Task")]);
      const full = vi.spyOn(RecordWriter.prototype, "appendDurably").mockImplementationOnce(() => {
        throw new NlacError("ERR_IO", "The disk is full.");
      });
      expect(await reward(episode, { reward: 1 })).toMatchObject({ status: 500 });
      full.mockRestore();
      expect(await reward(episode, { reward: 1 })).toMatchObject({ status: 200, reward: 1 });
      await server.close(20);
      expect([...readEpisodeRecords(file)]).toMatchObject([{ id: 0, reward: 1, turns: [{ reward: 1 }] }]);
    }));

  it("has no name where a client's is empty", () =>
    inDirectory(async (directory) => {
      const model = new CallingModel(() => "Yes.");
      const { client } = await start(model, join(directory, "episodes.jsonl"));
      const [one, other] = [await turn(client, [say("A")], ""), await turn(client, [say("B")], "")];
      expect(one.episode).toMatch(/./);
      expect(other.episode).not.toBe(one.episode);
    }));

  it("keeps its tools where no call is wanted, and what is written then is text", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      const written = `<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>`;
      const model = new CallingModel(() => written);
      const { client, reward } = await start(model, file);
      const look = { name: "look", description: "Looks.", parameters: { type: "object", properties: {} } };
      const tools = [{ type: "function", function: look }];
      for (const episode of [undefined, "mine"]) {
        const messages = [say("Task")];
        const first = await turn(client, messages, episode, { tools });
        const [call] = first.said.tool_calls!;
        messages.push(first.said, { role: "tool", tool_call_id: call!.id, content: "Nothing." });
        const last = await turn(client, messages, episode, { tools, tool_choice: "none" });
        expect(last.episode).toBe(first.episode);
        expect(last.said).toMatchObject({ content: written });
        expect(last.said.tool_calls).toBeUndefined();
        const before = model.calls.at(-2)!.request.tokens!;
        expect(model.calls.at(-1)!.request.tokens!.slice(0, before.length)).toEqual(before);
        await reward(first.episode, { reward: 1 });
      }
      for (const { turns } of readEpisodeRecords(file))
        expect(turns.map(({ action }) => action?.tool?.name)).toEqual(["look", undefined]);
    }));
});

describe("a recording that is continued", () => {
  it("loses a line that a crash left half written, numbers on, and shows what was asked", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      for (const task of ["A", "B", "C"]) {
        const { client, reward, server } = await start(same(), file);
        const { episode } = await turn(client, [{ role: "system", content: "Play." }, say(task)], "again");
        expect(await reward(episode, { reward: 1 })).toMatchObject({ status: 200 });
        await server.close();
        if (task === "B") appendFileSync(file, '{"checksum":"00000000","record":{"id":7,');
      }
      expect([...readEpisodeRecords(file)].map(({ id, opening }) => [id, opening])).toEqual(
        ["A", "B", "C"].map((task, i) => [
          i,
          [
            { role: "system", content: "Play." },
            { role: "user", content: task },
          ],
        ]),
      );
    }));

  it("is refused where the file holds something else, which stays", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "notes.json");
      appendFileSync(file, '{"precious": true}');
      await expect(start(same(), file)).rejects.toMatchObject({ code: "ERR_RUN" });
      expect(readFileSync(file, "utf8")).toBe('{"precious": true}');
    }));
});

describe("a recording server that is stopped", () => {
  it("still takes the reward of what it answered last, and no request", () =>
    inDirectory(async (directory) => {
      const model = same();
      const { client, reward, server } = await start(model, join(directory, "episodes.jsonl"));
      const gate = closedGate(model);
      const going = turn(client, [say("Task")]);
      await expect.poll(() => gate.waiting).toBe(1);
      const closed = server.close();
      gate.open();
      const { episode } = await going;
      await expect(turn(client, [say("Another")])).rejects.toMatchObject({ status: 503, code: "stopping" });
      expect((await fetch(`${server.url}/health`)).status).toBe(503);
      expect(await reward(episode, { reward: 1 })).toMatchObject({ status: 200, terminated: true });
      await closed;
      expect(server.recorded).toBe(1);
    }));

  it("waits no longer than that for one that was left", () =>
    inDirectory(async (directory) => {
      const { client, server } = await start(same(), join(directory, "episodes.jsonl"));
      await turn(client, [say("Task")]);
      await server.close(100);
      await expect(turn(client, [say("Task")])).rejects.toThrow(/Connection error/);
    }));
});

describe("an agent of the ai SDK", () => {
  it("is recorded by its base URL alone, and trained for a few steps", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      // What the roles say is scripted; what is learned from it, and that something is, is real.
      const script = new CallingModel((prompt) => {
        const call = (name: string, item: string) =>
          `<tool_call>\n{"name": "${name}", "arguments": {"item": "${item}"}}\n</tool_call>`;
        const turns = prompt.split("<|im_start|>assistant").length - 2;
        if (prompt.includes("Optimality:")) return "Future: The shelf is filled.\nOptimality: Yes";
        if (!prompt.trimEnd().endsWith("assistant") || prompt.includes("describe"))
          return "The order is made.";
        return [call("count", "rice"), call("order", "rice"), "I ordered rice."][turns] ?? "Done.";
      });
      const learner = await Learner.create(
        { ...tinyConfig, max_position_embeddings: 8192 },
        { dtype: "float32", tokenizer: callingTokenizer() },
      );
      open.push({ close: () => learner.dispose() });
      learner.generate = script.generate.bind(script);
      const { server } = await start(learner, file);
      const rewards = await Promise.all(
        ["shelf-1", "shelf-22", "shelf-3"].map((episode) =>
          keepShelf(`${server.url}/v1`, "scripted", episode),
        ),
      );
      expect(rewards).toEqual([1, 1, 1]);
      await server.close();
      expect(readFileSync(file, "utf8").trim().split("\n")).toHaveLength(3);
      const turns = [...readEpisodes(file, learner)].flatMap((episode) => episode.turns);
      expect(turns.map(({ action }) => action?.tool?.name)).toEqual(
        Array(3).fill(["count", "order", undefined]).flat(),
      );

      const before = await learner.logits([[1, 2, 3]]);
      const result = await trainNlac({
        model: learner,
        environment: recorded(),
        config: {
          ...{
            recorded: [file],
            episodesPerIteration: 0,
            iterations: 1,
            updatesPerIteration: 2,
            batchSize: 4,
          },
          ...{
            criticLearningRate: 1e-3,
            policyLearningRate: 1e-3,
            maxPromptTokens: 6000,
            maxCriticTokens: 100,
          },
        },
      });
      expect(result).toMatchObject({ updates: 2 });
      expect(await learner.logits([[1, 2, 3]])).not.toEqual(before);
    }));
});
