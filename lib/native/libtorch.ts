/**
 * Finds libtorch: the first place, in a fixed order, that has the right version and all libraries.
 * `torch/version.py` is read as text; torch is never imported.
 */

import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { NlacError } from "../base/errors.ts";
import { libraryFile, type Platform, thisPlatform } from "../base/platform.ts";
import { cacheRoot, type Env, packageRoot } from "./paths.ts";

export const TORCH_VERSION = "2.11.0";

export interface Libtorch {
  /** Where it was found: "NLAC_LIBTORCH", "the cache", … */
  source: string;
  /** The directory that contains torch/ and, for a wheel, nvidia/. */
  site: string;
  /** The torch/ directory, with lib/ and include/. */
  torch: string;
  /** For example "2.11.0+cu130". */
  version: string;
  /** The CUDA version it was built with; undefined for a CPU build. */
  cuda: string | undefined;
  /** Absolute paths to load, in order, before the addon. */
  preload: string[];
}

/** A place that was searched, and why it was rejected. */
export interface Rejected {
  source: string;
  path: string | undefined;
  reason: string;
}

export interface FindOptions {
  env?: Env;
  /** Directory of nlac.config.json, besides the package's. Default: the working directory. */
  cwd?: string;
  /** "cuda" also requires CUDA support and its libraries. Default "cpu". */
  variant?: "cpu" | "cuda";
  /** Also require torch's C++ headers, to compile the addon. Default false. */
  headers?: boolean;
  /** Default: this one. */
  platform?: Platform;
  /** Returns the site-packages directories of `python3`; for tests. */
  pythonSites?: () => string[];
}

export interface Search {
  found: Libtorch | undefined;
  rejected: Rejected[];
}

export function cachedLibtorch(env: Env = process.env): string {
  return join(cacheRoot(env), "libtorch", TORCH_VERSION);
}

/** Searches all places. Throws only if a place that the user named is unusable. */
export function findLibtorch(options: FindOptions = {}): Search {
  const env = options.env ?? process.env;
  const { variant = "cpu", headers = false, platform = thisPlatform } = options;
  const rejected: Rejected[] = [];
  const consider = (source: string, path: string): Libtorch | undefined => {
    const result = inspectLibtorch(source, path, variant, headers, platform);
    if ("preload" in result) return result;
    rejected.push(result);
    return undefined;
  };
  const named = (source: string, path: string): Libtorch => {
    const result = inspectLibtorch(source, path, variant, headers, platform);
    if ("preload" in result) return result;
    const code = result.version === undefined ? "ERR_LIBTORCH_NOT_FOUND" : "ERR_LIBTORCH_VERSION";
    throw new NlacError(code, `${source} names ${path}, which cannot be used: it ${result.reason}.`);
  };

  if (env.NLAC_LIBTORCH) return { found: named("NLAC_LIBTORCH", resolve(env.NLAC_LIBTORCH)), rejected };
  rejected.push({ source: "NLAC_LIBTORCH", path: undefined, reason: "not set" });

  // LIBTORCH is used by other tools too, so an unusable one is skipped.
  if (env.LIBTORCH) {
    const found = consider("LIBTORCH", resolve(env.LIBTORCH));
    if (found) return { found, rejected };
  } else {
    rejected.push({ source: "LIBTORCH", path: undefined, reason: "not set" });
  }

  for (const directory of new Set([resolve(options.cwd ?? process.cwd()), packageRoot()])) {
    const file = join(directory, "nlac.config.json");
    const path = configuredLibtorch(file);
    if (path !== undefined) return { found: named(file, resolve(directory, path)), rejected };
    rejected.push({ source: "nlac.config.json", path: file, reason: "names no libtorch" });
  }

  for (const variable of ["VIRTUAL_ENV", "CONDA_PREFIX"]) {
    const prefix = env[variable];
    const sites = prefix ? sitePackages(prefix) : [];
    if (!prefix) rejected.push({ source: variable, path: undefined, reason: "not set" });
    else if (sites.length === 0)
      rejected.push({ source: variable, path: prefix, reason: "has no lib/python3*/site-packages" });
    for (const site of sites) {
      const found = consider(variable, site);
      if (found) return { found, rejected };
    }
  }

  const sites = (options.pythonSites ?? (() => pythonSites(env)))();
  if (sites.length === 0) rejected.push({ source: "python3", path: undefined, reason: "not on PATH" });
  for (const site of sites) {
    const found = consider("python3", site);
    if (found) return { found, rejected };
  }

  const found = consider("the cache", cachedLibtorch(env));
  return { found, rejected };
}

