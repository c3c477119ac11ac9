/** `nlac serve`: a model behind OpenAI's API, and the episodes of agents that use it. */

import { once } from "node:events";
import { basename, resolve } from "node:path";
import type { Command } from "commander";
import { serve } from "../serve/server.ts";
import { type ModelFlags, openModel } from "./model.ts";
import { oneOf, wholeNumber, withModelOptions } from "./options.ts";
import { stoppable } from "./stop.ts";

interface ServeFlags extends ModelFlags {
  name?: string;
  host: string;
  port: number;
  token?: string;
  weights: "online" | "target";
  record?: string;
  maxWaiting: number;
}

export function registerServe(program: Command): void {
  withModelOptions(
    program
      .command("serve")
      .description(
        "serve a run's policy or a model to any client of OpenAI's API, and record what agents do with it",
      )
      .argument("<run|model>", "a run directory, a model name, a Hugging Face directory or a .gguf file"),
  )
    .option("--name <name>", "what clients call the model (default: the last part of <run|model>)")
    .option("--host <address>", "where to listen; beyond this machine a token is needed", "127.0.0.1")
    .option("--port <number>", "0 takes a free one", wholeNumber(0), 8000)
    .option("--token <text>", "what clients must send as their API key (default: $NLAC_SERVE_TOKEN)")
    .option("--weights <which>", "online or target", oneOf("online", "target"), "online" as const)
    .option("--record <file>", "append every rewarded episode to a file that training can learn from")
    .option(
      "--max-waiting <number>",
      "texts at once, beyond which clients are asked to come back",
      wholeNumber(1),
      256,
    )
    .addHelpText(
      "after",
      `
Examples:
  nlac serve SmolLM2-135M-Instruct
  curl http://127.0.0.1:8000/v1/chat/completions \\
    -H 'content-type: application/json' -d '{"model": "SmolLM2-135M-Instruct",
    "messages": [{"role": "user", "content": "Hello"}]}'

An agent written for OpenAI's API plays here by its base URL alone. With
--record its requests are grouped into episodes, by the header x-episode-id,
which agents that play side by side need, or by the conversation they continue;
what one was worth is told afterwards, by the id that came with its last answer:
  nlac serve runs/mine --record episodes.jsonl
  curl http://127.0.0.1:8000/v1/episodes/ID/reward \\
    -H 'content-type: application/json' -d '{"reward": 1}'

Ctrl-C takes no new requests and finishes those that are being answered, 30 s at
most. Then it waits for the rewards of episodes that are open, each until 30 s
after its last answer, and ends.`,
    )
    .action(run);
}

async function run(runOrModel: string, flags: ServeFlags): Promise<void> {
  const { host, port, weights, maxWaiting, record } = flags;
  const token = flags.token ?? process.env.NLAC_SERVE_TOKEN;
  const note = (line: string) => void process.stderr.write(`${line}\n`);
  const { learner } = await openModel(runOrModel, flags);
  try {
    const name = flags.name ?? basename(resolve(runOrModel)).replace(/\.gguf$/, "");
    const server = await serve({
      ...{ learner, name, host, port, weights, maxWaiting, log: note },
      ...(token === undefined ? {} : { token }),
      ...(record === undefined ? {} : { record }),
    });
    note(`serving ${name} at ${server.url}/v1${record === undefined ? "" : `, recording to ${record}`}`);
    await stoppable(
      note,
      "when those who wait are answered, and what was answered just now is rewarded",
      async (signal) => {
        await once(signal, "abort");
        await server.close();
      },
    );
  } finally {
    await learner.dispose();
  }
}
