import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import type { Trajectory } from "../../lib/episodes/trajectory.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import type { SinkConfig } from "../../lib/sinks/config.ts";
import { reportConfig } from "../../lib/sinks/config.ts";
import { openSinks, Reporting } from "../../lib/sinks/reporting.ts";
import { type JsonAnswer, type JsonRequest, type JsonServer, jsonServer } from "../support/json-server.ts";
import { inDirectory } from "../support/tiny.ts";

const servers: JsonServer[] = [];
afterEach(async () => {
  vi.unstubAllEnvs();
  await Promise.all(servers.splice(0).map((server) => server.close()));
});

async function serverOf(answer?: (request: JsonRequest) => JsonAnswer): Promise<JsonServer> {
  const server = await jsonServer(answer);
  servers.push(server);
  return server;
}

const recipe = { name: "mine", model: "tiny", environment: { name: "errands" }, config: { batchSize: 8 } };
const reported = { id: "run-1", name: "mine", directory: "/runs/mine", recipe };
const fast = { pauseMs: 1, timeoutMs: 2000, closeMs: 5000 };

async function reporting(config: unknown, run = reported): Promise<Reporting> {
  return new Reporting(await openSinks(reportConfig.parse([config])), run, fast);
}

async function closed(reporting: Reporting): Promise<string[]> {
  const lines: string[] = [];
  await reporting.close((line) => lines.push(line));
  return lines;
}

function trajectory(id: number): Trajectory {
  const state = { tokens: [1, 2, 3] } as never;
  const turn = { state, logProbs: new Float32Array(2), truncated: false };
  return {
    ...{ id, task: "key", seed: 7, reward: 1, outcome: "done", conversation: state },
    opening: [{ role: "user", content: "Hello." }],
    turns: [
      {
        ...{ ...turn, tokens: [4, 5], text: "look()", reward: 0, terminated: false },
        action: { text: "", tool: { name: "look", arguments: { at: "desk" } } },
        observation: [{ role: "tool", content: "a key" }],
        info: { toolError: true },
      },
      {
        ...{ ...turn, tokens: [6], text: "???", reward: 1, terminated: true },
        ...{ malformed: "no action", observation: [], info: {} },
      },
    ],
  };
}

/** As much of MLflow's REST API as nlac uses; `experiments` and `runs` outlive a client. */
function mlflow(experiments: string[], runs: Map<string, string>) {
  const params: { key: string }[] = [];
  return ({ path, body }: JsonRequest): JsonAnswer => {
    const [route, query] = path.replace("/api/2.0/mlflow/", "").split("?");
    const name = new URLSearchParams(query).get("experiment_name");
    if (route === "experiments/get-by-name")
      return experiments.includes(name!)
        ? { json: { experiment: { experiment_id: "3" } } }
        : { status: 404, json: { error_code: "RESOURCE_DOES_NOT_EXIST" } };
    if (route === "experiments/create") {
      experiments.push(body.name);
      return { json: { experiment_id: "3" } };
    }
    if (route === "runs/search") {
      const id = runs.get(/= '(.*)'/.exec(body.filter)![1]!);
      return { json: id === undefined ? {} : { runs: [{ info: { run_id: id }, data: { params } }] } };
    }
    if (route === "runs/log-batch") params.push(...(body.params ?? []));
    if (route === "runs/create") {
      runs.set(body.tags[0].value, "m1");
      return { json: { run: { info: { run_id: "m1" } } } };
    }
    return { json: {} };
  };
}

