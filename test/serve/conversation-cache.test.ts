import { join } from "node:path";
import { describe, expect, it, vi } from "vitest";
import { readEpisodeRecords, readEpisodes } from "../../lib/episodes/records.ts";
import { Conversations } from "../../lib/serve/conversation-cache.ts";
import { Reader } from "../../lib/serve/reader.ts";
import { CallingModel } from "../support/calling-model.ts";
import { closedGate } from "../support/closed-gate.ts";
import { same, say, start, turn } from "../support/recording-server.ts";
import { inDirectory } from "../support/tiny.ts";

it("the cache of conversations has a limit on their number, because short ones take memory too", () => {
  const model = same();
  const tokenizer = model.tokenizer;
  const reader = new Reader(tokenizer, { maxTexts: 1, maxPositions: 1000 });
  const conversations = new Conversations(model, reader, Number.POSITIVE_INFINITY);
  const held = model.conversation([{ role: "user", content: "x" }]);
  const asked = (name: string) => ({ messages: [], tools: [], names: [name], grammar: undefined });
  const isKept = async (name: string) => {
    const render = vi.spyOn(reader, "render").mockRejectedValue(new Error("not kept"));
    const opened = conversations.open({ ...asked(name), request: { model: "m", stop: [] } }, 1, {
      client: [],
    });
    const found = await opened.then(
      () => true,
      () => false,
    );
    render.mockRestore();
    return found;
  };
  for (let i = 0; i < 16_385; i++) conversations.keep(`${i}`, held);
  return Promise.all(["0", "1", "16384"].map(isKept)).then((kept) =>
    expect(kept).toEqual([false, true, true]),
  );
});

describe("episodes without a header", () => {
  it("continue separately if their turns are requested concurrently, and after a failed request", () =>
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

  it("are recorded without an outcome if the agent's own limit cut them", () =>
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

  it("keep the ids of reasoning that the history omits, whether the client sends it back or not", () =>
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

  it("treat a repeated request as the same turn if only one episode has it", () =>
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

  it("are never matched with named ones", () =>
    inDirectory(async (directory) => {
      const { client } = await start(same(), join(directory, "episodes.jsonl"));
      const { said } = await turn(client, [say("Task")], "mine");
      const aside = await turn(client, [say("Task"), said, say("Sum up.")]);
      expect(aside.episode).not.toBe("mine");
      expect((await turn(client, [say("Task"), said, say("Go on")], "mine")).episode).toBe("mine");
    }));
});
