/** Constrained actions while a policy is trained. */

import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { z } from "zod";
import { trainGrpo } from "../../lib/algorithms/grpo.ts";
import { trainNlac } from "../../lib/algorithms/nlac.ts";
import { trainPpo } from "../../lib/algorithms/ppo.ts";
import { type RftConfigInput, trainRft } from "../../lib/algorithms/rft.ts";
import { trainSac } from "../../lib/algorithms/sac.ts";
import { silentProgress } from "../../lib/display/progress.ts";
import { defineEnvironment } from "../../lib/environments/define.ts";
import { tool } from "../../lib/environments/define-tool.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { learnerDirectory } from "../../lib/run/checkpoints.ts";
import { RunDirectory } from "../../lib/run/directory.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import { nlac } from "../support/command-line.ts";
import { testDevice } from "../support/device.ts";
import { errandEnvironment } from "../support/errand.ts";
import { ScriptedModel } from "../support/scripted-model.ts";
import { inDirectory, tinyConfig, tinyLearner } from "../support/tiny.ts";

/** Two turns of opening doors; whoever opens the right one finds the key. */
function doors() {
  return defineEnvironment<string, { right: number }>({
    name: "doors",
    tasks: { train: ["red", "blue"], test: ["green"] },
    start: () => ({ right: 0 }),
    prompt: (task) => `Open the ${task} door.`,
    tools: [
      tool({
        name: "open",
        description: "Opens a door.",
        parameters: z.object({ door: z.enum(["red", "blue", "green"]) }),
        handler: ({ door }, { state, task }) => {
          if (door === task) state.right = 1;
          return "It is open.";
        },
      }),
      tool({ name: "wait", description: "Waits.", parameters: z.object({}), handler: () => "Nothing." }),
    ],
    score: ({ right }) => right,
    maxTurns: 2,
  });
}

const config: RftConfigInput = {
  iterations: 2,
  episodesPerIteration: 4,
  updatesPerIteration: 2,
  batchSize: 2,
  successReward: 0,
  learningRate: 1e-3,
  maxActionTokens: 1500,
  evaluation: { every: 1, episodes: 2, temperature: 1 },
  seed: 5,
};

test("a policy of random weights generates only readable actions, also in a run that is stopped and resumed", async () => {
  await inDirectory(async (directory) => {
    const train = async (path: string, constrainActions: boolean, stopAfter?: number) => {
      const resuming = stopAfter === undefined && path.endsWith("cut");
      const controller = new AbortController();
      let updates = 0;
      const options = {
        signal: controller.signal,
        progress: {
          ...silentProgress,
          show: (figures: Record<string, number>) => {
            if ("NLL" in figures && ++updates === stopAfter) controller.abort();
          },
        },
        description: {},
        checkpointSeconds: 0,
      };
      const learnerOptions = { dtype: "float32", device: testDevice, threads: 1, seed: 3 } as const;
      const model = resuming
        ? await Learner.resume(learnerDirectory(path), learnerOptions)
        : await tinyLearner(learnerOptions, { ...tinyConfig, max_position_embeddings: 8192 });
      const run = resuming
        ? await RunDirectory.resume(path, model, options)
        : RunDirectory.create(path, options);
      const result = await trainRft({
        model,
        environment: doors(),
        config: { ...config, constrainActions },
        run,
      });
      run.close();
      const reread = await RunDirectory.resume(path, model, options);
      const { trajectories } = (await reread.restore())!;
      const turns = [...trajectories].flatMap((trajectory) => trajectory.turns);
      reread.close();
      await model.dispose();
      return {
        result,
        actions: turns.map(({ action }) => action?.tool),
        tokens: turns.map(({ tokens }) => tokens),
      };
    };
    const whole = await train(join(directory, "whole"), true);
    expect(whole.result).toMatchObject({ updates: 4, episodes: 8, stopped: false });
    expect(whole.actions).toHaveLength(16);
    for (const called of whole.actions) expect(["open", "wait"]).toContain(called?.name);

    const cut = await train(join(directory, "cut"), true, 1);
    expect(cut.result).toMatchObject({ stopped: true, episodes: 4 });
    const resumed = await train(join(directory, "cut"), true);
    expect(resumed).toEqual(whole);

    const free = await train(join(directory, "free"), false);
    expect(free.actions.filter((called) => called !== undefined)).toEqual([]);
  });
});

test("NLAC constrains rollouts, including its evaluations and diagnostics, and leaves its roles unconstrained", async () => {
  const action = 'Thought:\nhm\nAction:\n{"name": "open", "arguments": {"door": "red"}}';
  const model = new ScriptedModel((prompt) =>
    /Optimality/.test(prompt.slice(prompt.lastIndexOf("<|im_start|>user")))
      ? "Future:\nIt opens.\nOptimality:\nYes"
      : action,
  );
  await trainNlac({
    model,
    environment: doors(),
    config: {
      ...{
        iterations: 1,
        episodesPerIteration: 4,
        updatesPerIteration: 1,
        batchSize: 4,
        constrainActions: true,
      },
      ...{ evaluation: { every: 1, episodes: 2 }, diagnostics: { every: 1, transitions: 4 } },
      ...{ maxActionTokens: 100, maxCriticTokens: 100 },
    },
    run: memoryRun(),
  });
  const atState = /(Open the \w+ door|It is open)\.<\|im_end\|>\n<\|im_start\|>assistant\n$/;
  const held = model.calls.filter(({ request }) => request.grammar !== undefined);
  for (const { prompt } of held) expect(prompt).toMatch(atState);
  // Four episodes, two in each of two evaluations, and the branches that did not end at once.
  expect(held.length).toBeGreaterThan(4 * 2 + 2 * 2 * 2);
  const free = model.calls.filter(({ request }) => request.grammar === undefined);
  expect(free.filter(({ prompt }) => atState.test(prompt))).toHaveLength(4); // the attempts of the update
});

describe("constrained actions are rejected", () => {
  const model = new ScriptedModel(() => "Hi") as never;
  const held = { constrainActions: true };

  test("where the loss treats every token as the policy's choice", async () => {
    for (const train of [trainGrpo, trainPpo, trainSac])
      await expect(train({ model, environment: doors(), config: held })).rejects.toMatchObject({
        code: "ERR_CONFIG",
        message: expect.stringMatching(/constrainActions.*|the loss of this method.*nlac or rft/s),
      });
  });

  test("for a format that cannot be constrained", async () => {
    for (const train of [trainNlac, trainRft])
      await expect(
        train({ model, environment: errandEnvironment() as never, config: held }),
      ).rejects.toMatchObject({
        code: "ERR_CONFIG",
        message: expect.stringMatching(
          /only the action format "tool" can be constrained; errand has the format "text"/,
        ),
      });
  });

  test("with a thought before them", async () => {
    await expect(
      trainNlac({ model, environment: doors(), config: { ...held, reasoning: true } }),
    ).rejects.toMatchObject({ code: "ERR_CONFIG", message: expect.stringContaining("no thought before it") });
  });
});

test("a recipe sets constrainActions, and a dry run shows it", async () => {
  const { output } = await nlac("train", "errands-rft", "--dry-run", "--set", "config.constrainActions=true");
  expect(output).toMatch(/constrainActions true/);
  const refused = await nlac("train", "errands-ppo", "--dry-run", "--set", "config.constrainActions=true");
  expect(refused.errors).toMatch(/the loss of this method treats every token/);
});
