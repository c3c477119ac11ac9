import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { EpisodeQueue } from "../../lib/agents/episode-queue.ts";
import { type EpisodeRecord, toRecord } from "../../lib/episodes/records.ts";
import { isFaulty, succeeded, transitionsOf } from "../../lib/episodes/trajectory.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import type { LanguageModel } from "../../lib/model/language-model.ts";
import { groupsOf } from "../../lib/training/group-advantages.ts";
import { returnsFrom } from "../../lib/training/returns.ts";
import { act, play } from "../support/errand-play.ts";
import { ScriptedModel } from "../support/scripted-model.ts";
import { inDirectory } from "../support/tiny.ts";

const record = (id: number, more: object = {}) =>
  ({
    id,
    task: `e${id}`,
    seed: 0,
    outcome: "done",
    reward: 1,
    turns: [],
    conversation: { tokens: [1, 2, 3, 4] },
    ...more,
  }) as never;
const model = { restoreConversation: () => ({ tokens: [] }) } as unknown as LanguageModel;
const { signal } = new AbortController();
const namesOf = (episodes: readonly { task: string; id: number }[]) =>
  episodes.map(({ task, id }) => [task, id]);

test("says once that an episode without a group is not trained on, where groups are", () =>
  inDirectory((directory) => {
    for (const [groupSize, said] of [
      [2, ["e2"]],
      [1, []],
    ] as const) {
      const path = join(directory, `${groupSize}.jsonl`);
      const lines: string[] = [];
      const queue = new EpisodeQueue(path, model, { groupSize, log: (line) => lines.push(line) });
      queue.add(record(0, { group: "a" }));
      queue.add(record(1, { split: "test" }));
      for (const id of [2, 3]) queue.add(record(id));
      expect(lines).toEqual(
        said.map((name) => expect.stringMatching(new RegExp(`^episode ${name} .* had no x-episode-group`))),
      );
    }
  }));

test("gives all waiting episodes, up to a limit, and numbers them in the order of the file", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "episodes.jsonl");
    const writer = RecordWriter.resume(path);
    const queue = new EpisodeQueue(path, model);
    const add = (episode: EpisodeRecord) => {
      writer.append(episode);
      queue.add(episode);
    };
    for (let id = 0; id < 5; id++) add(record(id, id === 1 ? { split: "test" } : {}));
    const idle = async () => false;
    expect(namesOf(await queue.next(0, [1, 1], signal, idle))).toEqual([["e0", 0]]);
    // e1 is held out: it has no number.
    expect(namesOf(await queue.next(1, [1, 2], signal, idle))).toEqual([
      ["e2", 1],
      ["e3", 2],
    ]);
    expect(queue.length).toBe(1);
    const later = queue.next(3, [2, 10], signal, idle);
    for (let id = 5; id < 7; id++) add(record(id));
    expect(namesOf(await later)).toEqual([
      ["e4", 3],
      ["e5", 4],
      ["e6", 5],
    ]);
    // A restarted server gives the same episodes the same numbers.
    const before = [];
    for await (const episode of new EpisodeQueue(path, model).before(4, signal)) before.push(episode);
    expect(namesOf(before)).toEqual([
      ["e0", 0],
      ["e2", 1],
      ["e3", 2],
      ["e4", 3],
    ]);
    const again = await new EpisodeQueue(path, model).next(4, [1, 1], signal, idle);
    expect(namesOf(again)).toEqual([["e5", 4]]);
    writer.close();
  }));

test("keeps long queues in the file, and gives their episodes in the same order", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "episodes.jsonl");
    const writer = RecordWriter.resume(path);
    const queue = new EpisodeQueue(path, model, { maxTokens: 8 });
    const idle = async () => false;
    const first = queue.next(0, [1, 1], signal, idle);
    for (let id = 0; id < 10; id++) {
      writer.append(record(id));
      queue.add(record(id));
    }
    expect(namesOf(await first)).toEqual([["e0", 0]]);
    expect(queue.length).toBe(9);
    // What is in memory now does not change with the file.
    writer.replaceNow(Array.from({ length: 10 }, (_, id) => record(id, { reward: 2 })));
    const taken = [];
    let id = 10;
    for (let at = 1; at < 10; ) {
      const more = await queue.next(at, [3, 5], signal, idle);
      expect(more.length).toBeGreaterThanOrEqual(3);
      taken.push(...more);
      at += more.length;
      writer.append(record(id));
      queue.add(record(id++));
    }
    expect(namesOf(taken)).toEqual(taken.map((_, i) => [`e${i + 1}`, i + 1]));
    expect(taken.map(({ reward }) => reward).filter((reward) => reward === 1).length).toBeLessThan(3);
    writer.close();
  }));

