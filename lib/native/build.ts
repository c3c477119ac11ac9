/** Builds the native part with CMake, for `nlac setup`, scripts/build-native.mjs and `node-gyp`. */

import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { availableParallelism, freemem, totalmem } from "node:os";
import { dirname, join } from "node:path";
import { NlacError } from "../base/errors.ts";
import { type Platform, thisPlatform } from "../base/platform.ts";
import { type Reporter, silent } from "../display/reporter.ts";
import { withLock } from "../files/lock.ts";
import { ADDON_FILES } from "./load.ts";
import { buildRoot, type Env, nativeSources, packageRoot } from "./paths.ts";

export interface BuildOptions {
  /** Subdirectory of `buildRoot`: "cpu", "cuda", "sanitize-thread", "fuzz". */
  name: string;
  /** CMake definitions: -DKEY=VALUE. */
  definitions: Record<string, string>;
  /** Default: all targets. */
  targets?: readonly string[];
  root?: string;
  env?: Env;
  report?: Reporter;
  /** Called before the build, while no other process builds here. Nothing is built if it returns false. */
  prepare?: () => boolean;
  /** Concurrent compiler processes. Default: one per core, limited by free memory. */
  jobs?: number;
}

export interface Tools {
  cmake: string | undefined;
  ninja: string | undefined;
  make: string | undefined;
  compiler: string | undefined;
}

// Memory that compiling a file with torch's headers needs.
const BYTES_A_JOB = 1.5e9;

/** Configures and builds. Returns the build directory. Throws ERR_ADDON_NOT_FOUND with advice. */
export async function buildNative(options: BuildOptions): Promise<string> {
  const { root = packageRoot(), env = process.env, report = silent } = options;
  const tools = findTools(env);
  requireTools(tools);
  const directory = join(buildRoot(root, env), options.name);
  mkdirSync(directory, { recursive: true });
  return withLock(
    join(dirname(directory), `.${options.name}.lock`),
    async () => {
      if (options.prepare?.() === false) return directory;
      const generator = tools.ninja ? "Ninja" : "Unix Makefiles";
      discardForeignCache(directory, root, generator, options.definitions);
      const log = join(directory, "build.log");
      const definitions = Object.entries(options.definitions).map(([key, value]) => `-D${key}=${value}`);
      const started = performance.now();
      await run(["cmake", "-S", root, "-B", directory, "-G", generator, ...definitions], "configure");
      const jobs =
        options.jobs ??
        Math.max(1, Math.min(availableParallelism(), Math.floor(spareMemory() / BYTES_A_JOB)));
      const targets = options.targets?.length ? ["--target", ...options.targets] : [];
      await run(["cmake", "--build", directory, "--parallel", String(jobs), ...targets], "build");
      report.line(
        `Built ${options.name} in ${((performance.now() - started) / 1000).toFixed(0)} s (${directory}).`,
      );
      return directory;

      async function run(argv: string[], step: string): Promise<void> {
        const { status, output } = await runLogged(argv, root, env, report, `${step} ${options.name}`);
        writeFileSync(log, `$ ${argv.join(" ")}\n${output}`, { flag: step === "configure" ? "w" : "a" });
        if (status === 0) return;
        throw new NlacError(
          "ERR_ADDON_NOT_FOUND",
          `The native ${step} failed (exit ${status}). See the log: ${log}.\n${faults(output)}`,
        );
      }
    },
    { onWait: (holder) => report.line(`Waiting for another build (${holder}) …`) },
  );
}

/** Whether the addon in `directory` is missing or older than its sources. */
export function isStaleBuild(directory: string, root: string): boolean {
  const addons = ADDON_FILES.map((name) => join(directory, name));
  if (!addons.every((file) => existsSync(file))) return true;
  const built = Math.max(...addons.map((file) => statSync(file).mtimeMs));
  return nativeSources.some((source) => newest(join(root, source)) > built);
}

/** Memory that a build may use, bytes. macOS counts the pages of its file cache as used. */
function spareMemory(): number {
  return thisPlatform.os === "darwin" ? totalmem() / 2 : freemem();
}

export function findTools(env: Env): Tools {
  const has = (program: string) =>
    spawnSync(program, ["--version"], { env: { ...env } as NodeJS.ProcessEnv }).status === 0
      ? program
      : undefined;
  return {
    cmake: has("cmake"),
    ninja: has("ninja"),
    make: has("make"),
    compiler: (env.CXX ? has(env.CXX) : undefined) ?? has("c++") ?? has("g++") ?? has("clang++"),
  };
}

