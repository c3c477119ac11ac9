import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { describe, expect, it } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import type { GenerateRequest } from "../../lib/model/language-model.ts";
import { codeOf, vocab } from "../support/learner-checks.ts";
import { endless, longConfig, tinyLearner } from "../support/tiny.ts";

describe("dispose", () => {
  it("finishes what runs, rejects what waits, and is idempotent", async () => {
    const model = await tinyLearner({}, longConfig);
    const abort = new AbortController();
    const begin = (requests: GenerateRequest[], signal?: AbortSignal) => {
      let begun: () => void = () => {};
      const first = new Promise<void>((resolve) => {
        begun = resolve;
      });
      const done = model.generate(requests, { onToken: () => begun(), signal });
      return { first, done };
    };
    const aborted = begin([endless], abort.signal);
    const abortedCode = codeOf(aborted.done);
    const running = begin(
      Array.from({ length: 64 }, (_, seed) => ({ tokens: [1], maxNewTokens: 100, seed })),
    );
    await Promise.all([aborted.first, running.first]);
    const waiting = [model.targetDistance(), model.logits([[1]]), model.step({ learningRate: 1 })];
    const codes = Promise.all(waiting.map(codeOf));
    const disposing = [model.dispose(), model.dispose()];
    expect(await codes).toEqual(["ERR_DISPOSED", "ERR_DISPOSED", "ERR_DISPOSED"]);
    expect(await running.done).toHaveLength(64);
    abort.abort();
    expect(await abortedCode).toBe("ERR_ABORTED");
    await Promise.all(disposing);
    await model.dispose();
    await model[Symbol.asyncDispose]();
    expect(await codeOf(model.generate([{ tokens: [1] }]))).toBe("ERR_DISPOSED");
    expect(await codeOf(model.updateTarget(1))).toBe("ERR_DISPOSED");
    expect(model.encode("a")).toEqual([97]);
  });

  it("settles every call before dispose resolves, however many wait", async () => {
    for (let round = 0; round < 5; round++) {
      const model = await tinyLearner();
      const settled: string[] = [];
      const note = (name: string) => (outcome: unknown) => {
        settled.push(outcome instanceof NlacError ? outcome.code : name);
      };
      const text = new Array(200).fill(1);
      const calls = Array.from({ length: 300 }, () =>
        model.logits([text]).then(note("done"), note("failed")),
      );
      await calls[0];
      const disposed = model.dispose().then(note("disposed"));
      await Promise.all([...calls, disposed]);
      expect(settled).toHaveLength(301);
      expect(settled).toContain("ERR_DISPOSED");
      expect(settled).not.toContain("failed");
      expect(settled.at(-1)).toBe("disposed");
    }
  });

  it("leaves other learners alone", async () => {
    const [a, b] = await Promise.all([tinyLearner(), tinyLearner()]);
    await a.dispose();
    expect(await b.logits([[1]])).toHaveLength(1);
    await b.dispose();
  });
});

