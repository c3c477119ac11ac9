/** Deletions while a server trains: from its files, and from the training, which continues. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { expect, it } from "vitest";
import type { Correction } from "../../lib/agents/corrections.ts";
import { serveAndTrain } from "../../lib/agents/serve-and-train.ts";
import { listVersions } from "../../lib/agents/versions.ts";
import { readRecords } from "../../lib/files/records.ts";
import type { RecipeInput } from "../../lib/recipe/recipe.ts";
import { checkpointPath } from "../../lib/run/checkpoints.ts";
import { runErrand, servedErrands } from "../support/served-errands.ts";
import { inDirectory } from "../support/tiny.ts";

async function until(is: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await is())) await new Promise((resolve) => setTimeout(resolve, 20));
}

const endless = 1_000_000;
const rft: RecipeInput = {
  ...servedErrands(),
  algorithm: "rft",
  config: { episodesPerIteration: 2, updatesPerIteration: endless, batchSize: 2, successReward: 0 },
};

it.each([
  ["NLAC", servedErrands({ updatesPerIteration: endless })],
  ["RFT", rft],
])("%s goes on after all episodes of an unfinished iteration were deleted", (_, recipe) =>
  inDirectory(async (run) => {
    const server = await serveAndTrain({ recipe, directory: run, port: 0 });
    try {
      const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
      const status = () => client.get("/training") as Promise<{ failure: unknown; episodes_waiting: number }>;
      for (const name of ["a", "b"]) await runErrand(client, "errands-base", name, 0);
      await until(() => server.updates >= 1);
      for (const name of ["a", "b"])
        expect(await client.delete(`/episodes/${name}`)).toMatchObject({ deleted: true });
      for (const file of ["episodes.jsonl", "open.jsonl"])
        expect(readFileSync(join(run, file), "utf8")).not.toMatch(/"task":"[ab]"/);
      const before = server.updates;
      for (const name of ["c", "d"]) await runErrand(client, "errands-base", name, 1);
      await until(() => server.updates > before + 2);
      expect(await status()).toMatchObject({ failure: null, episodes_waiting: 0 });
    } finally {
      await server.close(20);
    }
  }),
);

it("keeps no texts of episodes in checkpoints, also not those of updates that were prepared", () =>
  inDirectory(async (run) => {
    // A checkpoint is saved after each update, while completions of the next ones wait.
    const recipe = servedErrands({ updatesPerIteration: 4, updatesAhead: 4, maxCriticTokens: 4 });
    const server = await serveAndTrain({ recipe, directory: run, port: 0 });
    try {
      const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
      for (const name of ["a", "b"]) await runErrand(client, "errands-base", name, 0);
      await until(() => server.updates >= 2);
    } finally {
      await server.close(20);
    }
    for (const { checkpoint } of listVersions(run)) {
      const { state } = JSON.parse(readFileSync(join(checkpointPath(run, checkpoint), "state.json"), "utf8"));
      expect(state.training).not.toHaveProperty("prepared");
      expect(JSON.stringify(state.training)).not.toMatch(/"(text|response|student|prompt)"/);
    }
    const again = await serveAndTrain({ recipe, directory: run, port: 0 });
    try {
      await until(() => again.updates >= 4);
    } finally {
      await again.close(20);
    }
  }));

it("deletes corrections of an episode that are posted while it is deleted", () =>
  inDirectory(async (run) => {
    const server = await serveAndTrain({ recipe: rft, directory: run, port: 0 });
    try {
      const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
      const stored = () =>
        [...readRecords<Correction>(join(run, "corrections.jsonl"))].map(({ episode }) => episode);
      await runErrand(client, "errands-base", "kept", 0);
      for (const name of ["a", "b", "c"]) {
        await runErrand(client, "errands-base", name, 0);
        const correct = (episode: string) =>
          client.post(`/episodes/${episode}/corrections`, { body: { turn: 0, content: "Hello" } });
        await correct(name);
        let deleted = false;
        const deleting = client.delete(`/episodes/${name}`).finally(() => (deleted = true));
        const posting = Array.from({ length: 4 }, async () => {
          while (!deleted) await correct(name).catch(() => undefined);
        });
        await Promise.all([deleting, ...posting]);
        await correct("kept");
        expect(stored().filter((episode) => episode !== "kept")).toEqual([]);
      }
      expect(stored()).toEqual(["kept", "kept", "kept"]);
    } finally {
      await server.close(20);
    }
  }));

it("removes the texts of an episode that was dropped before it is deleted", () =>
  inDirectory(async (run) => {
    const server = await serveAndTrain({ recipe: rft, directory: run, port: 0, maxIdleMs: 100 });
    try {
      const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
      const log = () => readFileSync(join(run, "open.jsonl"), "utf8");
      await client.chat.completions.create(
        { model: "errands-base", messages: [{ role: "user", content: "A secret" }], max_tokens: 2 },
        { headers: { "x-episode-id": "a" } },
      );
      await until(() => log().includes('"ended":true'));
      expect(log()).toContain("A secret");
      await expect(client.delete("/episodes/a")).rejects.toMatchObject({ status: 404 });
      expect(log()).not.toContain("A secret");
    } finally {
      await server.close(20);
    }
  }));
