#!/usr/bin/env node
// `npm test`: installs libtorch, builds the addon and the C++ tests, runs all tests and checks, and
// prints a summary. `--ts` and `--native` run one half; `--sanitizers` runs only the torch-free
// tests, under AddressSanitizer and UndefinedBehaviorSanitizer, and ThreadSanitizer. `--ci` also
// does that, checks licences and known vulnerabilities of dependencies, builds the documentation
// site, checks the format of native/ and the workflows, compares cmake-js with the build, runs the
// numeric tests under every instruction set of the processor, trains the quickstart, installs the
// package with npm and pnpm, compiles every CUDA kernel, and links the CUDA addon.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { basename, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { importLib, sanitizedBuild } from "./build-native.mjs";

const root = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");
const ci = process.argv.includes("--ci");
const sanitizersOnly = process.argv.includes("--sanitizers");
// Both halves, unless only one is requested.
const typescript = !process.argv.includes("--native");
const native = !process.argv.includes("--ts");
const totals = { passed: 0, failed: 0, skipped: 0 };
const failures = [];
const began = Date.now();

/** The time since the start, as "12m05s". */
function elapsed() {
  const seconds = Math.round((Date.now() - began) / 1000);
  return `${Math.floor(seconds / 60)}m${String(seconds % 60).padStart(2, "0")}s`;
}

/** @param names of the failed tests, if the runner prints them */
function count(name, { passed = 0, failed = 0, skipped = 0, names = [] }) {
  totals.passed += passed;
  totals.failed += failed;
  totals.skipped += skipped;
  if (failed > 0) failures.push([`${name}: ${failed} failed`, ...names].join("\n  "));
  const skips = skipped ? `, ${skipped} skipped` : "";
  console.log(`== ${name}: ${passed} passed, ${failed} failed${skips}, at ${elapsed()}`);
}

/** Runs a step that passes or fails as a whole. Its failure does not stop the others. */
async function check(name, body) {
  const started = Date.now();
  try {
    await body();
    count(`${name} (${Math.round((Date.now() - started) / 1000)} s)`, { passed: 1 });
    return true;
  } catch (error) {
    console.error(error.stack && !error.code ? error.stack : `${error.code ?? "error"}: ${error.message}`);
    count(name, { failed: 1 });
    return false;
  }
}

/**
 * Runs a program. Returns its output, and prints it "at once", "at the end", which keeps the output of
 * programs side by side apart, or "never".
 */
function run(program, args, { env = {}, minutes = 30, print = "at once" } = {}) {
  return new Promise((resolve) => {
    const child = spawn(program, args, {
      cwd: root,
      env: { ...process.env, ...env },
      stdio: ["ignore", "pipe", "pipe"],
      timeout: minutes * 60_000,
      killSignal: "SIGKILL",
    });
    let output = "";
    for (const [from, to] of [
      [child.stdout, process.stdout],
      [child.stderr, process.stderr],
    ])
      from.on("data", (chunk) => {
        output += chunk;
        if (print === "at once") to.write(chunk);
      });
    child.on("error", (error) => resolve({ status: error.message, output }));
    child.on("close", (code, signal) => {
      if (print === "at the end") process.stdout.write(output);
      resolve({ status: code ?? signal, output });
    });
  });
}

async function mustRun(program, args, options) {
  const { status } = await run(program, args, options);
  if (status !== 0) throw new Error(`${[program, ...args].join(" ")}: exit ${status}`);
}

const tool = (name) => join(root, "node_modules", ".bin", name);

/** Runs `jobs`, of which `atOnce` run at the same time. */
async function runSideBySide(jobs, atOnce) {
  const waiting = [...jobs];
  const next = async () => {
    for (let job = waiting.shift(); job; job = waiting.shift()) await job();
  };
  await Promise.all(Array.from({ length: atOnce }, next));
}

/**
 * Runs the C++ test programs of a build directory that match `only`, with `options`, `atOnce` of
 * them at the same time; counts doctest cases.
 */
