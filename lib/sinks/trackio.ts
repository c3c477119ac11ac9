/**
 * Sends metrics and the recipe to a trackio server, by the HTTP API that trackio's own client uses.
 */

import { z } from "zod";
import { answerOf, baseAddress, fromEnvironment, headersFrom, postJson } from "./http.ts";
import { PermanentError, type ReportedRow, type ReportedRun, type RunEvent, type Sink } from "./sink.ts";

/** The version of the HTTP API that this sink was written for. */
const apiVersion = 1;
const versionAnswer = z.looseObject({ api_version: z.number().optional() });
const answer = z.looseObject({ error: z.unknown().optional() }).optional();

export function trackioSink(options: {
  url: string;
  token: string;
  project: string;
  headers: Readonly<Record<string, string>>;
}): Sink {
  // The server prints its address with the token.
  const given = new URL(baseAddress(options.url, "report.url"));
  const token = given.searchParams.get("write_token") ?? fromEnvironment(options.token, "report.token");
  const address = `${given.origin}${given.pathname}`.replace(/\/+$/, "");
  const headers = { "x-trackio-write-token": token, ...headersFrom(options.headers, "report.headers") };
  const { project } = options;
  let run: ReportedRun;

  /** Throws also if an answer with status 200 has an error, as trackio's client does. */
  async function call(name: string, kwargs: Record<string, unknown>, signal: AbortSignal): Promise<void> {
    const body = { args: [], kwargs: { ...kwargs, hf_token: null } };
    const given = answerOf(
      answer,
      await postJson(`${address}/api/${name}`, body, { headers, signal }),
      "trackio",
    );
    if (given?.error != null) throw new PermanentError(String(given.error).slice(0, 200));
  }

  return {
    name: "trackio",
    async start(started, signal) {
      run = started;
      const found = await postJson(`${address}/version`, undefined, { headers, signal, method: "GET" });
      const { api_version } = answerOf(versionAnswer, found ?? {}, "trackio");
      if (api_version !== apiVersion)
        throw new PermanentError(
          `${address} has version ${api_version} of trackio's HTTP API; ${apiVersion} is needed`,
        );
    },
    async metrics(rows: readonly ReportedRow[], signal) {
      const logs = rows.map(({ number, step, values }) => ({
        ...{ project, run: run.name, run_id: run.id, metrics: values, step },
        config: run.recipe,
        // The server ignores a row that it has: one that was sent again, or that a resumed run
        // repeats.
        log_id: `${run.id}:${number}`,
      }));
      await call("bulk_log", { logs }, signal);
    },
    async event({ kind, time, message }: RunEvent, signal) {
      const alert = {
        ...{ project, run: run.name, run_id: run.id, title: `${run.name} ${kind}`, text: message },
        level: kind === "crashed" || kind === "collapsed" ? "error" : "info",
        // Without a time the server accepts the alert and drops it.
        timestamp: new Date(time * 1000).toISOString(),
        alert_id: `${run.id}:${kind}:${time}`,
      };
      await call("bulk_alert", { alerts: [alert] }, signal);
    },
  };
}
