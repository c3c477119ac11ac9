/** The machine of a measurement. */

import { spawnSync } from "node:child_process";
import { availableParallelism, cpus, release, totalmem } from "node:os";
import { setTimeout } from "node:timers/promises";
import { variantOf } from "../native/load.ts";

export interface Machine {
  cpu: string;
  /** The limit by NLAC_INSTRUCTION_SET for nlac and the Python libraries; absent: none. */
  instructionSet?: string;
  cores: number;
  /** Bytes. */
  memory: number;
  gpu: string | null;
  kernel: string;
  node: string;
  /** Share of processor time in use in the second before the benchmark. */
  busy: number;
}

/** Takes one second, to measure other load. */
export async function describeMachine(device: string): Promise<Machine> {
  const limit = process.env.NLAC_INSTRUCTION_SET;
  return {
    ...(limit ? { instructionSet: limit } : {}),
    cpu: cpus()[0]?.model.trim() ?? "unknown CPU",
    cores: availableParallelism(),
    memory: totalmem(),
    gpu: variantOf(device) === "cuda" ? gpuName(device) : null,
    kernel: `${process.platform} ${release()}`,
    node: process.versions.node,
    busy: await busyShare(),
  };
}

/** The processor or GPU, and its instruction set limit. */
export function nameOf({ gpu, cpu, instructionSet }: Machine): string {
  return gpu ?? (instructionSet === undefined ? cpu : `${cpu} limited to ${instructionSet}`);
}

/** Whether other load is low enough for a benchmark. */
export function isQuiet({ busy }: Machine): boolean {
  return busy <= 0.1;
}

/** Not the load average, which still includes a benchmark that has just ended. */
async function busyShare(): Promise<number> {
  const times = () =>
    cpus().map(({ times: { idle, ...taken } }) => [idle, sum(Object.values(taken))] as const);
  const before = times();
  await setTimeout(1000);
  const after = times();
  const idle = sum(after.map((time, i) => time[0] - before[i]![0]));
  const taken = sum(after.map((time, i) => time[1] - before[i]![1]));
  return taken / (idle + taken);
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function gpuName(device: string): string | null {
  const id = device.split(":")[1] ?? "0";
  const query = [`--id=${id}`, "--query-gpu=name", "--format=csv,noheader"];
  const { status, stdout } = spawnSync("nvidia-smi", query, { encoding: "utf8" });
  return status === 0 ? stdout.trim() : null;
}
