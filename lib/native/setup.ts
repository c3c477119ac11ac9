/** Installs or finds libtorch, and builds the addon. */

import { existsSync, lstatSync, mkdirSync, readlinkSync, rmSync, symlinkSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { NlacError } from "../base/errors.ts";
import { type Platform, platformName, thisPlatform } from "../base/platform.ts";
import { formatBytes, type Reporter, silent } from "../display/reporter.ts";
import { buildNative, isStaleBuild } from "./build.ts";
import {
  fetchWheels,
  type Installer,
  installWheels,
  missingBytes,
  missingWheels,
  type Need,
  totalBytes,
} from "./install.ts";
import {
  cachedLibtorch,
  describeRejected,
  findLibtorch,
  inspectLibtorch,
  type Libtorch,
  TORCH_VERSION,
} from "./libtorch.ts";
import { ADDON_FILES, findAddon, type Installation, type Variant } from "./load.ts";
import { buildRoot, type Env, packageRoot } from "./paths.ts";
import { whyUnfit } from "./prebuilt.ts";
import { probeAddon } from "./probe.ts";
import { whyUnsupported } from "./system.ts";
import { type PinnedWheels, pinnedWheels } from "./torch-wheels.ts";
import type { Wheel } from "./wheels.ts";

export interface SetupOptions {
  variant?: Variant;
  /** With "cuda": only the compiler and headers, for a machine without a GPU. */
  toolchainOnly?: boolean;
  /** Use this installation (a site-packages or an unpacked libtorch) instead of installing one. */
  from?: string;
  offline?: boolean;
  /** Only download the wheels into the cache, for a later `offline` installation. */
  fetchOnly?: boolean;
  dryRun?: boolean;
  /** Build the addon if it is missing or older than its sources. Default true. */
  build?: boolean;
  env?: Env;
  cwd?: string;
  root?: string;
  report?: Reporter;
  installers?: readonly Installer[];
  /** The wheels by group; for tests. */
  wheels?: PinnedWheels;
  /** Default: this one. */
  platform?: Platform;
  pythonSites?: () => string[];
  /** Loads an addon in a child process; for tests. */
  probe?: typeof probeAddon;
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

/**
 * An existing addon is tested by loading it; one that does not load is compiled. Throws
 * ERR_LIBTORCH_NOT_FOUND, ERR_LIBTORCH_VERSION, ERR_DOWNLOAD, ERR_IO, ERR_ADDON_NOT_FOUND.
 */
export async function setup(options: SetupOptions): Promise<SetupResult> {
  const { variant = "cpu", env = process.env, report = silent, root = packageRoot(), build = true } = options;
  const dryRun = options.dryRun ?? false;
  const unsupported = whyUnsupported();
  if (unsupported !== undefined && options.from === undefined && !options.fetchOnly)
    throw new NlacError("ERR_LIBTORCH_NOT_FOUND", `This system cannot run libtorch: ${unsupported}.`);
  const existing = currentAddon(variant, root, env);
  let provided = await provideLibtorch(options, existing === undefined);
  if (options.toolchainOnly) provided = await provideHeaders(options, provided);
  const result = (addon: string, built: boolean): SetupResult => ({
    ...{ variant, addon, built, dryRun, libtorch: provided.path },
    installed: provided.installed.map((wheel) => `${wheel.name} ${wheel.version}`),
    bytes: provided.bytes,
  });
  const own = join(buildRoot(root, env), variant);
  if (options.fetchOnly) return result(existing?.directory ?? own, false);

  if (existing && provided.libtorch) {
    const reason = whyNotLoading(existing, provided.libtorch);
    if (reason === undefined) {
      report.line(`The ${variant} addon loads (${existing.directory}).`);
      return result(existing.directory, false);
    }
    report.line(`The ${variant} addon in ${existing.directory} cannot be used: ${reason}.`);
  } else if (existing) {
    report.line(`The ${variant} addon is in ${existing.directory}.`);
    return result(existing.directory, false);
  }
  if (!build) {
    if (existing === undefined) report.line(`The ${variant} addon is not built (--no-build).`);
    return result(existing?.directory ?? own, false);
  }
  if (dryRun) {
    report.line(`Would build the ${variant} addon with CMake into ${own}.`);
    return result(own, false);
  }
  if (existing) provided = await provideLibtorch(options, true);
  let built = false;
  const prepare = () => {
    const found = currentAddon(variant, root, env);
    // Another process may have built it while this one waited.
    if (
      found?.directory === own &&
      provided.libtorch &&
      whyNotLoading(found, provided.libtorch) === undefined
    )
      return false;
    // Make reports its targets as up to date otherwise.
    for (const name of ADDON_FILES) rmSync(join(own, name), { force: true });
    report.line(`Building the ${variant} addon with CMake; this takes some minutes …`);
    built = true;
    return true;
  };
  const definitions = { NLAC_LIBTORCH: provided.path, ...(variant === "cuda" && { NLAC_CUDA: "ON" }) };
  await buildNative({ name: variant, definitions, root, env, report, prepare });
  const reason = provided.libtorch && whyNotLoading({ variant, directory: own }, provided.libtorch);
  if (reason !== undefined)
    throw new NlacError(
      "ERR_ADDON_NOT_FOUND",
      `The new ${variant} addon in ${own} does not load: ${reason}.`,
    );
  return result(own, built);

  function whyNotLoading(installation: Installation, libtorch: Libtorch): string | undefined {
    // Without a GPU, the CUDA addon can be compiled but not loaded.
    if (options.toolchainOnly) return undefined;
    const unfit = whyUnfit(installation.directory);
    if (unfit !== undefined) return unfit;
    const found = (options.probe ?? probeAddon)(installation, libtorch);
    return found.loads ? undefined : found.reason;
  }
}

/** The addon that is there, unless it is a build that is older than its sources. */
function currentAddon(variant: Variant, root: string, env: Env): Installation | undefined {
  const found = findAddon(variant, root, env);
  const stale = found?.directory === join(root, "build", variant) && isStaleBuild(found.directory, root);
  return stale ? undefined : found;
}

interface Provided {
  /** The torch/ directory, or its path after installation. */
  path: string;
  /** Undefined in a dry run that would install it. */
  libtorch?: Libtorch;
  installed: Wheel[];
  bytes: number;
}

async function provideLibtorch(options: SetupOptions, compile: boolean): Promise<Provided> {
  const { variant = "cpu", env = process.env, report = silent } = options;
  const platform = options.platform ?? thisPlatform;
  const target = cachedLibtorch(env);
  const inspected = { variant: options.toolchainOnly ? "cpu" : variant, headers: compile } as const;
  if (options.from !== undefined) return { ...adopt(options, target, inspected), installed: [], bytes: 0 };

  const { found, rejected } = findLibtorch({
    ...{ env, platform, ...inspected },
    ...(options.cwd !== undefined && { cwd: options.cwd }),
    ...(options.pythonSites && { pythonSites: options.pythonSites }),
  });
  // Building the CUDA kernels also needs a compiler; otherwise it is installed into the cache.
  const needsCompiler = variant === "cuda" && compile && !hasNvcc(found, env);
  if (found && !needsCompiler && !options.fetchOnly) {
    report.line(`libtorch ${found.version} is at ${found.site} (${found.source}).`);
    return { path: found.torch, libtorch: found, installed: [], bytes: 0 };
  }

  const groups = options.wheels ?? pinnedWheels(platform);
  if (groups === undefined || (variant === "cuda" && groups.cuda === undefined))
    throw new NlacError(
      "ERR_LIBTORCH_NOT_FOUND",
      `No wheels${variant === "cuda" ? " with CUDA" : ""} are pinned for ${platformName(platform)}. Install torch ` +
        `${TORCH_VERSION} yourself and run \`npx nlac setup --from DIR\`.`,
    );
  const cuda = variant === "cuda" ? groups.cuda : undefined;
  const wheels = [
    ...groups.torch,
    ...(needsCompiler ? (cuda?.compiler ?? []) : []),
    ...(options.toolchainOnly ? (options.fetchOnly ? (cuda?.headers ?? []) : []) : (cuda?.run ?? [])),
  ];
  if (options.fetchOnly) {
    if (!options.dryRun) await fetchWheels(wheels, { env, report, offline: options.offline ?? false });
    return { path: join(target, "torch"), installed: [], bytes: totalBytes(wheels) };
  }
  const need: Need = variant === "cuda" ? "all" : compile ? "compile" : "run";
  const missing = missingWheels(target, wheels, need);
  const bytes = missingBytes(target, missing, need);
  report.line(
    found
      ? `libtorch ${found.version} is at ${found.site} (${found.source}), without a CUDA compiler.`
      : `libtorch ${TORCH_VERSION} was not found. Searched:\n${describeRejected(rejected)}`,
  );
  if (missing.length > 0) {
    const line = (name: string, size: number) =>
      report.line(`  ${name.padEnd(34)} ${formatBytes(size).padStart(8)}`);
    report.line(`${options.dryRun ? "Would install" : "Installing"} into ${target}:`);
    for (const wheel of missing) line(`${wheel.name} ${wheel.version}`, missingBytes(target, [wheel], need));
    line("total", bytes);
  }
  if (options.dryRun) return { path: join(target, "torch"), installed: missing, bytes };

  if (isLink(target))
    throw new NlacError(
      "ERR_IO",
      `${target} links to ${readlinkSync(target)}, which nlac does not change. Remove the link and run this again.`,
    );
  const installed = await installWheels({
    ...{ wheels, need, directory: target, env, report, offline: options.offline ?? false },
    ...(options.installers && { installers: options.installers }),
  });
  const check = inspectLibtorch("the cache", target, inspected.variant, inspected.headers, platform);
  if (!("preload" in check))
    throw new NlacError("ERR_LIBTORCH_NOT_FOUND", `The new installation at ${target} ${check.reason}.`);
  report.line(`libtorch ${check.version} is at ${target}.`);
  return { path: check.torch, libtorch: check, installed, bytes };
}

/**
 * Adds NCCL's header, and the CUDA headers that torch's use of NCCL needs, to nlac's own
 * installation. Without them the CUDA addon can train on one GPU only.
 */
async function provideHeaders(options: SetupOptions, provided: Provided): Promise<Provided> {
  const { env = process.env, report = silent, offline = false } = options;
  const directory = cachedLibtorch(env);
  const isOwn = provided.path === join(directory, "torch") && !isLink(directory);
  if (!isOwn || options.dryRun || options.fetchOnly) return provided;
  const wheels = (options.wheels ?? pinnedWheels(options.platform ?? thisPlatform))?.cuda?.headers ?? [];
  const bytes = missingBytes(directory, wheels, "compile");
  const installed = await installWheels({
    ...{ wheels, need: "compile" as const, directory, env, report, offline },
    ...(options.installers && { installers: options.installers }),
  });
  return { ...provided, installed: [...provided.installed, ...installed], bytes: provided.bytes + bytes };
}

/** `--from`: makes the cache's entry a link to the user's installation. */
function adopt(
  options: SetupOptions,
  target: string,
  wanted: { variant: Variant; headers: boolean },
): { path: string; libtorch: Libtorch } {
  const { report = silent } = options;
  const from = resolve(options.cwd ?? process.cwd(), options.from ?? "");
  const result = inspectLibtorch("--from", from, wanted.variant, wanted.headers, options.platform);
  if (!("preload" in result)) {
    const code = result.version === undefined ? "ERR_LIBTORCH_NOT_FOUND" : "ERR_LIBTORCH_VERSION";
    throw new NlacError(code, `--from ${from} cannot be used: it ${result.reason}.`);
  }
  // Link the directory above a wheel's torch/, which also has nvidia/; or an archive's directory.
  const adopted = { path: result.torch, libtorch: result };
  const place = basename(result.torch) === "torch" ? result.site : result.torch;
  if (options.dryRun) {
    report.line(`Would link ${target} to ${place}.`);
    return adopted;
  }
  if (place === target) return adopted;
  if (existsSync(target) && !isLink(target))
    throw new NlacError("ERR_IO", `${target} is an installation by nlac. Remove it to use ${place}.`);
  mkdirSync(dirname(target), { recursive: true });
  rmSync(target, { force: true });
  symlinkSync(place, target);
  report.line(`libtorch ${result.version}: linked ${target} to ${place}.`);
  return adopted;
}

function hasNvcc(found: Libtorch | undefined, env: Env): boolean {
  if (found && existsSync(join(found.site, "nvidia", "cu13", "bin", "nvcc"))) return true;
  const home = env.CUDA_HOME;
  return home !== undefined && existsSync(join(home, "bin", "nvcc"));
}

function isLink(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink() ?? false;
}
