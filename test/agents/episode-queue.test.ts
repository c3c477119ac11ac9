import { join } from "node:path";
import { expect, test } from "vitest";
import { EpisodeQueue } from "../../lib/agents/episode-queue.ts";
import type { EpisodeRecord } from "../../lib/episodes/records.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import type { LanguageModel } from "../../lib/model/language-model.ts";
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
    const queue = new EpisodeQueue(path, model, 1, 8);
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
