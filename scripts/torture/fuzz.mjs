// libFuzzer with AddressSanitizer and UndefinedBehaviorSanitizer on everything in C++ that reads
// untrusted data (native/fuzz). Needs clang++, of Debian's or Ubuntu's package clang. A run is some
// thousand inputs of one target. Inputs that reach new code are kept in $NLAC_FUZZ_CORPUS (default:
// nlac/fuzz in the cache directory), from which later runs, and later campaigns, start.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { derivedSeed } from "../../dist/base/random.js";
import { cacheRoot } from "../../dist/native/paths.js";

export const about = "libFuzzer on files, configurations, grammars and vocabularies; needs clang++";

const root = fileURLToPath(new URL("../..", import.meta.url));
const binaries = join(root, "build/fuzz/native/fuzz");
/** Seconds of one input, and megabytes of a process, that fail. The machine may be busy. */
const [longestInput, mostMegabytes] = [120, 2048];

/** Inputs of a run, a matter of seconds, and the length of the longest one. */
const targets = {
  safetensors: { inputs: 200_000, longest: 4096 },
  gguf: { inputs: 100_000, longest: 4096 },
  config: { inputs: 100_000, longest: 4096 },
  index: { inputs: 200_000, longest: 2048 },
  values: { inputs: 200_000, longest: 1024 },
  sampler: { inputs: 200_000, longest: 1024 },
  grammar: { inputs: 5_000, longest: 512 },
  vocabulary: { inputs: 500, longest: 256 },
};

export async function run({ runs, seed, first = 0, report }) {
  build();
  const corpora = process.env.NLAC_FUZZ_CORPUS || join(cacheRoot(), "fuzz");
  const names = Object.keys(targets);
  for (let number = first; number < first + runs; number++) {
    const name = names[number % names.length];
    const { inputs, slowest, megabytes, problem } = await fuzz(name, corpora, derivedSeed(seed, 0, number));
    report({
      runs: 1,
      counts: { [`inputs of ${name}`]: inputs },
      worst: { [`s an input of ${name}`]: slowest, "MB of memory": megabytes },
      ...(problem && { failure: { number, message: `${name}: ${problem}` } }),
    });
  }
}

function build() {
  if (spawnSync("clang++", ["--version"]).status !== 0)
    throw new Error("clang++ is missing (Debian, Ubuntu: apt-get install clang).");
  const script = join(root, "scripts/build-native.mjs");
  const { status } = spawnSync(process.execPath, [script, "--fuzz"], {
    stdio: ["ignore", "ignore", "inherit"],
  });
  if (status !== 0) throw new Error("the fuzzers do not build; see build/fuzz/build.log.");
}

/**
 * Runs one target. Returns the number of inputs, the seconds of the slowest one, the megabytes of
 * the process, and what was found, if anything, with the command that repeats it.
 */
async function fuzz(name, corpora, seed) {
  const { inputs, longest } = targets[name];
  const [corpus, findings] = [join(corpora, name), join(corpora, "findings")];
  for (const directory of [corpus, findings]) mkdirSync(directory, { recursive: true });
  const binary = join(binaries, `fuzz_${name}`);
  const words = join(root, "native/fuzz", `${name}.dict`);
  const args = [
    ...[`-runs=${inputs}`, `-seed=${(seed % 2 ** 31) + 1}`, `-max_len=${longest}`],
    ...[`-timeout=${longestInput}`, `-rss_limit_mb=${mostMegabytes}`, "-print_final_stats=1"],
    `-artifact_prefix=${findings}/${name}-`,
    ...(existsSync(words) ? [`-dict=${words}`] : []),
    ...[corpus, join(root, "test/fixtures/io/seeds", name)],
  ];
  const { output, status } = await outputOf(binary, args);
  const last = (pattern) => Number([...output.matchAll(pattern)].at(-1)?.[1] ?? 0);
  const done = {
    inputs: last(/number_of_executed_units:\s*(\d+)/g) || last(/^#(\d+)\s/gm),
    slowest: last(/slowest_unit_time_sec:\s*(\d+)/g),
    megabytes: last(/peak_rss_mb:\s*(\d+)/g),
  };
  // A signal to the campaign, or to its process group, is no finding.
  if (status === 0 || /libFuzzer: run interrupted/.test(output)) return done;
  const input = /Test unit written to (\S+)/.exec(output)?.[1];
  const lines = output
    .split("\n")
    .filter((line) => /broken promise|terminate called|what\(\):|ERROR:|SUMMARY:|runtime error/.test(line));
  const repeat = input === undefined ? output.slice(-2000) : `Repeat: ${binary} ${input}`;
  return { ...done, problem: [...(lines.length > 0 ? lines : [`exit ${status}`]), repeat].join("\n") };
}

function outputOf(program, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd: root, stdio: ["ignore", "ignore", "pipe"] });
    let output = "";
    child.stderr.on("data", (data) => (output += data));
    child.on("error", reject);
    child.on("close", (status, signal) => resolve({ output, status: status ?? signal }));
  });
}
