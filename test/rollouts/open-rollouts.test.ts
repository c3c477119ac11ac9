/** A tiny learner with inference servers: versions of its weights, failures, lost calls. */

import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import type { Learner } from "../../lib/learner/learner.ts";
import type { GenerateRequest, StepOptions } from "../../lib/model/language-model.ts";
import type { RolloutsConfig } from "../../lib/rollouts/config.ts";
import { openRollouts, type Rollouts } from "../../lib/rollouts/open-rollouts.ts";
import { SharedWeights } from "../../lib/rollouts/shared-weights.ts";
import { memoryRun } from "../../lib/run/training-run.ts";
import {
  type InferenceServer,
  type InferenceServerOptions,
  inferenceServer,
} from "../support/inference-server.ts";
import { inDirectory, tinyLearner } from "../support/tiny.ts";

type Engine = InferenceServerOptions["engine"];
const both: Engine[] = ["vllm", "sglang"];
const path = { vllm: "/v1/completions", sglang: "/generate" };
const reload = { vllm: "/collective_rpc", sglang: "/update_weights_from_disk" };
const resume = { vllm: "/resume", sglang: "/continue_generation" };

interface Scene {
  learner: Learner;
  servers: InferenceServer[];
  shared: string;
  lines: string[];
  start(changes?: { every?: number; patienceMs?: number }): Promise<Rollouts<Learner>>;
}

/** A learner, and servers with other weights. */
async function scene(
  engine: Engine,
  options: readonly Omit<InferenceServerOptions, "engine" | "open">[],
  body: (scene: Scene) => Promise<void>,
  learnerOptions: Parameters<typeof tinyLearner>[0] = {},
): Promise<void> {
  await inDirectory(async (directory) => {
    const open = () => tinyLearner({ seed: 99 });
    const learner = await tinyLearner({ seed: 1, ...learnerOptions });
    const servers = await Promise.all(options.map((one) => inferenceServer({ engine, open, ...one })));
    const shared = join(directory, "shared");
    const lines: string[] = [];
    let rollouts: Rollouts<Learner> | undefined;
    const start: Scene["start"] = async ({ every = 1, patienceMs } = {}) => {
      const config: RolloutsConfig = { engine, urls: servers.map(({ url }) => url), shared, every };
      rollouts = await openRollouts(learner, config, { log: (line) => lines.push(line), patienceMs });
      return rollouts;
    };
    try {
      await body({ learner, servers, shared, lines, start });
    } finally {
      await rollouts?.close();
      await Promise.all(servers.map((server) => server.close()));
      await learner.dispose();
    }
  });
}

const request = (seed = 5): GenerateRequest => ({
  ...{ tokens: [256, 72, 105, 257, 0, 195, 169], maxNewTokens: 12, temperature: 0.7, seed },
});
const adam: StepOptions = { learningRate: 0.05 };

/** One step of the learner that changes what it writes. */
async function train(model: Learner): Promise<void> {
  await model.tokenNll([{ prompt: [256], response: [65, 66, 67, 257] }]);
  await model.step(adam);
}

/** The version that a request was answered by. */
const labels = ({ calls }: InferenceServer) =>
  calls.flatMap(({ path, body }) =>
    path === "/update_weight_version"
      ? [body.new_version]
      : path === "/update_weights_from_disk"
        ? [body.weight_version]
        : [],
  );

test.each(both)("%s gets and returns exact token ids, and the learner's text", async (engine) => {
  await scene(engine, [{}], async ({ learner, servers, start }) => {
    const { model } = await start();
    const requests = [request(1), request(2), { ...request(3), temperature: 0 }];
    const given = await model.rollouts.generate(requests);
    const own = await learner.generate(requests);
    expect(given.map(({ tokens }) => tokens)).toEqual(own.map(({ tokens }) => tokens));
    expect(given.map(({ text }) => text)).toEqual(own.map(({ text }) => text));
    expect(given.map(({ finishReason }) => finishReason)).toEqual(
      own.map(({ finishReason }) => finishReason),
    );
    const sent = servers[0]!.calls.filter((call) => call.path === path[engine]).map(({ body }) => body);
    for (const body of sent) {
      expect(engine === "vllm" ? body.prompt : body.input_ids).toEqual(request().tokens);
      expect(JSON.stringify(body)).not.toContain("text");
    }
    expect(model.maxPositions).toBe(learner.maxPositions);
  });
});

