/**
 * The endpoints of a server that trains, except generation: on the shipped model, with few updates.
 */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { expect, it } from "vitest";
import {
  type ServeAndTrainOptions,
  serveAndTrain,
  type TrainingServer,
} from "../../lib/agents/serve-and-train.ts";
import type { Lease } from "../../lib/agents/tasks.ts";
import { listVersions, rollBackVersion } from "../../lib/agents/versions.ts";
import { readEpisodeRecords } from "../../lib/episodes/records.ts";
import { readRecords } from "../../lib/files/records.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import { nlac } from "../support/command-line.ts";
import { runErrand, servedErrands } from "../support/served-errands.ts";
import { inDirectory } from "../support/tiny.ts";

const open: TrainingServer[] = [];
/** Calls `body` with a new directory; its servers are closed before the directory is removed. */
const inRun = (body: (run: string) => Promise<void>) =>
  inDirectory(async (directory) => {
    try {
      await body(directory);
    } finally {
      for (const server of open.splice(0)) await server.close(20);
    }
  });

async function start(directory: string, options: Partial<ServeAndTrainOptions> = {}) {
  const server = await serveAndTrain({ recipe: servedErrands(), directory, port: 0, ...options });
  open.push(server);
  const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
  const ask = (
    name: string,
    content = "A new errand",
    headers: Record<string, string> = {},
    model = "errands-base",
  ) =>
    client.chat.completions
      .create(
        { model, messages: [{ role: "user", content }], max_tokens: 2 },
        { headers: { "x-episode-id": name, ...headers } },
      )
      .withResponse();
  return { server, client, ask };
}

async function until(is: () => boolean): Promise<void> {
  while (!is()) await new Promise((resolve) => setTimeout(resolve, 20));
}

const episodesOf = (run: string) => [...readEpisodeRecords(join(run, "episodes.jsonl"))];

it("imitates a person's correction, of an open and of an ended episode", () =>
  inRun(async (run) => {
    const { server, client, ask } = await start(run, { corrections: { epochs: 3, learningRate: 1e-3 } });
    await ask("one");
    const better = { turn: 0, content: "Thought:\nThe passport, after nothing.\nAction:\nform" };
    expect(await client.post("/episodes/one/corrections", { body: better })).toMatchObject({
      id: "one",
      turn: 0,
    });
    const nll = () =>
      [...readRecords<MetricsRow>(join(run, "metrics.jsonl"))].flatMap(
        ({ values }) => values["corrections/nll"] ?? [],
      );
    await until(() => nll().length === 3);
    expect(nll().at(-1)).toBeLessThan(nll()[0]!);
    await client.post("/episodes/one/reward", { body: { reward: 0 } });
    await client.post("/episodes/one/corrections", { body: { turn: 0, content: "nothing" } });
    await until(() => nll().length === 6);
    for (const [id, body] of [
      ["one", { turn: 1, content: "x" }],
      ["one", { turn: 0 }],
      ["nobody", { turn: 0, content: "x" }],
    ] as const) {
      const status = id === "nobody" ? 404 : 400;
      await expect(client.post(`/episodes/${id}/corrections`, { body })).rejects.toMatchObject({ status });
    }
    await server.close(20);
    expect([...readRecords(join(run, "corrections.jsonl"))]).toMatchObject([
      { text: better.content },
      { turn: 0 },
    ]);
  }));

it("gives sub-agents their parent's reward, records the group, and ends idle episodes as truncated", () =>
  inRun(async (run) => {
    const { client, ask, server } = await start(run);
    await ask("parent", "Go", { "x-episode-group": "g" });
    await ask("child", "Help", { "x-parent-episode-id": "parent" });
    await ask("grandchild", "Help more", { "x-parent-episode-id": "child" });
    await client.post("/episodes/grandchild/reward", { body: { reward: 0.25, turn: 0 } });
    await client.post("/episodes/parent/reward", { body: { reward: 1 } });
    expect(
      episodesOf(run).map(({ task, parent, group, reward }) => ({ task, parent, group, reward })),
    ).toEqual([
      { task: "child", parent: "parent", group: undefined, reward: 1 },
      { task: "grandchild", parent: "child", group: undefined, reward: 0.25 },
      { task: "parent", parent: undefined, group: "g", reward: 1 },
    ]);
    await ask("idle");
    await client.post("/episodes/idle/reward", { body: { reward: 0.5, terminated: false } });
    await server.close(20);
    const next = await start(run, { maxIdleMs: 50 });
    await until(() => next.server.recorded === 1);
    const idle = episodesOf(run)[3]!;
    expect(idle).toMatchObject({ task: "idle", outcome: "truncated", reward: 0.5 });
    expect(idle.turns[0]).toMatchObject({ terminated: false, truncated: true });
  }));

