/**
 * Models of the Hugging Face hub by name: "organisation/model", or "organisation/model@revision"
 * with a branch, tag or commit; "organisation/model/file.gguf" is a single file. Models are read
 * from the cache that Hugging Face's tools share, or downloaded into it. Only safetensors and GGUF
 * weights are supported.
 *
 * Environment variables: HF_HUB_CACHE or HF_HOME (the cache), HF_ENDPOINT (the hub), HF_TOKEN or
 * `huggingface-cli login` (the token), HF_HUB_OFFLINE=1 (use only the cache).
 */

import { existsSync, mkdirSync, readFileSync, renameSync, symlinkSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { HubApiError, ListFileEntry } from "@huggingface/hub";
import { counted } from "../base/counted.ts";
import { NlacError } from "../base/errors.ts";
import { formatBytes, type Reporter } from "../display/reporter.ts";
import { withLock } from "../files/lock.ts";
import {
  indexLimit,
  readModelFile,
  readModelJson,
  settingsLimit,
  tokenizerLimit,
} from "../files/read-file.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { download, fetchReply, redact } from "../native/download.ts";
import type { Env } from "../native/paths.ts";

/** The parts of a model's name on the hub. */
export interface HubName {
  repository: string;
  /** A single file; absent for the whole model. */
  file?: string;
  revision: string;
}

export interface HubOptions {
  offline: boolean;
  env: Env;
  report: Reporter;
  /** Delay before the first retry of a request, in milliseconds; doubles each time. Default 500. */
  retryMs?: number;
}

/** Undefined if `name` is not a valid name on the hub. */
export function parseHubName(name: string): HubName | undefined {
  const part = "[A-Za-z0-9][\\w.-]*";
  const match = new RegExp(`^(${part}/${part})((?:/${part})+\\.gguf)?(?:@([\\w.-]+(?:/[\\w.-]+)*))?$`).exec(
    name,
  );
  if (match === null || name.includes("..") || name.includes("--")) return undefined;
  const [, repository, file, revision = "main"] = match;
  return { repository: repository!, revision, ...(file === undefined ? {} : { file: file.slice(1) }) };
}

/**
 * The directory, or the .gguf file, of a model of the hub.
 * @throws NlacError ERR_MODEL_NOT_FOUND if the hub has no such model, revision or file;
 *   ERR_MODEL_FORMAT if it has no safetensors; ERR_DOWNLOAD if the download fails
 */
export async function resolveHubModel(name: HubName, options: HubOptions): Promise<string> {
  const folder = join(hubCache(options.env), `models--${name.repository.replace("/", "--")}`);
  const cached = await cachedSnapshot(folder, name);
  if (cached !== undefined) return cached;
  if (options.offline || isOffline(options.env)) throw notInCache(name, folder, options.env);
  return withLock(
    join(dirname(folder), ".locks", `nlac--${name.repository.replace("/", "--")}.lock`),
    async () => (await cachedSnapshot(folder, name)) ?? (await fetchSnapshot(folder, name, options)),
    {
      onWait: (holder) =>
        options.report.line(`Waiting for another download of ${name.repository} (${holder}) …`),
    },
  );
}

/**
 * The config.json of a model of the hub: of the cache, or requested without its weights.
 * @throws NlacError as `resolveHubModel`
 */
export async function readHubConfig(
  name: HubName,
  { env, retryMs = 500 }: Pick<HubOptions, "env" | "retryMs">,
): Promise<unknown> {
  const folder = join(hubCache(env), `models--${name.repository.replace("/", "--")}`);
  const commit = await cachedCommit(folder, name.revision);
  if (commit !== undefined) {
    const cached = await readModelJson(join(folder, "snapshots", commit, "config.json"), settingsLimit);
    if (cached !== undefined) return cached;
  }
  if (isOffline(env)) throw notInCache(name, folder, env);
  const hub = hubOf(env);
  const token = accessToken(env);
  const url = `${hub}/${name.repository}/resolve/${encodeURIComponent(name.revision)}/config.json`;
  try {
    const reply = await patientFetch(new URL(hub).origin, token, retryMs)(url);
    if (reply.status !== 200) throw Object.assign(new Error("no config.json"), { statusCode: reply.status });
    return JSON.parse(await reply.text());
  } catch (error) {
    throw hubError(error, name, hub, token !== undefined);
  }
}

function notInCache({ repository, revision }: HubName, folder: string, env: Env): NlacError {
  const why = isOffline(env)
    ? "network access is off (HF_HUB_OFFLINE)"
    : "this command does not download models; nlac generate does";
  return new NlacError(
    "ERR_DOWNLOAD",
    `${repository} is not a local directory, the hub's ${repository} at ${revision} is missing or incomplete in ` +
      `${folder}, and ${why}.`,
  );
}

/** The directory of Hugging Face's tools. */
function toolsHome(env: Env): string {
  return env.HF_HOME || join(env.XDG_CACHE_HOME || join(env.HOME ?? "/", ".cache"), "huggingface");
}

function hubCache(env: Env): string {
  return env.HF_HUB_CACHE || join(toolsHome(env), "hub");
}

const hubOf = (env: Env): string => (env.HF_ENDPOINT || "https://huggingface.co").replace(/\/+$/, "");

const isOffline = (env: Env): boolean => /^(1|true|yes|on)$/i.test(env.HF_HUB_OFFLINE ?? "");

/** The commit of a revision: of a branch, the one when it was downloaded. */
async function cachedCommit(folder: string, revision: string): Promise<string | undefined> {
  if (isCommit(revision)) return revision;
  const commit = (await readModelFile(join(folder, "refs", revision), 256))?.trim();
  return commit !== undefined && isCommit(commit) ? commit : undefined;
}

/** A complete snapshot, if there is one. */
async function cachedSnapshot(folder: string, { file, revision }: HubName): Promise<string | undefined> {
  const commit = await cachedCommit(folder, revision);
  if (commit === undefined) return undefined;
  const snapshot = join(folder, "snapshots", commit);
  if (file !== undefined) return existsSync(join(snapshot, file)) ? join(snapshot, file) : undefined;
  const files = ["config.json", ...((await weightFiles(snapshot)) ?? [singleFile])];
  const isWhole =
    files.every((name) => existsSync(join(snapshot, name))) &&
    (existsSync(join(snapshot, "tokenizer.json")) || existsSync(noTokenizer(folder, commit)));
  return isWhole ? snapshot : undefined;
}

/**
 * The file with which Hugging Face's tools, too, record that a repository has no tokenizer.json. Such
 * a model takes ids only.
 */
function noTokenizer(folder: string, commit: string): string {
  return join(folder, ".no_exist", commit, "tokenizer.json");
}

const isCommit = (revision: string): boolean => /^[0-9a-f]{40}$/.test(revision);

const singleFile = "model.safetensors";
const indexFile = "model.safetensors.index.json";

/** The shards that a snapshot's index names; undefined without an index. */
async function weightFiles(snapshot: string): Promise<string[] | undefined> {
  const path = join(snapshot, indexFile);
  const index = await readModelJson(path, indexLimit);
  if (index === undefined) return undefined;
  const map = (index as { weight_map?: unknown } | null)?.weight_map;
  const names = [...new Set(Object.values(map ?? {}))];
  if (
    names.length === 0 ||
    !names.every((name) => typeof name === "string" && /^[\w.-]+\.safetensors$/.test(name))
  )
    throw new NlacError("ERR_MODEL_FORMAT", `${path}: weight_map does not name .safetensors files.`);
  return names as string[];
}

/** Files of a model other than weights, and their maximum bytes; a repository has some of them. */
const parts = new Map([
  ["config.json", settingsLimit.bytes],
  ["generation_config.json", settingsLimit.bytes],
  ["tokenizer.json", tokenizerLimit.bytes],
  ["tokenizer_config.json", settingsLimit.bytes],
  ["special_tokens_map.json", settingsLimit.bytes],
  ["chat_template.json", settingsLimit.bytes],
  ["chat_template.jinja", settingsLimit.bytes],
  ["additional_chat_templates/tool_use.jinja", settingsLimit.bytes],
  [indexFile, indexLimit.bytes],
]);

/** Most files of a repository, which limits the time and memory of listing them. */
const maxFiles = 100_000;
/** Most replies for a list; the hub's pages have 1000 entries. */
const maxReplies = 200;

async function fetchSnapshot(folder: string, name: HubName, options: HubOptions): Promise<string> {
  const { env, report } = options;
  // Imported only for downloads, because most models are local.
  const { listFiles, modelInfo } = await import("@huggingface/hub");
  const hub = hubOf(env);
  const token = accessToken(env);
  const request = { hubUrl: hub, fetch: patientFetch(new URL(hub).origin, token, options.retryMs ?? 500) };

  const entries = new Map<string, ListFileEntry>();
  let commit: string;
  try {
    const { sha } = await modelInfo({
      ...{ ...request, name: name.repository, revision: name.revision },
      additionalFields: ["sha"],
    });
    commit = sha;
    if (!isCommit(commit)) throw new Error(`${hub} names no commit`);
    let listed = 0;
    const list = { repo: name.repository, revision: commit, recursive: true };
    for await (const entry of listFiles({ ...request, ...list })) {
      if (++listed > maxFiles) throw new Error(`the repository has more than ${maxFiles} files`);
      if (entry.type === "file") entries.set(entry.path, entry);
    }
  } catch (error) {
    throw hubError(error, name, hub, token !== undefined);
  }

  const snapshot = join(folder, "snapshots", commit);
  const fetchFiles = async (paths: readonly string[]): Promise<void> => {
    for (const path of paths) {
      const entry = entries.get(path);
      if (entry === undefined)
        throw new NlacError("ERR_MODEL_NOT_FOUND", `${name.repository} at ${name.revision} has no ${path}.`);
      await fetchFile(entry, join(snapshot, path), folder, {
        url: `${hub}/${name.repository}/resolve/${commit}/${path.split("/").map(encodeURIComponent).join("/")}`,
        token,
        report,
        retryMs: options.retryMs,
      }).catch((error: unknown) => {
        throw hubError(error, name, hub, token !== undefined);
      });
    }
  };

  const about = `${name.repository} at ${name.revision} (${commit.slice(0, 12)})`;
  const bytes = (paths: readonly string[]) =>
    paths.reduce((sum, path) => sum + (entries.get(path)?.size ?? 0), 0);
  if (name.file !== undefined) {
    report.line(`Downloading ${name.file} of ${about}, ${formatBytes(bytes([name.file]))}, into ${folder}.`);
    await fetchFiles([name.file]);
  } else {
    if (!entries.has(indexFile) && !entries.has(singleFile)) {
      throw new NlacError(
        "ERR_MODEL_FORMAT",
        `${about} has neither ${singleFile} nor ${indexFile}: nlac reads safetensors and GGUF, but not pickled weights. ` +
          `For a single file, use ${name.repository}/FILE.gguf.`,
      );
    }
    await fetchFiles([...entries.keys()].filter((path) => parts.has(path)));
    const weights = (await weightFiles(snapshot)) ?? [singleFile];
    report.line(
      `Downloading ${about}: ${formatBytes(bytes(weights))} in ${counted(weights.length, "weight file")}, into ${folder}.`,
    );
    await fetchFiles(weights);
    if (!entries.has("tokenizer.json")) {
      const mark = noTokenizer(folder, commit);
      mkdirSync(dirname(mark), { recursive: true });
      writeAtomically(mark, "");
    }
  }
  // Written last, so that a branch never names an empty snapshot.
  if (name.revision !== commit) {
    const reference = join(folder, "refs", name.revision);
    mkdirSync(dirname(reference), { recursive: true });
    writeAtomically(reference, commit);
  }
  return name.file === undefined ? snapshot : join(snapshot, name.file);
}

/** Downloads one file as a blob named by its checksum, and links it into the snapshot. */
async function fetchFile(
  entry: ListFileEntry,
  path: string,
  folder: string,
  options: { url: string; token: string | undefined; report: Reporter; retryMs: number | undefined },
): Promise<void> {
  if (existsSync(path)) return;
  const checksum = entry.lfs?.oid ?? entry.oid;
  const bytes = entry.lfs?.size ?? entry.size;
  if (checksum === undefined || !/^(?:[0-9a-f]{40}|[0-9a-f]{64})$/.test(checksum))
    throw new NlacError("ERR_DOWNLOAD", `${redact(options.url)}: the hub sent no checksum.`);
  if (!Number.isSafeInteger(bytes) || bytes < 0)
    throw new NlacError("ERR_DOWNLOAD", `${redact(options.url)}: the hub sent no size.`);
  const limit = parts.get(entry.path) ?? Number.POSITIVE_INFINITY;
  if (bytes > limit)
    throw new NlacError(
      "ERR_MODEL_FORMAT",
      `${redact(options.url)} has ${bytes} bytes; at most ${limit} are read.`,
    );
  const blob = join(folder, "blobs", checksum);
  await download({
    ...{ url: options.url, path: blob, checksum, bytes },
    ...(options.token === undefined ? {} : { authorization: `Bearer ${options.token}` }),
    ...(options.retryMs === undefined ? {} : { retryMs: options.retryMs }),
    onProgress: (done, total) => options.report.progress(entry.path, done, total, "bytes"),
  });
  mkdirSync(dirname(path), { recursive: true });
  const link = `${path}.${process.pid}`;
  symlinkSync(relative(dirname(path), blob), link);
  renameSync(link, path);
}

/** The user's token, found as by Hugging Face's tools; undefined without a login. */
function accessToken(env: Env): string | undefined {
  const file = env.HF_TOKEN_PATH || join(toolsHome(env), "token");
  const token = env.HF_TOKEN || (existsSync(file) ? readFileSync(file, "utf8") : "");
  return token.trim() || undefined;
}

/**
 * Sends GET requests, to the hub with the token. The hub names the address of each next page of a
 * list. Retries a busy hub after the delay that it requests.
 */
function patientFetch(hub: string, token: string | undefined, retryMs: number): typeof fetch {
  let replies = 0;
  return async (input, init) => {
    if (++replies > maxReplies)
      throw new NlacError("ERR_DOWNLOAD", `${hub}: the list of files does not end.`);
    const headers = new Headers(init?.headers);
    if (token !== undefined && new URL(String(input)).origin === hub)
      headers.set("authorization", `Bearer ${token}`);
    for (let attempt = 1; ; attempt++) {
      const last = attempt === 4;
      let asked: number | undefined;
      try {
        const { reply } = await fetchReply(String(input), Object.fromEntries(headers));
        if (last || (reply.status < 500 && reply.status !== 408 && reply.status !== 429)) return reply;
        asked = Number(reply.headers.get("retry-after") ?? Number.NaN) * 1000;
      } catch (error) {
        // Errors with a code are final; a broken connection is not.
        if (last || error instanceof NlacError) throw error;
      }
      const pause = retryMs * 2 ** (attempt - 1);
      await sleep(Math.min(60_000, Number.isFinite(asked) ? Math.max(asked!, pause) : pause));
    }
  };
}

function hubError(error: unknown, name: HubName, address: string, known: boolean): NlacError {
  const hub = redact(address);
  const answered = (error as Partial<HubApiError>).statusCode;
  const status = answered ?? ((error as Error).cause as { status?: number } | undefined)?.status;
  if (error instanceof NlacError && status === undefined) return error;
  const model = `${name.repository}${name.revision === "main" ? "" : ` at ${name.revision}`}`;
  const options = { cause: error };
  // The hub also answers 401 for models that do not exist.
  if (status === 401 || status === 403) {
    const advice = known
      ? "your token has no access: accept the model's terms on its page, or use another token"
      : "the model does not exist or needs a login: set HF_TOKEN";
    return new NlacError(
      "ERR_MODEL_NOT_FOUND",
      `${model} is not a local directory, and ${hub} refused access (${status}): ${advice}.`,
      options,
    );
  }
  if (status === 404)
    return new NlacError(
      "ERR_MODEL_NOT_FOUND",
      `There is no model "${model}": neither a local directory nor a model on ${hub}.`,
      options,
    );
  const cause = (error as Error).cause as Error | undefined;
  const [reason, advice] =
    status === undefined
      ? [cause?.message ?? (error as Error).message, "Check the network; behind a proxy, set HTTPS_PROXY."]
      : [`status ${status}`, "Run the command again later."];
  return new NlacError(
    "ERR_DOWNLOAD",
    `${model} is not a local directory, and the request to ${hub} failed: ${reason}. ${advice}`,
    options,
  );
}
