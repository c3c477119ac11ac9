import { mkdtempSync, truncateSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { DashRuns } from "../../lib/dash/runs.ts";
import { type DashServer, serveDash } from "../../lib/dash/server.ts";
import type { EpisodeList, RunSummary, SampleView } from "../../lib/dash/types.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { drawsOf, recipeOf, rowsOf, statusOf, wholeRun, writeRun } from "../support/recorded-run.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-dash-"));
let server: DashServer;
let base = "";

beforeAll(async () => {
  writeRun(join(root, "a"), wholeRun());
  writeRun(join(root, "group", "b"), { ...wholeRun(), recipe: recipeOf(1), status: statusOf("finished") });
  writeRun(join(root, "group", "c"), {
    metrics: rowsOf(2, () => 0),
    recipe: recipeOf(2, { batchSize: 4 }),
    status: statusOf("running", Date.now() / 1000 - 3600),
  });
  const runs = new DashRuns([root]);
  await runs.poll();
  server = await serveDash(runs, { assets: { script: "1", styles: "" }, pollMs: 20 });
  base = new URL(server.link).origin;
});
afterAll(() => server.close());

const authorization = () => ({ authorization: `Bearer ${server.token}` });

async function ask<T>(path: string): Promise<T> {
  const answer = await fetch(`${base}/api/${path}`, { headers: authorization() });
  expect(answer.status, path).toBe(200);
  return (await answer.json()) as T;
}

/** Sends headers that fetch would not. */
function statusWith(headers: Record<string, string>): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    const sent = request(`${base}/api/runs`, { headers: { ...authorization(), ...headers } }, (answer) => {
      answer.resume();
      resolve(answer.statusCode);
    });
    sent.on("error", reject).end();
  });
}

test("the link has the token in its fragment, and nothing is answered without it", async () => {
  expect(server.link).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/#token=[\w-]{32}$/);
  for (const path of ["runs", "stream", "episode?run=a&n=0"]) {
    expect((await fetch(`${base}/api/${path}`)).status).toBe(401);
    const wrong = await fetch(`${base}/api/${path}`, { headers: { authorization: "Bearer x" } });
    expect(wrong.status).toBe(401);
    expect(await wrong.text()).not.toContain("lamp");
  }
});

test("a foreign Host or Origin is refused, even with the token", async () => {
  expect(await statusWith({})).toBe(200);
  expect(await statusWith({ host: "attacker.example" })).toBe(403);
  expect(await statusWith({ origin: "https://attacker.example" })).toBe(403);
});

test("the page may load nothing but its own files", async () => {
  const page = await fetch(base);
  const policy = page.headers.get("content-security-policy")!;
  expect(policy).toContain("default-src 'none'");
  expect(policy).toContain("require-trusted-types-for 'script'");
  expect(policy).not.toContain("unsafe");
  expect(page.headers.get("x-content-type-options")).toBe("nosniff");
});

test("a summary has the state, the place, success and what is wrong", async () => {
  const [a, b, c] = await ask<RunSummary[]>("runs");
  expect(a).toMatchObject({
    ...{ id: "a", state: "running", iteration: 4, iterations: 4, updates: 3, episodes: 8, samples: 4 },
    ...{ success: 0.75, successMetric: "eval/success", fraction: 0.5, probes: 4, errors: [] },
  });
  expect(a!.left).toBeCloseTo(60, 0);
  expect([b!.id, b!.state, b!.left]).toEqual(["group/b", "finished", null]);
  // Its process has not written for an hour.
  expect([c!.id, c!.state]).toEqual(["group/c", "lost"]);
});

test("an episode has the update before which it was played", async () => {
  const list = await ask<EpisodeList>("episodes?run=a");
  expect(list.update).toEqual([0, 0, 1, 1, 2, 2, 3, 3]);
  expect(list.tasks).toEqual(["lamp-0", "lamp-1", "lamp-2"]);
  const episode = await ask<{ turns: unknown[]; update: number }>("episode?run=a&n=5");
  expect([episode.turns.length, episode.update]).toEqual([2, 2]);
  const found = await ask<{ places: number[]; searched: number }>("search?run=a&q=HEARD%20SWITCH%204");
  expect(found).toEqual({ places: [4], searched: 8 });
});

