/** The data types of a learner, and the resolution of "auto". */

/** The instruction sets of the CPU kernels; on ARM the baseline is NEON. */
export type InstructionSet = "baseline" | "avx2" | "avx512" | "avx512_bf16" | "amx_bf16";

/** The type that a learner computes in. */
export type LearnerDType = "bfloat16" | "float32";
export const dtypeOptions = ["auto", "bfloat16", "float32"] as const;

/** The faster type on a device, or on a CPU with this instruction set (see docs/numerics.md). */
export function fastestDtype(device: string, instructionSet: InstructionSet): LearnerDType {
  return device === "cpu" && instructionSet === "baseline" ? "float32" : "bfloat16";
}

/** The type for an estimate, which does not depend on this machine's processor. */
export function estimatedDtype(dtype: LearnerDType | "auto"): LearnerDType {
  return dtype === "auto" ? "bfloat16" : dtype;
}

/** Bytes per number of that type. */
export function estimatedBytes(dtype: LearnerDType | "auto"): number {
  return estimatedDtype(dtype) === "float32" ? 4 : 2;
}