describe("processes and threads", () => {
  const root = new URL("../..", import.meta.url).pathname;
  /** Runs `body` in a process of its own, with a learner in `model`. */
  const inChild = async (body: string, make = "await Learner.create(config, { dtype: 'float32' })") => {
    const script = `
      import { createJiti } from "jiti";
      import { Worker } from "node:worker_threads";
      const config = ${JSON.stringify(longConfig)};
      const { Learner } = await createJiti(${JSON.stringify(`${root}x.js`)}).import("./lib/learner/learner.ts");
      const model = ${make};
      const endless = ${JSON.stringify(endless)};
      const begin = () => new Promise((resolve) => model.generate([endless], { onToken: resolve }));
      ${body}`;
    const run = promisify(execFile)(process.execPath, ["--input-type=module", "-e", script], { cwd: root });
    return run.then(
      ({ stdout }) => ({ code: 0, stdout, signal: undefined }),
      (error) => ({ code: error.code, stdout: error.stdout + error.stderr, signal: error.signal }),
    );
  };

  it("process.exit amid a computation ends at once, with its code", async () => {
    const exited = await inChild("await begin(); model.targetDistance(); process.exit(7);");
    expect(exited).toMatchObject({ code: 7, signal: null });
  });

  it("an uncaught error amid a computation ends the process as usual", async () => {
    const exited = await inChild("await begin(); throw new Error('that was it');");
    expect(exited).toMatchObject({ code: 1, signal: null });
    expect(exited.stdout).toContain("that was it");
  });

  it("a busy learner keeps its process alive, an idle one does not", async () => {
    const idle = await inChild("model.logits([[1, 2]]).then(() => console.log('done'));");
    expect(idle).toMatchObject({ code: 0, stdout: "done\n" });
  });

  it("a worker thread can be ended amid a computation, again and again", async () => {
    const body = `
      const source = "(" + (async (root, config, endless) => {
        const { parentPort } = require("node:worker_threads");
        const { createJiti } = require("jiti");
        const { Learner } = await createJiti(root + "x.js").import("./lib/learner/learner.ts");
        const model = await Learner.create(config, { dtype: "float32" });
        const started = () => parentPort.postMessage("started");
        let once = () => { once = () => {}; started(); };
        model.generate([endless], { onToken: () => once() });
        model.targetDistance();
      }) + ")(" + ${JSON.stringify(JSON.stringify(root))} + "," + JSON.stringify(config) + "," + JSON.stringify(endless) + ")";
      for (let i = 0; i < 2; i++) {
        const worker = new Worker(source, { eval: true, execArgv: [] });
        await new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject));
        await worker.terminate();
      }
      const [logits] = await model.logits([[1]]);
      console.log(logits.length);
      await model.dispose();`;
    expect(await inChild(body)).toMatchObject({ code: 0, stdout: `${vocab}\n` });
  });

  it("a worker thread can be ended amid calls that throw", async () => {
    const body = `
      const source = "(" + (async (root) => {
        const { parentPort } = require("node:worker_threads");
        const { createJiti } = require("jiti");
        const { PrioritizedSampler } = await createJiti(root + "x.js").import("./lib/ops/sampler.ts");
        const sampler = new PrioritizedSampler({ capacity: 1 });
        parentPort.postMessage("started");
        for (;;) {
          try {
            sampler.get(Int32Array.of(1));
          } catch {}
        }
      }) + ")(" + ${JSON.stringify(JSON.stringify(root))} + ")";
      for (let i = 0; i < 8; i++) {
        const worker = new Worker(source, { eval: true, execArgv: [] });
        await new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject));
        await new Promise((resolve) => setTimeout(resolve, 5 * i));
        await worker.terminate();
      }
      console.log("ended");
      await model.dispose();`;
    expect(await inChild(body)).toMatchObject({ code: 0, stdout: "ended\n" });
  });

  it("a process in which only Workers load nlac ends without a fault, also if they run one after another", async () => {
    const script = `
      import { Worker } from "node:worker_threads";
      const source = "(" + (async (root) => {
        const { createJiti } = require("jiti");
        const { PrioritizedSampler } = await createJiti(root + "x.js").import("./lib/ops/sampler.ts");
        const sampler = new PrioritizedSampler({ capacity: 1 });
        sampler.set(Int32Array.of(0), Float32Array.of(1));
        console.log(sampler.sample(2).indices.length);
        sampler.dispose();
      }) + ")(" + ${JSON.stringify(JSON.stringify(root))} + ")";
      for (let i = 0; i < 2; i++) {
        const worker = new Worker(source, { eval: true, execArgv: [] });
        await new Promise((resolve, reject) => worker.once("exit", resolve).once("error", reject));
      }`;
    const ended = promisify(execFile)(process.execPath, ["--input-type=module", "-e", script], { cwd: root });
    await expect(ended).resolves.toMatchObject({ stdout: "2\n2\n", stderr: "" });
  });

  // Linux lists its threads.
  it.runIf(process.platform === "linux")("a garbage-collected learner frees its thread", async () => {
    const body = `
      const threads = async () => (await import("node:fs")).readdirSync("/proc/self/task").length;
      const one = async () => { await (await Learner.create(config, { dtype: "float32", threads: 1 })).logits([[1]]); };
      await one();
      const before = await threads();
      for (let i = 0; i < 5; i++) await one();
      const held = await threads();
      const { setFlagsFromString } = await import("node:v8");
      setFlagsFromString("--expose-gc");
      const gc = (await import("node:vm")).runInNewContext("gc");
      for (let i = 0; i < 50 && (await threads()) >= before; i++) {
        gc();
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      console.log(held > before, (await threads()) <= before);
      await model.dispose();`;
    expect(await inChild(body)).toMatchObject({ code: 0, stdout: "true true\n" });
  });
});
