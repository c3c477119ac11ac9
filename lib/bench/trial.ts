/**
 * One trial of nlac: `node --expose-gc trial.js <job>`, with the job as JSON. Writes its result as
 * JSON to file descriptor 3.
 */

import { writeFileSync } from "node:fs";
import { types } from "node:util";
import { Bench } from "tinybench";
import { NlacError } from "../base/errors.ts";
import { version } from "../base/version.ts";
import { loadAddon } from "../native/load.ts";
import { measurePeakMemory } from "./memory.ts";
import type { Job, Outcome, Subject } from "./suite.ts";
import { suiteNamed } from "./suite-list.ts";

const job = JSON.parse(process.argv[2]!) as Job;
writeFileSync(3, JSON.stringify(await runTrial()));

async function runTrial(): Promise<Outcome> {
  try {
    loadAddon({ device: job.device });
  } catch (error) {
    if (!(error instanceof NlacError)) throw error;
    return { unavailable: { code: error.code, message: error.message } };
  }
  return measure(await suiteNamed(job.suite).prepare(job));
}

async function measure(subject: Subject): Promise<Outcome> {
  const peakMemory = measurePeakMemory(job.device);
  let check: number | null = null;
  let number = 0;
  while (number < job.warmup) {
    await subject.before?.();
    await subject.call(number);
    if (number++ === 0) check = subject.check?.() ?? null;
  }
  const bench = new Bench({
    iterations: job.calls,
    time: job.seconds * 1000,
    warmup: false,
    retainSamples: true,
    throws: true,
  });
  bench.add(job.implementation, () => subject.call(number++), {
    // Otherwise tinybench detects it with an extra call, which can take minutes.
    async: types.isAsyncFunction(subject.call),
    beforeEach: () => subject.before?.(),
  });
  const [task] = await bench.run();
  const { result } = task!;
  if (!("latency" in result) || result.latency.samples === undefined) {
    throw new Error(`${job.implementation} ended ${result.state}`);
  }
  return {
    samples: [...result.latency.samples],
    check,
    bytes: peakMemory(),
    figures: subject.figures?.() ?? [],
    versions: { nlac: version, node: process.versions.node, torch: loadAddon().torchVersion() },
  };
}
