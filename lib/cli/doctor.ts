/** `nlac doctor`: what was found, what is missing, and a fix for each problem. */

import { spawnSync } from "node:child_process";
import { existsSync, statfsSync } from "node:fs";
import { cpus, totalmem } from "node:os";
import { dirname, join } from "node:path";
import type { Command } from "commander";
import { counted } from "../base/counted.ts";
import { fastestDtype } from "../base/dtype.ts";
import { NlacError } from "../base/errors.ts";
import { cpuFeatures, textOf } from "../base/platform.ts";
import { version } from "../base/version.ts";
import { formatBytes } from "../display/reporter.ts";
import { cachedModel, DEFAULT_MODEL, isCached, KNOWN_MODELS } from "../hub/resolve-model.ts";
import { findTools, installCommand, isStaleBuild } from "../native/build.ts";
import {
  describeRejected,
  type FindOptions,
  findLibtorch,
  type Libtorch,
  TORCH_VERSION,
} from "../native/libtorch.ts";
import { findAddon, hasNvidiaDriver, threadCount, type Variant } from "../native/load.ts";
import { cacheRoot, type Env, packageRoot } from "../native/paths.ts";
import { whyUnfit } from "../native/prebuilt.ts";
import { probeAddon } from "../native/probe.ts";
import { describeMachine, type Machine, thisMachine, whyUnsupported } from "../native/system.ts";

export interface Check {
  name: string;
  /** "note": worth knowing, but not a problem. */
  status: "ok" | "note" | "fault";
  detail: string;
  /** What fixes the problem, or helps with it: mostly a command. */
  fix?: string;
}

export interface Diagnosis {
  nlac: string;
  ok: boolean;
  checks: Check[];
}

export interface DoctorOptions extends FindOptions {
  root?: string;
}

export function registerDoctor(program: Command): void {
  program
    .command("doctor")
    .description("check this machine: libtorch, addon, CPU, GPU, tools, model")
    .option("--cuda", "check that training on a GPU works; anything missing for it is then a fault")
    .option("--json", "print the checks as JSON")
    .addHelpText("after", "\nExamples:\n  nlac doctor\n  nlac doctor --cuda --json")
    .action((flags: { cuda?: boolean; json?: boolean }) => {
      const diagnosis = diagnose({ variant: flags.cuda ? "cuda" : "cpu" });
      console.log(flags.json ? JSON.stringify(diagnosis, null, 2) : format(diagnosis));
      if (!diagnosis.ok) process.exitCode = 1;
    });
}

export function diagnose(options: DoctorOptions): Diagnosis {
  const { variant = "cpu", env = process.env, root = packageRoot() } = options;
  const { check: libtorchCheck, libtorch } = checkLibtorch(options);
  const addon = checkAddon(variant, libtorch, root, env);
  const checks = [
    checkNode(),
    checkSystem(),
    checkCpu(env),
    checkMemory(env),
    libtorchCheck,
    ...addon,
    ...checkTools(env, addon[0]?.status === "ok"),
    ...checkGpu(variant, root),
    checkModel(env),
  ];
  return { nlac: version, ok: checks.every((check) => check.status !== "fault"), checks };
}

export function format(diagnosis: Diagnosis): string {
  const mark = { ok: "ok   ", note: "note ", fault: "FAULT" };
  const lines = diagnosis.checks.flatMap((check) => [
    `${mark[check.status]} ${check.name.padEnd(9)} ${check.detail.replaceAll("\n", `\n${" ".repeat(16)}`)}`,
    ...(check.fix && check.status !== "ok" ? [`${" ".repeat(16)}→ ${check.fix}`] : []),
  ]);
  const faults = diagnosis.checks.filter((check) => check.status === "fault").length;
  const verdict = faults === 0 ? "No faults." : `${counted(faults, "fault")}.`;
  return [`nlac ${diagnosis.nlac}`, ...lines, verdict].join("\n");
}

function checkNode(): Check {
  const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
  const fits = major > 22 || (major === 22 && minor >= 12) || (major === 20 && minor >= 19);
  const detail = `${process.versions.node}, Node-API ${process.versions.napi}`;
  return fits
    ? { name: "node", status: "ok", detail }
    : {
        name: "node",
        status: "fault",
        detail: `${detail}; 20.19, 22.12 or later is needed`,
        fix: "nvm install 20",
      };
}