test.each(both)("no prompt is longer than the context of %s", async (engine) => {
  const json = { object: "list", data: [{ id: "base", max_model_len: 40 }] };
  const intercept = ({ path }: { path: string }) => (path === "/v1/models" ? { json } : undefined);
  await scene(engine, [{ intercept }], async ({ learner, start }) => {
    const { model } = await start();
    expect(learner.maxPositions).toBeGreaterThan(40);
    expect(model.maxPositions).toBe(40);
  });
});

test.each(both)("%s gets weights before the first answer, and then every third step", async (engine) => {
  await scene(engine, [{}], async ({ learner, servers, shared, start }) => {
    const { model, of } = await start({ every: 3 });
    const run = of(memoryRun());
    const rows = (run as unknown as { rows: { values: Record<string, number> }[] }).rows;
    const versions: number[] = [];
    for (let step = 0; step < 8; step++) {
      await model.rollouts.generate([request(step)]);
      run.metrics(step, {});
      versions.push(labels(servers[0]!).length);
      expect(readdirSync(shared).filter((name) => name.startsWith("version"))).toHaveLength(1);
      await train(model);
    }
    expect(versions).toEqual([1, 1, 1, 2, 2, 2, 3, 3]);
    expect(rows.map(({ values }) => values["rollouts/steps_behind"])).toEqual([0, 1, 2, 0, 1, 2, 0, 1]);
    // With the learner's own weights there is no difference; the steps since them are one.
    for (const [i, { values }] of rows.entries()) {
      const difference = values["rollouts/log_prob_difference"]!;
      if (i % 3 === 0) expect(difference).toBeLessThan(1e-5);
      else expect(difference).toBeGreaterThan(1e-3);
    }
    run.metrics(8, { reward: 1 });
    expect(rows.at(-1)!.values).toEqual({ reward: 1 }); // nothing was played
    await learner.keepReference();
    await model.restoreReference();
    await model.rollouts.generate([request()]);
    expect(labels(servers[0]!)).toHaveLength(4); // θ is another one, whatever the steps
  });
});

test.each(both)(
  "an answer of %s that names another version or none is refused and asked again",
  async (engine) => {
    let wrong = 2;
    const alter: InferenceServerOptions["alter"] = (json) => {
      if (wrong-- <= 0) return;
      if (wrong === 0) {
        if (engine === "vllm") json.choices[0].weight_versions = [];
        else delete json.meta_info.weight_version;
      } else if (engine === "vllm")
        json.choices[0].weight_versions.push({ version: "other", start: 1, end: 2 });
      else json.meta_info.weight_version = "other";
    };
    await scene(engine, [{ alter }], async ({ learner, servers, start }) => {
      const { model, of } = await start();
      const [given] = await model.rollouts.generate([request()]);
      expect(given!.tokens).toEqual((await learner.generate([request()]))[0]!.tokens);
      expect(servers[0]!.calls.filter((call) => call.path === path[engine])).toHaveLength(3);
      const run = of(memoryRun());
      run.metrics(0, {});
      expect((run as unknown as { rows: { values: object }[] }).rows[0]!.values).toMatchObject({
        "rollouts/answers": 1,
        "rollouts/refused": 2,
      });
    });
  },
);