test("mlflow: an experiment, a run with the recipe, metrics, and the state at the end; a resumed run continues", async () => {
  const experiments: string[] = [];
  const runs = new Map<string, string>();
  const server = await serverOf(mlflow(experiments, runs));
  vi.stubEnv("MLFLOW_TRACKING_URI", `${server.url}/`);
  vi.stubEnv("MLFLOW_TRACKING_TOKEN", "secret");
  const report = await reporting({ to: "mlflow", experiment: "e" });
  const run = report.of(memoryRun());
  run.metrics(0, { "loss/l1": 0.5, "gain(x)": 1, missing: Number.NaN });
  run.metrics(1, { "loss/l1": 0.25 });
  report.ended({ updates: 1, episodes: 4, environmentSteps: 9, stopped: false });
  expect(await closed(report)).toEqual([]);

  expect(experiments).toEqual(["e"]);
  const sent = (route: string) =>
    server.requests.filter(({ path }) => path.endsWith(route)).map(({ body }) => body);
  expect(server.requests.every(({ headers }) => headers.authorization === "Bearer secret")).toBe(true);
  expect(sent("runs/create")).toMatchObject([{ experiment_id: "3", run_name: "mine" }]);
  const [params, metrics] = sent("runs/log-batch");
  expect(params.params).toEqual([
    { key: "name", value: "mine" },
    { key: "model", value: "tiny" },
    { key: "environment.name", value: "errands" },
    { key: "config.batchSize", value: "8" },
  ]);
  expect(metrics).toEqual({
    run_id: "m1",
    metrics: [
      { key: "loss/l1", value: 0.5, step: 0, timestamp: expect.any(Number) },
      { key: "gain_x_", value: 1, step: 0, timestamp: expect.any(Number) },
      { key: "loss/l1", value: 0.25, step: 1, timestamp: expect.any(Number) },
    ],
  });
  expect(Math.abs(metrics.metrics[0].timestamp - Date.now())).toBeLessThan(60_000);
  expect(sent("runs/update")).toMatchObject([{ run_id: "m1", status: "FINISHED" }]);

  const resumed = await reporting({ to: "mlflow", experiment: "e" });
  resumed.of(memoryRun()).metrics(2, { "loss/l1": 0.1 });
  resumed.failed(Object.assign(new Error("ten steps"), { code: "ERR_NOT_FINITE" }));
  expect(await closed(resumed)).toEqual([]);
  expect(sent("runs/create")).toHaveLength(1);
  expect(sent("runs/update").slice(1)).toMatchObject([{ status: "RUNNING" }, { status: "FAILED" }]);
  expect(sent("runs/log-batch").filter((body) => body.params)).toHaveLength(1);
  expect(sent("runs/set-tag").at(-1)).toMatchObject({
    key: "nlac_crashed",
    value: "ERR_NOT_FINITE: ten steps",
  });
});

test("mlflow: a run whose creation was interrupted gets the recipe that it lacks", async () => {
  const answer = mlflow(["e"], new Map());
  let failures = 0;
  const server = await serverOf((request) =>
    request.path.endsWith("log-batch") && failures++ === 0 ? { status: 503, json: {} } : answer(request),
  );
  const report = await reporting({ to: "mlflow", url: server.url, experiment: "e" });
  report.of(memoryRun()).metrics(0, { "loss/l1": 0.5 });
  expect(await closed(report)).toEqual([]);
  const batches = server.requests.filter(({ path }) => path.endsWith("log-batch")).map(({ body }) => body);
  expect(batches.map((body) => body.params?.length ?? 0)).toEqual([4, 4, 0]);
  expect(batches[2].metrics).toHaveLength(1);
});

interface Span {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  attributes: { key: string; value: Record<string, unknown> }[];
  status: { code?: number; message?: string };
}
const attributes = ({ attributes }: Span) =>
  Object.fromEntries(attributes.map(({ key, value }) => [key, Object.values(value)[0]]));

