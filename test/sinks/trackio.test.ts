/**
 * With NLAC_REPORT_PYTHON, the Python of a virtual environment with trackio, a real server is
 * started too.
 */

import { spawn } from "node:child_process";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, expect, test, vi } from "vitest";
import { memoryRun } from "../../lib/run/training-run.ts";
import { reportConfig } from "../../lib/sinks/config.ts";
import { openSinks, Reporting } from "../../lib/sinks/reporting.ts";
import { type JsonAnswer, type JsonRequest, jsonServer } from "../support/json-server.ts";
import { inDirectory } from "../support/tiny.ts";

const python = process.env.NLAC_REPORT_PYTHON;
if (python === undefined) console.warn("skipped: NLAC_REPORT_PYTHON names no Python with trackio");

afterEach(() => vi.unstubAllEnvs());

const recipe = { name: "mine", config: { batchSize: 8 } };
const reported = { id: "run-1", name: "mine", directory: "/runs/mine", recipe };

async function reporting(config: object, limits = {}): Promise<Reporting> {
  const sinks = await openSinks(reportConfig.parse([{ to: "trackio", ...config }]));
  return new Reporting(sinks, reported, { pauseMs: 1, timeoutMs: 30_000, closeMs: 30_000, ...limits });
}

async function closed(report: Reporting): Promise<string[]> {
  const lines: string[] = [];
  await report.close((line) => lines.push(line));
  return lines;
}

/** Answers recorded from trackio 0.43.0. */
function trackio(token: string, apiVersion = 1) {
  return ({ path, headers }: JsonRequest): JsonAnswer => {
    if (path === "/version")
      return {
        json: { version: "0.43.0", api_version: apiVersion, writes_paused: false, api_transport: "http" },
      };
    if (headers["x-trackio-write-token"] !== token)
      return {
        status: 400,
        json: { error: "A write_token is required to log metrics or upload to this server." },
      };
    return { json: { data: null } };
  };
}

test("rows, the recipe and the end are sent, with the token of the address that the server prints", async () => {
  const server = await jsonServer(trackio("t0"));
  try {
    vi.stubEnv("TRACKIO_SERVER_URL", `${server.url}?project=demo&write_token=t0`);
    const report = await reporting({ project: "p" });
    const run = report.of(memoryRun());
    run.metrics(0, { "loss/l1": 0.5, missing: Number.NaN });
    run.metrics(3, { "loss/l1": 0.25 });
    report.failed(new Error("no memory"));
    expect(await closed(report)).toEqual([]);
    const [version, logs, alerts] = server.requests;
    expect(version).toMatchObject({ method: "GET", path: "/version" });
    expect(logs).toMatchObject({
      ...{ method: "POST", path: "/api/bulk_log", headers: { "x-trackio-write-token": "t0" } },
      body: { args: [], kwargs: { hf_token: null } },
    });
    expect(logs!.body.kwargs.logs).toEqual([
      {
        ...{ project: "p", run: "mine", run_id: "run-1", metrics: { "loss/l1": 0.5 }, step: 0 },
        ...{ config: recipe, log_id: "run-1:0" },
      },
      {
        ...{ project: "p", run: "mine", run_id: "run-1", metrics: { "loss/l1": 0.25 }, step: 3 },
        ...{ config: recipe, log_id: "run-1:1" },
      },
    ]);
    expect(alerts!.body.kwargs.alerts).toMatchObject([
      {
        title: "mine crashed",
        text: "no memory",
        level: "error",
        timestamp: expect.stringMatching(/^20\d\d-.*Z$/),
      },
    ]);
  } finally {
    await server.close();
  }
});

test("a wrong token, or a server of another version, loses entries and does not disturb the run", async () => {
  const server = await jsonServer(trackio("t0"));
  const other = await jsonServer(trackio("t0", 2));
  try {
    for (const [url, reason] of [
      [server.url, /2 of 2 entries were not sent \(last error: 400 .*write_token is required/],
      [other.url, /2 of 2 .*has version 2 of trackio's HTTP API; 1 is needed/],
    ] as const) {
      const report = await reporting({ url, token: "wrong" });
      const inner = memoryRun();
      report.of(inner).metrics(0, { a: 1 });
      report.ended({ updates: 1, episodes: 1, environmentSteps: 1, stopped: false });
      expect(await closed(report)).toEqual([expect.stringMatching(reason)]);
      expect(inner.rows).toHaveLength(1);
    }
  } finally {
    await server.close();
    await other.close();
  }
});

test("a missing address or token is an error before training", async () => {
  vi.stubEnv("TRACKIO_SERVER_URL", undefined);
  vi.stubEnv("TRACKIO_WRITE_TOKEN", undefined);
  await expect(reporting({})).rejects.toThrow(/report\.url .*TRACKIO_SERVER_URL, which is not set/);
  await expect(reporting({ url: "http://localhost:1" })).rejects.toThrow(
    /report\.token .*TRACKIO_WRITE_TOKEN, which is not set/,
  );
});

test.skipIf(python === undefined)(
  "a real trackio server has the run once, also after a resume",
  () =>
    inDirectory(async (directory) => {
      const port = String(17_000 + (process.pid % 10_000));
      const server = spawn(join(dirname(python!), "trackio"), ["show"], {
        env: {
          ...{ PATH: process.env.PATH, HOME: directory, TRACKIO_DIR: directory, BROWSER: "true" },
          ...{ GRADIO_SERVER_PORT: port, TRACKIO_WRITE_TOKEN: "t0" },
        },
      });
      try {
        const url = `http://127.0.0.1:${port}`;
        while (
          !(await fetch(`${url}/version`).then(
            (answer) => answer.ok,
            () => false,
          ))
        )
          await sleep(200);
        const rows = async (from: number, to: number) => {
          const report = await reporting({ url, token: "t0", project: "p" });
          for (let i = from; i < to; i++) report.row(i, { "loss/l1": 1 / (i + 1) }, i + 1);
          report.ended({ updates: to, episodes: 4, environmentSteps: 9, stopped: to < 150 });
          expect(await closed(report)).toEqual([]);
        };
        await rows(0, 120);
        await rows(100, 150); // resumed from the checkpoint after 100 rows
        const ask = async (name: string, kwargs: object) => {
          const answer = await fetch(`${url}/api/${name}`, {
            ...{ method: "POST", headers: { "content-type": "application/json" } },
            body: JSON.stringify({ args: [], kwargs: { project: "p", ...kwargs } }),
          });
          return ((await answer.json()) as { data: unknown }).data;
        };
        expect(await ask("get_runs_for_project", {})).toMatchObject([{ id: "run-1", name: "mine" }]);
        expect(await ask("get_run_configs", {})).toMatchObject({ "run-1": { config: { batchSize: 8 } } });
        const values = await ask("get_metric_values", {
          run: "mine",
          run_id: "run-1",
          metric_name: "loss/l1",
        });
        expect(values).toMatchObject(
          Array.from({ length: 150 }, (_, i) => ({ step: i, value: 1 / (i + 1) })),
        );
        const alerts = (await ask("get_alerts", { run: "mine", run_id: "run-1" })) as { title: string }[];
        expect(alerts.map(({ title }) => title).sort()).toEqual(["mine finished", "mine stopped"]);
      } finally {
        server.kill();
      }
    }),
  120_000,
);