async function runNativeTests(
  label,
  directory,
  { only = /./, env: variables = {}, args: options = [], atOnce = 1, minutes = 15 } = {},
) {
  const list = spawnSync("ctest", ["--test-dir", directory, "--show-only=json-v1"], { encoding: "utf8" });
  const tests = list.status === 0 ? JSON.parse(list.stdout).tests.filter(({ name }) => only.test(name)) : [];
  if (tests.length === 0) count(label, { failed: 1 });
  const jobs = tests.map(({ name, command, properties = [] }) => async () => {
    const own = properties.find((property) => property.name === "ENVIRONMENT")?.value ?? [];
    const env = { ...Object.fromEntries(own.map((pair) => pair.split(/=(.*)/s).slice(0, 2))), ...variables };
    const [program, ...args] = command ?? [""];
    const { status, output } = await run(program, [...args, ...options], {
      env,
      minutes,
      print: "at the end",
    });
    const summary = /test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed\s*\|\s*(\d+) skipped/.exec(
      output,
    );
    const [, , passed = 0, failed = 0, skipped = 0] = (summary ?? []).map(Number);
    // A program that crashed or printed nothing has failed, whatever it counted before.
    const crashed = !summary || (status !== 0 && failed === 0) || passed + failed === 0;
    if (crashed) console.error(`${name}: exit ${status}`);
    // doctest prints "TEST CASE:" above the messages of each failed case.
    const names = [...new Set([...output.matchAll(/^TEST CASE:\s*(.+)$/gm)].map(([, title]) => title))];
    count(`${label} ${name}`, { passed, failed: failed + (crashed ? 1 : 0), skipped, names });
  });
  await runSideBySide(jobs, atOnce);
}

