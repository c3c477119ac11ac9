/** The types that a learner computes in, and which of them "auto" is. */

/** What the CPU's kernels are compiled for; on ARM the baseline is NEON. */
export type InstructionSet = "baseline" | "avx2" | "avx512" | "avx512_bf16";

export const dtypeOptions = ["auto", "bfloat16", "float32"] as const;
export type DTypeOption = (typeof dtypeOptions)[number];
export type LearnerDType = Exclude<DTypeOption, "auto">;

/** The faster type on a device, or on a CPU with this instruction set (docs/numerics.md has the measurements). */
export function fastestDtype(device: string, instructionSet: InstructionSet): LearnerDType {
  return device === "cpu" && instructionSet === "baseline" ? "float32" : "bfloat16";
}

/** What an estimate counts with, which knows no processor. */
export function estimatedDtype(dtype: DTypeOption): LearnerDType {
  return dtype === "auto" ? "bfloat16" : dtype;
}
