import { expect, test } from "vitest";
import { memoryRun } from "../../lib/run/training-run.ts";
import { reportConfig } from "../../lib/sinks/config.ts";
import { openSinks, Reporting } from "../../lib/sinks/reporting.ts";

/** For example http://127.0.0.1:5000, of `mlflow server`. */
const url = process.env.NLAC_MLFLOW_URI;
if (url === undefined) console.warn("skipped: NLAC_MLFLOW_URI names no MLflow server to report to");

test.skipIf(url === undefined)(
  "a real MLflow server has the run, its recipe and its metrics",
  async () => {
    const id = `test-${Date.now()}`;
    const recipe = { name: "real", config: { batchSize: 8, betas: [0.9, 0.98] } };
    const run = { id, name: "real", directory: "/runs/real", recipe };
    const report = async () =>
      new Reporting(await openSinks(reportConfig.parse([{ to: "mlflow", url, experiment: id }])), run, {
        closeMs: 60_000,
        timeoutMs: 30_000,
      });
    const lost: string[] = [];
    const first = await report();
    const recorded = first.of(memoryRun());
    for (let step = 0; step < 1500; step++)
      recorded.metrics(step, { "loss/l1": 1 / (step + 1), "yes/critique": 0.5 });
    first.failed(Object.assign(new Error("stopped by SIGINT"), { code: "ERR_ABORTED" }));
    await first.close((line) => lost.push(line));
    const second = await report();
    second.of(memoryRun()).metrics(1500, { "loss/l1": 0.5 });
    second.ended({ updates: 1501, episodes: 4, environmentSteps: 9, stopped: false });
    await second.close((line) => lost.push(line));
    expect(lost).toEqual([]);

    const ask = async (path: string, body?: unknown) => {
      const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
      const headers = { "content-type": "application/json" };
      const answer = await fetch(`${url}/api/2.0/mlflow/${path}`, { ...options, headers });
      // biome-ignore lint/suspicious/noExplicitAny: the assertions below check its fields
      return (await answer.json()) as any;
    };
    const { experiment } = await ask(`experiments/get-by-name?experiment_name=${id}`);
    const { runs } = await ask("runs/search", { experiment_ids: [experiment.experiment_id] });
    expect(runs).toHaveLength(1);
    const [{ info, data }] = runs;
    expect(info).toMatchObject({ status: "FINISHED", run_name: "real" });
    expect(data.params).toContainEqual({ key: "config.betas", value: "[0.9,0.98]" });
    expect(data.metrics).toContainEqual(expect.objectContaining({ key: "loss/l1", value: 0.5, step: 1500 }));
    const history = await ask(
      `metrics/get-history?run_id=${info.run_id}&metric_key=loss/l1&max_results=5000`,
    );
    expect(history.metrics).toHaveLength(1501);
  },
  120_000,
);
