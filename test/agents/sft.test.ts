/** SFT of a served model: corrections are its only data. Texts are words that the model knows. */

import { join } from "node:path";
import OpenAI from "openai";
import { expect, it } from "vitest";
import {
  type ServeAndTrainOptions,
  serveAndTrain,
  type TrainingServer,
} from "../../lib/agents/serve-and-train.ts";
import { listVersions } from "../../lib/agents/versions.ts";
import { readEpisodeRecords } from "../../lib/episodes/records.ts";
import { readRecords } from "../../lib/files/records.ts";
import { trainRecipe } from "../../lib/recipe/train-recipe.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import { servedErrands } from "../support/served-errands.ts";
import { inDirectory } from "../support/tiny.ts";

const open: TrainingServer[] = [];
/** Closes the servers before the directory is removed: one may still write a checkpoint. */
const inRun = (body: (run: string) => Promise<void>) =>
  inDirectory(async (run) => {
    try {
      await body(run);
    } finally {
      for (const server of open.splice(0)) await server.close(20);
    }
  });

const sft = (config: object = {}) => ({
  ...servedErrands(),
  algorithm: "sft" as const,
  config: { epochs: 20, batchSize: 4, learningRate: 2e-3, maxTokens: 128, ...config },
});

async function start(directory: string, options: Partial<ServeAndTrainOptions> = {}) {
  const server = await serveAndTrain({ recipe: sft(), directory, port: 0, ...options });
  open.push(server);
  const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
  return {
    server,
    client,
    /** The most probable answer to a question. */
    async ask(content: string, episode: string, headers: Record<string, string> = {}) {
      const answer = await client.chat.completions.create(
        { model: "errands-base", messages: [{ role: "user", content }], max_tokens: 12, temperature: 0 },
        { headers: { "x-episode-id": episode, ...headers } },
      );
      return answer.choices[0]!.message.content;
    },
    correct: (episode: string, content: string) =>
      client.post(`/episodes/${episode}/corrections`, { body: { turn: 0, content } }),
    status: () => client.get("/training") as Promise<Record<string, unknown>>,
  };
}

async function until(is: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await is())) await new Promise((resolve) => setTimeout(resolve, 20));
}

const rowsOf = (run: string) => [...readRecords<MetricsRow>(join(run, "metrics.jsonl"))];
const lossesOf = (run: string) => rowsOf(run).flatMap(({ values }) => values["loss/nll"] ?? []);

it("imitates corrections, of open and ended episodes, until the model gives these answers itself", () =>
  inRun(async (run) => {
    const { server, ask, correct, client, status } = await start(run);
    const before = [await ask("key", "one"), await ask("map", "two")];
    await client.post("/episodes/two/reward", { body: { reward: 0 } });
    await correct("one", "passport, stamp");
    await correct("two", "ballot, oath");
    expect(await status()).toMatchObject({ corrections: 2, episodes_waiting: 0, failure: null });
    await until(async () => (await status()).corrections_waiting === 0);
    const after = [await ask("key", "three"), await ask("map", "four")];
    expect(before).not.toEqual(after);
    expect(after).toEqual(["passport, stamp", "ballot, oath"]);
    // Both were imitated 20 times; the first may have begun alone.
    expect(server.updates).toBeGreaterThanOrEqual(20);
    expect(server.updates).toBeLessThanOrEqual(40);
    expect(server.version).toBe(`1.${server.updates}`);
    const losses = lossesOf(run);
    expect(losses).toHaveLength(server.updates);
    expect(losses.at(-1)).toBeLessThan(losses[0]! / 4);
    // The episode is recorded, and is no data.
    expect([...readEpisodeRecords(join(run, "episodes.jsonl"))].map(({ task }) => task)).toEqual(["two"]);
  }));

it("continues after a restart: what was imitated stays so, what was not is imitated", () =>
  inRun(async (run) => {
    const recipe = sft({ epochs: 6 });
    const first = await start(run, { recipe });
    await first.ask("key", "one");
    await first.correct("one", "passport, stamp");
    await until(() => first.server.updates >= 2);
    await first.server.close(20);
    const done = first.server.updates;

    const second = await start(run, { recipe });
    await until(async () => (await second.status()).corrections_waiting === 0);
    expect(second.server.updates).toBe(6);
    const answered = await second.ask("key", "again");
    await second.server.close(20);
    expect(lossesOf(run)).toHaveLength(6);

    const third = await start(run, { recipe });
    // The open episode is corrected once more; the first correction is not imitated again.
    expect(await third.ask("key", "later")).toBe(answered);
    expect(await third.status()).toMatchObject({ updates: 6, corrections: 1, corrections_waiting: 0 });
    await third.correct("one", "letter, seal");
    await until(async () => (await third.status()).corrections_waiting === 0);
    expect(third.server.updates).toBe(12);
    expect(done).toBeGreaterThanOrEqual(2);
    expect(third.server.version).toMatch(/^3\.12$/);
  }));

it("does not imitate again what a rollback has undone, and learns from later corrections", () =>
  inRun(async (run) => {
    const { server, ask, correct, client, status } = await start(run);
    const before = await ask("key", "one");
    await correct("one", "passport, stamp");
    await until(async () => (await status()).corrections_waiting === 0);
    await until(() => listVersions(run)[0]!.name === server.version);
    const undone = server.updates;
    const oldest = listVersions(run).at(-1)!.name;
    await client.post(`/versions/${oldest}/rollback`);
    await until(() => server.version.split(".")[1] === oldest.split(".")[1]);
    await until(async () => (await status()).failure === null);
    expect(await status()).toMatchObject({ corrections: 1, corrections_waiting: 0 });
    await correct("one", "ballot, oath");
    await until(async () => (await status()).corrections_waiting === 0);
    expect(server.updates).toBe(undone + 20);
    const tokens = rowsOf(run).flatMap(({ step, values }) => (step > undone ? [values["tokens/nll"]] : []));
    expect(new Set(tokens).size).toBe(1); // one correction in each batch
    expect(await ask("key", "two")).toBe("ballot, oath");
    expect(before).not.toBe("ballot, oath");
  }));

it("measures held-out episodes while no correction arrives", () =>
  inRun(async (run) => {
    const { ask, client, server } = await start(run, { heldOut: { episodes: 1 } });
    await ask("key", "one", { "x-episode-split": "test" });
    await client.post("/episodes/one/reward", { body: { reward: 1 } });
    await until(() => rowsOf(run).some(({ values }) => values["eval/success"] === 1));
    expect(server.updates).toBe(0);
  }));

it("refuses corrections that are too long, and recipes that name other data", () =>
  inDirectory(async (directory) => {
    const { ask, correct, status } = await start(join(directory, "run"));
    await ask("key", "one");
    await expect(correct("one", "pen".repeat(200))).rejects.toMatchObject({ status: 400, param: "content" });
    expect(await status()).toMatchObject({ corrections: 0, updates: 0 });
    const other = join(directory, "other");
    const refused: Partial<ServeAndTrainOptions>[] = [
      { recipe: sft({ demonstrationsPerTask: 1 }) },
      { recipe: sft({ recorded: ["episodes.jsonl"] }) },
      { corrections: { epochs: 2 } },
    ];
    for (const options of refused)
      await expect(start(other, options)).rejects.toMatchObject({ code: "ERR_CONFIG" });
    // Without a server there are no corrections.
    await expect(trainRecipe(sft(), { directory: other })).rejects.toMatchObject({
      code: "ERR_CONFIG",
      message: expect.stringContaining("nothing to imitate"),
    });
  }));
