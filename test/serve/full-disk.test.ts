/** A disk that is full: recording stops with an error, serving goes on. */

import type * as Fs from "node:fs";
import { join } from "node:path";
import { expect, it, vi } from "vitest";
import { readEpisodeRecords } from "../../lib/episodes/records.ts";
import type { Episodes } from "../../lib/serve/episodes.ts";
import { serve } from "../../lib/serve/server.ts";
import { CallingModel } from "../support/calling-model.ts";
import { same, say, start, turn } from "../support/recording-server.ts";
import { inDirectory } from "../support/tiny.ts";

const disk = vi.hoisted(() => ({
  isFull: false,
  /** Number of writes of records and of syncs that succeed; the next one fails. */
  writes: Number.POSITIVE_INFINITY,
  syncs: Number.POSITIVE_INFINITY,
}));

vi.mock("node:fs", async (original) => {
  const fs = await original<typeof Fs>();
  return {
    ...fs,
    writeSync: (fd: number, data: Uint8Array, offset: number) => {
      if (!disk.isFull && disk.writes-- > 0) return fs.writeSync(fd, data, offset);
      // Room for all but the last bytes.
      if (!disk.isFull) fs.writeSync(fd, data, offset, data.length - offset - 10);
      throw Object.assign(new Error("ENOSPC"), { code: "ENOSPC", errno: -28 });
    },
    fsyncSync: (fd: number) => {
      if (disk.syncs-- > 0) return fs.fsyncSync(fd);
      throw Object.assign(new Error("EIO"), { code: "EIO", errno: -5 });
    },
  };
});

it("refuses rewards while the disk is full, still answers requests, and accepts the rewards later", () =>
  inDirectory(async (directory) => {
    const [record, openLog] = [join(directory, "episodes.jsonl"), join(directory, "open.jsonl")];
    const faults: string[] = [];
    const start = () =>
      serve({
        ...{ learner: new CallingModel(() => "Hi"), name: "m", port: 0, record, openLog },
        log: (line) => void faults.push(line),
      });
    const server = await start();
    const post = async (url: string, path: string, body: object) => {
      const headers = { "content-type": "application/json", "x-episode-id": "one" };
      const reply = await fetch(`${url}/v1${path}`, { method: "POST", headers, body: JSON.stringify(body) });
      return { status: reply.status, ...((await reply.json()) as object) };
    };
    const ask = () =>
      post(server.url, "/chat/completions", { model: "m", messages: [{ role: "user", content: "Hello" }] });
    const reward = (body: object, url = server.url) => post(url, "/episodes/one/reward", body);

    expect(await ask()).toMatchObject({ status: 200 });
    expect(await reward({ reward: 0.5, turn: 0 })).toMatchObject({ status: 200, reward: 0.5 });
    disk.isFull = true;
    expect(await ask()).toMatchObject({ status: 200 });
    expect(faults.join()).toContain("open.jsonl");
    for (const body of [{ reward: 1, turn: 0 }, { reward: 1 }])
      expect(await reward(body)).toMatchObject({ status: 500, error: { code: "ERR_IO" } });
    disk.isFull = false;
    // The refused rewards were not added; what was acknowledged survives the server.
    expect(await reward({ reward: 0.125, turn: 0 })).toMatchObject({ status: 200, reward: 0.625 });
    await server.close(20);
    const next = await start();
    expect(await reward({ reward: 1 }, next.url)).toMatchObject({ status: 200, reward: 1.625 });
    await next.close(20);
    expect([...readEpisodeRecords(record)].map(({ task, reward }) => [task, reward])).toEqual([
      ["one", 1.625],
    ]);
  }));

