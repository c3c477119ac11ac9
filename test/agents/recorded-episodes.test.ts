/** Looks up recorded episodes: each part of the file is read once, also after deletions. */

import type * as Fs from "node:fs";
import { appendFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { RecordedEpisodes } from "../../lib/agents/recorded-episodes.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import type { LanguageModel } from "../../lib/model/language-model.ts";
import { inDirectory } from "../support/tiny.ts";

const disk = vi.hoisted(() => ({ read: 0 }));

vi.mock("node:fs", async (original) => {
  const fs = await original<typeof Fs>();
  return {
    ...fs,
    readSync: (...given: Parameters<typeof fs.readSync>) => {
      const bytes = fs.readSync(...given);
      disk.read += bytes;
      return bytes;
    },
  };
});

/** An episode of one turn, whose conversation has `states` ids before it. */
const record = (task: string, state: number, text = "") => ({
  ...{ id: 0, task, seed: 0, outcome: "done", reward: 1 },
  turns: [{ state, reward: 1, text, observation: [], info: {} }],
  conversation: {},
});
/** The conversation before a turn is its length. */
const model = {
  restoreConversation: () => ({ prefix: (state: number) => state }),
} as unknown as LanguageModel;

const withRecording = (
  body: (recorded: RecordedEpisodes, writer: RecordWriter, path: string) => Promise<void>,
) =>
  inDirectory(async (directory) => {
    const path = join(directory, "episodes.jsonl");
    const writer = RecordWriter.resume(path);
    try {
      await body(new RecordedEpisodes(path, model, writer), writer, path);
    } finally {
      writer.close();
    }
  });

test("finds the latest episode of a name, and reads what it has read once only", () =>
  withRecording(async (recorded, writer) => {
    const text = "x".repeat(20_000);
    for (let i = 0; i < 100; i++) writer.append(record(`e${i}`, i, text));
    writer.appendDurably(record("parent", 1), record("worker", 2), record("other worker", 3));
    expect(await recorded.stateOf("e99", 0)).toBe(99);
    disk.read = 0;
    for (let i = 0; i < 100; i++) expect(await recorded.stateOf(`e${i}`, 0)).toBe(i);
    expect(await recorded.stateOf("worker", 0)).toBe(2);
    await expect(recorded.stateOf("none", 0)).rejects.toMatchObject({ status: 404 });
    await expect(recorded.stateOf("e1", 1)).rejects.toMatchObject({ status: 400 });
    expect(disk.read).toBeLessThan(102 * 2 ** 17); // the file has 2 MB
    writer.append(record("e1", 1000));
    writer.append(record("new", 1001));
    expect(await recorded.stateOf("e1", 0)).toBe(1000);
    expect(await recorded.stateOf("new", 0)).toBe(1001);
  }));

test("finds episodes of a file that is replaced, also while it is read", () =>
  withRecording(async (recorded, writer) => {
    const all = Array.from({ length: 400 }, (_, i) => record(`e${i}`, i, "x".repeat(10_000)));
    for (const one of all) writer.append(one);
    const without = (...names: string[]) =>
      writer.replace(() => all.filter(({ task }) => !names.includes(task)));
    expect(await recorded.stateOf("e7", 0)).toBe(7);
    await without("e5");
    await expect(recorded.stateOf("e5", 0)).rejects.toMatchObject({ status: 404 });
    expect(await recorded.stateOf("e7", 0)).toBe(7);
    for (let i = 0; i < 5; i++) {
      const replaced = without("e5", `e${i}`);
      const asked = Array.from({ length: 8 }, (_, at) => recorded.stateOf(`e${100 + at}`, 0));
      await replaced;
      expect(await Promise.all(asked)).toEqual([100, 101, 102, 103, 104, 105, 106, 107]);
      await expect(recorded.stateOf(`e${i}`, 0)).rejects.toMatchObject({ status: 404 });
    }
  }));

test("says where a file is damaged that was added to", () =>
  withRecording(async (recorded, writer, path) => {
    writer.append(record("first", 1));
    await recorded.stateOf("first", 0);
    const { bytes } = writer;
    appendFileSync(path, "damaged\n");
    await expect(recorded.stateOf("first", 0)).rejects.toThrow(
      `${path}: line 1 after byte ${bytes} is damaged`,
    );
  }));