it("keeps versions, answers with a pinned one, and goes back to one, also when the server is stopped", () =>
  inRun(async (run) => {
    const { server, client, ask } = await start(run);
    for (let i = 0; i < 4; i++) await runErrand(client, "errands-base", `errand-${i}`, i);
    // Until the checkpoint of the last update is written, an earlier one may still be removed.
    await until(() => server.updates === 4 && listVersions(run)[0]!.name === server.version);
    const { data } = (await client.get("/versions")) as { data: { id: string }[] };
    const oldest = data.at(-1)!.id;
    const pinned = await ask("pinned", "A new errand", {}, `errands-base@${oldest}`);
    expect(pinned.response.headers.get("x-nlac-version")).toBe(oldest);
    await expect(ask("x", "y", {}, "errands-base@9.9")).rejects.toMatchObject({
      status: 404,
      code: "model_not_found",
      message: expect.stringContaining("The version 9.9 of"),
    });

    await client.post(`/versions/${oldest}/rollback`);
    await until(() => server.version === `2.${oldest.split(".")[1]}`);
    await expect(client.post("/versions/9.9/rollback")).rejects.toMatchObject({
      status: 404,
      error: { code: "version_not_found", message: expect.not.stringContaining(run) },
    });
    // The episodes remain, and training continues from there.
    for (let i = 4; i < 6; i++) await runErrand(client, "errands-base", `errand-${i}`, i);
    await until(() => server.updates >= 6);
    expect(() => rollBackVersion(run)).toThrow(expect.objectContaining({ code: "ERR_RUN" })); // in use
    await server.close(20);
    const [newest, second] = listVersions(run);
    expect(newest!.name).toMatch(/^2\./);
    expect((await nlac("versions", run)).output).toContain(
      `${newest!.name}  checkpoint ${newest!.checkpoint}`,
    );
    const { output } = await nlac("rollback", run);
    expect(output).toContain(`from version ${second!.name}, checkpoint ${second!.checkpoint}`);
    expect(listVersions(run)[0]!.name).toBe(second!.name);
  }));

it("leases tasks, and forgets a deleted episode, also in its replay buffer", () =>
  inRun(async (run) => {
    const { server, client } = await start(run);
    const lease = (await client.get("/tasks/next")) as { episode: string; task: { kind: string } };
    expect(lease.task.kind).toMatch(/^\w+$/);
    // Like a request for an image by a page of another site.
    const asImage = await fetch(`${server.url}/v1/tasks/next`, {
      headers: { "sec-fetch-site": "cross-site" },
    });
    expect(asImage.status).toBe(403);
    await runErrand(client, "errands-base", lease.episode, 0);
    await runErrand(client, "errands-base", "secret-errand", 1);
    await until(() => server.updates === 2);
    const status = () => client.get("/training") as Promise<{ tasks: object; failure: unknown }>;
    expect((await status()).tasks).toEqual({ leased: 0, expired: 0, passed_over: 0 });
    expect(await client.delete("/episodes/secret-errand")).toMatchObject({ deleted: true });
    await expect(client.delete("/episodes/secret-errand")).rejects.toMatchObject({ status: 404 });
    for (const file of ["episodes.jsonl", "open.jsonl"])
      expect(readFileSync(join(run, file), "utf8")).not.toContain("secret-errand");
    // The places of the others are the same: training continues.
    for (let i = 2; i < 4; i++) await runErrand(client, "errands-base", `errand-${i}`, i);
    await until(() => server.updates === 4);
    expect((await status()).failure).toBeNull();
  }));

it("allows each API key what its scopes say, and stores redacted texts", () =>
  inRun(async (run) => {
    const { server } = await start(run, {
      tokens: { asker: ["ask"], judge: ["reward"], owner: ["ask", "reward", "train"] },
      redact: (text) => text.replaceAll("photo", "nothing"),
    });
    const as = (apiKey: string) => new OpenAI({ baseURL: `${server.url}/v1`, apiKey, maxRetries: 0 });
    const ask = (client: OpenAI) =>
      client.chat.completions.create(
        { model: "errands-base", messages: [{ role: "user", content: "The photo" }], max_tokens: 2 },
        { headers: { "x-episode-id": "one" } },
      );
    const reward = (client: OpenAI) => client.post("/episodes/one/reward", { body: { reward: 1 } });
    await expect(ask(as("nobody"))).rejects.toMatchObject({ status: 401 });
    await expect(ask(as("judge"))).rejects.toMatchObject({ status: 403, code: "missing_scope" });
    await ask(as("asker"));
    expect(readFileSync(join(run, "open.jsonl"), "utf8")).not.toContain("photo");
    await expect(reward(as("asker"))).rejects.toMatchObject({ status: 403 });
    await reward(as("judge"));
    await expect(as("judge").get("/training")).rejects.toMatchObject({ status: 403 });
    await as("owner").get("/training");
    const [episode] = episodesOf(run);
    expect(episode!.opening).toEqual([{ role: "user", content: "The nothing" }]);
    await runErrand(as("owner"), "errands-base", "two", 0);
    await until(() => server.updates === 2); // the changed ids can be trained on
  }));

