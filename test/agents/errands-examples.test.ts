/**
 * The agents of examples/errands, unmodified: each trains the shipped model behind its base URL.
 */

import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it, type TestContext } from "vitest";
import { aiSdkAgent } from "../../examples/errands/ai-sdk.ts";
import { langchainAgent } from "../../examples/errands/langchain.ts";
import { openaiAgent } from "../../examples/errands/openai.ts";
import { openaiAgentsAgent } from "../../examples/errands/openai-agents.ts";
import { runErrand } from "../../examples/errands/run-errands.ts";
import { openWorld } from "../../examples/errands/world.ts";
import { serveAndTrain } from "../../lib/agents/serve-and-train.ts";
import { readEpisodeRecords } from "../../lib/episodes/records.ts";
import { servedErrands } from "../support/served-errands.ts";
import { inDirectory } from "../support/tiny.ts";

let world: Awaited<ReturnType<typeof openWorld>>;
beforeAll(async () => {
  world = await openWorld();
});
afterAll(() => world.close());

/**
 * Serves the model to `play` until the rewards of two errands have trained it, and checks the
 * episodes.
 */
async function trains(play: (baseURL: string) => Promise<unknown>): Promise<void> {
  await inDirectory(async (run) => {
    const server = await serveAndTrain({ recipe: servedErrands(), directory: run, port: 0 });
    try {
      await play(`${server.url}/v1`);
      while (server.updates < 2) await new Promise((resolve) => setTimeout(resolve, 20));
    } finally {
      await server.close(20);
    }
    const records = [...readEpisodeRecords(join(run, "episodes.jsonl"))];
    expect(records).toHaveLength(2);
    for (const { opening, turns, conversation } of records) {
      expect(opening!.map(({ role }) => role)).toEqual(["system", "user"]);
      expect(opening![0]!.content).toContain("Write every turn in exactly this form");
      expect(turns.some(({ action }) => action !== undefined)).toBe(true);
      // Training sees the ids that were sampled, with their log probabilities.
      const sampled = conversation.segments.filter(({ source }) => source === "model");
      expect(sampled).toHaveLength(turns.length);
      for (const { start, end, logProbs } of sampled)
        expect(Buffer.from(logProbs!, "base64")).toHaveLength(4 * (end - start));
    }
  });
}

it.each([
  ["the openai package", openaiAgent],
  ["the ai SDK", aiSdkAgent],
  ["the OpenAI Agents SDK", openaiAgentsAgent],
  ["LangChain.js", langchainAgent],
])("%s", (_, agent) =>
  trains(async (baseURL) => {
    const answer = agent(baseURL, "errands-base");
    for (const seed of [0, 1]) await runErrand(answer, { baseURL, world: world.url }, `errand-${seed}`, seed);
  }),
);

const python = join(process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache"), "nlac/peers/bin/python");

/** Whether Python has the packages; otherwise the test is skipped with the reason. */
async function hasPackages(context: TestContext): Promise<void> {
  const command = "import gymnasium, openai";
  const found =
    existsSync(python) && (await promisify(execFile)(python, ["-c", command]).catch(() => undefined));
  if (!found) context.skip("Python's openai and gymnasium are not there: scripts/peers.sh installs them.");
}

it("Python's openai package in a Gymnasium environment", async (context) => {
  await hasPackages(context);
  const agent = join(import.meta.dirname, "../../examples/errands/gymnasium_agent.py");
  await trains(async (baseURL) => {
    const { stdout } = await promisify(execFile)(python, [agent, baseURL, world.url, "errands-base", "2"]);
    expect(JSON.parse(stdout)).toMatchObject({ errands: 2 });
  });
});
