/**
 * node-llama-cpp as a peer of `Learner.generate`, on a job as described in bench/peers/common.py:
 * the cached file with 4 bits per weight, or the copy with 8 that scripts/peers.sh makes; one
 * sequence per text, all in parallel and of full length.
 */

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { prompts } from "../../dist/bench/prompts.js";
import { cacheRoot } from "../../dist/native/paths.js";

const job = JSON.parse(process.argv[2]);
writeFileSync(3, JSON.stringify(await run(job)));
process.exit(); // its addon may keep the process

async function run({ implementation, parameters, threads, warmup, calls, seconds }) {
  const library = join(cacheRoot(), "peers", "node_modules", "node-llama-cpp");
  const modelPath =
    implementation === "node-llama-cpp"
      ? join(cacheRoot(), "models", parameters.file)
      : join(cacheRoot(), "peers", parameters.file.replace("Q4_1", "Q8_0"));
  if (!existsSync(library)) return { skipped: "node-llama-cpp is not installed (scripts/peers.sh bench)" };
  if (!existsSync(modelPath)) return { skipped: `${modelPath} does not exist (scripts/peers.sh bench)` };
  const { getLlama } = await import(pathToFileURL(join(library, "dist", "index.js")).href);
  const llama = await getLlama({ gpu: false, build: "never", maxThreads: threads, progressLogs: false });
  const model = await llama.loadModel({ modelPath });
  const texts = prompts(parameters);
  const context = await model.createContext({
    sequences: texts.length,
    contextSize: texts[0].length + parameters.written,
    threads: { ideal: threads, min: threads },
  });

  const write = async (sequence, tokens, seed) => {
    // Sample without filters, as the others do, and never stop at an end token.
    const options = { temperature: 1, topK: 0, topP: 1, seed, yieldEogToken: true };
    let left = parameters.written;
    for await (const _ of sequence.evaluate(tokens, options)) if (--left === 0) break;
    if (left > 0) throw new Error(`a text ended ${left} tokens early`);
  };
  const samples = [];
  let timed = 0;
  for (let number = 0; number < warmup + calls || timed < seconds * 1000; number++) {
    const sequences = texts.map(() => context.getSequence());
    const begun = performance.now();
    await Promise.all(sequences.map((sequence, i) => write(sequence, texts[i], 1 + i)));
    const took = performance.now() - begun;
    await Promise.all(sequences.map((sequence) => sequence.dispose()));
    if (number < warmup) continue;
    samples.push(took);
    timed += took;
  }
  const { version } = JSON.parse(readFileSync(join(library, "package.json"), "utf8"));
  return { samples, check: null, bytes: null, versions: { "node-llama-cpp": version } };
}