test("refuses a file that has lost episodes: the next ones would be taken for them", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "episodes.jsonl");
    const writer = RecordWriter.resume(path);
    for (let id = 0; id < 2; id++) writer.append(record(id));
    const queue = new EpisodeQueue(path, model);
    const next = queue.next(3, [1, 1], AbortSignal.timeout(5000), async () => false);
    await expect(next).rejects.toThrow(/has 2 episodes .* had 3 or more/);
    writer.close();
  }));

describe("an episode whose prompt outgrows maxPromptTokens", () => {
  const scripted = new ScriptedModel(() => act("soap"));
  /** An episode of three turns, as it is served: its rewards are the client's. */
  const served = async (more: object = {}) => {
    const [played] = await play({ model: scripted, episodes: [{ id: 0, task: { word: "key" } }] });
    const prompts = played!.turns.map(({ state }) => state.prompt().length);
    const whole = toRecord(played!);
    const rewards = [0.25, 0.5, 0.25];
    const turns = whole.turns.map((turn, i) => ({ ...turn, reward: rewards[i]! }));
    return { prompts, played: played!, record: { ...whole, turns, reward: 1, ...more } as EpisodeRecord };
  };
  /** The episodes that `next` gives, and those of `before`. */
  const read = (records: readonly EpisodeRecord[], maxPromptTokens: number) =>
    inDirectory(async (directory) => {
      const path = join(directory, "episodes.jsonl");
      const writer = RecordWriter.resume(path);
      for (const one of records) writer.append(one);
      writer.close();
      const lines: string[] = [];
      const queue = new EpisodeQueue(path, scripted, { maxPromptTokens, log: (line) => lines.push(line) });
      const next = await queue.next(0, [1, records.length], signal, async () => false);
      const before = [];
      for await (const episode of queue.before(records.length, signal)) before.push(episode);
      return { next, before, lines };
    });

  test("is trained on up to there, with its total reward, and said once", async () => {
    const { prompts, played, record: whole } = await served();
    const { next, before, lines } = await read([whole, { ...whole, task: "later" }], prompts[1]!);
    for (const episode of [...next, ...before]) {
      expect(episode).toMatchObject({ outcome: "context-limit", reward: 1 });
      expect(episode.conversation.tokens).toEqual(played.turns[2]!.state.tokens);
      const transitions = transitionsOf(episode);
      expect(transitions).toMatchObject([
        { reward: 0.25, terminated: false, truncated: false },
        { reward: 0.5, terminated: false, truncated: true },
      ]);
      // What followed the cut is unknown to Monte-Carlo targets, but part of the returns.
      expect(transitions[0]!.rest).toMatchObject({ turns: [{ reward: 0.5 }] });
      expect(transitions[0]!.rest.score).toBeUndefined();
      expect(returnsFrom(episode, 1)).toEqual([1, 0.75]);
      expect(succeeded(episode)).toBe(true);
    }
    expect(before.map(({ id, task }) => [id, task])).toEqual(next.map(({ id, task }) => [id, task]));
    expect(lines).toEqual([
      `episode key: only the first 2 of 3 turns are trained on, because the next prompt has ${prompts[2]} ` +
        `tokens, and the recipe's maxPromptTokens is ${prompts[1]}. Later episodes are cut without a message.`,
    ]);
  });

  test("at its first turn has no turns: it keeps its number, and leaves its group", async () => {
    const { prompts, record: whole } = await served();
    const short = { ...whole, turns: whole.turns.slice(0, 1) };
    const { next } = await read([whole, short], prompts[0]! - 1);
    for (const episode of next) {
      expect(episode).toMatchObject({ outcome: "context-limit", reward: 1, turns: [] });
      expect(transitionsOf(episode)).toEqual([]);
    }
    expect(groupsOf(next, 2)).toEqual([[]]);
  });

  test("is whole if the prompt just fits, and stays faulty if it was", async () => {
    const { prompts, record: whole } = await served();
    const fits = await read([whole], prompts[2]!);
    expect(fits.next).toMatchObject([{ outcome: "done", turns: [{}, {}, { terminated: true }] }]);
    expect(fits.lines).toEqual([]);
    const { record: faulty } = await served({ outcome: "environment-fault" });
    const { next } = await read([faulty], prompts[1]!);
    expect(next.map(isFaulty)).toEqual([true]);
  });
});