/** As `findLibtorch`, but throws an error with the places and a fix if there is none. */
export function requireLibtorch(options: FindOptions): Libtorch {
  const { found, rejected } = findLibtorch(options);
  if (found) return found;
  const command = options.variant === "cuda" ? "npx nlac setup --cuda" : "npx nlac setup";
  const what =
    options.variant === "cuda" ? `libtorch ${TORCH_VERSION} with CUDA` : `libtorch ${TORCH_VERSION}`;
  throw new NlacError(
    "ERR_LIBTORCH_NOT_FOUND",
    `${what} was not found. Run \`${command}\`. Tried:\n${describeRejected(rejected)}`,
  );
}

export function describeRejected(rejected: readonly Rejected[]): string {
  return rejected.map((r) => `  ${r.source}${r.path ? ` (${r.path})` : ""}: ${r.reason}`).join("\n");
}

/**
 * Checks whether `path` (a site-packages, a torch/ directory, or an unpacked libtorch archive) is
 * usable. A rejected place has a `version` if only the version is wrong.
 */
export function inspectLibtorch(
  source: string,
  path: string,
  variant: "cpu" | "cuda",
  headers: boolean,
  platform: Platform = thisPlatform,
): Libtorch | (Rejected & { version?: string }) {
  const cpu = libraryFile("torch_cpu", platform);
  const torch = [join(path, "torch"), path].find((directory) => existsSync(join(directory, "lib", cpu)));
  if (torch === undefined) {
    const reason = existsSync(path) ? `has no torch/lib/${cpu}` : "does not exist";
    return { source, path, reason };
  }
  const stamp = readVersion(torch);
  if (stamp === undefined) return { source, path, reason: "has neither torch/version.py nor build-version" };
  const { version, cuda } = stamp;
  if (version.replace(/\+.*/, "") !== TORCH_VERSION)
    return { source, path, reason: `is torch ${version}, not ${TORCH_VERSION}`, version };
  if (headers && !existsSync(join(torch, "include", "torch", "csrc", "api", "include", "torch", "torch.h")))
    return { source, path, reason: "lacks torch's C++ headers" };

  const site = dirname(torch);
  const lib = join(torch, "lib");
  const preload: string[] = [];
  // libtorch_cpu.so of a CUDA build needs the CUDA runtime and CUPTI even without a GPU.
  const needed = [...(cuda ? [CUDART, CUPTI] : []), ...(variant === "cuda" ? CUDA_RUN : [])];
  for (const library of needed) {
    const file = findLibrary(site, lib, library, cuda ?? "");
    if (file === undefined) return { source, path, reason: `lacks ${library.name(cuda ?? "")}` };
    if (library.preload) preload.push(file);
  }
  const own = variant === "cuda" ? ["c10", "torch_cpu", "c10_cuda", "torch_cuda"] : ["c10", "torch_cpu"];
  for (const name of own) {
    const file = join(lib, libraryFile(name, platform));
    if (!existsSync(file)) {
      const built = name.includes("cuda") && !cuda ? " (it is a CPU build)" : "";
      return { source, path, reason: `lacks ${file.slice(site.length + 1)}${built}` };
    }
    preload.push(file);
  }
  return { source, site, torch, version, cuda, preload };
}

interface NvidiaLibrary {
  /** The soname, given the CUDA version of torch. */
  name: (cuda: string) => string;
  /** Directories under nvidia/: of the CUDA 13 and the CUDA 12 wheels. */
  folders: string[];
  preload: boolean;
}

