/** Loads the addon: finds libtorch, opens its libraries, then requires the .node file. */

import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { NlacError } from "../base/errors.ts";
import { getOrAdd } from "../base/get-or-add.ts";
import { physicalCores, platformName, textOf } from "../base/platform.ts";
import type { Addon } from "./addon.ts";
import { findLibtorch, type Libtorch, requireLibtorch } from "./libtorch.ts";
import { buildRoot, type Env, packageRoot } from "./paths.ts";

export type Variant = "cpu" | "cuda";

export interface LoadOptions {
  /** "cpu", "cuda" or "cuda:N". Default "cpu". */
  device?: string;
}

export interface Installation {
  variant: Variant;
  /** Directory of nlac.node and nlac_loader.node. */
  directory: string;
}

let loaded: { addon: Addon; variant: Variant } | undefined;

/**
 * The native addon, loaded once per process. Throws ERR_LIBTORCH_NOT_FOUND, ERR_LIBTORCH_VERSION,
 * ERR_ADDON_NOT_FOUND, and ERR_DEVICE if CUDA is requested but not usable (no CPU fallback).
 */
export function loadAddon(options: LoadOptions = {}): Addon {
  const variant = variantOf(options.device ?? "cpu");
  if (loaded === undefined) loaded = open(variant);
  if (variant === "cuda") requireCuda(loaded.addon, loaded.variant);
  return loaded.addon;
}

export function variantOf(device: string): Variant {
  if (device === "cpu") return "cpu";
  if (/^cuda(:\d+)?$/.test(device)) return "cuda";
  throw new NlacError("ERR_DEVICE", `Unknown device "${device}"; expected "cpu", "cuda" or "cuda:N".`);
}

/** The addon, and the loader that opens libtorch before it. */
export const ADDON_FILES = ["nlac.node", "nlac_loader.node"] as const;

/** Finds the addon of a variant: what was compiled here, else the package's prebuilt binary. */
export function findAddon(
  variant: Variant,
  root: string = packageRoot(),
  env: Env = process.env,
): Installation | undefined {
  const directory = [
    join(buildRoot(root, env), variant),
    join(root, "prebuilds", platformName(), variant),
  ].find((place) => ADDON_FILES.every((name) => existsSync(join(place, name))));
  return directory === undefined ? undefined : { variant, directory };
}

const digests = new Map<string, string>();

/**
 * The first 12 hex digits of the addon's SHA-256, because builds may round differently. Each file is
 * read once per process.
 */
export function addonDigest(variant: Variant): string | undefined {
  const found = findAddon(variant);
  if (found === undefined) return undefined;
  const file = join(found.directory, "nlac.node");
  return getOrAdd(digests, file, () =>
    createHash("sha256").update(readFileSync(file)).digest("hex").slice(0, 12),
  );
}

/**
 * Threads per operation: NLAC_THREADS, else OMP_NUM_THREADS, else the number of available cores,
 * limited by CPU affinity and the container's quota. Hyperthreads do not count: a second thread
 * per core makes matrix products slower.
 */
export function threadCount(env: Env = process.env): number {
  for (const name of ["NLAC_THREADS", "OMP_NUM_THREADS"]) {
    const text = env[name];
    if (text === undefined || text === "") continue;
    const count = Number(text.split(",")[0]);
    if (!Number.isInteger(count) || count < 1)
      throw new NlacError("ERR_CONFIG", `${name}=${text} is not a number of threads.`);
    return count;
  }
  return Math.max(1, Math.min(availableParallelism(), cpuQuota(), physicalCores()));
}

/**
 * The OpenMP runtimes among the libraries of a process. More than one means competing thread pools.
 */
export function openmpRuntimes(libraries: readonly string[]): string[] {
  const isOpenmp = (file: string) => /\/lib(?:gomp|iomp5|omp)(?:-\w+)?\.(?:so[.\d]*|dylib)$/.test(file);
  return [...new Set(libraries.filter(isOpenmp))];
}