function requireTools(tools: Tools): void {
  const missing = [
    ...(tools.cmake ? [] : ["cmake"]),
    ...(tools.ninja || tools.make ? [] : ["ninja"]),
    ...(tools.compiler ? [] : ["g++"]),
  ];
  if (missing.length === 0) return;
  throw new NlacError(
    "ERR_ADDON_NOT_FOUND",
    `Building the native addon needs ${missing.join(", ")}. Run \`${installCommand(missing)}\`.`,
  );
}

/** A command that installs `programs` on this distribution, or on macOS. */
export function installCommand(
  programs: readonly string[],
  osRelease = readOsRelease(),
  { os }: Platform = thisPlatform,
): string {
  if (os === "darwin") {
    const others = programs.filter((program) => program !== "g++");
    const commands = [
      ...(others.length < programs.length ? ["xcode-select --install"] : []),
      ...(others.length > 0 ? [`brew install ${others.join(" ")}`] : []),
    ];
    return commands.join(" && ");
  }
  const like = `${/^ID=(.*)$/m.exec(osRelease)?.[1] ?? ""} ${/^ID_LIKE=(.*)$/m.exec(osRelease)?.[1] ?? ""}`;
  const named = (names: Record<string, string>) => programs.map((p) => names[p] ?? p).join(" ");
  if (/debian|ubuntu/.test(like)) return `apt-get install -y ${named({ ninja: "ninja-build" })}`;
  if (/fedora|rhel|centos/.test(like))
    return `dnf install -y ${named({ ninja: "ninja-build", "g++": "gcc-c++" })}`;
  if (/suse/.test(like)) return `zypper install -y ${named({ "g++": "gcc-c++" })}`;
  if (/arch/.test(like)) return `pacman -S --noconfirm ${named({ "g++": "gcc" })}`;
  return `your package manager for: ${programs.join(" ")}`;
}

function readOsRelease(): string {
  return existsSync("/etc/os-release") ? readFileSync("/etc/os-release", "utf8").replaceAll('"', "") : "";
}

/** Deletes a build directory that was configured for other sources, generator or libtorch. */
function discardForeignCache(
  directory: string,
  root: string,
  generator: string,
  definitions: Record<string, string>,
): void {
  const file = join(directory, "CMakeCache.txt");
  if (!existsSync(file)) return;
  const text = readFileSync(file, "utf8");
  const value = (key: string) => new RegExp(`^${key}:[^=]*=(.*)$`, "m").exec(text)?.[1];
  const same =
    value("CMAKE_HOME_DIRECTORY") === root &&
    value("CMAKE_GENERATOR") === generator &&
    (definitions.NLAC_LIBTORCH === undefined || value("NLAC_LIBTORCH") === definitions.NLAC_LIBTORCH);
  if (same) return;
  for (const name of readdirSync(directory)) rmSync(join(directory, name), { recursive: true, force: true });
}

function runLogged(
  argv: string[],
  cwd: string,
  env: Env,
  report: Reporter,
  label: string,
): Promise<{ status: number | string; output: string }> {
  return new Promise((resolve, reject) => {
    const [program = "", ...rest] = argv;
    const child = spawn(program, rest, {
      cwd,
      env: env as NodeJS.ProcessEnv,
      stdio: ["ignore", "pipe", "pipe"],
    });
    let output = "";
    // The first file, torch's headers, takes long: show what is in progress before it is done.
    report.progress(label, 0, undefined, "steps");
    const take = (chunk: Buffer) => {
      const text = chunk.toString("utf8");
      output += text;
      // Ninja prints [done/total], make [ percent%].
      const [, done, total] = [...text.matchAll(/\[\s*(\d+)(?:\/(\d+)|(?=%))/g)].at(-1) ?? [];
      if (done !== undefined)
        report.progress(label, Number(done), total === undefined ? 100 : Number(total), "steps");
    };
    child.stdout.on("data", take);
    child.stderr.on("data", take);
    child.on("error", reject);
    child.on("close", (code, signal) => resolve({ status: code ?? signal ?? 1, output }));
  });
}

/** The part of a build's output with the error. */
function faults(output: string): string {
  const lines = output.split("\n");
  const first = lines.findIndex((line) => /^FAILED:|\berror:|CMake Error|ld returned|Killed/.test(line));
  return (first < 0 ? lines.slice(-30) : lines.slice(first, first + 40)).join("\n");
}

function newest(path: string): number {
  if (!existsSync(path)) return 0;
  const stat = statSync(path);
  if (!stat.isDirectory()) return stat.mtimeMs;
  return Math.max(0, ...readdirSync(path).map((name) => newest(join(path, name))));
}
