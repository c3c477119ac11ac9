/**
 * `nlac serve`: serves a model through OpenAI's API, and records the episodes of its clients or
 * trains on them.
 */

import { once } from "node:events";
import { basename, resolve } from "node:path";
import type { Command } from "commander";
import { z } from "zod";
import { type ServeAndTrainOptions, serveAndTrain, type TrainingServer } from "../agents/serve-and-train.ts";
import { NlacError } from "../base/errors.ts";
import { type Progress, silentProgress, TerminalProgress } from "../display/progress.ts";
import { readJson, readText } from "../files/disk.ts";
import { loadRecipe } from "../recipe/recipe.ts";
import { type Scope, scopes } from "../serve/scopes.ts";
import { type ServeOptions, type Server, serve } from "../serve/server.ts";
import { say } from "./messages.ts";
import { type ModelFlags, openModel } from "./model.ts";
import {
  asFlag,
  collect,
  collectOrigins,
  isGiven,
  numberAboveZero,
  numberFrom,
  oneOf,
  portNumber,
  wholeNumber,
  withGenerationOptions,
} from "./options.ts";
import { stoppable } from "./stop.ts";

interface ServeFlags extends ModelFlags {
  name?: string;
  host: string;
  port: number;
  token?: string;
  tokens?: string;
  weights: "online" | "target";
  record?: string;
  train?: string;
  set: string[];
  run?: string;
  maxFirstTokenMs: number;
  maxIdleHours: number;
  keepDays?: number;
  tasks?: string;
  testTasks?: string;
  leaseSeconds: number;
  taskOrder: "even" | "variance";
  maxWaiting: number;
  maxBodyBytes: number;
  allowHost: string[];
  cors: string[];
}

export function registerServe(program: Command): void {
  withGenerationOptions(
    program
      .command("serve")
      .description("serve a run's policy or a model to any client of OpenAI's API, and record episodes")
      .argument("<run|model>", "a run directory, a model name, a Hugging Face directory or a .gguf file"),
  )
    .option("--name <name>", "the model's name in the API (default: the last part of <run|model>)")
    .option("--host <address>", "address to listen on; other machines need a token", "127.0.0.1")
    .option("--port <number>", "port to listen on; 0 selects a free one", portNumber, 8000)
    .option("--token <text>", "API key that clients must send (default: $NLAC_SERVE_TOKEN)")
    .option("--tokens <file>", "JSON file of further API keys, each with its scopes: ask, reward, train")
    .option(
      "--weights <which>",
      "weights that are served: online, or target (the EMA)",
      oneOf("online", "target"),
      "online" as const,
    )
    .option("--record <file>", "append every episode that gets a reward to a file for training")
    .option(
      "--train <recipe>",
      "a recipe's name or file: train the model on the episodes of its clients while it is served",
    )
    .option(
      "--set <field=value>",
      "with --train: change a field of the recipe (the value is JSON or text); may be repeated",
      collect,
      [],
    )
    .option(
      "--run <directory>",
      "with --train: run directory; an existing run is continued (default: runs/<recipe>-served)",
    )
    .option(
      "--max-first-token-ms <number>",
      "with --train: limit of the time to the first token (99th percentile)",
      numberFrom(1),
      500,
    )
    .option(
      "--max-idle-hours <number>",
      "with --train: end open episodes that were idle for this long",
      numberAboveZero,
      24,
    )
    .option(
      "--keep-days <number>",
      "with --train: delete episodes older than this (default: keep all)",
      numberAboveZero,
    )
    .option(
      "--tasks <file>",
      "with --train: tasks for GET /v1/tasks/next, as JSON lines (default: the environment's)",
    )
    .option("--test-tasks <file>", "with --train: held-out tasks, for GET /v1/tasks/next?split=test")
    .option(
      "--lease-seconds <number>",
      "with --train: lease a task again if it has no reward after this time",
      numberFrom(1),
      600,
    )
    .option(
      "--task-order <order>",
      "with --train: even, or variance, which prefers tasks that sometimes succeed",
      oneOf("even", "variance"),
      "even" as const,
    )
    .option(
      "--max-waiting <number>",
      "maximum completions, running and waiting; a request above it gets status 429",
      wholeNumber(1),
      256,
    )
    .option(
      "--max-body-bytes <number>",
      "maximum size of a request; larger ones get status 413",
      wholeNumber(1),
      16 * 2 ** 20,
    )
    .option("--allow-host <name>", "a further host name that requests may use; repeatable", collect, [])
    .option(
      "--cors <origin>",
      "origin whose web pages may use the server, such as https://chat.example; * for all; repeatable",
      collectOrigins,
      [],
    )
    .addHelpText(
      "after",
      `
Examples:
  nlac serve SmolLM2-135M-Instruct
  curl http://127.0.0.1:8000/v1/chat/completions \\
    -H 'content-type: application/json' -d '{"model": "SmolLM2-135M-Instruct",
    "messages": [{"role": "user", "content": "Hello"}]}'

An agent written for OpenAI's API only needs another base URL. With --record,
requests are grouped into episodes by the header x-episode-id. Without it, a
request belongs to the episode whose conversation it continues; agents that run
concurrently need the header. When an episode is over, send its reward, with the
id from the header of the last reply:
  nlac serve runs/mine --record episodes.jsonl
  curl http://127.0.0.1:8000/v1/episodes/ID/reward \\
    -H 'content-type: application/json' -d '{"reward": 1}'

With --train the model is trained on these episodes while it is served:
  nlac serve errands-base --train errands --run runs/live
The same command continues the run. docs/agents.md describes the requests for
rewards of turns, corrections, tasks and versions.

Requests with an unknown host name (Host) or from web pages (Origin) are
refused, so that a page in your browser cannot use the server. --allow-host and
--cors make exceptions.

Ctrl-C stops accepting requests and finishes those in progress (at most 30 s).
With --record it then waits for rewards of open episodes, up to 30 s after the
last reply of each. With --train it saves a checkpoint; open episodes continue
after the next start.`,
    )
    .action(run);
}

