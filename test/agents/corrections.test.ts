import { join } from "node:path";
import OpenAI from "openai";
import { expect, test } from "vitest";
import { type Correction, Corrections } from "../../lib/agents/corrections.ts";
import { serveAndTrain } from "../../lib/agents/serve-and-train.ts";
import { readRecords } from "../../lib/files/records.ts";
import type { LanguageModel, ScoredText } from "../../lib/model/language-model.ts";
import { servedErrands } from "../support/served-errands.ts";
import { inDirectory } from "../support/tiny.ts";

const many = { count: 100, tokens: 10_000 };

test("counts by correction: a deletion or a restored checkpoint does not move the counts of others", () =>
  inDirectory(async (directory) => {
    const imitated: number[] = [];
    const model = {
      tokenNll: async (texts: ScoredText[]) => {
        imitated.push(...texts.map(({ prompt }) => prompt[0]!));
        return texts.map(() => Float32Array.of(1));
      },
      step: async () => ({ gradNorm: 1, skipped: false }),
    } as unknown as LanguageModel;
    const path = join(directory, "corrections.jsonl");
    const config = { epochs: 1, batchSize: 1, learningRate: 1, maxGradNorm: 1 };
    const corrections = new Corrections(path, config, many);
    const add = (number: number) =>
      corrections.add({
        ...{ episode: `e${number}`, turn: 0, prompt: [number], response: [1], text: "", time: 0 },
      });
    for (const number of [0, 1, 2]) add(number);
    await corrections.imitate(model);
    const { counts } = corrections; // of a checkpoint: the newest was imitated
    await corrections.imitate(model);
    await corrections.remove(({ episode }) => episode === "e0");
    corrections.restore(counts);
    add(3);
    while (await corrections.imitate(model));
    expect(imitated).toEqual([2, 1, 3, 1]);
    corrections.close();
    const reopened = new Corrections(path, config, many);
    reopened.restore(counts);
    expect(Object.values(reopened.counts)).toEqual([0, 1, 0]);
    reopened.close();
  }));

test("a correction that is sent again with its Idempotency-Key is stored once, also over a restart", () =>
  inDirectory(async (run) => {
    const open = async () => {
      const server = await serveAndTrain({ recipe: servedErrands(), directory: run, port: 0 });
      const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
      const correct = (content: string, key: string, name = "a") =>
        client.post(`/episodes/${name}/corrections`, {
          ...{ body: { turn: 0, content }, headers: { "Idempotency-Key": key } },
        });
      return { server, client, correct };
    };
    const first = await open();
    for (const name of ["a", "b"])
      await first.client.chat.completions.create(
        { model: "errands-base", messages: [{ role: "user", content: "Hello" }], max_tokens: 2 },
        { headers: { "x-episode-id": name } },
      );
    const answer = await first.correct("Good day", "one");
    // The answer was lost: two clients send it again at once.
    expect(await Promise.all([1, 2].map(() => first.correct("Good day", "one")))).toEqual([answer, answer]);
    await expect(first.correct("Good night", "one")).rejects.toMatchObject({
      ...{ status: 400, code: "idempotency_key_reused" },
    });
    await first.correct("Good day", "one", "b"); // keys are those of an episode
    await first.server.close(20);
    const next = await open();
    expect(await next.correct("Good day", "one")).toEqual(answer);
    await next.correct("Good day", "two");
    await next.server.close(20);
    expect(
      [...readRecords<Correction>(join(run, "corrections.jsonl"))].map(({ episode, key }) => [episode, key]),
    ).toEqual([
      ["a", "one"],
      ["b", "one"],
      ["a", "two"],
    ]);
  }));

test("the number and the length of a run's corrections are limited", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "corrections.jsonl");
    const config = { epochs: 1, batchSize: 1, learningRate: 1, maxGradNorm: 1 };
    const full = expect.objectContaining({ status: 400, code: "too_many_corrections" });
    const open = () => new Corrections(path, config, { count: 3, tokens: 20 });
    const first = open();
    const add = (to: Corrections, episode: string, length: number, key?: string) =>
      to.add({
        ...{ episode, turn: 0, prompt: Array(length).fill(1), response: [1], text: "", time: 0 },
        ...(key !== undefined && { key, request: key }),
      });
    add(first, "a", 9, "once");
    expect(() => add(first, "b", 10)).toThrow(full);
    add(first, "b", 8);
    add(first, "c", 0);
    expect(() => add(first, "d", 0)).toThrow(full);
    add(first, "a", 9, "once"); // a repeated one takes no room
    first.close();
    const second = open();
    expect(() => add(second, "d", 0)).toThrow(full);
    await second.remove(({ episode }) => episode === "c");
    expect(() => add(second, "d", 1)).toThrow(full);
    await second.remove(({ episode }) => episode === "b");
    add(second, "d", 9);
    expect(second.size).toBe(2);
    second.close();
  }));

test("a server refuses corrections beyond the limit", () =>
  inDirectory(async (run) => {
    const server = await serveAndTrain({
      recipe: servedErrands(),
      directory: run,
      port: 0,
      maxCorrections: 1,
    });
    try {
      const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
      await client.chat.completions.create(
        { model: "errands-base", messages: [{ role: "user", content: "Hello" }], max_tokens: 2 },
        { headers: { "x-episode-id": "a" } },
      );
      const correct = (content: string) =>
        client.post("/episodes/a/corrections", { body: { turn: 0, content } });
      await correct("Good day");
      await expect(correct("Good night")).rejects.toMatchObject({
        status: 400,
        code: "too_many_corrections",
      });
    } finally {
      await server.close(20);
    }
  }));
