/** Rewards whose answer was lost, and which the client sends again. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, it } from "vitest";
import { readEpisodeRecords } from "../../lib/episodes/records.ts";
import type { Extension } from "../../lib/serve/server.ts";
import { same, say, start, turn } from "../support/recording-server.ts";
import { inDirectory } from "../support/tiny.ts";

const keyed = (key: string) => ({ "idempotency-key": key });

/** A server with a log of open episodes, and how to start it again. */
function inRun(body: (restart: () => ReturnType<typeof start>, record: string) => Promise<void>) {
  return inDirectory(async (directory) => {
    const record = join(directory, "episodes.jsonl");
    let running: Awaited<ReturnType<typeof start>> | undefined;
    await body(async () => {
      await running?.server.close(20);
      running = await start(same(), record, { openLog: join(directory, "open.jsonl") });
      return running;
    }, record);
  });
}

it("are added once if they have an Idempotency-Key, also over a restart", () =>
  inRun(async (restart, record) => {
    const { client, reward } = await restart();
    await turn(client, [say("Go")], "one");
    const step = { reward: 0.25, terminated: false };
    const added = { status: 200, turns: 1, reward: 0.25, terminated: false, truncated: false };
    for (let time = 0; time < 2; time++)
      expect(await reward("one", step, keyed("first"))).toMatchObject(added);
    expect(await reward("one", step, keyed("second"))).toMatchObject({ ...added, reward: 0.5 });
    expect(await reward("one", { ...step, reward: 1 }, keyed("second"))).toMatchObject({
      ...{ status: 400, error: { code: "idempotency_key_reused", param: "Idempotency-Key" } },
    });
    expect(await reward("one", step, keyed("k".repeat(257)))).toMatchObject({ status: 400 });
    // Without a key, each request is a reward.
    expect(await reward("one", step)).toMatchObject({ reward: 0.75 });

    const second = await restart();
    expect(await second.reward("one", step, keyed("first"))).toMatchObject(added);
    expect(await second.reward("one", { reward: 1 }, keyed("last"))).toMatchObject({ reward: 1.75 });
    const third = await restart();
    expect(await third.reward("one", step, keyed("first"))).toMatchObject(added);
    expect(await third.reward("one", { reward: 1 }, keyed("last"))).toMatchObject({
      ...{ status: 200, turns: 1, reward: 1.75, terminated: true },
    });
    expect(await third.reward("one", { reward: 1 }, keyed("other"))).toMatchObject({
      ...{ status: 400, error: { code: "episode_conflict" } },
    });
    expect([...readEpisodeRecords(record)].map(({ task, reward }) => [task, reward])).toEqual([
      ["one", 1.75],
    ]);
  }));

it("are answered as before if they ended the episode, also over a restart", () =>
  inRun(async (restart, record) => {
    const { client, reward } = await restart();
    for (const name of ["done", "cut"]) await turn(client, [say("Go")], name);
    const messages = [{ role: "user", content: "Thanks" }];
    const done = { reward: 1, messages };
    const cut = { reward: 0.5, truncated: true };
    await reward("cut", { reward: 0.25, turn: 0 });
    const answers = [await reward("done", done), await reward("cut", cut)];
    expect([await reward("done", done), await reward("cut", cut)]).toEqual(answers);
    expect(answers).toMatchObject([
      { status: 200, id: "done", reward: 1, terminated: true },
      { status: 200, id: "cut", reward: 0.75, truncated: true },
    ]);
    const second = await restart();
    expect([await second.reward("done", done), await second.reward("cut", cut)]).toEqual(answers);
    const message = expect.stringContaining("reward is 1");
    for (const other of [
      { reward: 0, messages },
      { reward: 1 },
      { ...done, truncated: true, terminated: false },
    ])
      expect(await second.reward("done", other)).toMatchObject({
        ...{ status: 400, error: { code: "episode_conflict", message } },
      });
    expect([...readEpisodeRecords(record)]).toHaveLength(2);
  }));

it("are recognized by the server that recorded them, in a recording without a log of open episodes too", () =>
  inDirectory(async (directory) => {
    const record = join(directory, "episodes.jsonl");
    const first = await start(same(), record);
    await turn(first.client, [say("Go")], "one");
    const answer = await first.reward("one", { reward: 1 });
    expect(answer).toMatchObject({ status: 200 });
    expect(await first.reward("one", { reward: 1 })).toEqual(answer);
    await first.server.close(20);
    const second = await start(same(), record);
    expect(await second.reward("one", { reward: 1 })).toEqual(answer);
    // The name may be used again.
    await turn(second.client, [say("Go")], "one");
    expect(await second.reward("one", { reward: 1 })).toMatchObject({ status: 200 });
    expect([...readEpisodeRecords(record)]).toHaveLength(2);
  }));

it("are not recognized once the episode was deleted, and its keys are deleted with it", () =>
  inDirectory(async (directory) => {
    const record = join(directory, "episodes.jsonl");
    let episodes: Extension["episodes"];
    const { client, reward } = await start(same(), record, {
      openLog: join(directory, "open.jsonl"),
      extend: (extension) => {
        episodes = extension.episodes;
      },
    });
    for (const name of ["one", "two"]) {
      await turn(client, [say("Go")], name);
      await reward(name, { reward: 1 }, keyed(`key of ${name}`));
    }
    expect(await episodes!.deleteRecorded(({ task }) => task === "one")).toBe(true);
    expect(await reward("one", { reward: 1 }, keyed("key of one"))).toMatchObject({
      ...{
        status: 400,
        error: { code: "episode_conflict", message: expect.stringContaining("was dropped") },
      },
    });
    expect(await reward("two", { reward: 1 }, keyed("key of two"))).toMatchObject({ status: 200 });
    expect(readFileSync(record, "utf8")).toContain("key of two");
    expect(readFileSync(record, "utf8")).not.toContain("key of one");
  }));
