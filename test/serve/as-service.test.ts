/**
 * nlac's own server as the service of an environment: an oracle for many concurrent episodes.
 */

import { setTimeout as wait } from "node:timers/promises";
import { afterEach, describe, expect, it } from "vitest";
import { twentyQuestions } from "../../lib/environments/twenty-questions/index.ts";
import { evaluate } from "../../lib/playing/evaluate.ts";
import { servicePlayer } from "../../lib/playing/service-player.ts";
import { type Server, serve } from "../../lib/serve/server.ts";
import type { ServiceOptions } from "../../lib/services/chat-service.ts";
import { openService } from "../../lib/services/open-service.ts";
import { CallingModel } from "../support/calling-model.ts";

let server: Server | undefined;
afterEach(() => server?.close());

/** Twelve games of two questions, asked of a model that is served, four texts at most at a time. */
async function play(limits: Partial<ServiceOptions>) {
  const model = new CallingModel((prompt) =>
    prompt.includes("move") ? "<think>It does.</think>yes" : "No.",
  );
  const generate = model.generate.bind(model);
  model.generate = async (...call) => {
    await wait(100); // longer than the requests take to arrive, also on a busy machine
    return generate(...call);
  };
  server = await serve({ learner: model, name: "oracle", port: 0, maxWaiting: 4 });
  const environment = twentyQuestions({
    turns: 2,
    oracle: { model: "oracle", baseURL: `${server.url}/v1`, ...limits },
  });
  const questions = ["Does it move?", "Does it float?"];
  const player = openService(
    (messages) => `Thought:\nhm\nAction:\n${questions[messages.length > 2 ? 1 : 0]}`,
  );
  const tasks = (await environment.tasks("train")).slice(0, 12);
  const evaluation = await evaluate({
    ...{ model: servicePlayer(player), environment, tasks, seed: 0, temperature: 0 },
    ...{ concurrency: 12, maxActionTokens: 100, maxPromptTokens: 100_000 },
  });
  const usage = environment.usage!();
  await environment.close();
  return { evaluation, usage, generated: model.calls.length };
}

describe("a served model as oracle", () => {
  it("survives a full queue", async () => {
    const { evaluation, usage, generated } = await play({});
    expect(evaluation.outcomes).toEqual({ done: 12 });
    for (const { turns } of evaluation.trajectories)
      expect(turns.map(({ info }) => info.verdict)).toEqual(["yes", "no"]);
    expect(generated).toBe(24);
    // Some were refused, and came back.
    expect(usage.requests).toBeGreaterThan(24);
    expect(usage.completionTokens).toBeGreaterThan(0);
  });

  it("gets at most as many concurrent requests as its limit allows", async () => {
    const { evaluation, usage, generated } = await play({ concurrency: 4 });
    expect(evaluation.outcomes).toEqual({ done: 12 });
    expect([usage.requests, generated]).toEqual([24, 24]);
  });
});
