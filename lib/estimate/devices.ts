/** Memory and peak performance of devices, from their data sheets. */

import { availableParallelism, totalmem } from "node:os";
import { cpuFeatures } from "../base/platform.ts";

export interface Device {
  name: string;
  kind: "cpu" | "cuda";
  /**
   * Bytes: a data sheet's gigabyte as 10^9 bytes. The rest of a card's memory is for the driver.
   */
  memory: number;
  /** Additions and multiplications per second, without sparsity. */
  flops: { bfloat16: number; float32: number };
  /** Memory bandwidth, bytes per second. */
  bandwidth: number;
  /** Assumed utilisation: of `flops` in training and prefill, of `bandwidth` in decoding. */
  reached: { flops: number; bandwidth: number };
  /** Of a CPU: the cores whose measured performance is assumed. */
  cores?: string;
}

const tera = 1e12;

/**
 * Decoding 32 requests with Qwen2.5-7B's shape reached 0.58 of an H100's bandwidth, the KL of token
 * losses 0.52 of its operations. A training step of this size has not been timed: 0.4 is assumed.
 */
export const gpuReached = { flops: 0.4, bandwidth: 0.6 };

/**
 * Bytes per second that a GPU receives from other ranks: over NVLink in a machine with 8 GPUs, or
 * by 8 network adapters of 400 Gbit/s, which a ring over machines shares. `reached` as of memory.
 */
export const links = { machine: 450e9, network: 400e9, gpusPerMachine: 8, reached: gpuReached.bandwidth };

function gpu(
  name: string,
  gigabytes: number,
  bfloat16: number,
  float32: number,
  terabytesASecond: number,
): Device {
  return {
    name,
    kind: "cuda",
    memory: gigabytes * 1e9,
    flops: { bfloat16: bfloat16 * tera, float32: float32 * tera },
    bandwidth: terabytesASecond * tera,
    reached: gpuReached,
  };
}

export const gpus: readonly Device[] = [
  gpu("RTX 4090", 24, 165, 82.6, 1.01),
  gpu("A100 40 GB", 40, 312, 19.5, 1.56),
  gpu("L40S", 48, 362, 91.6, 0.864),
  gpu("A100 80 GB", 80, 312, 19.5, 2.04),
  gpu("H100", 80, 989, 67, 3.35),
  gpu("H20", 96, 148, 44, 4.0),
  gpu("H200", 141, 989, 67, 4.8),
  gpu("B200", 180, 2250, 75, 8.0),
];

/** What one CPU core reaches. */
type Core = Device["flops"] & Pick<Device, "bandwidth"> & { name: string };

/**
 * Measured on two cores each (docs/experiments.md). With products of bfloat16 (AVX-512 BF16, AMX):
 * 950 tokens/s of training and 118 of generation by SmolLM2-135M; another processor reached a third
 * in training. Others: 165 and 65 with AVX2.
 */
const bfloat16Core: Core = {
  name: "an AMD EPYC with AVX-512 and bfloat16",
  bfloat16: 0.35 * tera,
  float32: 0.17 * tera,
  bandwidth: 16e9,
};
const otherCore: Core = {
  name: "an AMD EPYC with AVX2",
  bfloat16: 0.06 * tera,
  float32: 0.06 * tera,
  bandwidth: 9e9,
};

export function cpu(name: string, cores: number, memory: number, core = bfloat16Core): Device {
  return {
    name,
    kind: "cpu",
    memory,
    flops: { bfloat16: cores * core.bfloat16, float32: cores * core.float32 },
    bandwidth: cores * core.bandwidth,
    reached: { flops: 1, bandwidth: 1 },
    cores: core.name,
  };
}

/** @param limit the best instruction set that nlac may use; undefined: the processor's */
export function thisMachine(features = cpuFeatures(), limit = process.env.NLAC_INSTRUCTION_SET): Device {
  const allowed = limit === undefined || limit === "avx512_bf16" || limit === "amx_bf16";
  const core = allowed && features.has("avx512_bf16") ? bfloat16Core : otherCore;
  // A container's limit; a number beyond any machine's memory, or 0, if there is none.
  const constrained = process.constrainedMemory() || Number.POSITIVE_INFINITY;
  return cpu("this machine", availableParallelism(), Math.min(totalmem(), constrained), core);
}