/** Options that only a server that trains has. */
const ofTraining = [
  "set",
  "run",
  "maxFirstTokenMs",
  "maxIdleHours",
  "keepDays",
  "tasks",
  "testTasks",
  "leaseSeconds",
  "taskOrder",
] as const;

/** Refuses options that would have no effect. */
function requireEffects(flags: ServeFlags, command: Command): void {
  if (flags.train === undefined) {
    const given = ofTraining.find((option) => isGiven(command, option));
    if (given !== undefined) throw new NlacError("ERR_CONFIG", `${asFlag(given)} needs --train.`);
    return;
  }
  if (flags.record !== undefined)
    throw new NlacError("ERR_CONFIG", "--train records episodes in its run: leave out --record.");
  if (flags.weights !== "online") throw new NlacError("ERR_CONFIG", "--train serves the online weights.");
  if (isGiven(command, "seed"))
    throw new NlacError("ERR_CONFIG", "With --train, set the recipe's seed: --set config.seed=NUMBER.");
}

async function run(runOrModel: string, flags: ServeFlags, command: Command): Promise<void> {
  requireEffects(flags, command);
  const { host, port, maxWaiting, maxBodyBytes } = flags;
  const { allowHost: allowHosts, cors: corsOrigins } = flags;
  const token = flags.token ?? process.env.NLAC_SERVE_TOKEN;
  const shared = {
    ...{ host, port, maxWaiting, maxBodyBytes, allowHosts, corsOrigins, log: say },
    name: flags.name ?? basename(resolve(runOrModel)).replace(/\.gguf$/, ""),
    ...(token === undefined ? {} : { token }),
    ...(flags.tokens === undefined ? {} : { tokens: readKeys(flags.tokens) }),
  };
  if (flags.train !== undefined) return serveTraining(runOrModel, flags.train, flags, shared);
  const { weights, record } = flags;
  const { learner } = await openModel(runOrModel, flags);
  try {
    const server = await serve({
      ...{ ...shared, learner, weights },
      ...(record === undefined ? {} : { record }),
    });
    say(
      `serving ${shared.name} at ${server.url}/v1${record === undefined ? "" : `, recording to ${record}`}`,
    );
    const rewards = record === undefined ? "" : " and recent episodes have their rewards";
    await untilStopped(server, `when requests are finished${rewards}`);
  } finally {
    await learner.dispose();
  }
}