export function checkSystem(machine: Machine = thisMachine()): Check {
  const detail = describeMachine(machine);
  const unsupported = whyUnsupported(machine);
  if (unsupported !== undefined)
    return {
      ...{ name: "system", status: "fault", detail: `${detail}; ${unsupported}` },
      fix: "docker run -it node:22-bookworm",
    };
  if (machine.os === "darwin")
    return { name: "system", status: "note", detail: `${detail}; nlac has not been tried on macOS yet` };
  return { name: "system", status: "ok", detail };
}

function checkCpu(env: Env): Check {
  const features = cpuFeatures();
  const none = process.arch === "arm64" ? "NEON" : "no AVX2";
  const model = cpus()[0]?.model ?? "unknown CPU";
  const shown = ["avx2", "avx512f", "avx512_bf16", "amx_bf16"].filter((feature) => features.has(feature));
  const threads = threadCount(env);
  return {
    name: "cpu",
    status: "ok",
    detail: `${model}, ${counted(cpus().length, "processor")}, ${counted(threads, "thread")} per operation; ${shown.join(" ") || none}`,
  };
}

function checkMemory(env: Env): Check {
  let place = cacheRoot(env);
  while (!existsSync(place)) place = dirname(place);
  const { bavail, bsize } = statfsSync(place);
  const detail = `${formatBytes(totalmem())} of memory; ${formatBytes(bavail * bsize)} free in ${cacheRoot(env)}`;
  if (totalmem() >= 3.5e9) return { name: "memory", status: "ok", detail };
  return {
    name: "memory",
    status: "note",
    detail: `${detail}; little memory: estimate a training first`,
    fix: "npx nlac train RECIPE --dry-run",
  };
}

function checkLibtorch(options: DoctorOptions): { check: Check; libtorch?: Libtorch } {
  const fix = options.variant === "cuda" ? "npx nlac setup --cuda" : "npx nlac setup";
  try {
    const { found, rejected } = findLibtorch(options);
    if (!found) {
      const detail = `${TORCH_VERSION} was not found. Searched:\n${describeRejected(rejected)}`;
      return { check: { name: "libtorch", status: "fault", detail, fix } };
    }
    const build = found.cuda ? `CUDA ${found.cuda} build` : "CPU build";
    const detail = `${found.version} (${build}) at ${found.site}, found by ${found.source}`;
    return { check: { name: "libtorch", status: "ok", detail }, libtorch: found };
  } catch (error) {
    if (!(error instanceof NlacError)) throw error;
    const unset = error.code === "ERR_CONFIG" ? fix : `unset NLAC_LIBTORCH && ${fix}`;
    return {
      check: { name: "libtorch", status: "fault", detail: `${error.code}: ${error.message}`, fix: unset },
    };
  }
}

function checkAddon(variant: Variant, libtorch: Libtorch | undefined, root: string, env: Env): Check[] {
  const fix = variant === "cuda" ? "npx nlac setup --cuda" : "npx nlac setup";
  const fault = (detail: string): Check[] => [{ name: "addon", status: "fault", detail, fix }];
  const installation = findAddon(variant, root, env);
  if (!installation) return fault(`the ${variant} build is missing`);
  if (!libtorch) return fault("cannot be tested without libtorch");
  const { directory } = installation;
  const unfit = whyUnfit(directory);
  if (unfit !== undefined) return fault(`${directory} cannot be used: ${unfit}`);
  const probe = probeAddon(installation, libtorch);
  if (!probe.loads) return fault(`${directory} does not load: ${probe.reason}`);
  const inCheckout = directory === join(root, "build", variant);
  const loads = `${variant} build loads with torch ${probe.torch} (${directory})`;
  const checks: Check[] =
    inCheckout && isStaleBuild(directory, root)
      ? [{ name: "addon", status: "note", detail: `${loads}; older than its sources`, fix }]
      : [{ name: "addon", status: "ok", detail: loads }];
  const { instructionSet } = probe;
  checks.push({
    name: "kernels",
    status: instructionSet === "baseline" && process.arch === "x64" ? "note" : "ok",
    detail: `instruction set ${instructionSet}; dtype "auto" is ${fastestDtype("cpu", instructionSet)} on the CPU${
      env.NLAC_INSTRUCTION_SET ? ` (limited by NLAC_INSTRUCTION_SET=${env.NLAC_INSTRUCTION_SET})` : ""
    }`,
  });
  if (variant === "cuda" && !probe.cuda)
    checks.push({ name: "cuda", status: "fault", detail: "torch finds no usable GPU", fix: "nvidia-smi" });
  const detail = probe.openmp.join(", ") || "none";
  if (probe.openmp.length <= 1) checks.push({ name: "openmp", status: "ok", detail });
  else
    checks.push({
      ...{ name: "openmp", status: "fault", detail: `two thread pools compete for the cores: ${detail}` },
      fix:
        process.platform === "darwin"
          ? "unset DYLD_INSERT_LIBRARIES DYLD_LIBRARY_PATH"
          : "unset LD_PRELOAD LD_LIBRARY_PATH",
    });
  return checks;
}

