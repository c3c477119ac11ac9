import { appendFileSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it, vi } from "vitest";
import { keepShelf } from "../../examples/ai-sdk-agent.ts";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { NlacError } from "../../lib/base/errors.ts";
import { recorded } from "../../lib/environments/recorded.ts";
import { type EpisodeRecord, readEpisodeRecords, readEpisodes } from "../../lib/episodes/records.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { Episodes } from "../../lib/serve/episodes.ts";
import { OpenLog } from "../../lib/serve/open-log.ts";
import { serve } from "../../lib/serve/server.ts";
import { CallingModel, callingTokenizer } from "../support/calling-model.ts";
import { closedGate } from "../support/closed-gate.ts";
import { type Messages, open, same, say, start, turn } from "../support/recording-server.ts";
import { weather } from "../support/scripted-server.ts";
import { inDirectory, tinyConfig } from "../support/tiny.ts";

/** A request whose conversation has this name. */
const named = (name: string) => ({ names: [name], messages: [], tools: [] });

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

  it("separates episodes by their header, treats a repeated request as the same turn, and refuses messages that do not continue it", () =>
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
      await reward("one", { reward: 0.5, terminated: false });
      await turn(client, messages, "one"); // repeated after its reward, which stays
      const foreign = turn(client, [say("Something else")], "one");
      await expect(foreign).rejects.toMatchObject({ status: 400, code: "episode_conflict" });
      for (const wrong of ["größe", "x".repeat(257)])
        await expect(turn(client, messages, wrong)).rejects.toMatchObject({
          ...{ status: 400, param: "x-episode-id" },
          message: expect.stringContaining("256 characters at most, all of them ASCII"),
        });
      const forked = client.chat.completions.create({ model: "scripted", messages, n: 2 });
      await expect(forked).rejects.toMatchObject({ status: 400, param: "n" });

      expect(await reward("nobody", { reward: 1 })).toMatchObject({
        status: 404,
        error: { code: "episode_not_found", message: expect.stringContaining("no request with this x-epi") },
      });
      for (const wrong of ["much", Number.NaN, undefined])
        expect(await reward("one", { reward: wrong })).toMatchObject({
          status: 400,
          error: {
            code: "invalid_value",
            message: expect.stringMatching(/^reward: must be a finite number/),
          },
        });
      expect(await reward("one", { reward: 1, turn: 2 })).toMatchObject({
        error: { param: "turn", message: "The episode has 2 turns; the first is turn 0." },
      });
      expect(await reward("one", { reward: 1 })).toMatchObject({ status: 200, turns: 2, reward: 1.5 });
      expect(await reward("one", { reward: 2 })).toMatchObject({ status: 400 });
      await expect(turn(client, messages, "one")).rejects.toThrow(
        "The episode one is over; its reward is 1.5. Give a new episode another name.",
      );
      await server.close(20);
      const [episode, ...rest] = [...readEpisodes(file, model)];
      expect(rest).toEqual([]); // "two" was never rewarded
      expect(episode!.turns.map(({ text }) => text)).toEqual(["Answer 3.", "Answer 5."]);
    }));

  it("says in what a request differs from the episode that it does not continue", () =>
    inDirectory(async (directory) => {
      const { client, reward } = await start(
        new CallingModel(() => "Yes"),
        join(directory, "episodes.jsonl"),
      );
      const system = (time: string): Messages[number] => ({ role: "system", content: `It is ${time}.` });
      const yes: Messages[number] = { role: "assistant", content: "Yes" };
      const opening = [system("9:00"), say("Task")];
      await turn(client, opening, "one");
      await turn(client, [...opening, yes, say("Go on")], "one");
      const cases: [Messages, string, object?][] = [
        [[system("9:01"), say("Task"), yes, say("Go on"), yes, say("More")], "messages[0] is another one"],
        [[...opening, yes, say("Go back"), yes, say("More")], "messages[3] is another one"],
        [[...opening, say("Go on")], "messages[2] is another one"],
        [[...opening, yes], "it ends before the last answer"],
        [
          [...opening, { role: "assistant", content: "Yes." }, say("Go on"), yes],
          "an answer is not repeated",
        ],
        [
          [...opening, yes, say("Go on"), yes, say("More")],
          "its tools are not those of the earlier requests",
          { tools: [{ type: "function", function: weather }] },
        ],
      ];
      for (const [messages, message, more] of cases)
        await expect(turn(client, messages, "one", more)).rejects.toMatchObject({
          ...{ status: 400, code: "episode_conflict" },
          message: expect.stringContaining(message),
        });
      expect(await reward("one", { reward: 1 })).toMatchObject({ turns: 2 });
    }));

  it("refuses later requests with another group, parent or split, which would be ignored", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      const { client, reward } = await start(new CallingModel(() => "Yes"), file);
      const ask = (messages: Messages, headers: Record<string, string>) =>
        client.chat.completions.create({ model: "scripted", messages }, { headers }).withResponse();
      const opening = [say("Task")];
      const next = [...opening, { role: "assistant" as const, content: "Yes" }, say("Go on")];
      for (const [header, value] of [
        ["x-episode-split", "test"],
        ["x-episode-group", "pair"],
        ["x-parent-episode-id", "boss"],
      ] as const) {
        await ask(opening, { "x-episode-id": header });
        await expect(ask(next, { "x-episode-id": header, [header]: value })).rejects.toMatchObject({
          ...{ status: 400, code: "episode_conflict", message: expect.stringContaining(header) },
        });
        const held = `${header}, said first`;
        for (const messages of [opening, next])
          await ask(messages, { "x-episode-id": held, [header]: value });
        expect(await reward(held, { reward: 1 })).toMatchObject({ turns: 2 });
      }
      const last = [...readEpisodeRecords(file)];
      expect(last.map(({ split, group, parent }) => [split, group, parent])).toEqual([
        ["test", undefined, undefined],
        [undefined, "pair", undefined],
        [undefined, undefined, "boss"],
      ]);
      // Without a name, such a request is not part of an episode that only reads alike.
      const first = await ask(opening, {});
      const other = await ask(next, { "x-episode-split": "test" });
      expect(other.response.headers.get("x-episode-id")).not.toBe(first.response.headers.get("x-episode-id"));
    }));

  it("takes the messages after the last turn in the form of a chat request", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      const { client, reward } = await start(new CallingModel(() => "Yes"), file);
      const { episode } = await turn(client, [say("Task")]);
      const messages = [
        { role: "tool", tool_call_id: "call_1", name: "weather", content: [{ type: "text", text: "Rain" }] },
        { role: "developer", content: "Be brief." },
      ];
      expect(await reward(episode, { reward: 1, messages })).toMatchObject({ status: 200 });
      expect(await reward(episode, { reward: 1, messages })).toMatchObject({ status: 200 });
      expect([...readEpisodeRecords(file)][0]!.turns[0]!.observation).toEqual([
        { role: "tool", content: "Rain" },
        { role: "system", content: "Be brief." },
      ]);
    }));

  it("says which turns a grammar constrained", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      const model = new CallingModel(() => "{}");
      const { client, reward, server } = await start(model, file);
      const messages = [say("Task")];
      for (const more of [{}, { response_format: { type: "json_object" } }]) {
        const { said } = await turn(client, messages, "one", more);
        messages.push(said, say("Go on"));
      }
      await reward("one", { reward: 1 });
      await server.close(20);
      const [episode] = [...readEpisodes(file, model)];
      expect(episode!.turns.map(({ info }) => info)).toEqual([{}, { constrained: true }]);
    }));

  it("refuses a reward for an unknown episode, and says if the server does not record", async () => {
    const server = await serve({ learner: new CallingModel(() => "Hi"), name: "scripted", port: 0 });
    open.push(server);
    const reply = await fetch(`${server.url}/v1/episodes/x/reward`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: '{"reward":1}',
    });
    expect(await reply.json()).toMatchObject({
      error: { message: expect.stringContaining("records no episodes") },
    });
  });
});

