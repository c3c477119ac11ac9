/** `nlac serve`: serves a model through OpenAI's API, and records the episodes of its clients. */

import { once } from "node:events";
import { basename, resolve } from "node:path";
import type { Command } from "commander";
import { serve } from "../serve/server.ts";
import { type ModelFlags, openModel } from "./model.ts";
import { collect, oneOf, wholeNumber, withModelOptions } from "./options.ts";
import { stoppable } from "./stop.ts";

interface ServeFlags extends ModelFlags {
  name?: string;
  host: string;
  port: number;
  token?: string;
  weights: "online" | "target";
  record?: string;
  maxWaiting: number;
  maxBodyBytes: number;
  allowHost: string[];
  cors: string[];
}

export function registerServe(program: Command): void {
  withModelOptions(
    program
      .command("serve")
      .description("serve a run's policy or a model to any client of OpenAI's API, and record episodes")
      .argument("<run|model>", "a run directory, a model name, a Hugging Face directory or a .gguf file"),
  )
    .option("--name <name>", "the model's name in the API (default: the last part of <run|model>)")
    .option("--host <address>", "address to listen on; other machines need a token", "127.0.0.1")
    .option("--port <number>", "0 takes a free one", wholeNumber(0), 8000)
    .option("--token <text>", "API key that clients must send (default: $NLAC_SERVE_TOKEN)")
    .option("--weights <which>", "online or target", oneOf("online", "target"), "online" as const)
    .option("--record <file>", "append every episode that gets a reward to a file for training")
    .option(
      "--max-waiting <number>",
      "maximum requests at a time; clients beyond it get an error and may retry",
      wholeNumber(1),
      256,
    )
    .option(
      "--max-body-bytes <number>",
      "maximum size of a request; larger ones get status 413",
      wholeNumber(1),
      16 * 2 ** 20,
    )
    .option(
      "--allow-host <name>",
      "a further name by which clients call this server; repeatable",
      collect,
      [],
    )
    .option(
      "--cors <origin>",
      "let web pages of this origin use the server, as https://chat.example; * for all; repeatable",
      collect,
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
requests are grouped into episodes by the header x-episode-id, which agents that
play concurrently need, or by the conversation they continue. When an episode is
over, send its reward to the id that came with the last reply:
  nlac serve runs/mine --record episodes.jsonl
  curl http://127.0.0.1:8000/v1/episodes/ID/reward \\
    -H 'content-type: application/json' -d '{"reward": 1}'

Requests by a foreign name (Host) and from web pages (Origin) are refused, so
that no page that you visit can use the server. --allow-host and --cors allow
them.

Ctrl-C stops accepting requests and finishes those in progress (at most 30 s).
It then waits for rewards of open episodes, up to 30 s after the last reply of
each, and exits.`,
    )
    .action(run);
}

async function run(runOrModel: string, flags: ServeFlags): Promise<void> {
  const { host, port, weights, maxWaiting, maxBodyBytes, record } = flags;
  const { allowHost: allowHosts, cors: corsOrigins } = flags;
  const token = flags.token ?? process.env.NLAC_SERVE_TOKEN;
  const note = (line: string) => void process.stderr.write(`${line}\n`);
  const { learner } = await openModel(runOrModel, flags);
  try {
    const name = flags.name ?? basename(resolve(runOrModel)).replace(/\.gguf$/, "");
    const server = await serve({
      ...{ learner, name, host, port, weights, log: note },
      ...{ maxWaiting, maxBodyBytes, allowHosts, corsOrigins },
      ...(token === undefined ? {} : { token }),
      ...(record === undefined ? {} : { record }),
    });
    note(`serving ${name} at ${server.url}/v1${record === undefined ? "" : `, recording to ${record}`}`);
    await stoppable(
      note,
      "when requests are finished and recent episodes have their rewards",
      async (signal) => {
        await once(signal, "abort");
        await server.close();
      },
    );
  } finally {
    await learner.dispose();
  }
}
