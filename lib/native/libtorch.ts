/**
 * Finds libtorch: the first place, in a fixed order, that holds the version nlac is built against with
 * every library it needs. Python is never asked to import torch: `torch/version.py` is read as text.
 */

import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { NlacError } from "../base/errors.ts";
import { cacheRoot, type Env, packageRoot } from "./paths.ts";

export const TORCH_VERSION = "2.11.0";

export interface Libtorch {
  /** Who named it: "NLAC_LIBTORCH", "the cache", … */
  source: string;
  /** The directory that holds torch/ and, for a wheel, nvidia/. */
  site: string;
  /** The torch/ directory, with lib/ and include/. */
  torch: string;
  /** As it calls itself, e.g. "2.11.0+cu130". */
  version: string;
  /** The CUDA version it was built with; undefined for a CPU build. */
  cuda: string | undefined;
  /** Absolute paths to load, in order, before the addon. */
  preload: string[];
}

/** A place that was looked at and why it was not taken. */
export interface Rejected {
  source: string;
  path: string | undefined;
  reason: string;
}

export interface FindOptions {
  env?: Env;
  /** Where nlac.config.json is looked for, besides the package. Default: the working directory. */
  cwd?: string;
  /** "cuda" also requires the CUDA half and the libraries it needs. Default "cpu". */
  variant?: "cpu" | "cuda";
  /** The site-packages directories of `python3`; a test passes its own. */
  pythonSites?: () => string[];
}

export interface Search {
  found: Libtorch | undefined;
  rejected: Rejected[];
}

export function cachedLibtorch(env: Env = process.env): string {
  return join(cacheRoot(env), "libtorch", TORCH_VERSION);
}

/** Looks everywhere; throws only where the user named a place and it cannot be used. */
export function findLibtorch(options: FindOptions = {}): Search {
  const env = options.env ?? process.env;
  const variant = options.variant ?? "cpu";
  const rejected: Rejected[] = [];
  const consider = (source: string, path: string): Libtorch | undefined => {
    const result = inspectLibtorch(source, path, variant);
    if ("preload" in result) return result;
    rejected.push(result);
    return undefined;
  };
  const named = (source: string, path: string): Libtorch => {
    const result = inspectLibtorch(source, path, variant);
    if ("preload" in result) return result;
    const code = result.version === undefined ? "ERR_LIBTORCH_NOT_FOUND" : "ERR_LIBTORCH_VERSION";
    throw new NlacError(code, `${source} names ${path}, which cannot be used: it ${result.reason}.`);
  };

  if (env.NLAC_LIBTORCH) return { found: named("NLAC_LIBTORCH", resolve(env.NLAC_LIBTORCH)), rejected };
  rejected.push({ source: "NLAC_LIBTORCH", path: undefined, reason: "not set" });

  // LIBTORCH belongs to other tools too, so an unfit one is passed over and reported.
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

/** As `findLibtorch`, or an error that lists what was tried and the command that mends it. */
export function requireLibtorch(options: FindOptions = {}): Libtorch {
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
 * Whether `path` (a site-packages, a torch/ directory, or an unpacked libtorch archive) can be used. A
 * rejected place with a `version` was rejected for its version alone.
 */
export function inspectLibtorch(
  source: string,
  path: string,
  variant: "cpu" | "cuda",
): Libtorch | (Rejected & { version?: string }) {
  const torch = [join(path, "torch"), path].find((directory) =>
    existsSync(join(directory, "lib", "libtorch_cpu.so")),
  );
  if (torch === undefined) {
    const reason = existsSync(path) ? "holds no torch/lib/libtorch_cpu.so" : "does not exist";
    return { source, path, reason };
  }
  const stamp = readVersion(torch);
  if (stamp === undefined) return { source, path, reason: "has neither torch/version.py nor build-version" };
  const { version, cuda } = stamp;
  if (version.replace(/\+.*/, "") !== TORCH_VERSION)
    return { source, path, reason: `is torch ${version}, not ${TORCH_VERSION}`, version };
  if (!existsSync(join(torch, "include", "torch", "csrc", "api", "include", "torch", "torch.h")))
    return { source, path, reason: "lacks torch's C++ headers" };

  const site = dirname(torch);
  const lib = join(torch, "lib");
  const preload: string[] = [];
  // libtorch_cpu.so of a CUDA build itself needs the CUDA runtime and CUPTI, a GPU or not.
  const needed = [...(cuda ? [CUDART, CUPTI] : []), ...(variant === "cuda" ? CUDA_RUN : [])];
  for (const library of needed) {
    const file = findLibrary(site, lib, library, cuda ?? "");
    if (file === undefined) return { source, path, reason: `lacks ${library.name(cuda ?? "")}` };
    if (library.preload) preload.push(file);
  }
  const own = variant === "cuda" ? ["c10", "torch_cpu", "c10_cuda", "torch_cuda"] : ["c10", "torch_cpu"];
  for (const name of own) {
    const file = join(lib, `lib${name}.so`);
    if (!existsSync(file)) {
      const built = name.includes("cuda") && !cuda ? " (it is a CPU build)" : "";
      return { source, path, reason: `lacks ${file.slice(site.length + 1)}${built}` };
    }
    preload.push(file);
  }
  return { source, site, torch, version, cuda, preload };
}

interface NvidiaLibrary {
  /** The soname, by the CUDA version torch was built with. */
  name: (cuda: string) => string;
  /** Its folder under nvidia/: as the CUDA 13 wheels have it, and as those of CUDA 12 had it. */
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
// The rest of what libtorch_cuda.so needs is found through its own rpath once these are there.
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
  // The libtorch archive carries them in lib/ with a hash in the name: libcudart-1b5a9e2f.so.13.
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