test("episodes of evaluations are found by number and update", async () => {
  const list = await ask<EpisodeList>("evaluations?run=a");
  expect([list.id, list.update, list.success]).toEqual([
    [0, 1, 0, 1],
    [0, 0, 3, 3],
    [0, 0, 1, 1],
  ]);
  type Found = { update: number; success: number; isHeldOut: boolean; turns: { text: string }[] };
  for (const update of [0, 3]) {
    const found = await ask<Found>(`evaluation?run=a&n=1&update=${update}`);
    expect(found).toMatchObject({ update, success: update / 3, isHeldOut: true });
    expect(found.turns[0]!.text).toBe(`press 1 after ${update}`);
  }
  const query = "search?run=a&of=evaluations&q=";
  expect(await ask(`${query}PRESS%201`)).toEqual({ places: [3, 1], searched: 4 });
  expect(await ask(`${query}switch%204`)).toEqual({ places: [], searched: 4 });
});

test("a sample has its context from the episode, and its figures per token as numbers", async () => {
  const sample = await ask<SampleView>("sample?run=a&n=2");
  expect(sample.state).toEqual([{ role: "user", content: "Switch on the lamp." }]);
  expect(sample.texts).toMatchObject({ action: "switch 2", observation: "The lamp heard switch 2." });
  expect(sample.success).toBe(true);
  const { target } = sample.tokens;
  expect(target!.l1![2]).toBeCloseTo(0.3 * 6, 3);
  expect(target!.best!.online[2]![0]).toEqual({ text: "lights", logProb: -0.09998 });
});

test("the history of a transition has every draw, with its sample where one was recorded", async () => {
  const draws = await ask<object[]>("history?run=a&episode=0&turn=0");
  expect(draws).toHaveLength(4);
  expect(draws[0]).toEqual({
    ...{ update: 0, l1: 0.1, probability: 0.125, age: 3 },
    ...{ target: "yes", critique: "no", refinement: "changed", sample: 0 },
  });
  expect(draws[1]).toMatchObject({ update: 1, sample: null });
});

test("runs that differ in their seeds only are compared as one group", async () => {
  type Groups = { groups: { name: string; runs: string[]; mean: number[]; low: number[]; high: number[] }[] };
  const { groups } = await ask<Groups>("compare?metric=eval/success&axis=steps");
  expect(groups.map(({ runs }) => runs)).toEqual([["a", "group/b"], ["group/c"]]);
  expect(groups.map(({ name }) => name)).toEqual(["lamps (a)", "lamps (group/c)"]);
  expect(groups[0]!.mean.at(-1)).toBeCloseTo(0.75);
  expect([groups[0]!.low.at(-1), groups[0]!.high.at(-1)]).toEqual([0.75, 0.75]);
});

test.each([
  ["nothing", 400],
  ["toString", 400],
  ["episode?run=a&n=-1", 400],
  ["episode?run=a&n=99", 404],
  ["evaluation?run=a&n=1&update=2", 404],
  ["evaluation?run=a&n=1", 400],
  ["episode?run=..%2F..&n=0", 404],
  ["sample?run=a", 400],
  ["compare?axis=none", 400],
])("%s is answered with %i", async (path, status) => {
  const answer = await fetch(`${base}/api/${path}`, { headers: authorization() });
  expect(answer.status).toBe(status);
  expect((await answer.json()) as object).toHaveProperty("message");
});

test("the stream tells of every change, also of a truncation", async () => {
  const stop = new AbortController();
  const answer = await fetch(`${base}/api/stream`, { headers: authorization(), signal: stop.signal });
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  const next = async () => {
    const { value } = await reader.read();
    return JSON.parse(/data: (.*)\n\n$/.exec(value!)![1]!) as Record<string, string>;
  };
  const changeFrom = async (known: string | undefined) => {
    let told = await next();
    while (told["group/b"] === known) told = await next();
    return told;
  };
  const first = await next();
  expect(Object.keys(first)).toEqual(["a", "group/b", "group/c"]);
  const path = join(root, "group", "b", "draws.jsonl");
  const writer = new RecordWriter(path);
  writer.append(drawsOf(9, 0, 1));
  writer.sync();
  writer.close();
  const second = await changeFrom(first["group/b"]);
  expect(second["group/c"]).toBe(first["group/c"]);
  expect(await ask("history?run=group%2Fb&episode=0&turn=0")).toHaveLength(5);
  truncateSync(path, 0);
  await changeFrom(second["group/b"]);
  expect(await ask("history?run=group%2Fb&episode=0&turn=0")).toEqual([]);
  stop.abort();
});