const major = (cuda: string) => cuda.split(".")[0];
const CUDART: NvidiaLibrary = {
  name: (cuda) => `libcudart.so.${major(cuda)}`,
  folders: ["cu13", "cuda_runtime"],
  preload: true,
};
const CUPTI: NvidiaLibrary = {
  name: (cuda) => `libcupti.so.${major(cuda)}`,
  folders: ["cu13", "cuda_cupti"],
  preload: true,
};
// libtorch_cuda.so finds its other libraries through its rpath.
const CUDA_RUN: NvidiaLibrary[] = [
  { name: (cuda) => `libcublas.so.${major(cuda)}`, folders: ["cu13", "cublas"], preload: false },
  { name: () => "libcudnn.so.9", folders: ["cudnn"], preload: false },
  { name: () => "libnccl.so.2", folders: ["nccl"], preload: false },
  { name: () => "libcusparseLt.so.0", folders: ["cusparselt"], preload: false },
];

function findLibrary(site: string, lib: string, library: NvidiaLibrary, cuda: string): string | undefined {
  const name = library.name(cuda);
  const places = [...library.folders.map((folder) => join(site, "nvidia", folder, "lib")), lib];
  const direct = places.map((place) => join(place, name)).find((file) => existsSync(file));
  if (direct) return direct;
  // The libtorch archive has them in lib/ with a hash in the name: libcudart-1b5a9e2f.so.13.
  const [stem, ...rest] = name.split(".so.");
  const hashed = readdirSync(lib).find(
    (f) => f.startsWith(`${stem}-`) && f.endsWith(`.so.${rest.join(".so.")}`),
  );
  return hashed ? join(lib, hashed) : undefined;
}

function readVersion(torch: string): { version: string; cuda: string | undefined } | undefined {
  const python = join(torch, "version.py");
  if (existsSync(python)) {
    const text = readFileSync(python, "utf8");
    const version = /^__version__\s*=\s*['"]([^'"]+)['"]/m.exec(text)?.[1];
    const cuda = /^cuda\b[^=]*=\s*['"]([^'"]+)['"]/m.exec(text)?.[1];
    return version === undefined ? undefined : { version, cuda };
  }
  const archive = join(torch, "build-version");
  if (!existsSync(archive)) return undefined;
  const version = readFileSync(archive, "utf8").trim();
  const tag = /\+cu(\d\d)(\d+)$/.exec(version);
  return { version, cuda: tag ? `${tag[1]}.${tag[2]}` : undefined };
}

function configuredLibtorch(file: string): string | undefined {
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
  let config: unknown;
  try {
    config = JSON.parse(text);
  } catch (error) {
    throw new NlacError("ERR_CONFIG", `${file} is not JSON: ${(error as Error).message}`);
  }
  const value = (config as { libtorch?: unknown } | null)?.libtorch;
  if (value === undefined) return undefined;
  if (typeof value !== "string") throw new NlacError("ERR_CONFIG", `${file}: "libtorch" must be a path.`);
  return value;
}

function sitePackages(prefix: string): string[] {
  const lib = join(prefix, "lib");
  if (!existsSync(lib)) return [];
  return readdirSync(lib)
    .filter((name) => /^python3(\.\d+)?$/.test(name))
    .sort()
    .reverse()
    .map((name) => join(lib, name, "site-packages"))
    .filter((site) => existsSync(site));
}

function pythonSites(env: Env): string[] {
  const script =
    "import site,sysconfig\n" +
    "paths=[sysconfig.get_path('platlib'),sysconfig.get_path('purelib'),site.getusersitepackages()]\n" +
    "print('\\n'.join(dict.fromkeys(paths)))";
  const run = spawnSync("python3", ["-I", "-c", script], {
    env: { ...env } as NodeJS.ProcessEnv,
    encoding: "utf8",
    timeout: 10_000,
  });
  return run.status === 0 ? run.stdout.split("\n").filter((line) => line !== "") : [];
}