describe("an open episode", () => {
  it("ends if it is rewarded during a request, which is then refused", () =>
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
        expect(await reward(first.episode, { reward: 0 })).toMatchObject({ status: 400 });
        expect([...readEpisodeRecords(file)].map(({ turns }) => turns.length)).toEqual([1]);
      }
    }));

  it("continues with its sampled ids after its conversation left the cache", () =>
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

  it("is dropped if there is no room, the least recently answered one first, and its name is then refused", () =>
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
      expect(notes.join()).toMatch(/1 episode recorded, 2 left out/);
    }));

  it("is not idle after a reward", () =>
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

  it("is idle together with the one that it works for, and gets its reward", () =>
    inDirectory(async (directory) => {
      const record = join(directory, "episodes.jsonl");
      let episodes: Episodes | undefined;
      const { client, reward } = await start(same(), record, {
        openLog: join(directory, "open.jsonl"),
        extend: (extension) => {
          episodes = extension.episodes;
        },
      });
      const work = (name: string, parent: string) =>
        client.chat.completions.create(
          { model: "scripted", messages: [say(name)] },
          { headers: { "x-episode-id": name, "x-parent-episode-id": parent } },
        );
      const pause = () => new Promise((resolve) => setTimeout(resolve, 300));
      const recordedNow = () =>
        [...readEpisodeRecords(record)].map(({ task, reward, outcome }) => [task, reward, outcome]);
      await work("child", "parent");
      await turn(client, [say("Go")], "parent");
      await pause();
      await reward("parent", { reward: 2, turn: 0 });
      await episodes!.expire(200);
      expect(recordedNow()).toEqual([]); // the parent is active
      await pause();
      await work("second child", "parent");
      await episodes!.expire(200);
      expect(recordedNow()).toEqual([]); // one that works for it is active
      await pause();
      await turn(client, [say("Alone")], "other");
      await episodes!.expire(200);
      expect(recordedNow()).toEqual([
        ["child", 2, "truncated"],
        ["second child", 2, "truncated"],
        ["parent", 2, "truncated"],
      ]);
      expect(await reward("other", { reward: 1 })).toMatchObject({ status: 200 });
    }));

  it("is found in one pass over the open episodes, however many there are", () =>
    inDirectory(async (directory) => {
      const model = same();
      const episodes = new Episodes(join(directory, "episodes.jsonl"), 1_000_000);
      const conversation = model.conversation([{ role: "user", content: "Task" }]);
      const [generation] = await model.generate([{ tokens: conversation.prompt() }]);
      const count = 300;
      // A chain: each works for the one before.
      for (let i = 0; i < count; i++) {
        const place = episodes.place(`${i}`, named("x"), i === 0 ? {} : { parent: `${i - 1}` });
        episodes.add(place, {
          ...{ messages: [{ role: "user", content: "Task" }], asked: "x", key: `key ${i}`, calls: false },
          ...{ state: conversation.length, generation: generation! },
          conversation: conversation.fork().appendGeneration(generation!),
        });
      }
      /** Counts the calls of a method of all maps while `run` runs. */
      const callsOf = (method: "get" | typeof Symbol.iterator, run: () => void): number => {
        const original = Map.prototype[method] as (...args: unknown[]) => unknown;
        let calls = 0;
        Map.prototype[method] = function (this: Map<unknown, unknown>, ...args: unknown[]) {
          calls++;
          return original.apply(this, args);
        } as never;
        try {
          run();
        } finally {
          Map.prototype[method] = original as never;
        }
        return calls;
      };
      expect(callsOf("get", () => void episodes.expire(1_000_000))).toBeLessThan(10 * count);
      const reward = () => episodes.reward("0", 1, { terminated: true, truncated: false });
      expect(callsOf(Symbol.iterator, reward)).toBeLessThan(20);
      expect(episodes.recorded).toBe(count);
      episodes.close();
    }));

  it("is recorded with others when they are idle, with turns of the event loop between the writes", () =>
    inDirectory(async (directory) => {
      const model = same();
      const open = new OpenLog(join(directory, "open.jsonl"));
      const record = join(directory, "episodes.jsonl");
      const episodes = new Episodes(record, 1_000_000, { open });
      const conversation = model.conversation([{ role: "user", content: "Task" }]);
      const [generation] = await model.generate([{ tokens: conversation.prompt() }]);
      const add = (name: string) =>
        episodes.add(episodes.place(name, named("x")), {
          ...{ messages: [{ role: "user", content: "Task" }], asked: "x", key: `key ${name}`, calls: false },
          ...{ state: conversation.length, generation: generation! },
          conversation: conversation.fork().appendGeneration(generation!),
        });
      const ending = { terminated: false, truncated: false };
      for (let i = 0; i < 100; i++) {
        add(`${i}`);
        episodes.reward(`${i}`, i, ending);
      }
      add("not rewarded");
      const write = vi.spyOn(RecordWriter.prototype, "appendDurably");
      const expired = episodes.expire(0);
      expect(episodes.recorded).toBe(32);
      // One of the others becomes active in the meantime.
      const leave = episodes.enter(episodes.place("99", named("x")));
      await expired;
      expect(write).toHaveBeenCalledTimes(4);
      write.mockRestore();
      expect([episodes.recorded, episodes.forgotten]).toEqual([99, 1]);
      leave();
      await episodes.expire(0);
      const recorded = [...readEpisodeRecords(record)];
      expect(recorded.map(({ task, reward }) => [task, reward])).toEqual(
        Array.from({ length: 100 }, (_, i) => [`${i}`, i]),
      );
      episodes.close();
    }));

  it("is neither continued by an answer that another one overtook, nor after it was recorded", () =>
    inDirectory(async (directory) => {
      const model = same();
      const [record, path] = [join(directory, "episodes.jsonl"), join(directory, "open.jsonl")];
      const openEpisodes = () =>
        new Episodes(record, 1_000_000, {
          open: new OpenLog(path),
          restore: (conversation) => model.restoreConversation(conversation),
        });
      const episodes = openEpisodes();
      const begun = model.conversation([{ role: "user", content: "Task" }]);
      const [generation] = await model.generate([{ tokens: begun.prompt() }]);
      const add = (place: ReturnType<Episodes["place"]>, asked: string, before = begun) =>
        episodes.add(place, {
          ...{ messages: [], asked, key: `after ${asked}`, calls: false, state: before.length },
          ...{ generation: generation!, conversation: before.fork().appendGeneration(generation!) },
        });
      add(episodes.place("one", named("x")), "x");
      // Two requests continue the same turn at once.
      const [first, second] = [0, 1].map(() => episodes.place("one", named("after x")));
      const next = first!.before!.fork().append({ role: "user", content: "Go on" });
      add(first!, "y", next);
      expect(() => add(second!, "z", next)).toThrow(
        expect.objectContaining({ message: expect.stringContaining("was continued with another reply") }),
      );
      // A crash after the recording, before the log says so.
      const log = readFileSync(path);
      expect(episodes.reward("one", 1, { terminated: true, truncated: false })).toMatchObject({ turns: 2 });
      episodes.close();
      writeFileSync(path, log);
      const again = openEpisodes();
      expect(again.open).toBe(0);
      expect(() => again.place("one", named("after y"))).toThrow(/is over; its reward is 1/);
      again.close();
      expect([...readEpisodeRecords(record)]).toHaveLength(1);
    }));

  it("counts against the limit of open episodes, and of names that are refused", () =>
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
        episodes.add(episodes.place(name, named(name)), {
          ...served,
          conversation,
          key: `${name}, answered`,
        });
      };
      for (const name of ["a", "b", "c"]) play(name);
      expect(episodes.forgotten).toBe(1);
      for (const name of ["b", "c"]) episodes.reward(name, 1, { terminated: true, truncated: false });
      expect(() => episodes.place("b", named("b"))).toThrow(/is over/);
      expect(episodes.place("a", named("a"))).toEqual({ name: "a", named: true }); // so long ago that it is not known
      episodes.close();
    }));

  it("can be rewarded again, once, after a full disk prevented its record", () =>
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

  it("is unnamed if the client's header is empty", () =>
    inDirectory(async (directory) => {
      const model = new CallingModel(() => "Yes.");
      const { client } = await start(model, join(directory, "episodes.jsonl"));
      const [one, other] = [await turn(client, [say("A")], ""), await turn(client, [say("B")], "")];
      expect(one.episode).toMatch(/./);
      expect(other.episode).not.toBe(one.episode);
    }));

  it("keeps its tools if calls are switched off, and its answer is then text", () =>
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

  it("has a turn of several calls as one action, on the sampled ids", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "episodes.jsonl");
      const call = `<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>`;
      const model = new CallingModel((prompt) => (prompt.includes("Nothing") ? "Done." : `${call}\n${call}`));
      const { client, reward } = await start(model, file);
      const look = { name: "look", description: "Looks.", parameters: { type: "object", properties: {} } };
      const tools = [{ type: "function", function: look }];
      const messages = [say("Task")];
      const first = await turn(client, messages, "mine", { tools });
      expect(first.said.tool_calls).toHaveLength(2);
      messages.push(first.said);
      for (const { id } of first.said.tool_calls!)
        messages.push({ role: "tool", tool_call_id: id, content: "Nothing." });
      await turn(client, messages, "mine", { tools });
      await reward("mine", { reward: 1 });
      const [{ turns }] = [...readEpisodeRecords(file)] as [EpisodeRecord];
      expect(turns.map(({ action, malformed }) => [action, malformed])).toEqual([
        [{ text: `${call}\n${call}` }, undefined],
        [{ text: "Done." }, undefined],
      ]);
      expect(turns[0]!.observation).toHaveLength(2);
      const { tokens } = model.calls[1]!.request;
      expect(model.decode(tokens!)).toContain(`${call}\n${call}<|im_end|>`);
    }));
});

