/** Numbers of clients that are finite one by one, but not in their sum. */

import { join } from "node:path";
import OpenAI from "openai";
import { expect, it } from "vitest";
import { serveAndTrain } from "../../lib/agents/serve-and-train.ts";
import { listVersions } from "../../lib/agents/versions.ts";
import { runErrand, servedErrands } from "../support/served-errands.ts";
import { inDirectory } from "../support/tiny.ts";

it("saves checkpoints that can be read after clients posted huge metrics", () =>
  inDirectory(async (directory) => {
    const run = join(directory, "run");
    const options = { recipe: servedErrands(), directory: run, port: 0, guard: { episodes: 2 } };
    const server = await serveAndTrain(options);
    const client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
    for (let i = 0; i < 2; i++) await client.post("/metrics", { body: { stars: 1.7e308 } });
    for (const name of ["a", "b"]) await runErrand(client, "errands-base", name, 0);
    await server.close(20);
    expect(listVersions(run)[0]).toMatchObject({ quality: { stars: 1.7e308 } });
    await (await serveAndTrain(options)).close(20);
  }));
