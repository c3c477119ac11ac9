import { readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { readRecords } from "../../lib/files/records.ts";
import { loadRecipe } from "../../lib/recipe/recipe.ts";
import { resumeRun, trainRecipe } from "../../lib/recipe/train-recipe.ts";
import type { MetricsRow } from "../../lib/run/metrics.ts";
import type { Sink } from "../../lib/sinks/sink.ts";
import { jsonServer } from "../support/json-server.ts";
import { inDirectory } from "../support/tiny.ts";
import { historyOf, readWandb } from "../support/wandb-reader.ts";

const changes = [
  ...["iterations=1", "episodesPerIteration=4", "updatesPerIteration=2", "batchSize=4"],
  ...["rehearsal=0", "seed=3"],
].map((change) => `config.${change}`);

test(
  "a training reports its rows, episodes and end; its records are those of a training that reports nothing",
  () =>
    inDirectory(async (directory) => {
      const server = await jsonServer();
      try {
        const quiet = await loadRecipe("errands", changes);
        const plain = await trainRecipe(quiet, { directory: join(directory, "plain") });
        const report = [
          { to: "webhook" as const, url: server.url, on: ["finished" as const] },
          { to: "otlp" as const, url: server.url },
          { to: "wandb" as const, project: "p" },
          { to: "mlflow" as const, url: "http://127.0.0.1:1" }, // nobody listens there
        ];
        const seen: MetricsRow[] = [];
        const sink: Sink = { name: "mine", metrics: (rows) => void seen.push(...rows) };
        const lines: string[] = [];
        const told = await trainRecipe(
          { ...quiet, report },
          { directory: join(directory, "told"), sinks: [sink], log: (line) => lines.push(line) },
        );
        const rowsOf = (run: string) =>
          [...readRecords<MetricsRow>(join(run, "metrics.jsonl"))].map(({ step, values }) => ({
            step,
            values: Object.fromEntries(Object.entries(values).filter(([name]) => !/^time\//.test(name))),
          }));
        expect(rowsOf(told.run)).toEqual(rowsOf(plain.run));
        expect(seen.map(({ step }) => step)).toEqual(rowsOf(told.run).map(({ step }) => step));
        const posted = server.requests.filter(({ path }) => path === "/").map(({ body }) => body);
        expect(posted).toMatchObject([
          { event: "finished", text: "errands finished: 4 episodes, 2 updates." },
        ]);
        const traces = server.requests.filter(({ path }) => path === "/v1/traces");
        const spans = traces.flatMap(({ body }) => body.resourceSpans[0].scopeSpans[0].spans);
        expect(spans.filter(({ name }: { name: string }) => name === "invoke_agent errands")).toHaveLength(4);
        expect(lines.some((line) => line.startsWith("report to mlflow: "))).toBe(true);

        const root = join(told.run, "wandb");
        const offline = () => {
          const [name] = readdirSync(root);
          const [file] = readdirSync(join(root, name!)).filter((name) => name.endsWith(".wandb"));
          return readWandb(readFileSync(join(root, name!, file!)));
        };
        const shown = () => historyOf(offline()).map(({ updates, _step }) => [_step, updates]);
        const recorded = rowsOf(told.run).map(({ step }, number) => [number, step]);
        expect(shown()).toEqual(recorded);
        expect(offline().at(-1)!.kind).toBe("exit");

        // A run that is over resumes with the same report, and adds nothing.
        rmSync(join(told.run, "lock"), { force: true });
        const resumed = await resumeRun(told.run, { log: () => {} });
        expect(resumed).toMatchObject({ updates: 2, stopped: false });
        expect(shown()).toEqual(recorded);
        expect(offline().filter(({ kind }) => kind === "exit")).toHaveLength(1);
      } finally {
        await server.close();
      }
    }),
  120_000,
);