function open(asked: Variant): NonNullable<typeof loaded> {
  const { installation, libtorch } = choose(asked);
  const require = createRequire(import.meta.url);
  const at = (name: string) => join(installation.directory, name);
  const fix = installation.variant === "cuda" ? "npx nlac setup --cuda" : "npx nlac setup";
  const threads = threadCount();
  try {
    const loader = require(at("nlac_loader.node")) as { load(paths: string[]): void };
    withVariables(threads, () => loader.load(libtorch.preload));
  } catch (error) {
    if ((error as { code?: unknown }).code === "ERR_CONFIG")
      throw new NlacError("ERR_CONFIG", (error as Error).message, { cause: error });
    throw new NlacError(
      "ERR_LIBTORCH_NOT_FOUND",
      `libtorch at ${libtorch.site} does not load: ${(error as Error).message}. Run \`npx nlac doctor\`.`,
      { cause: error },
    );
  }
  let addon: Addon;
  try {
    addon = withVariables(threads, () => require(at("nlac.node")) as Addon);
  } catch (error) {
    throw new NlacError(
      "ERR_ADDON_NOT_FOUND",
      `${at("nlac.node")} does not load: ${(error as Error).message}. Run \`${fix}\` to rebuild it.`,
      { cause: error },
    );
  }
  addon.setThreads(threads);
  return { addon, variant: installation.variant };
}

/**
 * Calls `body` with environment variables that OpenMP, MKL and libtorch's allocator read once when
 * they are loaded or first used. Without them every native thread would have a pool for the whole
 * machine. They are removed again, so that child processes do not inherit them.
 */
function withVariables<T>(threads: number, body: () => T): T {
  // libgomp's threads spin for milliseconds between operations. With two other busy processes on
  // two cores, decoding was three times slower; less spinning costs about 5 % on an idle machine.
  const variables: Record<string, string> = {
    OMP_NUM_THREADS: String(threads),
    MKL_NUM_THREADS: String(threads),
    ...(process.env.OMP_WAIT_POLICY ? {} : { GOMP_SPINCOUNT: "1000" }),
    // Large tensors use 2 MiB pages: allocating 4 KiB pages took a tenth of a loss's time.
    THP_MEM_ALLOC_ENABLE: "1",
  };
  const names = Object.keys(variables).filter((name) => !process.env[name]);
  for (const name of names) process.env[name] = variables[name]!;
  try {
    return body();
  } finally {
    for (const name of names) delete process.env[name];
  }
}

/**
 * Chooses the CUDA addon if it is usable, even for the CPU, so that a process can use both devices;
 * otherwise the CPU addon. A process loads only one, because they cannot share handles.
 */
function choose(asked: Variant): { installation: Installation; libtorch: Libtorch } {
  const cuda = findAddon("cuda");
  if (asked === "cuda") {
    if (!cuda)
      throw new NlacError(
        "ERR_DEVICE",
        "CUDA was requested, but nlac was built without it. Run `npx nlac setup --cuda`.",
      );
    return { installation: cuda, libtorch: requireLibtorch({ variant: "cuda" }) };
  }
  const cpu = findAddon("cpu");
  if (cuda && (cpu === undefined || hasNvidiaDriver())) {
    const libtorch = findLibtorchQuietly();
    if (libtorch) return { installation: cuda, libtorch };
  }
  // If libtorch and the addon are both missing, report libtorch.
  const libtorch = requireLibtorch({ variant: "cpu" });
  if (!cpu)
    throw new NlacError(
      "ERR_ADDON_NOT_FOUND",
      `The native addon is not built (no ${join(buildRoot(), "cpu", "nlac.node")}). Run \`npx nlac setup\`.`,
    );
  return { installation: cpu, libtorch };
}

function findLibtorchQuietly(): Libtorch | undefined {
  try {
    return findLibtorch({ variant: "cuda" }).found;
  } catch {
    return undefined; // the user's libtorch has no CUDA; the CPU search reports other problems
  }
}

function requireCuda(addon: Addon, variant: Variant): void {
  if (variant !== "cuda")
    throw new NlacError(
      "ERR_DEVICE",
      findAddon("cuda")
        ? "CUDA was requested after the CPU build of nlac was loaded; load a CUDA learner first in this process."
        : "CUDA was requested, but nlac was built without it. Run `npx nlac setup --cuda`.",
    );
  if (!addon.cudaAvailable())
    throw new NlacError(
      "ERR_DEVICE",
      "CUDA was requested, but no usable GPU was found. Run `npx nlac doctor --cuda`.",
    );
}

export function hasNvidiaDriver(): boolean {
  return existsSync("/proc/driver/nvidia/version") || existsSync("/dev/nvidiactl") || existsSync("/dev/dxg");
}

/** The cgroup's CPU quota in whole cores, or Infinity. */
function cpuQuota(): number {
  const v2 = textOf("/sys/fs/cgroup/cpu.max")?.trim().split(" ");
  const quota = Number(v2 ? v2[0] : textOf("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"));
  const period = Number(v2 ? v2[1] : textOf("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
  return quota > 0 && period > 0 ? Math.ceil(quota / period) : Number.POSITIVE_INFINITY;
}
