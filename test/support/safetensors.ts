/**
 * Reads safetensors files of float32 tensors, and loads a learner with a value head of given
 * numbers.
 */

import { closeSync, openSync, readFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { expect } from "vitest";
import { writeChecksums } from "../../lib/files/checksums.ts";
import { Learner } from "../../lib/learner/learner.ts";
import type { LearnerOptions } from "../../lib/learner/options.ts";
import { inDirectory } from "./tiny.ts";

/** The tensors of a file and where each begins in it. */
export function readSafetensors(path: string): Map<string, { values: Float32Array; at: number }> {
  const file = readFileSync(path);
  const begin = 8 + Number(file.readBigUInt64LE());
  const header = JSON.parse(file.toString("utf8", 8, begin)) as Record<
    string,
    { data_offsets: [number, number] }
  >;
  const tensors = new Map<string, { values: Float32Array; at: number }>();
  for (const [name, { data_offsets }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [from, to] = data_offsets.map((offset) => begin + offset) as [number, number];
    tensors.set(name, { values: new Float32Array(new Uint8Array(file.subarray(from, to)).buffer), at: from });
  }
  return tensors;
}

/**
 * The model at `path` in float32 with this value head: as a learner saves it, with the head's
 * numbers put in.
 */
export async function learnerWithValueHead(
  path: string,
  head: { weight: readonly number[]; bias: readonly number[] },
  options: LearnerOptions = {},
): Promise<Learner> {
  const own = { dtype: "float32", ...options, heads: "value" } as const;
  return inDirectory(async (directory) => {
    await using fresh = await Learner.load(path, own);
    await fresh.save(directory);
    const file = join(directory, "model.safetensors");
    const tensors = readSafetensors(file);
    const written = openSync(file, "r+");
    for (const part of ["weight", "bias"] as const) {
      const { values, at } = tensors.get(`value_head.${part}`)!;
      expect(values.every((value) => value === 0)).toBe(true);
      writeSync(written, new Uint8Array(Float32Array.from(head[part]).buffer), 0, undefined, at);
    }
    closeSync(written);
    await writeChecksums(directory);
    return Learner.load(directory, own);
  });
}

/** Checks a learner's pending gradients against the tensors PREFIX/NAME of a recorded file. */
export async function expectGradients(learner: Learner, recorded: string, prefix: string): Promise<void> {
  const references = readSafetensors(recorded);
  await inDirectory(async (directory) => {
    await learner.save(directory);
    const pending = readSafetensors(join(directory, "gradients.safetensors"));
    const names = [...references.keys()].filter((name) => name.startsWith(`${prefix}/`));
    expect(names.length).toBeGreaterThan(0);
    for (const [name, { values }] of pending) {
      // What the recorded loss does not depend on.
      if (!references.has(`${prefix}/${name}`))
        expect([name, values.every((value) => value === 0)]).toEqual([name, true]);
    }
    for (const name of names) {
      const reference = references.get(name)!.values;
      const { values } = pending.get(name.slice(prefix.length + 1))!;
      expect(values.length).toBe(reference.length);
      const difference = Math.hypot(...values.map((value, i) => value - reference[i]!));
      expect([name, difference / Math.hypot(...reference) < 1e-4]).toEqual([name, true]);
    }
  });
}