test("otlp: an episode is a trace of its completions and tool calls, without their texts", async () => {
  const server = await serverOf();
  const report = await reporting({ to: "otlp", url: server.url, headers: { "x-key": "k" } });
  report.of(memoryRun()).trajectory(trajectory(3));
  expect(await closed(report)).toEqual([]);
  const [request] = server.requests;
  expect(request).toMatchObject({ method: "POST", path: "/v1/traces" });
  expect(request!.headers["x-key"]).toBe("k");
  const spans: Span[] = request!.body.resourceSpans[0].scopeSpans[0].spans;
  expect(spans.map(({ name }) => name)).toEqual([
    "invoke_agent errands",
    "chat tiny",
    "execute_tool look",
    "chat tiny",
  ]);
  const [episode, first, tool, second] = spans as [Span, Span, Span, Span];
  expect(new Set(spans.map(({ traceId }) => traceId)).size).toBe(1);
  expect(episode.traceId).toMatch(/^[0-9a-f]{32}$/);
  for (const span of [first, tool, second]) expect(span.parentSpanId).toBe(episode.spanId);
  expect(new Set(spans.map(({ spanId }) => spanId)).size).toBe(4);
  const starts = spans.map(({ startTimeUnixNano }) => BigInt(startTimeUnixNano));
  expect([...starts].sort((a, b) => (a < b ? -1 : 1))).toEqual(starts);
  for (const { startTimeUnixNano, endTimeUnixNano } of spans) {
    expect(BigInt(endTimeUnixNano)).toBeGreaterThan(BigInt(startTimeUnixNano));
    expect(BigInt(endTimeUnixNano)).toBeLessThanOrEqual(BigInt(episode.endTimeUnixNano));
  }
  expect(attributes(episode)).toMatchObject({
    "gen_ai.operation.name": "invoke_agent",
    "gen_ai.agent.name": "errands",
    "gen_ai.usage.output_tokens": "3",
    "nlac.task": "key",
    "nlac.reward": 1,
    "nlac.success": true,
  });
  expect(attributes(first)).toMatchObject({
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "tiny",
    "gen_ai.usage.input_tokens": "3",
    "gen_ai.usage.output_tokens": "2",
  });
  expect(attributes(tool)).toMatchObject({ "gen_ai.tool.name": "look", "error.type": "tool_error" });
  expect(second.status).toEqual({ code: 2, message: "no action" });
  expect(JSON.stringify(request!.body)).not.toMatch(/Hello|a key|desk/);

  // With content; the same run and episode has the same ids.
  const again = await reporting({ to: "otlp", url: server.url, content: true });
  again.of(memoryRun()).trajectory(trajectory(3));
  await closed(again);
  const repeated: Span[] = server.requests[1]!.body.resourceSpans[0].scopeSpans[0].spans;
  expect(repeated.map(({ spanId }) => spanId)).toEqual(spans.map(({ spanId }) => spanId));
  expect(attributes(repeated[0]!)["gen_ai.input.messages"]).toBe(
    '[{"role":"user","parts":[{"type":"text","content":"Hello."}]}]',
  );
  expect(attributes(repeated[2]!)["gen_ai.tool.call.result"]).toBe("a key");
});

test("webhook: a collapse and the end are posted, with the secret from the environment", async () => {
  const server = await serverOf();
  vi.stubEnv("HOOK", `${server.url}/T0/secret`);
  const report = await reporting({ to: "webhook", url: "$HOOK" });
  const run = report.of(memoryRun());
  for (const [step, success] of [1, 1, 1, 1, 1, 0, 0, 0, 0, 0].entries())
    run.metrics(step, { "rollout/success": success });
  report.failed(new Error("no memory"));
  expect(await closed(report)).toEqual([]);
  expect(server.requests.map(({ path }) => path)).toEqual(["/T0/secret", "/T0/secret"]);
  expect(server.requests.map(({ body }) => body)).toMatchObject([
    { event: "collapsed", run: { id: "run-1", name: "mine", directory: "/runs/mine" } },
    { event: "crashed", text: "mine crashed: no memory" },
  ]);
});