describe("a recording that is continued", () => {
  it("drops a line that a crash left incomplete, continues the numbers, and stores the requests", () =>
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

  it("refuses a file with other content, and leaves it unchanged", () =>
    inDirectory(async (directory) => {
      const file = join(directory, "notes.json");
      appendFileSync(file, '{"precious": true}');
      await expect(start(same(), file)).rejects.toMatchObject({ code: "ERR_RUN" });
      expect(readFileSync(file, "utf8")).toBe('{"precious": true}');
    }));
});

describe("a recording server that is stopped", () => {
  it("accepts rewards of its last answers, and no requests", () =>
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

  it("waits without a limit if it is told to", () =>
    inDirectory(async (directory) => {
      const model = same();
      const gate = closedGate(model);
      const { client, server } = await start(model, join(directory, "episodes.jsonl"), {
        openLog: join(directory, "open.jsonl"),
      });
      const going = turn(client, [say("Task")]);
      await expect.poll(() => gate.waiting).toBe(1);
      const closed = server.close(Number.POSITIVE_INFINITY);
      await new Promise((resolve) => setTimeout(resolve, 200));
      gate.open();
      expect((await going).said.content).toBe("Same");
      await closed;
    }));

  it("does not wait longer for an abandoned episode", () =>
    inDirectory(async (directory) => {
      const { client, server } = await start(same(), join(directory, "episodes.jsonl"));
      await turn(client, [say("Task")]);
      await server.close(100);
      await expect(turn(client, [say("Task")])).rejects.toThrow(/Connection error/);
    }));
});

describe("an agent of the ai SDK", () => {
  it("is told when its reward is refused", async () => {
    const server = await serve({ learner: new CallingModel(() => "Done."), name: "scripted", port: 0 });
    open.push(server);
    await expect(keepShelf(`${server.url}/v1`, "scripted")).rejects.toThrow(/start it with --record/);
  });

  it("is recorded after a change of its base URL, and trained for a few steps", () =>
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
        Array.from({ length: 3 }, () => keepShelf(`${server.url}/v1`, "scripted")),
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