it("records an episode and its sub-episodes together or not at all, wherever the disk fails", () =>
  inDirectory(async (directory) => {
    const limits = [0, 1, 2].flatMap((count) => [{ writes: count }, { syncs: count }]);
    const statuses: number[] = [];
    for (const [i, limit] of limits.entries()) {
      const record = join(directory, `${i}.jsonl`);
      const openLog = join(directory, `${i}-open.jsonl`);
      const { client, reward, server } = await start(same(), record, { openLog });
      await turn(client, [say("Go")], "parent");
      for (const name of ["one", "two"])
        await client.chat.completions.create(
          { model: "scripted", messages: [say(name)] },
          { headers: { "x-episode-id": name, "x-parent-episode-id": "parent" } },
        );
      const recorded = () =>
        [...readEpisodeRecords(record)].map(({ id, task, reward }) => [id, task, reward]);
      const expected = (reward: number) => ["one", "two", "parent"].map((name, id) => [id, name, reward]);
      Object.assign(disk, limit);
      const { status } = await reward("parent", { reward: 1 });
      Object.assign(disk, { writes: Number.POSITIVE_INFINITY, syncs: Number.POSITIVE_INFINITY });
      expect(recorded()).toEqual(status === 200 ? expected(1) : []);
      statuses.push(status);
      const fails = status === 500;
      // The refused reward may be sent again with another value.
      if (fails) expect(await reward("parent", { reward: 0.5 })).toMatchObject({ status: 200 });
      expect(recorded()).toEqual(expected(fails ? 0.5 : 1));
      expect(server.recorded).toBe(3);
    }
    // One write; the file and its name are synced.
    expect(statuses).toEqual([500, 500, 200, 500, 200, 200]);
  }));

it("keeps the sub-episodes of an idle episode that cannot be recorded", () =>
  inDirectory(async (directory) => {
    const record = join(directory, "episodes.jsonl");
    let episodes: Episodes | undefined;
    const { client, reward } = await start(same(), record, {
      openLog: join(directory, "open.jsonl"),
      extend: (extension) => {
        episodes = extension.episodes;
      },
    });
    await turn(client, [say("Go")], "parent");
    for (const [name, parent] of [
      ["child", "parent"],
      ["grandchild", "child"],
    ])
      await client.chat.completions.create(
        { model: "scripted", messages: [say("Work")] },
        { headers: { "x-episode-id": name, "x-parent-episode-id": parent } },
      );
    await turn(client, [say("Alone")], "alone");
    expect(await reward("parent", { reward: 1, turn: 0 })).toMatchObject({ status: 200 });
    disk.isFull = true;
    await expect(episodes!.expire(0)).rejects.toMatchObject({ code: "ERR_IO" });
    expect(episodes!.forgotten).toBe(1); // the one without a reward
    disk.isFull = false;
    await episodes!.expire(0);
    expect([...readEpisodeRecords(record)].map(({ task, reward }) => [task, reward])).toEqual([
      ["child", 1],
      ["grandchild", 1],
      ["parent", 1],
    ]);
  }));

it("still drops the oldest open episodes while the disk is full, except those with a reward", () =>
  inDirectory(async (directory) => {
    const options = { openLog: join(directory, "open.jsonl"), maxHeldTokens: 600 };
    const { client, reward } = await start(same(), join(directory, "episodes.jsonl"), options);
    await turn(client, [say("Go")], "rewarded");
    expect(await reward("rewarded", { reward: 1, turn: 0 })).toMatchObject({ status: 200 });
    disk.isFull = true;
    for (let i = 0; i < 8; i++) await turn(client, [say("x".repeat(150))], `e${i}`);
    const dropped = { status: 400, error: { message: expect.stringContaining("was dropped") } };
    for (let i = 0; i < 4; i++) expect(await reward(`e${i}`, { reward: 1 })).toMatchObject(dropped);
    expect(await reward("e7", { reward: 1 })).toMatchObject({ status: 500 });
    disk.isFull = false;
    expect(await reward("e7", { reward: 1 })).toMatchObject({ status: 200 });
    expect(await reward("rewarded", { reward: 1 })).toMatchObject({ status: 200, reward: 2 });
  }));
