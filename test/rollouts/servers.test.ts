/** `Servers` over an engine without a network. */

import { expect, test, vi } from "vitest";
import type { ActionRequest, Answer, Engine, Weights } from "../../lib/rollouts/engine.ts";
import { HttpFault } from "../../lib/rollouts/http.ts";
import { Servers } from "../../lib/rollouts/servers.ts";

const version = (label: string, kind: Weights["kind"] = "model"): Weights => ({
  ...{ label, kind, directory: `/shared/${label}` },
});
const request = (...tokens: number[]): ActionRequest => ({
  ...{ tokens, maxNewTokens: 1, temperature: 1, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1 },
  ...{ stopTokenIds: [], seed: undefined },
});
const answer: Answer = {
  ...{ tokens: [9], logProbs: Float32Array.of(-1), cachedTokens: 0, aborted: false, label: undefined },
};

interface Calls {
  generate?: (url: string, weights: Weights | undefined) => Answer | Promise<Answer>;
  install?: (url: string, weights: Weights) => void;
  /** Whether answers name their weights once a version is installed. */
  labels?: boolean;
}

/** Servers "a", "b", … with contexts of 10, 20, …, the calls made, and the warnings. */
async function opened(count: number, calls: Calls = {}, patienceMs?: number, fixed = false) {
  const log: string[] = [];
  const warnings: string[] = [];
  const urls = ["a", "b", "c"].slice(0, count);
  const engine: Engine = {
    readFrom: "a test",
    scoredAt: () => 1,
    open: async (url) => ({
      ...{ url, model: "m", maxPositions: 10 * (1 + urls.indexOf(url)), about: "test", labels: false },
    }),
    async install(server, weights) {
      const { url } = server;
      log.push(`${url} installs ${weights.label}`);
      calls.install?.(url, weights);
      server.labels = calls.labels ?? false;
    },
    async release({ url }, { label }) {
      log.push(`${url} releases ${label}`);
    },
    async generate({ url }, { tokens }, weights) {
      log.push(`${url} generates ${tokens}`);
      return calls.generate ? calls.generate(url, weights) : answer;
    },
  };
  const warn = (line: string) => void warnings.push(line);
  const servers = await Servers.open({ engine, urls, kind: "model", warn, patienceMs }, fixed);
  return { servers, log, warnings };
}

const unnamed = (url: string) =>
  expect.stringContaining(`${url} (test) does not name the weights of its answers`);

test("the shortest context counts; a version replaces the one before", async () => {
  const { servers, log } = await opened(2);
  expect([servers.maxPositions, servers.usable]).toEqual([10, 2]);
  expect(servers.describe()).toEqual(["a: test, model m", "b: test, model m"]);
  await servers.install(version("v1"));
  await servers.install(version("v2"));
  await servers.close();
  expect(log.filter((line) => line.startsWith("b"))).toEqual([
    ...["b installs v1", "b installs v2", "b releases v1", "b releases v2"],
  ]);
});

test("servers without weights answer only if they keep their own", async () => {
  const { servers } = await opened(1);
  await expect(servers.generate(request(1), undefined)).rejects.toMatchObject({ code: "ERR_INTERNAL" });
  const fixed = await opened(1, {}, undefined, true);
  expect(await fixed.servers.generate(request(1), undefined)).toEqual(answer);
});

test("a request goes to the server that has its prefix, else to the least busy one", async () => {
  let release = () => {};
  const held = new Promise<Answer>((resolve) => {
    release = () => resolve(answer);
  });
  let isHeld = true;
  const { servers, log } = await opened(2, { generate: () => (isHeld ? held : answer) });
  await servers.install(version("v1"));
  const prefix = Array.from({ length: 64 }, (_, i) => i);
  const other = prefix.map((id) => id + 100);
  const running = [servers.generate(request(...prefix), undefined)];
  running.push(servers.generate(request(...other), undefined));
  await new Promise((resolve) => setImmediate(resolve));
  isHeld = false;
  release();
  await Promise.all(running);
  await servers.generate(request(...other, 1), undefined);
  await servers.generate(request(...prefix, 1), undefined);
  expect(log.slice(2).map((line) => line[0])).toEqual(["a", "b", "b", "a"]);
});