/** The tools are needed only to build the addon: a missing one is a note if the addon loads. */
function checkTools(env: Env, built: boolean): Check[] {
  const tools = findTools(env);
  const say = (program: string | undefined) =>
    program === undefined
      ? undefined
      : spawnSync(program, ["--version"], { encoding: "utf8" }).stdout.split("\n")[0];
  const lacking = built ? "note" : "fault";
  const check = (name: string, program: string | undefined, wanted: string): Check =>
    program
      ? { name, status: "ok", detail: say(program) ?? program }
      : {
          name,
          status: lacking,
          detail: "not found; needed to build the addon",
          fix: installCommand([wanted]),
        };
  const ninja = check("ninja", tools.ninja, "ninja");
  if (!tools.ninja && tools.make)
    Object.assign(ninja, { status: "note", detail: `not found; the slower ${say(tools.make)} is used` });
  return [check("cmake", tools.cmake, "cmake"), ninja, check("compiler", tools.compiler, "g++")];
}

function checkGpu(variant: Variant, root: string): Check[] {
  const lacking = variant === "cuda" ? "fault" : "note";
  const query = spawnSync(
    "nvidia-smi",
    ["--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"],
    { encoding: "utf8", timeout: 20_000 },
  );
  if (query.status === 0) {
    const detail = query.stdout.trim().split("\n").join("; ");
    const gpu: Check = { name: "gpu", status: "ok", detail };
    const driver = Number(/\b(\d{3})\.\d+/.exec(detail)?.[1] ?? "0");
    // CUDA 13 runs on drivers of the 580 branch and later.
    if (driver > 0 && driver < 580)
      Object.assign(gpu, {
        status: lacking,
        detail: `${detail}; CUDA 13 needs driver 580 or later`,
        fix: "update NVIDIA's driver: https://www.nvidia.com/drivers",
      });
    else if (variant === "cpu" && !findAddon("cuda", root))
      Object.assign(gpu, {
        status: "note",
        detail: `${detail}; not used by the CPU build`,
        fix: "npx nlac setup --cuda",
      });
    return [gpu];
  }
  const driver = /\b(\d{3}\.[\d.]+)\b/.exec(textOf("/proc/driver/nvidia/version") ?? "")?.[1];
  if (hasNvidiaDriver())
    return [
      {
        name: "gpu",
        status: lacking,
        detail: `driver ${driver ?? "found"}, but nvidia-smi failed`,
        fix: "nvidia-smi",
      },
    ];
  const none: Check = { name: "gpu", status: lacking, detail: "no NVIDIA driver" };
  return [variant === "cuda" ? { ...none, fix: "ls /dev/nvidiactl /proc/driver/nvidia/version" } : none];
}

function checkModel(env: Env): Check {
  const model = KNOWN_MODELS.find((known) => known.name === DEFAULT_MODEL) ?? KNOWN_MODELS[0]!;
  const path = cachedModel(model, env);
  if (isCached(model, env)) return { name: "model", status: "ok", detail: path };
  return {
    ...{
      name: "model",
      status: "note",
      detail: `${model.name} is downloaded at first use (${formatBytes(model.bytes)})`,
    },
    fix: `npx nlac generate ${model.name} Hello`,
  };
}
