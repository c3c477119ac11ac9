/** Installs or finds libtorch, and builds the addon. */

import { existsSync, lstatSync, mkdirSync, readlinkSync, rmSync, symlinkSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { NlacError } from "../base/errors.ts";
import { formatBytes, type Reporter, silent } from "../display/reporter.ts";
import { buildNative, isStaleBuild } from "./build.ts";
import { type Installer, installWheels, missingWheels, totalBytes } from "./install.ts";
import {
  cachedLibtorch,
  describeRejected,
  findLibtorch,
  inspectLibtorch,
  type Libtorch,
  TORCH_VERSION,
} from "./libtorch.ts";
import { findAddon, type Variant } from "./load.ts";
import { type Env, packageRoot } from "./paths.ts";
import { CUDA_COMPILER_WHEELS, CUDA_RUN_WHEELS, TORCH_WHEELS, type Wheel } from "./wheels.ts";

export interface SetupOptions {
  variant?: Variant;
  /** With "cuda": only the compiler, for a machine without a GPU. */
  toolchainOnly?: boolean;
  /** Use this installation (a site-packages or an unpacked libtorch) instead of installing one. */
  from?: string;
  offline?: boolean;
  dryRun?: boolean;
  /** Build the addon if it is missing or older than its sources. Default true. */
  build?: boolean;
  env?: Env;
  cwd?: string;
  root?: string;
  report?: Reporter;
  installers?: readonly Installer[];
  /** The wheels by group; for tests. */
  wheels?: { torch: readonly Wheel[]; compiler: readonly Wheel[]; run: readonly Wheel[] };
  pythonSites?: () => string[];
}

export interface SetupResult {
  variant: Variant;
  /** The torch/ directory, or its path after installation. */
  libtorch: string;
  /** Names and versions of the wheels that were or would be installed. */
  installed: string[];
  bytes: number;
  /** The addon's directory. */
  addon: string;
  built: boolean;
  dryRun: boolean;
}

const WHEELS = { torch: TORCH_WHEELS, compiler: CUDA_COMPILER_WHEELS, run: CUDA_RUN_WHEELS };

/** Throws ERR_LIBTORCH_NOT_FOUND, ERR_LIBTORCH_VERSION, ERR_DOWNLOAD, ERR_IO, ERR_ADDON_NOT_FOUND. */
export async function setup(options: SetupOptions = {}): Promise<SetupResult> {
  const {
    variant = "cpu",
    env = process.env,
    report = silent,
    dryRun = false,
    root = packageRoot(),
  } = options;
  const { libtorch, installed } = await provideLibtorch(options);
  const addon = findAddon(variant, root)?.directory ?? join(root, "build", variant);
  // A prebuilt binary is never stale.
  const stale = addon.startsWith(join(root, "build")) && isStaleBuild(addon, root);
  if (!stale) report.line(`The ${variant} addon is built (${addon}).`);
  else if (options.build === false) report.line(`The ${variant} addon is not built (--no-build).`);
  else if (dryRun) report.line(`Would build the ${variant} addon with CMake into ${addon}.`);
  else {
    report.line(`Building the ${variant} addon with CMake; this takes some minutes …`);
    const definitions = { NLAC_LIBTORCH: libtorch, ...(variant === "cuda" && { NLAC_CUDA: "ON" }) };
    await buildNative({ name: variant, definitions, root, env, report });
  }
  return {
    ...{ variant, libtorch, addon, dryRun },
    installed: installed.map((wheel) => `${wheel.name} ${wheel.version}`),
    bytes: totalBytes(installed),
    built: stale && !dryRun && options.build !== false,
  };
}

async function provideLibtorch(options: SetupOptions): Promise<{ libtorch: string; installed: Wheel[] }> {
  const { variant = "cpu", env = process.env, report = silent } = options;
  const groups = options.wheels ?? WHEELS;
  const target = cachedLibtorch(env);
  if (options.from !== undefined) return { libtorch: adopt(options, target), installed: [] };

  const { found, rejected } = findLibtorch({
    env,
    ...(options.cwd !== undefined && { cwd: options.cwd }),
    ...(options.pythonSites && { pythonSites: options.pythonSites }),
    variant: options.toolchainOnly ? "cpu" : variant,
  });
  // Building the CUDA kernels also needs a compiler; otherwise it is installed into the cache.
  const compilerWheels = variant === "cuda" && !hasNvcc(found, env) ? groups.compiler : [];
  if (found && compilerWheels.length === 0) {
    report.line(`libtorch ${found.version} is at ${found.site} (${found.source}).`);
    return { libtorch: found.torch, installed: [] };
  }

  const wheels = [
    ...groups.torch,
    ...(variant === "cuda" ? groups.compiler : []),
    ...(variant === "cuda" && !options.toolchainOnly ? groups.run : []),
  ];
  const missing = missingWheels(target, wheels);
  report.line(
    found
      ? `libtorch ${found.version} is at ${found.site} (${found.source}), without a CUDA compiler.`
      : `libtorch ${TORCH_VERSION} was not found. Searched:\n${describeRejected(rejected)}`,
  );
  if (missing.length > 0) {
    report.line(`${options.dryRun ? "Would install" : "Installing"} into ${target}:`);
    for (const wheel of missing)
      report.line(`  ${`${wheel.name} ${wheel.version}`.padEnd(34)} ${formatBytes(wheel.bytes).padStart(8)}`);
    report.line(`  ${"total".padEnd(34)} ${formatBytes(totalBytes(missing)).padStart(8)}`);
  }
  if (options.dryRun) return { libtorch: join(target, "torch"), installed: missing };

  if (process.platform !== "linux" || process.arch !== "x64")
    throw new NlacError(
      "ERR_LIBTORCH_NOT_FOUND",
      `No wheels are pinned for ${process.platform}-${process.arch}. Install torch ${TORCH_VERSION} yourself and ` +
        "run `npx nlac setup --from DIR`.",
    );
  if (isLink(target))
    throw new NlacError(
      "ERR_IO",
      `${target} links to ${readlinkSync(target)}, which nlac does not change. Remove the link and run this again.`,
    );
  const installed = await installWheels({
    ...{ wheels, directory: target, env, report, offline: options.offline ?? false },
    ...(options.installers && { installers: options.installers }),
  });
  const check = inspectLibtorch("the cache", target, options.toolchainOnly ? "cpu" : variant);
  if (!("preload" in check))
    throw new NlacError("ERR_LIBTORCH_NOT_FOUND", `The new installation at ${target} ${check.reason}.`);
  report.line(`libtorch ${check.version} is at ${target}.`);
  return { libtorch: check.torch, installed };
}

/** `--from`: makes the cache's entry a link to the user's installation. */
function adopt(options: SetupOptions, target: string): string {
  const { variant = "cpu", report = silent } = options;
  const from = resolve(options.cwd ?? process.cwd(), options.from ?? "");
  const result = inspectLibtorch("--from", from, options.toolchainOnly ? "cpu" : variant);
  if (!("preload" in result)) {
    const code = result.version === undefined ? "ERR_LIBTORCH_NOT_FOUND" : "ERR_LIBTORCH_VERSION";
    throw new NlacError(code, `--from ${from} cannot be used: it ${result.reason}.`);
  }
  // Link the directory above a wheel's torch/, which also has nvidia/; or an archive's directory.
  const place = basename(result.torch) === "torch" ? result.site : result.torch;
  if (options.dryRun) {
    report.line(`Would link ${target} to ${place}.`);
    return result.torch;
  }
  if (place === target) return result.torch;
  if (existsSync(target) && !isLink(target))
    throw new NlacError("ERR_IO", `${target} is an installation by nlac. Remove it to use ${place}.`);
  mkdirSync(dirname(target), { recursive: true });
  rmSync(target, { force: true });
  symlinkSync(place, target);
  report.line(`libtorch ${result.version}: linked ${target} to ${place}.`);
  return result.torch;
}

function hasNvcc(found: Libtorch | undefined, env: Env): boolean {
  if (found && existsSync(join(found.site, "nvidia", "cu13", "bin", "nvcc"))) return true;
  const home = env.CUDA_HOME;
  return home !== undefined && existsSync(join(home, "bin", "nvcc"));
}

function isLink(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink() ?? false;
}
