/** Sends metrics and the recipe to an MLflow tracking server, by its REST API 2.0. */

import { z } from "zod";
import { answerOf, baseAddress, headersFrom, postJson } from "./http.ts";
import { PermanentError, type ReportedRow, type ReportedRun, type RunEvent, type Sink } from "./sink.ts";

/** MLflow's limits of one request. */
const maxMetrics = 1000;
const maxParams = 100;
const maxParamLength = 500;

const statuses: Readonly<Record<RunEvent["kind"], string | undefined>> = {
  finished: "FINISHED",
  stopped: "KILLED",
  crashed: "FAILED",
  collapsed: undefined, // the run goes on
};

const experimentAnswer = z.object({ experiment: z.object({ experiment_id: z.string() }) });
const createdExperiment = z.object({ experiment_id: z.string() });
const runAnswer = z.object({ run: z.object({ info: z.object({ run_id: z.string() }) }) });
const foundRun = runAnswer.shape.run.extend({
  data: z.object({ params: z.array(z.object({ key: z.string() })).default([]) }).optional(),
});
const foundRuns = z.object({ runs: z.array(foundRun).default([]) });

export function mlflowSink(options: {
  url: string;
  experiment: string;
  headers: Readonly<Record<string, string>>;
}): Sink {
  const address = baseAddress(options.url, "report.url");
  const headers = headersFrom(options.headers, "report.headers");
  const token = process.env.MLFLOW_TRACKING_TOKEN;
  if (token && !("authorization" in headers)) headers.authorization = `Bearer ${token}`;
  let runId = "";

  const call = (path: string, body: unknown, signal: AbortSignal) =>
    postJson(`${address}/api/2.0/mlflow/${path}`, body, { headers, signal });

  /** The experiment's id; it may be created by another process at the same time. */
  async function experimentId(signal: AbortSignal): Promise<string> {
    const name = encodeURIComponent(options.experiment);
    const find = () =>
      postJson(`${address}/api/2.0/mlflow/experiments/get-by-name?experiment_name=${name}`, undefined, {
        ...{ headers, signal, method: "GET" },
      });
    try {
      return answerOf(experimentAnswer, await find(), "MLflow").experiment.experiment_id;
    } catch (error) {
      if (!(error instanceof PermanentError) || !error.message.startsWith("404")) throw error;
    }
    try {
      const created = await call("experiments/create", { name: options.experiment }, signal);
      return answerOf(createdExperiment, created, "MLflow").experiment_id;
    } catch (error) {
      if (!String(error).includes("RESOURCE_ALREADY_EXISTS")) throw error;
      return answerOf(experimentAnswer, await find(), "MLflow").experiment.experiment_id;
    }
  }

  return {
    name: "mlflow",
    async start(run: ReportedRun, signal) {
      const experiment_id = await experimentId(signal);
      // A resumed run continues the one that it began.
      const filter = `tags.nlac_run = '${run.id.replaceAll("'", "")}'`;
      const search = { experiment_ids: [experiment_id], filter, max_results: 1 };
      const [known] = answerOf(foundRuns, await call("runs/search", search, signal), "MLflow").runs;
      if (known !== undefined) {
        runId = known.info.run_id;
        await call("runs/update", { run_id: runId, status: "RUNNING" }, signal);
      } else {
        const tags = [
          { key: "nlac_run", value: run.id },
          { key: "nlac_directory", value: run.directory },
        ];
        const created = await call(
          "runs/create",
          { experiment_id, run_name: run.name, start_time: Date.now(), tags },
          signal,
        );
        runId = answerOf(runAnswer, created, "MLflow").run.info.run_id;
      }
      // Of a run whose creation was interrupted, some are missing.
      const sent = new Set(known?.data?.params.map(({ key }) => key));
      const params = flattened(run.recipe).filter(({ key }) => !sent.has(key));
      for (let i = 0; i < params.length; i += maxParams)
        await call("runs/log-batch", { run_id: runId, params: params.slice(i, i + maxParams) }, signal);
    },
    async metrics(rows: readonly ReportedRow[], signal) {
      const metrics = rows.flatMap(({ step, time, values }) =>
        Object.entries(values).map(([key, value]) => ({
          ...{ key: keyOf(key), value, step, timestamp: Math.round(time * 1000) },
        })),
      );
      for (let i = 0; i < metrics.length; i += maxMetrics)
        await call("runs/log-batch", { run_id: runId, metrics: metrics.slice(i, i + maxMetrics) }, signal);
    },
    async event({ kind, time, message }, signal) {
      const status = statuses[kind];
      const tag = { run_id: runId, key: `nlac_${kind}`, value: message.slice(0, 5000) };
      await call("runs/set-tag", tag, signal);
      if (status !== undefined)
        await call("runs/update", { run_id: runId, status, end_time: Math.round(time * 1000) }, signal);
    },
  };
}

/** Letters, digits and _-. /: are allowed in keys. */
function keyOf(name: string): string {
  return name.replaceAll(/[^\w\-. /:]/g, "_");
}

/** { config: { batchSize: 8 } } as [{ key: "config.batchSize", value: "8" }]. */
function flattened(value: unknown, prefix = ""): { key: string; value: string }[] {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) {
    const dot = prefix === "" ? "" : `${prefix}.`;
    return Object.entries(value).flatMap(([key, inner]) => flattened(inner, `${dot}${key}`));
  }
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return [{ key: keyOf(prefix).slice(0, 250), value: text.slice(0, maxParamLength) }];
}
