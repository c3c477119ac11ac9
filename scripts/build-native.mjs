#!/usr/bin/env node
// Builds the native part into build/<cpu|cuda|sanitize-…|fuzz> with CMake, against the libtorch
// that nlac would load. Run with --help for the options.
import { copyFileSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const HELP = `usage: node scripts/build-native.mjs [options]

  --cuda            the CUDA build (build/cuda); default is the CPU build (build/cpu)
  --cuda-objects    only compile every CUDA kernel
  --arch arm64      for 64-bit ARM (build/arm64), with Debian's cross compiler
  --tests           also the C++ unit tests
  --sanitize LIST   the torch-free tests with sanitizers, address,undefined or thread (build/sanitize-LIST)
  --fuzz            the libFuzzer targets, with clang (build/fuzz)
  --target NAME     only this target; may be repeated
  --older-systems   link addons that load on glibc 2.28, for prebuilt binaries
  --jobs N          compiler processes at once
  --copy-to DIR     copy the finished addons there

example: node scripts/build-native.mjs --tests`;

const root = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");

/** Imports a module of lib/ from TypeScript, because dist/ may be missing or outdated. */
export async function importLib(path) {
  const { createJiti } = await import("jiti");
  return createJiti(import.meta.url).import(join(root, "lib", `${path}.ts`));
}

/**
 * Name and definitions of the sanitizer build of the torch-free tests, e.g. "address,undefined".
 */
export function sanitizedBuild(sanitizers) {
  return {
    name: `sanitize-${sanitizers.replaceAll(",", "-")}`,
    definitions: { NLAC_TORCH: "OFF", NLAC_TESTS: "ON", NLAC_SANITIZE: sanitizers },
  };
}

/** The directory of libtorch for 64-bit ARM, which is installed into the cache. */
export async function torchForArm64(report) {
  const { installWheels } = await importLib("native/install");
  const { cachedLibtorch } = await importLib("native/libtorch");
  const { pinnedWheels } = await importLib("native/torch-wheels");
  const directory = `${cachedLibtorch()}-aarch64`;
  const { torch: wheels } = pinnedWheels({ os: "linux", arch: "arm64" });
  await installWheels({ wheels, directory, need: "compile", report });
  return join(directory, "torch");
}

async function main() {
  const { values } = parseArgs({
    options: {
      cuda: { type: "boolean" },
      "cuda-objects": { type: "boolean" },
      tests: { type: "boolean" },
      sanitize: { type: "string" },
      fuzz: { type: "boolean" },
      "older-systems": { type: "boolean" },
      arch: { type: "string", default: process.arch },
      target: { type: "string", multiple: true },
      jobs: { type: "string" },
      "copy-to": { type: "string" },
      help: { type: "boolean", short: "h" },
    },
  });
  if (values.help) return console.log(HELP);
  const { buildNative } = await importLib("native/build");
  const { requireLibtorch } = await importLib("native/libtorch");
  const { stderrReporter } = await importLib("display/reporter");

  const cuda = values.cuda || values["cuda-objects"];
  const plain = values.sanitize !== undefined || values.fuzz;
  const sanitized = values.sanitize === undefined ? undefined : sanitizedBuild(values.sanitize);
  const cross = values.arch !== process.arch;
  if (cross && (values.arch !== "arm64" || cuda || plain))
    throw new Error("--arch is for arm64, without --cuda, --sanitize or --fuzz");
  const name = values.fuzz ? "fuzz" : (sanitized?.name ?? (cuda ? "cuda" : cross ? "arm64" : "cpu"));
  const definitions = { ...sanitized?.definitions };
  if (values.fuzz) Object.assign(definitions, { NLAC_FUZZ: "ON", CMAKE_CXX_COMPILER: "clang++" });
  // Compiling and linking for CUDA needs only the CPU part of torch; running needs all of it.
  if (cross) {
    definitions.NLAC_LIBTORCH = await torchForArm64(stderrReporter());
    definitions.CMAKE_TOOLCHAIN_FILE = join(root, "cmake", "aarch64-linux-gnu.cmake");
  } else if (!plain) definitions.NLAC_LIBTORCH = requireLibtorch({ variant: "cpu", headers: true }).torch;
  if (cuda) definitions.NLAC_CUDA = "ON";
  if (!plain) definitions.NLAC_OLDER_SYSTEMS = values["older-systems"] ? "ON" : "OFF";
  if (values.tests) definitions.NLAC_TESTS = "ON";
  const targets = [...(values["cuda-objects"] ? ["nlac_cuda_objects"] : []), ...(values.target ?? [])];
  const directory = await buildNative({
    ...{ name, definitions, targets, root, report: stderrReporter() },
    ...(values.jobs && { jobs: Number(values.jobs) }),
  });
  if (values["copy-to"]) {
    mkdirSync(values["copy-to"], { recursive: true });
    for (const file of ["nlac.node", "nlac_loader.node"])
      copyFileSync(join(directory, file), join(values["copy-to"], file));
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  main().catch((error) => {
    console.error(`nlac: ${error.code ?? "ERR_INTERNAL"}: ${error.message}`);
    process.exitCode = 1;
  });
