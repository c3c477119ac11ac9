/** `nlac dash`: shows runs in a browser, live while they train. */

import { once } from "node:events";
import { existsSync } from "node:fs";
import type { Command } from "commander";
import { NlacError } from "../base/errors.ts";
import { exportDash } from "../dash/export.ts";
import { readAssets } from "../dash/page.ts";
import { DashRuns } from "../dash/runs.ts";
import { serveDash } from "../dash/server.ts";
import { say } from "./messages.ts";
import { portNumber, wholeNumber } from "./options.ts";
import { stoppable } from "./stop.ts";

interface DashFlags {
  port: number;
  export?: string;
  episodes: number;
  samples: number;
  json?: boolean;
}

export function registerDash(program: Command): void {
  program
    .command("dash")
    .description("show runs in a browser, live while they train: curves, transcripts, critiques")
    .argument("[runs...]", "run directories, or directories of runs (default: runs)")
    .option("--port <number>", "port to listen on; 0 selects a free one", portNumber, 0)
    .option("--export <directory>", "write one self-contained page, index.html, and exit")
    .option(
      "--episodes <number>",
      "with --export: maximum episodes per run, the newest first",
      wholeNumber(0),
      500,
    )
    .option(
      "--samples <number>",
      "with --export: maximum training samples per run, half of them those with the highest L1",
      wholeNumber(0),
      500,
    )
    .option("--json", "print a summary of the runs as JSON, and exit")
    .addHelpText(
      "after",
      `
Examples:
  nlac dash
  nlac dash runs/quickstart-20260101-120000 --port 8123
  nlac dash runs/mine --export page

The link that it prints has a token: without it, nobody can read the runs. Only
this machine can connect. To use another machine, forward the port:
  ssh -L 8123:127.0.0.1:8123 machine
The page contains transcripts: check an exported page before you share it.`,
    )
    .action(dash);
}

async function dash(paths: string[], flags: DashFlags): Promise<void> {
  if (paths.length === 0 && !existsSync("runs"))
    throw new NlacError(
      "ERR_RUN",
      "There is no directory runs here: name a run, for example npx nlac dash DIRECTORY.",
    );
  const runs = new DashRuns(paths.length === 0 ? ["runs"] : paths);
  if (flags.json) {
    await runs.poll();
    console.log(JSON.stringify(runs.all.map((run) => run.summary())));
    return;
  }
  const assets = readAssets();
  if (flags.export !== undefined) {
    const limits = { maxEpisodes: flags.episodes, maxSamples: flags.samples };
    console.log(await exportDash(runs, flags.export, { assets, ...limits }));
    return;
  }
  const server = await serveDash(runs, { assets, port: flags.port, log: say });
  console.log(server.link);
  await stoppable(say, "now", async (signal) => {
    if (!signal.aborted) await once(signal, "abort");
    await server.close();
  });
}