/** Runs all vitest files, or `files`; counts tests. A file that does not load is one failure. */
async function runVitest(label = "vitest", files = [], { env = {}, print } = {}) {
  const directory = mkdtempSync(join(tmpdir(), "nlac-vitest-"));
  try {
    const file = join(directory, "report.json");
    const args = ["run", "--reporter=default", "--reporter=json", `--outputFile.json=${file}`, ...files];
    const { status } = await run(tool("vitest"), args, { env, minutes: 40, print });
    if (!existsSync(file)) return count(label, { failed: 1 });
    const report = JSON.parse(readFileSync(file, "utf8"));
    const broken = report.testResults.filter(
      (r) => r.status === "failed" && r.assertionResults.length === 0,
    ).length;
    const failed = report.numFailedTests + broken;
    count(label, {
      passed: report.numPassedTests,
      failed: failed + (status !== 0 && failed === 0 ? 1 : 0),
      skipped: report.numPendingTests + (report.numTodoTests ?? 0),
      names: report.testResults.flatMap(({ name, assertionResults }) =>
        assertionResults
          .filter(({ status }) => status === "failed")
          .map(({ fullName }) => `${relative(root, name)}: ${fullName}`),
      ),
    });
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/**
 * Jobs that run the numeric tests under every instruction set below the default, with one thread
 * each. Sets that the processor does not support are skipped.
 */
async function everyInstructionSet(libtorch) {
  const best = await chosenSet(process.env.NLAC_INSTRUCTION_SET ?? "", libtorch);
  const programs = /^test_(cpu|loss|optim|model|generate|learner|replay)$/;
  // Tests with several ranks take minutes, and compute the same as one learner.
  const args = ["--source-file-exclude=*sharding*"];
  const files = ["test/learner/", "test/ops/"];
  const jobs = [];
  for (const set of ["baseline", "avx2", "avx512", "avx512_bf16", "amx_bf16"]) {
    if ((await chosenSet(set, libtorch)) !== set) {
      console.log(`SKIPPED: this processor has no ${set}`);
      count(`instruction set ${set}`, { skipped: 1 });
    } else if (set !== best) {
      const env = { NLAC_INSTRUCTION_SET: set, NLAC_THREADS: "1", OMP_NUM_THREADS: "1" };
      const options = { only: programs, env, args };
      jobs.push(() => runNativeTests(`C++ (${set})`, join(root, "build", "cpu"), options));
      jobs.push(() => runVitest(`vitest (${set})`, files, { env, print: "at the end" }));
    }
  }
  return jobs;
}

/** The instruction set that the kernels use under a limit. */
async function chosenSet(limit, libtorch) {
  const { findAddon } = await importLib("native/load");
  const { requireLibtorch } = await importLib("native/libtorch");
  const { probeAddon } = await importLib("native/probe");
  const env = { ...process.env, NLAC_LIBTORCH: libtorch };
  const given = process.env.NLAC_INSTRUCTION_SET;
  process.env.NLAC_INSTRUCTION_SET = limit;
  try {
    const probe = probeAddon(findAddon("cpu"), requireLibtorch({ variant: "cpu", env }));
    if (!probe.loads) throw new Error(probe.reason);
    return probe.instructionSet;
  } finally {
    if (given === undefined) delete process.env.NLAC_INSTRUCTION_SET;
    else process.env.NLAC_INSTRUCTION_SET = given;
  }
}

/** The quickstart learns, with one thread. */
async function learnErrands() {
  const directory = mkdtempSync(join(tmpdir(), "nlac-learning-"));
  const program = ["dist/cli/main.js", "compare", "quickstart", "--set", "seeds=[0]", "--out", directory];
  try {
    await mustRun(process.execPath, program, { env: { NLAC_THREADS: "1" }, print: "at the end" });
    const { runs } = JSON.parse(readFileSync(join(directory, "comparison.json"), "utf8"));
    const [success] = runs.map((run) => run.success);
    if (!(success >= 0.8)) throw new Error(`the quickstart's success is ${success}; it must reach 0.8`);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Builds the torch-free tests with each list of sanitizers, and runs them beside what is built next. */
async function runWithSanitizers() {
  const tested = [];
  for (const sanitizers of ["address,undefined", "thread"]) {
    const build = sanitizedBuild(sanitizers);
    if (await check(`${build.name} build`, () => buildNative({ ...build, root, report })))
      // Long limits: at low priority, a program's time depends on what runs beside it.
      tested.push(runNativeTests(build.name, join(root, "build", build.name), { minutes: 45 }));
  }
  await Promise.all(tested);
}

/** Same, in a process of low priority: it gets the time that other tests leave. */
async function runWithSanitizersBeside() {
  const command = ["-n", "19", process.execPath, "scripts/test.mjs", "--sanitizers"];
  const { status, output } = await run("nice", command, { minutes: 80, print: "never" });
  const [, tests, passed, failed] = /^(.*\n)(\d+) passed, (\d+) failed.*\n*$/s.exec(output) ?? [];
  process.stdout.write(tests ?? output);
  const crashed = passed === undefined || (status !== 0 && failed === "0");
  count("sanitizers", { passed: Number(passed ?? 0), failed: Number(failed ?? 0) + (crashed ? 1 : 0) });
}

/**
 * Compiles every kernel and links the CUDA addon, from the CPU build's objects where both use one
 * torch. Not in build/cuda: an addon linked without CUDA's libraries must not be mistaken for a
 * usable one.
 */
async function compileCuda({ buildNative, toolchain, libtorch, report }) {
  const name = toolchain === libtorch ? "cpu" : "cuda-check";
  const definitions = { NLAC_LIBTORCH: toolchain, NLAC_CUDA_CHECK: "ON" };
  const build = (targets) => buildNative({ name, definitions, targets, root, report });
  const kernels = readdirSync(join(root, "native", "cuda")).filter((name) => name.endsWith(".cu"));
  const objectOf = (kernel) => join("cuda", `${basename(kernel)}.o`);
  // All at once, on every core. The checks below report what failed.
  await build(kernels.map(objectOf)).catch(() => undefined);
  for (const kernel of kernels) await check(`nvcc ${kernel}`, () => build([objectOf(kernel)]));
  await check("link the CUDA addon", async () => {
    const addon = join(await build(["nlac_cuda_check"]), "nlac_cuda_check.node");
    // Node's and torch's symbols may be undefined in an addon, but none of nlac's.
    const undefinedNames = symbolsOf(addon, "--undefined-only");
    const missing = undefinedNames.filter((name) => /\bnlac::/.test(name));
    if (missing.length > 0) throw new Error(["undefined:", ...missing].join("\n"));
    // Ranks on GPUs: torch's NCCL backend is used, and torch has it as its header says.
    const nccl = undefinedNames.filter((name) => name.includes("c10d::ProcessGroupNCCL"));
    if (nccl.length === 0) throw new Error("the addon was linked without NCCL");
    const provided = new Set(symbolsOf(join(toolchain, "lib", "libtorch_cuda.so"), "--defined-only"));
    const lacking = nccl.filter((name) => !provided.has(name));
    if (lacking.length > 0) throw new Error(["libtorch_cuda.so lacks:", ...lacking].join("\n"));
  });
}

/** The C++ names of a library's dynamic symbols, chosen by an option of nm. */
function symbolsOf(library, which) {
  const nm = spawnSync("nm", ["-D", "-C", which, library], { encoding: "utf8", maxBuffer: 1 << 28 });
  if (nm.status !== 0) throw new Error(`nm ${library}: ${nm.stderr || nm.error?.message}`);
  return nm.stdout.split("\n").map((line) => line.replace(/^\s*(?:[0-9a-f]+\s+)?\w\s+/, ""));
}

const { setup } = await importLib("native/setup");
const { buildNative } = await importLib("native/build");
const { resolveModel } = await importLib("hub/resolve-model");
const { stderrReporter } = await importLib("display/reporter");
const report = stderrReporter();

const node = (script, ...args) => [process.execPath, join("scripts", script), ...args];
const typeCheck = (project) => [tool("tsc"), "-p", project, "--noEmit"];

async function runChecks() {
  const checks = {
    build: node("build.mjs"),
    ...(typescript && {
      "type check": typeCheck("tsconfig.test.json"),
      "type check of the dashboard's page": typeCheck("lib/dash/browser"),
      "type check of the report's page": typeCheck("lib/report/browser"),
      lint: [tool("biome"), "check", "--error-on-warnings"],
      layers: node("check-layers.mjs"),
    }),
    ...(ci && {
      dependencies: node("check-dependencies.mjs"),
      "native format": node("format-native.mjs", "--check"),
      workflows: node("check-workflows.mjs"),
    }),
  };
  // Each uses one core.
  const running = Object.entries(checks).map(([name, [program, ...args]]) => {
    const start = () => mustRun(program, args, { print: "at the end" });
    return () => check(name, start);
  });
  await runSideBySide(running, availableParallelism());
  // Its reference is made from the build's declarations.
  if (ci) await check("documentation site", () => mustRun(process.execPath, ["scripts/docs.mjs"]));
}

/** Downloads what the build and the tests need. Returns the directories of libtorch, if that succeeds. */
async function download() {
  let libtorch;
  await check("setup", async () => {
    libtorch = (await setup({ build: false, report })).libtorch;
  });
  // Before the build: it rewrites torch's headers, after which their users are compiled again.
  let toolchain;
  if (ci)
    await check("CUDA toolchain", async () => {
      toolchain = (await setup({ variant: "cuda", toolchainOnly: true, build: false, report })).libtorch;
    });
  // Tests of parity with other implementations need the default model; otherwise they are skipped.
  await check("default model", () => resolveModel("SmolLM2-135M-Instruct"));
  if (ci)
    await check("peers", () =>
      mustRun(join(root, "scripts", "peers.sh"), ["tensorboard"], { print: "at the end" }),
    );
  return { libtorch, toolchain };
}

async function runAll() {
  const [{ libtorch, toolchain }] = await Promise.all([download(), runChecks()]);
  const built =
    libtorch !== undefined &&
    (await check("native build", () =>
      buildNative({
        name: "cpu",
        definitions: { NLAC_LIBTORCH: libtorch, NLAC_TESTS: "ON" },
        root,
        report,
      }),
    ));
  if (built) await check("binding", () => mustRun(process.execPath, ["scripts/check-binding.mjs"]));
  if (built && ci) await check("cmake-js", () => mustRun(process.execPath, ["scripts/check-cmake-js.mjs"]));
  const sanitized = ci ? runWithSanitizersBeside() : undefined;
  // Two programs at once: ranks of a test wait for each other's messages most of the time. Threads of
  // the one must not spin while they wait for work.
  if (built && native)
    await runNativeTests("C++", join(root, "build", "cpu"), {
      atOnce: 2,
      env: { OMP_WAIT_POLICY: "passive" },
    });
  if (typescript) await runVitest();
  if (ci && built) {
    // Beside the others, because it mostly waits for the registry.
    const installed = check("install", () =>
      mustRun(process.execPath, ["scripts/try-install.mjs", "--short"], {
        env: { NLAC_LIBTORCH: libtorch },
        minutes: 20,
        print: "at the end",
      }),
    );
    const jobs = [() => check("the quickstart learns", learnErrands)];
    await check("instruction sets", async () => jobs.push(...(await everyInstructionSet(libtorch))));
    await runSideBySide(jobs, availableParallelism());
    if (toolchain) await compileCuda({ buildNative, toolchain, libtorch, report });
    await installed;
  }
  await sanitized;
}

if (sanitizersOnly) await runWithSanitizers();
else await runAll();

for (const failure of failures) console.log(failure);
const { passed, failed, skipped } = totals;
console.log(`${passed} passed, ${failed} failed${skipped ? `, ${skipped} skipped` : ""}`);
process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
