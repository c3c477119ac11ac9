import { readFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { afterEach, describe, expect, it } from "vitest";
import { keepShelf } from "../../examples/ai-sdk-agent.ts";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { recorded } from "../../lib/environments/recorded.ts";
import { Learner } from "../../lib/learner.ts";
import { readEpisodes } from "../../lib/run/episodes.ts";
import { type ServeOptions, serve } from "../../lib/serve/server.ts";
import { CallingModel, callingTokenizer } from "../support/calling-model.ts";
import { inDirectory, tinyConfig } from "../support/tiny.ts";

const open: { close(): Promise<void> }[] = [];
afterEach(async () => {
  for (const server of open.splice(0)) await server.close();
});

async function start(model: ServeOptions["learner"], record: string) {
  const server = await serve({ learner: model, name: "scripted", port: 0, record });
  open.push(server);
  const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
  const reward = async (id: string, body: object) => {
    const reply = await fetch(`${server.url}/v1/episodes/${id}/reward`, {
      method: "POST",
      body: JSON.stringify(body),
    });
    return { status: reply.status, ...((await reply.json()) as object) };
  };
  return { server, client, reward };
}

type Messages = OpenAI.ChatCompletionMessageParam[];
const say = (content: string): Messages[number] => ({ role: "user", content });

/** One turn: what the model said, and the episode's name. */
async function turn(client: OpenAI, messages: Messages, episode?: string) {
  const { data, response } = await client.chat.completions
    .create(
      { model: "scripted", messages },
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
      expect(await reward(second.episode, { reward: 0.25, done: false })).toMatchObject({
        turns: 2,
        reward: 0.25,
        done: false,
      });
      expect(await reward(second.episode, { reward: 0.5 })).toMatchObject({
        status: 200,
        turns: 2,
        reward: 0.75,
        done: true,
      });
      expect(server.recorded).toBe(1);
      await server.close();

      const [episode, ...none] = [...readEpisodes(file, model)];
      expect(none).toEqual([]);
      expect(episode).toMatchObject({ task: second.episode, reward: 0.75, outcome: "done" });
      expect(
        episode!.turns.map(({ text, reward, done, observation }) => ({ text, reward, done, observation })),
      ).toEqual([
        { text: "I heard 1.", reward: 0, done: false, observation: [{ role: "user", content: "More of a" }] },
        { text: "I heard 2.", reward: 0.75, done: true, observation: [] },
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
      await server.close();
      const [episode, ...rest] = [...readEpisodes(file, model)];
      expect(rest).toEqual([]); // "two" was never rewarded
      expect(episode!.turns.map(({ text }) => text)).toEqual(["Answer 3.", "Answer 5."]);
    }));

  it("is refused a reward where there is none, and says that it does not record", async () => {
    const server = await serve({ learner: new CallingModel(() => "Hi"), name: "scripted", port: 0 });
    open.push(server);
    const reply = await fetch(`${server.url}/v1/episodes/x/reward`, { method: "POST", body: '{"reward":1}' });
    expect(await reply.json()).toMatchObject({
      error: { message: expect.stringContaining("Nothing is recorded") },
    });
  });
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