test("a server that fails is avoided, and given up when its patience has run out", async () => {
  const generate = (url: string): Answer => {
    if (url === "a") throw new HttpFault("a: 503", 503);
    return answer;
  };
  const { servers, log, warnings } = await opened(2, { generate }, 0);
  await servers.install(version("v1"));
  expect(await servers.generate(request(1), undefined)).toEqual(answer);
  expect(log.slice(2)).toEqual(["a generates 1", "b generates 1"]);
  expect(warnings).toEqual([...[unnamed("a"), unnamed("b"), "rollouts: a is not used any more. a: 503"]]);
  expect(servers.usable).toBe(1);
});

test("a request that a server refuses is not repeated", async () => {
  const generate = (): Answer => {
    throw new HttpFault("400 bad field", 400);
  };
  const { servers, log } = await opened(2, { generate });
  await servers.install(version("v1"));
  const failed = { code: "ERR_ROLLOUTS", message: "400 bad field" };
  await expect(servers.generate(request(1), undefined)).rejects.toMatchObject(failed);
  expect(log.slice(2)).toEqual(["a generates 1"]);
});

test("an adapter that is missing means that the server was restarted: another one answers", async () => {
  const generate = (url: string): Answer => {
    if (url === "a") throw new HttpFault("404", 404);
    return answer;
  };
  const { servers } = await opened(2, { generate }, 0);
  await servers.install(version("v1", "adapter"));
  expect(await servers.generate(request(1), undefined)).toEqual(answer);
});

test("an answer of other weights or that was aborted is refused, and the request repeated", async () => {
  const answers = [
    { ...answer, label: "v0" },
    { ...answer, aborted: true },
    { ...answer, label: "v1" },
  ];
  const { servers } = await opened(1, { generate: () => answers.shift()! });
  await servers.install(version("v1"));
  expect(await servers.generate(request(1), undefined)).toMatchObject({ label: "v1" });
  expect(servers.refused).toBe(2);
});

test("an answer that began before a switch is refused, also of a server that names no weights", async () => {
  let end = (_: Answer): void => {};
  let calls = 0;
  const generate = (_: string, weights: Weights | undefined) => {
    if (++calls === 1) return new Promise<Answer>((resolve) => (end = resolve));
    return { ...answer, tokens: [weights?.label === "v2" ? 2 : 1] };
  };
  const { servers } = await opened(1, { generate });
  await servers.install(version("v1"));
  const asked = servers.generate(request(1), undefined);
  await vi.waitFor(() => expect(calls).toBe(1));
  await servers.install(version("v2"));
  end(answer);
  expect((await asked).tokens).toEqual([2]);
  expect(servers.refused).toBe(1);
});

test("a server that names its weights must do so in every answer: one that was restarted is given up", async () => {
  const generate = (url: string): Answer => (url === "a" ? answer : { ...answer, label: "v1" });
  const { servers, warnings } = await opened(2, { generate, labels: true }, 0);
  await servers.install(version("v1"));
  expect(await servers.generate(request(1), undefined)).toMatchObject({ label: "v1" });
  expect(servers.refused).toBe(1);
  expect(warnings).toEqual([
    expect.stringMatching(
      /^rollouts: a is not used.*weights that it does not name, not v1.*stop the run and resume/,
    ),
  ]);
});

test("a server that cannot name its weights is reported once; adapters are named by requests", async () => {
  const { servers, warnings } = await opened(1);
  for (const label of ["v1", "v2"]) await servers.install(version(label));
  expect(warnings).toEqual([unnamed("a")]);
  const other = await opened(1);
  await other.servers.install(version("v1", "adapter"));
  expect(other.warnings).toEqual([]);
});

test("a server that cannot install weights is given up; without any, calls fail", async () => {
  const install = (url: string, { label }: Weights): void => {
    if (url === "a" || label === "v2") throw new Error("disk");
  };
  const { servers, log, warnings } = await opened(2, { install });
  await servers.install(version("v1"));
  expect(warnings).toEqual([
    expect.stringMatching(/^rollouts: a is not used.*v1 was not installed: disk.*restart/),
    unnamed("b"),
  ]);
  const failed = {
    code: "ERR_ROLLOUTS",
    message: expect.stringMatching(/No inference server is left. a: .*b: /),
  };
  await expect(servers.install(version("v2"))).rejects.toMatchObject(failed);
  await expect(servers.generate(request(1), undefined)).rejects.toMatchObject(failed);
  await servers.close();
  expect(log).toEqual(["a installs v1", "b installs v1", "b installs v2"]);
});