it("refuses posted metrics with the names of measured ones, all values of such a request", () =>
  inRun(async (run) => {
    const { client } = await start(run, { guard: { episodes: 1 } });
    for (const name of ["success", "reward", "parse", "eval/success"])
      await expect(client.post("/metrics", { body: { stars: 1, [name]: 0 } })).rejects.toMatchObject({
        ...{ status: 400, code: "reserved_metric", param: name },
      });
    const { metrics } = (await client.get("/training")) as { metrics: object };
    expect(metrics).toEqual({});
    await client.post("/metrics", { body: { stars: 4.5 } });
    expect(await client.get("/training")).toMatchObject({ metrics: { stars: 4.5 } });
  }));

it("refuses a second server on its run, and recipes that cannot be served", () =>
  inRun(async (directory) => {
    const run = join(directory, "run");
    await start(run);
    await expect(start(run)).rejects.toMatchObject({ code: "ERR_RUN" });
    for (const recipe of [
      { ...servedErrands(), algorithm: "ppo", config: {} },
      servedErrands({ episodesPerIteration: 0, recorded: ["x.jsonl"] }),
      servedErrands({ recorded: ["x.jsonl"] }),
    ])
      await expect(
        start(join(directory, "other"), { recipe: recipe as ServeAndTrainOptions["recipe"] }),
      ).rejects.toMatchObject({ code: "ERR_CONFIG" });
  }));

it("trains on no held-out episode, and measures success on them", () =>
  inRun(async (run) => {
    const heldOut = { episodes: 2 };
    const first = await start(run, {
      heldOut,
      testTasks: [{ kind: "held out" }],
      corrections: { epochs: 1 },
    });
    const { client, ask } = first;
    const test = { "x-episode-split": "test" };
    await expect(ask("odd", "Go", { "x-episode-split": "dev" })).rejects.toMatchObject({ status: 400 });
    await expect(client.get("/tasks/next?split=dev")).rejects.toMatchObject({ status: 400 });
    const lease = (await client.get("/tasks/next?split=test")) as Lease & { split: string };
    expect(lease).toMatchObject({ task: { kind: "held out" }, split: "test" });
    expect(await client.get("/tasks/next")).toMatchObject({ split: "train" });
    expect(await client.post(`/tasks/${lease.episode}/renew`)).toEqual({ episode: lease.episode });

    // A sub-agent of a held-out episode is held out, too; corrections of either are refused.
    await ask(lease.episode, "Go", test);
    await ask("helper", "Help", { "x-parent-episode-id": lease.episode });
    const correct = (id: string) =>
      client.post(`/episodes/${id}/corrections`, { body: { turn: 0, content: "better" } });
    await expect(correct("helper")).rejects.toMatchObject({ status: 400, code: "held_out" });
    await client.post(`/episodes/${lease.episode}/reward`, { body: { reward: 1 } });
    await expect(correct(lease.episode)).rejects.toMatchObject({ status: 400, code: "held_out" });
    const rows = () => [...readRecords<MetricsRow>(join(run, "metrics.jsonl"))];
    const measured = () => rows().filter(({ values }) => "eval/success" in values);
    await until(() => measured().length === 1);
    expect(measured()[0]!.values).toMatchObject({ "eval/success": 1, "eval/episodes": 2, "eval/turns": 1 });

    // Episodes 1 and 4 of the file are trained on; an iteration takes two.
    await runErrand(client, "errands-base", "errand-0", 0);
    await ask("open", "Go", test);
    await first.server.close(20);
    const second = await start(run, { heldOut });
    await second.client.post("/episodes/open/reward", { body: { reward: 0 } });
    await runErrand(second.client, "errands-base", "errand-1", 1);
    await until(() => second.server.updates === 2);
    await second.server.close(20);
    expect(episodesOf(run).map(({ task, split }) => [task, split])).toEqual([
      ["helper", "test"],
      [lease.episode, "test"],
      ["errand-0", undefined],
      ["open", "test"],
      ["errand-1", undefined],
    ]);
    const counted = rows().flatMap(({ values }) => values.episodes ?? []);
    expect(counted).toEqual([2]);
  }));