test("webhook: the address is used as it is given, since another path may be redirected", async () => {
  const server = await serverOf();
  for (const path of ["/hook/", "/hook?key=a/"]) {
    const report = await reporting({ to: "webhook", url: `${server.url}${path}` });
    report.failed(new Error("no memory"));
    expect(await closed(report)).toEqual([]);
  }
  expect(server.requests.map(({ path }) => path)).toEqual(["/hook/", "/hook?key=a/"]);
});

test("a server of another kind is named in a sentence", async () => {
  const server = await serverOf(() => ({ json: [1] }));
  for (const config of [{ to: "mlflow" }, { to: "trackio", token: "secret" }] as const) {
    const report = await reporting({ ...config, url: server.url });
    report.of(memoryRun()).metrics(1, { a: 1 });
    const name = config.to === "mlflow" ? "MLflow" : "trackio";
    expect(await closed(report)).toEqual([
      `report to ${config.to}: 1 of 1 entries were not sent (last error: the answer is not that of ${name}: check the address)`,
    ]);
  }
});

test("a server that is down, refuses or never answers loses entries and does not disturb the run", async () => {
  const silent = await serverOf(() => "never");
  const refuses = await serverOf(() => ({ status: 401, json: { error: "who" } }));
  const down = await jsonServer();
  await down.close();
  const sinks = await openSinks(
    reportConfig.parse([silent, refuses, down].map(({ url }) => ({ to: "mlflow", url }))),
  );
  const report = new Reporting(sinks, reported, { pauseMs: 1, timeoutMs: 100, closeMs: 400 });
  const inner = memoryRun();
  const run = report.of(inner);
  for (let step = 0; step < 100; step++) run.metrics(step, { a: step });
  run.trajectory(trajectory(0));
  expect(inner.rows).toHaveLength(100);
  expect(inner.trajectories).toHaveLength(1);
  const lines = await closed(report);
  expect(lines).toHaveLength(3);
  expect(lines[1]).toMatch(/^report to mlflow: 100 of 100 entries were not sent \(last error: 401 /);
  expect(lines[2]).toMatch(/ECONNREFUSED/);
});

test("a user's module gets every row, as a function or as a sink", () =>
  inDirectory(async (directory) => {
    const path = join(directory, "sink.mjs");
    writeFileSync(
      path,
      `globalThis.rows = []; export default ({ step, values }) => void rows.push([step, values]);`,
    );
    const report = await reporting({ to: "module", path });
    report.of(memoryRun()).metrics(4, { a: 1 });
    expect(await closed(report)).toEqual([]);
    expect((globalThis as unknown as { rows: unknown }).rows).toEqual([[4, { a: 1 }]]);
    const other = join(directory, "class.mjs");
    writeFileSync(
      other,
      `class Mine { seen = []; name = "mine"; start({ id }) { this.id = id; }
        episodes(all) { globalThis.episodes = [this.id, all.map(({ id }) => id)]; } }
      export default new Mine();`,
    );
    const asSink = await reporting({ to: "module", path: other });
    asSink.of(memoryRun()).trajectory(trajectory(5));
    expect(await closed(asSink)).toEqual([]);
    expect((globalThis as unknown as { episodes: unknown }).episodes).toEqual(["run-1", [5]]);
    const none = join(directory, "none.mjs");
    writeFileSync(none, "export default { metrics: 5 };");
    await expect(reporting({ to: "module", path: none })).rejects.toMatchObject({ code: "ERR_CONFIG" });
  }));

test.each<[SinkConfig | object, RegExp]>([
  [{ to: "mlflow" }, /MLFLOW_TRACKING_URI, which is not set/],
  [{ to: "webhook", url: "file:///etc/passwd" }, /http:\/\/ or https:\/\//],
  [
    { to: "otlp", headers: { authorization: "$NO_SUCH_TOKEN" } },
    /report\.headers\.authorization .*NO_SUCH_TOKEN/,
  ],
])("a wrong setting is refused before training: %j", async (config, message) => {
  vi.stubEnv("MLFLOW_TRACKING_URI", undefined);
  await expect(reporting(config)).rejects.toThrow(message);
});
