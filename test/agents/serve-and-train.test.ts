import { cpSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import OpenAI from "openai";
import { afterEach, describe, expect, it } from "vitest";
import {
  type ServeAndTrainOptions,
  serveAndTrain,
  type TrainingServer,
} from "../../lib/agents/serve-and-train.ts";
import type { Lease } from "../../lib/agents/tasks.ts";
import { listVersions } from "../../lib/agents/versions.ts";
import { type Progress, silentProgress } from "../../lib/display/progress.ts";
import { readEpisodeRecords } from "../../lib/episodes/records.ts";
import { readRecords } from "../../lib/files/records.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import { lockOf } from "../support/locks.ts";
import { runErrand, servedErrands } from "../support/served-errands.ts";
import { inDirectory } from "../support/tiny.ts";

const open: TrainingServer[] = [];
afterEach(async () => {
  for (const server of open.splice(0)) await server.close(20);
});

async function start(directory: string, options: Partial<ServeAndTrainOptions> = {}) {
  const server = await serveAndTrain({ recipe: servedErrands(), directory, port: 0, ...options });
  open.push(server);
  const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
  const status = () => client.get("/training") as Promise<Record<string, unknown>>;
  return { server, client, status };
}

async function until(is: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await is())) await new Promise((resolve) => setTimeout(resolve, 20));
}

const rowsOf = (run: string) => [...readRecords<MetricsRow>(join(run, "metrics.jsonl"))];

