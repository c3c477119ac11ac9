/** A disk that is full: recording stops with an error, serving goes on. */

import type * as Fs from "node:fs";
import { join } from "node:path";
import { expect, it, vi } from "vitest";
import { readEpisodeRecords } from "../../lib/episodes/records.ts";
import { serve } from "../../lib/serve/server.ts";
import { CallingModel } from "../support/calling-model.ts";
import { inDirectory } from "../support/tiny.ts";

const disk = vi.hoisted(() => ({ isFull: false }));

vi.mock("node:fs", async (original) => {
  const fs = await original<typeof Fs>();
  return {
    ...fs,
    writeSync: (...call: Parameters<typeof fs.writeSync>) => {
      if (disk.isFull) throw Object.assign(new Error("ENOSPC"), { code: "ENOSPC", errno: -28 });
      return fs.writeSync(...call);
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