test("a signal ends the repetitions", async () => {
  const generate = (): Answer => {
    throw new HttpFault("503", 503);
  };
  const { servers } = await opened(1, { generate });
  await servers.install(version("v1"));
  const failed = servers.generate(request(1), AbortSignal.timeout(50));
  await expect(failed).rejects.toMatchObject({ code: "ERR_ABORTED" });
});

/** Runs `body` with a clock that it sets, in milliseconds; pauses take no time. */
async function withClock(body: (to: (ms: number) => void) => Promise<void>): Promise<void> {
  let time = 1000;
  vi.spyOn(performance, "now").mockImplementation(() => time);
  try {
    await body((ms) => {
      time = 1000 + ms;
    });
  } finally {
    vi.restoreAllMocks();
  }
}

test("two failures long after each other, without a request between, do not give a server up", () =>
  withClock(async (to) => {
    let fails = true;
    const generate = (url: string) => {
      if (url !== "a" || !fails) return answer;
      fails = false;
      throw new HttpFault("busy", 503);
    };
    const { servers, log, warnings } = await opened(2, { generate }, 60_000, true);
    expect(await servers.generate(request(1), undefined)).toEqual(answer);
    to(300_000);
    fails = true;
    expect(await servers.generate(request(2), undefined)).toEqual(answer);
    expect(log).toEqual(["a generates 1", "b generates 1", "a generates 2", "b generates 2"]);
    expect([servers.usable, warnings]).toEqual([2, []]);
  }));

test("nor do two of requests that were sent together", () =>
  withClock(async (to) => {
    const sent: { resolve: (answer: Answer) => void; reject: (error: Error) => void }[] = [];
    const generate = () => new Promise<Answer>((resolve, reject) => sent.push({ resolve, reject }));
    const { servers } = await opened(1, { generate }, 60_000, true);
    const answers = [1, 2].map((id) => servers.generate(request(id), undefined));
    await vi.waitFor(() => expect(sent).toHaveLength(2));
    for (const [i, { reject }] of sent.entries()) {
      to(1000 + 100_000 * i);
      reject(new HttpFault("connection reset"));
      await vi.waitFor(() => expect(sent).toHaveLength(3 + i)); // it is repeated
      if (i === 1) break;
    }
    for (const { resolve } of sent) resolve(answer);
    expect(await Promise.all(answers)).toEqual([answer, answer]);
  }));

test("nor do failures before and after a usable answer", () =>
  withClock(async (to) => {
    const failsAt = [0, undefined, 25_000, 35_000, undefined];
    const generate = () => {
      const at = failsAt.shift();
      if (at === undefined) return answer;
      to(at);
      throw new HttpFault("broken", 500);
    };
    const { servers } = await opened(1, { generate }, 30_000, true);
    expect(await servers.generate(request(1), undefined)).toEqual(answer);
    expect(await servers.generate(request(2), undefined)).toEqual(answer);
    expect(failsAt).toEqual([]);
  }));

test("a server that is full is not given up while it works on earlier requests", () =>
  withClock(async (to) => {
    let end = (_: Answer): void => {};
    let calls = 0;
    const generate = () => {
      calls++;
      if (calls === 1) return new Promise<Answer>((resolve) => (end = resolve));
      if (calls > 4) return answer;
      to(25_000 * calls);
      throw new HttpFault("full", 429);
    };
    const { servers } = await opened(1, { generate }, 50_000, true);
    const long = servers.generate(request(1), undefined);
    await vi.waitFor(() => expect(calls).toBe(1));
    expect(await servers.generate(request(2), undefined)).toEqual(answer);
    end(answer);
    expect(await long).toEqual(answer);
    calls = 1; // full again, without a request that it works on
    await expect(servers.generate(request(3), undefined)).rejects.toMatchObject({ code: "ERR_ROLLOUTS" });
  }));