test.each(both)("an answer of %s that began before a switch is refused and asked again", async (engine) => {
  let hold: (() => void) | undefined;
  let held = false;
  let arrive: () => void = () => {};
  const arrived = new Promise<void>((resolve) => {
    arrive = resolve;
  });
  const intercept: InferenceServerOptions["intercept"] = async (call) => {
    if (call.path !== path[engine] || held) return undefined;
    held = true;
    arrive();
    await new Promise<void>((release) => {
      hold = release;
    });
    // What it wrote with the weights before, without naming them.
    return engine === "vllm"
      ? { json: { choices: [{ token_ids: [1, 2, 3], logprobs: { token_logprobs: [-1, -1, -1] } }] } }
      : {
          json: {
            output_ids: [1, 2, 3],
            meta_info: {
              finish_reason: { type: "length" },
              output_token_logprobs: [1, 2, 3].map((id) => [-1, id, null]),
            },
          },
        };
  };
  await scene(engine, [{ intercept }], async ({ learner, servers, start }) => {
    const { model } = await start();
    const early = model.rollouts.generate([request(1)]);
    await arrived;
    await train(model);
    const [late] = await model.rollouts.generate([request(2)]);
    hold!();
    const [first] = await early;
    const own = await learner.generate([request(1), request(2)]);
    expect([first!.tokens, late!.tokens]).toEqual(own.map(({ tokens }) => tokens));
    expect(labels(servers[0]!)).toHaveLength(2);
  });
});

test("earlier weights that cannot be removed are a warning, once", async () => {
  await scene("vllm", [{}], async ({ servers, lines, start }) => {
    const { model } = await start();
    const busy = new NlacError("ERR_IO", "version-000001: EBUSY.");
    const keepOnly = vi.spyOn(SharedWeights.prototype, "keepOnly").mockRejectedValue(busy);
    try {
      for (const version of [1, 2]) {
        await model.rollouts.generate([request(version)]);
        await train(model);
        expect(labels(servers[0]!)).toHaveLength(version);
      }
      expect(
        lines.filter((line) => line.includes("could not be removed. version-000001: EBUSY.")),
      ).toHaveLength(1);
    } finally {
      keepOnly.mockRestore();
    }
  });
});

test.each(both)("%s that fails half-way is not resumed, and the others go on", async (engine) => {
  let failing = false;
  const intercept: InferenceServerOptions["intercept"] = ({ path }) =>
    failing && path === reload[engine]
      ? { status: 500, json: { success: false, message: "disk" } }
      : undefined;
  await scene(engine, [{ intercept }, {}], async ({ learner, servers, lines, start }) => {
    const { model } = await start();
    await model.rollouts.generate([request(1), request(2)]);
    failing = true;
    await train(model);
    const requests = [request(3), request(4), request(5)];
    const given = await model.rollouts.generate(requests);
    expect(given.map(({ tokens }) => tokens)).toEqual(
      (await learner.generate(requests)).map(({ tokens }) => tokens),
    );
    expect(servers[0]!.changes().filter((change) => change === resume[engine])).toHaveLength(1);
    expect(servers[0]!.changes().at(-1)).toBe(reload[engine]);
    expect(lines.at(-1)).toMatch(/is not used any more\. nlac-\w+-2 was not installed: .*500.*restart it/);
    const before = servers[0]!.calls.length;
    await train(model);
    await model.rollouts.generate([request(6)]);
    expect(servers[0]!.calls).toHaveLength(before); // not even the next version
  });
});

test.each(both)("without any server of %s left, the call fails", async (engine) => {
  const intercept: InferenceServerOptions["intercept"] = ({ path }) =>
    path === reload[engine] ? { status: 400, json: { success: false, message: "no such path" } } : undefined;
  await scene(engine, [{ intercept }], async ({ start, servers, shared }) => {
    const { model } = await start();
    const failed = {
      code: "ERR_ROLLOUTS",
      message: expect.stringMatching(/No inference server is left.*no such path/),
    };
    await expect(model.rollouts.generate([request()])).rejects.toMatchObject(failed);
    await expect(model.rollouts.generate([request()])).rejects.toMatchObject(failed);
    expect(servers[0]!.changes()).not.toContain(resume[engine]);
    expect(existsSync(shared)).toBe(true);
  });
});

