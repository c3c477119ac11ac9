import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { expect, test } from "vitest";
import { latestEpisodes, readSampled, toRecord } from "../../lib/episodes/records.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { play, reply } from "../support/errand-play.ts";
import { ScriptedModel } from "../support/scripted-model.ts";
import { inDirectory } from "../support/tiny.ts";

test("records without `terminated` and `truncated` get them from their outcome", async () => {
  const model = new ScriptedModel(reply);
  const endings = [
    ["done", [true, false]],
    ["malformed", [true, false]],
    ["turn-limit", [false, true]],
    ["context-limit", [false, true]],
    ["service-fault", [false, true]],
  ] as const;
  const [played] = await play({ model, episodes: [{ id: 0, task: { word: "key" } }] });
  await inDirectory((directory) => {
    const path = join(directory, "old.jsonl");
    const writer = RecordWriter.resume(path);
    for (const [id, [outcome]] of endings.entries()) {
      const { turns, ...record } = toRecord(played!);
      const older = turns.map(({ terminated: _, truncated: __, ...turn }, i) => ({
        ...turn,
        done: i === turns.length - 1,
      }));
      writer.append({ ...record, id, outcome, turns: older });
    }
    writer.close();
    const read = [...readSampled([path], model)];
    expect(read.map(({ turns }) => [turns.at(-1)!.terminated, turns.at(-1)!.truncated])).toEqual(
      endings.map(([, ending]) => ending),
    );
    for (const { turns } of read) {
      for (const turn of turns.slice(0, -1))
        expect([turn.terminated, turn.truncated]).toEqual([false, false]);
      expect(turns.at(-1)).not.toHaveProperty("done");
    }
    // A reward that is no finite number is refused, also of a turn.
    for (const reward of ["null", "1e999", '"1"']) {
      const { record } = JSON.parse(readFileSync(path, "utf8").split("\n")[0]!);
      const ofTurn = { ...record, turns: [{ ...record.turns[0], reward: "BAD" }, ...record.turns.slice(1)] };
      for (const bad of [{ ...record, reward: "BAD" }, ofTurn]) {
        const text = JSON.stringify(bad).replace('"BAD"', reward);
        const checksum = crc32(text).toString(16).padStart(8, "0");
        const file = join(directory, "bad.jsonl");
        writeFileSync(file, `{"checksum":"${checksum}","record":${text}}\n`);
        expect(() => [...readSampled([file], model)]).toThrow(
          expect.objectContaining({
            code: "ERR_RUN",
            message: expect.stringContaining("line 1: a reward is"),
          }),
        );
      }
    }
    // They are the same when written again.
    expect(toRecord(read[2]!).turns.at(-1)).toMatchObject({ terminated: false, truncated: true });
  });
});

test("of an episode that was played again after a fault the later record counts", async () => {
  const model = new ScriptedModel(reply);
  const [played] = await play({ model, episodes: [{ id: 0, task: { word: "key" } }] });
  await inDirectory((directory) => {
    const path = join(directory, "episodes.jsonl");
    const writer = RecordWriter.resume(path);
    for (const [id, outcome] of [
      [2, "service-fault"],
      [0, "done"],
      [2, "turn-limit"],
    ] as const)
      writer.append(toRecord({ ...played!, id, outcome }));
    writer.close();
    expect(latestEpisodes(path).map(({ id, outcome }) => [id, outcome])).toEqual([
      [0, "done"],
      [2, "turn-limit"],
    ]);
  });
});
