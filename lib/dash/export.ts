/** Writes a dashboard as one page that needs no server and no network. */

import { join } from "node:path";
import { makeDirectory } from "../files/disk.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { answer, episodes, evaluations, history, samples } from "./api.ts";
import { type Assets, exportedPage } from "./page.ts";
import type { DashRun } from "./run.ts";
import type { DashRuns } from "./runs.ts";
import type { SampleSummary } from "./types.ts";
import { axes } from "./types.ts";

export interface ExportOptions {
  assets: Assets;
  /**
   * Maximum transcripts, of training and of evaluations each, and samples per run. The newest are
   * taken; of the samples, half are those with the highest L1.
   */
  maxEpisodes: number;
  maxSamples: number;
}

/** Writes `directory`/index.html. Returns its path. Throws ERR_IO, ERR_RUN, ERR_VALUE if it is too large. */
export async function exportDash(
  runs: DashRuns,
  directory: string,
  { assets, maxEpisodes, maxSamples }: ExportOptions,
): Promise<string> {
  await runs.poll();
  const data: Record<string, unknown> = {};
  const add = async (path: string, query: Record<string, string> = {}) => {
    data[`${path}?${new URLSearchParams(query)}`] = await answer(runs, path, query);
  };
  await add("runs");
  for (const metric of ["eval/success", "rollout/success"])
    for (const axis of axes) await add("compare", { metric, axis });
  for (const run of runs.all) {
    const ofRun = { run: run.id };
    for (const path of ["config", "metrics", "probes"]) await add(path, ofRun);
    const shown = episodes(run, maxEpisodes);
    data[`episodes?${new URLSearchParams(ofRun)}`] = shown;
    for (const id of shown.id) await add("episode", { ...ofRun, n: String(id) });
    const evaluated = evaluations(run, maxEpisodes);
    data[`evaluations?${new URLSearchParams(ofRun)}`] = evaluated;
    for (const [i, id] of evaluated.id.entries())
      await add("evaluation", { ...ofRun, n: String(id), update: String(evaluated.update[i]) });
    const chosen = chooseSamples(samples(run), maxSamples);
    data[`samples?${new URLSearchParams(ofRun)}`] = chosen;
    for (const { number } of chosen) await add("sample", { ...ofRun, n: String(number) });
    await addHistories(data, run, chosen);
    for (const number of run.probes.items.keys()) await add("probe", { ...ofRun, n: String(number) });
  }
  makeDirectory(directory);
  const path = join(directory, "index.html");
  writeAtomically(path, exportedPage(assets, data));
  return path;
}

/** Half of them are those with the highest L1, the others the newest; in their original order. */
function chooseSamples(all: readonly SampleSummary[], count: number): SampleSummary[] {
  const highest = [...all].sort((a, b) => (b.l1 ?? -1) - (a.l1 ?? -1)).slice(0, Math.ceil(count / 2));
  const chosen = new Set(highest);
  for (const sample of all.toReversed()) {
    if (chosen.size >= count) break;
    chosen.add(sample);
  }
  return [...chosen].sort((a, b) => a.number - b.number);
}

async function addHistories(
  data: Record<string, unknown>,
  run: DashRun,
  chosen: readonly SampleSummary[],
): Promise<void> {
  for (const { trajectory, turn } of chosen) {
    if (turn === null) continue;
    const query = { run: run.id, episode: String(trajectory), turn: String(turn) };
    data[`history?${new URLSearchParams(query)}`] ??= await history(run, trajectory, turn);
  }
}