test.each(both)(
  "requests of a server of %s that ended go to another; the last one is given up",
  async (engine) => {
    await scene(engine, [{}, {}], async ({ learner, servers, lines, start }) => {
      const { model } = await start({ patienceMs: 300 });
      await model.rollouts.generate([request(1)]);
      const requests = [2, 3, 4, 5].map(request);
      const end = async (server: InferenceServer) => {
        await server.close();
        server.close = async () => {};
      };
      await end(servers[0]!);
      const given = await model.rollouts.generate(requests);
      expect(given.map(({ tokens }) => tokens)).toEqual(
        (await learner.generate(requests)).map(({ tokens }) => tokens),
      );
      await end(servers[1]!);
      await expect(model.rollouts.generate(requests)).rejects.toMatchObject({
        code: "ERR_ROLLOUTS",
        message: expect.stringMatching(/No inference server is left.*(ECONN|socket)/),
      });
      expect(lines.filter((line) => line.includes("is not used any more"))).toHaveLength(2);
    });
  },
);

test("token ids that the learner does not have are refused", async () => {
  const alter: InferenceServerOptions["alter"] = (json) => json.choices[0].token_ids.fill(100_000);
  await scene("vllm", [{ alter }], async ({ start }) => {
    const { model } = await start();
    await expect(model.rollouts.generate([request()])).rejects.toMatchObject({
      code: "ERR_ROLLOUTS",
      message: expect.stringMatching(/outside the vocabulary of the learner's model/),
    });
  });
});

test.each(both)(
  "an adapter of %s has a fresh name for each version, and the one before is unloaded",
  async (engine) => {
    await scene(
      engine,
      [{}],
      async ({ servers, shared, start }) => {
        const { model, close } = await start();
        await model.rollouts.generate([request()]);
        await train(model);
        await model.rollouts.generate([request()]);
        await close();
        const { calls } = servers[0]!;
        const changes = calls.filter((call) => call.path.includes("adapter"));
        const names = changes.map(({ path, body }) => [
          ...[path.split("/").at(-1), body.lora_name.replace(/nlac-\w+-/, "")],
        ]);
        expect(names).toEqual([
          ["load_lora_adapter", "1"],
          ["load_lora_adapter", "2"],
          ["unload_lora_adapter", "1"],
          ["unload_lora_adapter", "2"],
        ]);
        const bodies = calls.filter((call) => call.path === path[engine]).map(({ body }) => body);
        expect(bodies.map((body) => (engine === "vllm" ? body.model : body.lora_path))).toEqual([
          changes[0]!.body.lora_name,
          changes[1]!.body.lora_name,
        ]);
        expect(servers[0]!.changes()).toEqual(changes.map((change) => change.path)); // nothing is paused
        expect(readdirSync(shared)).toEqual([]);
      },
      { adapter: { rank: 2, alpha: 4 } },
    );
  },
);

test("grammars are refused, θ̄ is the learner's, and a signal ends a request", async () => {
  const intercept: InferenceServerOptions["intercept"] = ({ path, body }) =>
    path === "/v1/completions" && body.seed === 9 ? new Promise(() => {}) : undefined;
  await scene("vllm", [{ intercept }], async ({ learner, servers, start }) => {
    const { model } = await start();
    const grammar = { type: "json" as const, schema: {} } as unknown as NonNullable<
      GenerateRequest["grammar"]
    >;
    await expect(model.rollouts.generate([{ ...request(), grammar }])).rejects.toMatchObject({
      code: "ERR_CONFIG",
    });
    const [own] = await model.rollouts.generate([{ ...request(), weights: "target" }]);
    expect(own!.tokens).toEqual((await learner.generate([{ ...request(), weights: "target" }]))[0]!.tokens);
    expect(servers[0]!.calls.some((call) => call.path === "/v1/completions")).toBe(false);
    const signal = AbortSignal.timeout(300);
    await expect(model.rollouts.generate([request(9)], { signal })).rejects.toMatchObject({
      code: "ERR_ABORTED",
    });
  });
});