describe("a server that trains", () => {
  it("turns rewarded episodes into updates while it answers, and names the version of each answer", () =>
    inDirectory(async (directory) => {
      const run = join(directory, "run");
      const { server, client, status } = await start(run);
      expect(server.version).toBe("1.0");
      // What clients say is not for other users of the machine.
      const modes = ["", "episodes.jsonl", "open.jsonl", "corrections.jsonl"].map(
        (name) => statSync(join(run, name)).mode & 0o777,
      );
      expect(modes).toEqual([0o700, 0o600, 0o600, 0o600]);
      for (let i = 0; i < 4; i++) await runErrand(client, "errands-base", `errand-${i}`, i);
      await until(() => server.updates === 4);
      const ask = () =>
        client.chat.completions
          .create({
            model: "errands-base",
            messages: [{ role: "user", content: "A new errand" }],
            max_tokens: 2,
          })
          .withResponse();
      await until(async () => (await status()).episodes_waiting === 0);
      const { data, response } = await ask();
      expect(await status()).toMatchObject({ episodes_open: 1, episodes_dropped: 0 });
      // Two steps an update: one on each loss.
      expect(server.version).toMatch(/^1\.[5-8]$/);
      expect(response.headers.get("x-nlac-version")).toBe(server.version);
      expect(data.system_fingerprint).toBe(server.version);
      const rows = rowsOf(run).filter(({ values }) => "loss/l1" in values);
      expect(rows.map(({ step }) => step)).toEqual([1, 2, 3, 4]);
      for (const { values } of rows) expect(values["loss/l1"]).toBeGreaterThan(0);
      // Every turn says which weights generated it.
      const records = [...readEpisodeRecords(join(run, "episodes.jsonl"))];
      expect(records.map(({ task }) => task)).toEqual(["errand-0", "errand-1", "errand-2", "errand-3"]);
      for (const { turns } of records) for (const { info } of turns) expect(info.version).toMatch(/^1\.\d$/);
      expect(records[0]!.turns.at(-1)!.observation[0]!.content).toMatch(/The (errand is done|office closes)/);
      await server.close(20);
      expect(listVersions(run)[0]!.name).toBe(server.version);
    }));

  it("continues a run where it was stopped: its weights, its episodes, its open episodes", () =>
    inDirectory(async (directory) => {
      const run = join(directory, "run");
      const first = await start(run);
      for (let i = 0; i < 3; i++) await runErrand(first.client, "errands-base", `errand-${i}`, i);
      const messages = [{ role: "user" as const, content: "A new errand" }];
      const ask = (client: OpenAI, more: OpenAI.ChatCompletionMessageParam[] = []) =>
        client.chat.completions.create(
          { model: "errands-base", messages: [...messages, ...more], max_tokens: 2 },
          { headers: { "x-episode-id": "long" } },
        );
      const said = (await ask(first.client)).choices[0]!.message;
      await first.client.post("/episodes/long/reward", { body: { reward: 0.5, turn: 0 } });
      await until(() => first.server.updates === 2);
      await first.server.close(20);
      const weights = readFileSync(join(run, "latest"), "utf8");

      const second = await start(run);
      expect(second.server.version).toMatch(/^2\.[1-4]$/);
      // The third episode still waits for a second one to be trained with.
      await until(async () => (await second.status()).episodes_waiting === 1);
      await ask(second.client, [said, { role: "user", content: "nothing" }]);
      const ended = await second.client.post("/episodes/long/reward", { body: { reward: 0.25 } });
      expect(ended).toMatchObject({ turns: 2, reward: 0.75, terminated: true });
      await until(() => second.server.updates >= 4);
      await second.server.close(20);
      expect(Number(readFileSync(join(run, "latest"), "utf8"))).toBeGreaterThan(Number(weights));
      expect([...readEpisodeRecords(join(run, "episodes.jsonl"))].map(({ task }) => task)).toEqual([
        ...["errand-0", "errand-1", "errand-2", "long"],
      ]);
    }));

  it("can be stopped in its warm-up, and continues it at the next start", () =>
    inDirectory(async (directory) => {
      const run = join(directory, "run");
      const controller = new AbortController();
      const advanced: number[] = [];
      const progress: Progress = {
        ...silentProgress,
        advance(done) {
          advanced.push(done);
          if (done === 2) controller.abort();
        },
      };
      const warmup = { steps: 4, batchSize: 1, episodes: 1 };
      const recipe = { ...servedErrands(), warmup };
      const stopped = start(run, { recipe, progress, signal: controller.signal });
      await expect(stopped).rejects.toMatchObject({ code: "ERR_ABORTED" });
      expect(statSync(run).mode & 0o777).toBe(0o700);
      expect(listVersions(run)).toEqual([]);
      const { server, client } = await start(run, { recipe, progress });
      expect(server.version).toBe("1.0");
      expect(advanced).toEqual([1, 2, /* continued */ 2, 3, 4]);
      expect(listVersions(run).map(({ name }) => name)).toEqual(["1.0"]);
      for (let i = 0; i < 2; i++) await runErrand(client, "errands-base", `errand-${i}`, i);
      await until(() => server.updates > 0);
      await server.close(20);
    }));

  it("starts anew if it was killed before its first checkpoint", () =>
    inDirectory(async (directory) => {
      const run = join(directory, "run");
      const killed = `${run}-killed`;
      const progress: Progress = {
        ...silentProgress,
        advance(done) {
          // As a killed process leaves it.
          if (done === 1) cpSync(run, killed, { recursive: true });
        },
      };
      const recipe = { ...servedErrands(), warmup: { steps: 2, batchSize: 1, episodes: 1 } };
      const first = await start(run, { recipe, progress });
      await first.server.close(20);

      writeFileSync(join(killed, "lock"), lockOf(process.ppid, { ended: true }));
      await expect(start(killed, { recipe: servedErrands() })).rejects.toMatchObject({ code: "ERR_RUN" });
      writeFileSync(join(killed, "episodes.jsonl"), "an episode"); // then checkpoints were deleted
      await expect(start(killed, { recipe })).rejects.toMatchObject({ code: "ERR_CHECKPOINT" });
      writeFileSync(join(killed, "episodes.jsonl"), "");
      const { server } = await start(killed, { recipe });
      expect(server.version).toBe("1.0");
      expect(readdirSync(directory).sort()).toEqual(["run", "run-killed", "run-killed.aside-1"]);
    }));

  it("trains with RFT, and continues", () =>
    inDirectory(async (directory) => {
      const run = join(directory, "run");
      const config = { episodesPerIteration: 1, updatesPerIteration: 1, batchSize: 2, successReward: 0 };
      const recipe = { ...servedErrands(), algorithm: "rft" as const, config };
      for (const updates of [1, 2]) {
        const { server, client } = await start(run, { recipe });
        await runErrand(client, "errands-base", `errand-${updates}`, updates);
        await until(() => server.updates === updates);
        await server.close(20);
      }
      expect(rowsOf(run).filter(({ values }) => "loss/nll" in values)).toHaveLength(2);
    }));

  it("trains with GRPO on complete groups, in whatever order their episodes end, and continues", () =>
    inDirectory(async (directory) => {
      const run = join(directory, "run");
      const config = { episodesPerIteration: 4, groupSize: 2, batchSize: 2, maxActionTokens: 8 };
      const recipe = { ...servedErrands(), algorithm: "grpo" as const, config };
      let errands = 0;
      for (const updates of [2, 4]) {
        const { server, client, status } = await start(run, { recipe });
        const leases = [];
        for (let i = 0; i < 4; i++) leases.push((await client.get("/tasks/next")) as Lease);
        const [first, second] = [leases[0]!, leases[2]!];
        expect(leases.map(({ id, group }) => [id, group])).toEqual([
          ...[first, first, second, second].map(({ id, group }) => [id, group]),
        ]);
        expect(first.group).not.toBe(second.group);
        const play = (episode: string, group?: string) =>
          runErrand(
            client,
            "errands-base",
            episode,
            errands++,
            group === undefined ? {} : { "x-episode-group": group },
          );
        await play(`no group ${updates}`);
        for (const i of [0, 2, 3]) await play(leases[i]!.episode, leases[i]!.group);
        expect((await status()).episodes_waiting).toBe(2);
        await play(leases[1]!.episode, first.group);
        await until(() => server.updates === updates);
        await server.close(20);
      }
      const rows = rowsOf(run).filter(({ values }) => "loss/policy" in values);
      expect(rows.map(({ step }) => step)).toEqual([1, 2, 3, 4]);
      // θ has not changed between the scores and the first step of an iteration.
      for (const { step, values } of rows) if (step % 2 === 1) expect(values.approx_kl).toBeCloseTo(0, 6);
    }));

  it("answers at once when it is restarted in mid-iteration", () =>
    inDirectory(async (directory) => {
      const run = join(directory, "run");
      const recipe = servedErrands({ updatesPerIteration: 10_000 });
      const first = await start(run, { recipe });
      for (let i = 0; i < 2; i++) await runErrand(first.client, "errands-base", `errand-${i}`, i);
      await until(() => first.server.updates >= 1);
      await first.server.close(20);
      const second = await start(run, { recipe });
      expect((await second.status()).failure).toBeNull();
      await second.server.close(20);
    }));

  it("trains on episodes up to the recipe's maxPromptTokens, and measures all of them", () =>
    inDirectory(async (directory) => {
      const run = join(directory, "run");
      const lines: string[] = [];
      const recipe = servedErrands({ updatesPerIteration: 1, maxPromptTokens: 100 });
      const options = { recipe, heldOut: { episodes: 2 }, guard: { episodes: 2 } };
      const { server, client, status } = await start(run, { ...options, log: (line) => lines.push(line) });
      const play = async (name: string, headers: Record<string, string> = {}) => {
        const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: "user", content: "A new errand" }];
        for (const next of ["key ".repeat(150), ""]) {
          const answer = await client.chat.completions.create(
            { model: "errands-base", messages, max_tokens: 2 },
            { headers: { "x-episode-id": name, ...headers } },
          );
          messages.push(answer.choices[0]!.message, { role: "user", content: next });
          expect(answer.usage!.prompt_tokens > 100).toBe(next === "");
        }
        await client.post(`/episodes/${name}/reward`, { body: { reward: 1 } });
      };
      for (const name of ["a", "b"]) await play(name);
      for (const name of ["c", "d"]) await play(name, { "x-episode-split": "test" });
      await until(() => server.updates === 1);
      expect(await status()).toMatchObject({
        failure: null,
        metrics: { success: 1, reward: 1, "eval/success": 1 },
      });
      const correct = (turn: number) =>
        client.post("/episodes/a/corrections", { body: { turn, content: "key" } });
      await correct(0);
      await expect(correct(1)).rejects.toMatchObject({
        ...{ status: 400, code: "prompt_too_long" },
        message: expect.stringMatching(/ has \d+ tokens; the recipe's maxPromptTokens is 100/),
      });
      await until(async () => (await status()).corrections_waiting === 0);
      await server.close(20);
      const rows = rowsOf(run).map(({ values }) => values);
      const cut = { "rollout/turns": 1, "rollout/reward": 1, "rollout/success": 1 };
      expect(rows.find((values) => "rollout/turns" in values)).toMatchObject(cut);
      const whole = { "eval/turns": 2, "eval/reward": 1, "eval/success": 1 };
      expect(rows.find((values) => "eval/turns" in values)).toMatchObject(whole);
      expect(lines.filter((line) => line.includes("maxPromptTokens"))).toEqual([
        expect.stringMatching(/^episode a: only the first 1 of 2 turns .* maxPromptTokens is 100/),
      ]);
      expect([...readEpisodeRecords(join(run, "episodes.jsonl"))].map(({ turns }) => turns.length)).toEqual([
        ...[2, 2, 2, 2],
      ]);
      // The replay buffer of a restarted server has the same transitions.
      const next = await start(run, options);
      await until(async () => (await next.status()).episodes_waiting === 0);
      expect((await next.status()).failure).toBeNull();
      await next.server.close(20);
      expect(readdirSync(run)).not.toContain("replay-after-deletion");
    }));

  it("continues a run with its own recipe only, and refuses options that are not above 0", () =>
    inDirectory(async (directory) => {
      const run = join(directory, "run");
      await (await start(run)).server.close(20);
      const recipe = servedErrands({ batchSize: 3 });
      await expect(start(run, { recipe })).rejects.toMatchObject({ code: "ERR_RUN" });
      await (await start(run)).server.close(20);
      for (const name of ["keepMs", "maxIdleMs", "maxTrainingWaitMs", "maxPinned"])
        await expect(start(run, { [name]: 0 })).rejects.toMatchObject({ code: "ERR_CONFIG" });
    }));

  it("reports metrics and episodes to the recipe's sinks", () =>
    inDirectory(async (directory) => {
      const run = join(directory, "run");
      const path = join(directory, "sink.mjs");
      const out = join(directory, "out.jsonl");
      writeFileSync(
        path,
        `import { appendFileSync } from "node:fs";
        const write = (...values) => appendFileSync(${JSON.stringify(out)}, values.map((value) => JSON.stringify(value) + "\\n").join(""));
        export default {
          metrics: async (rows) => write(...rows.map(({ values }) => Object.keys(values))),
          episodes: async (episodes) => write({ episodes: episodes.length }),
          event: async ({ kind }) => write({ kind }),
        };`,
      );
      const recipe = { ...servedErrands(), report: [{ to: "module" as const, path }] };
      const { server, client } = await start(run, { recipe });
      for (let i = 0; i < 2; i++) await runErrand(client, "errands-base", `errand-${i}`, i);
      await until(() => server.updates === 2);
      await server.close(20);
      const written = readFileSync(out, "utf8");
      for (const expected of ["loss/l1", "serving/training_share", '"episodes":', '{"kind":"stopped"}'])
        expect(written).toContain(expected);
    }));
});