/** API keys and their scopes. Throws ERR_CONFIG, which does not name a key. */
function readKeys(path: string): Record<string, Scope[]> {
  const keys = readJson(path, z.record(z.string(), z.unknown()), "ERR_CONFIG");
  return Object.fromEntries(
    Object.entries(keys).map(([key, given], i) => {
      const parsed = z.array(z.enum(scopes)).safeParse(given);
      if (parsed.success) return [key, parsed.data];
      throw new NlacError(
        "ERR_CONFIG",
        `${path}: the scopes of key ${i + 1} must be a list of ${scopes.join(", ")}.`,
      );
    }),
  );
}

async function serveTraining(
  model: string,
  recipeName: string,
  flags: ServeFlags,
  shared: Omit<ServeOptions, "learner">,
): Promise<void> {
  const recipe = await loadRecipe(recipeName, [`model=${JSON.stringify(model)}`, ...flags.set]);
  const learner: Record<string, unknown> = { ...recipe.learner };
  for (const name of ["device", "dtype", "int8Generation"] as const)
    if (flags[name] !== undefined) learner[name] = flags[name];
  const options: ServeAndTrainOptions = {
    ...shared,
    recipe: { ...recipe, learner } as ServeAndTrainOptions["recipe"],
    maxFirstTokenMs: flags.maxFirstTokenMs,
    maxIdleMs: flags.maxIdleHours * 3_600_000,
    leases: { leaseSeconds: flags.leaseSeconds, order: flags.taskOrder },
    ...(flags.run === undefined ? {} : { directory: flags.run }),
    ...(flags.keepDays === undefined ? {} : { keepMs: flags.keepDays * 86_400_000 }),
    ...(flags.tasks === undefined ? {} : { tasks: readTasks(flags.tasks) }),
    ...(flags.testTasks === undefined ? {} : { testTasks: readTasks(flags.testTasks) }),
  };
  const server = await start(options);
  say(`serving and training ${shared.name} at ${server.url}/v1, version ${server.version}`);
  await untilStopped(server, "when requests are finished and a checkpoint is saved");
}

/** Starts the server. Shows the progress of its warm-up, which Ctrl-C ends. */
async function start(options: ServeAndTrainOptions): Promise<TrainingServer> {
  const terminal = new TerminalProgress();
  let shown: Progress = terminal;
  const log = (line: string) => (shown === terminal ? terminal.note(line) : say(line));
  const end = () => {
    if (shown === terminal) terminal.end();
    shown = silentProgress;
  };
  const progress: Progress = {
    phase(...given) {
      if (given[0] !== "warm-up") end(); // the training waits for the clients' episodes
      shown.phase(...given);
    },
    advance: (...given) => shown.advance(...given),
    show: (figures) => shown.show(figures),
    hide: (name) => shown.hide?.(name),
    note: (text) => shown.note?.(text),
    overall: (fraction) => shown.overall(fraction),
  };
  try {
    return await stoppable(log, "before the server has started", (signal) =>
      serveAndTrain({ ...options, progress, log, signal }),
    );
  } finally {
    end();
  }
}

/** The tasks of a file, one JSON value a line. Throws ERR_CONFIG that names a bad line, ERR_IO. */
function readTasks(path: string): unknown[] {
  return readText(path)
    .split("\n")
    .flatMap((line, i) => {
      if (line.trim() === "") return [];
      try {
        return [JSON.parse(line) as unknown];
      } catch (error) {
        throw new NlacError("ERR_CONFIG", `${path}: line ${i + 1} is not JSON.`, { cause: error });
      }
    });
}

async function untilStopped(server: Server, when: string): Promise<void> {
  await stoppable(say, when, async (signal) => {
    await once(signal, "abort");
    await server.close();
  });
}
