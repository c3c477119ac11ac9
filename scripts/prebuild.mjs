#!/usr/bin/env node
// Makes prebuilds/<platform>-<arch>/<variant>/, which `npm pack` includes. Run with --help.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { chmodSync, copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { importLib } from "./build-native.mjs";
import { compareVersions, readElf } from "./elf.mjs";

const HELP = `usage: node scripts/prebuild.mjs [--arch arm64] [--any-system] [--jobs N] cpu|cuda…

Builds the addon with prebuildify over CMake, strips it, and writes build.json: versions, the
symbol versions that it needs, and checksums. Fails if it needs more than the oldest system
that torch's own wheels support, has a run path or needs an unknown library.

  --arch arm64   for 64-bit ARM, with Debian's cross compiler; cpu only
  --any-system   accept the symbol versions of this system's compiler; not for a release
  --jobs N       compiler processes at once`;

// manylinux_2_28, as torch's wheels.
const OLDEST = { GLIBC: "2.28", GLIBCXX: "3.4.25", CXXABI: "1.3.11", GCC: "7.0.0" };
const LIBRARIES =
  /^(libtorch_cpu|libc10|libtorch_cuda|libc10_cuda|libcudart|libstdc\+\+|libm|libgcc_s|libc|libdl|libpthread|librt|ld-linux-[\w-]+)\.so/;
const root = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");

/** Reasons why the addon cannot be released; empty if it can. */
export function faultsOf(file, { anySystem = false } = {}) {
  const elf = readElf(file);
  return [
    ...elf.libraries.filter((library) => !LIBRARIES.test(library)).map((library) => `needs ${library}`),
    ...elf.runPaths.map((path) => `has the run path ${path}`),
    ...elf.sections
      .filter((name) => name === ".symtab" || name.startsWith(".debug"))
      .map((name) => `has ${name}`),
    ...Object.entries(elf.symbols)
      .filter(([family, version]) => !anySystem && compareVersions(version, OLDEST[family] ?? "0") > 0)
      .map(
        ([family, version]) => `needs ${family}_${version}; the limit is ${OLDEST[family] ?? "none of them"}`,
      ),
  ];
}

function newestSymbols(all) {
  const newest = {};
  for (const [family, version] of all.flatMap((symbols) => Object.entries(symbols)))
    if (compareVersions(version, newest[family] ?? "0") > 0) newest[family] = version;
  return newest;
}

/** Writes build.json beside the addon in `target`, and returns it. */
export async function describe(target, variant) {
  const { TORCH_VERSION } = await importLib("native/libtorch");
  const { ADDON_FILES } = await importLib("native/load");
  const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const digest = (name) =>
    createHash("sha256")
      .update(readFileSync(join(target, name)))
      .digest("hex");
  const build = {
    ...{ nlac: version, torch: TORCH_VERSION, variant, nodeApi: 9 },
    symbols: newestSymbols(ADDON_FILES.map((name) => readElf(join(target, name)).symbols)),
    files: Object.fromEntries(ADDON_FILES.map((name) => [name, digest(name)])),
  };
  writeFileSync(join(target, "build.json"), `${JSON.stringify(build, null, 2)}\n`);
  return build;
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      arch: { type: "string", default: process.arch },
      "any-system": { type: "boolean" },
      jobs: { type: "string" },
      help: { type: "boolean", short: "h" },
    },
  });
  if (values.help || positionals.length === 0) return console.log(HELP);
  const { ADDON_FILES } = await importLib("native/load");
  const { arch } = values;
  const platform = `${process.platform}-${arch}`;
  if (process.platform !== "linux")
    throw new Error("prebuilt binaries are for Linux; elsewhere `nlac setup` compiles");
  const strip =
    process.env.PREBUILD_STRIP_BIN ?? (arch === process.arch ? "strip" : "aarch64-linux-gnu-strip");
  for (const variant of positionals) {
    if (variant !== "cpu" && variant !== "cuda") throw new Error(`unknown variant ${variant}`);
    const scratch = join(root, "build", "prebuild");
    const target = join(root, "prebuilds", platform, variant);
    for (const directory of [scratch, target]) rmSync(directory, { recursive: true, force: true });
    mkdirSync(target, { recursive: true });
    const gyp = join(root, "scripts", "gyp-cmake.mjs");
    const argv = ["--napi", "--strip", "--name", "nlac", "--out", scratch, "--node-gyp", gyp, "--arch", arch];
    const env = {
      ...process.env,
      NLAC_PREBUILD: variant,
      NLAC_PREBUILD_ARCH: arch,
      ...(values.jobs && { NLAC_PREBUILD_JOBS: values.jobs }),
      PREBUILD_STRIP_BIN: strip,
    };
    run(join(root, "node_modules", ".bin", "prebuildify"), argv, env);
    // prebuildify takes one .node file.
    copyFileSync(join(scratch, "prebuilds", platform, "nlac.node"), join(target, "nlac.node"));
    copyFileSync(join(root, "build", "Release", "nlac_loader.node"), join(target, "nlac_loader.node"));
    run(strip, ["--strip-all", ...ADDON_FILES.map((name) => join(target, name))]);

    const build = await describe(target, variant);
    for (const name of ADDON_FILES) {
      chmodSync(join(target, name), 0o755);
      const faults = faultsOf(join(target, name), { anySystem: values["any-system"] });
      if (faults.length > 0) throw new Error(`${variant}/${name} ${faults.join("; ")}`);
    }
    console.log(
      `${target}: ${Object.entries(build.symbols)
        .map((entry) => entry.join(" "))
        .join(", ")}`,
    );
  }
}

function run(program, argv, env = process.env) {
  const { status, error } = spawnSync(program, argv, { cwd: root, stdio: "inherit", env });
  if (status !== 0) throw error ?? new Error(`${program} ended with status ${status}`);
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  main().catch((error) => {
    console.error(`prebuild: ${error.message}`);
    process.exitCode = 1;
  });
