/**
 * Gradients in float32 of every parameter of every family, beside a float64 run of transformers.
 */

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { Learner } from "../../lib/learner/learner.ts";
import { testDevice } from "../support/device.ts";
import { readSafetensors } from "../support/safetensors.ts";
import { inDirectory } from "../support/tiny.ts";

const models = fileURLToPath(new URL("../fixtures/models", import.meta.url));
const names = readdirSync(models).filter((name) => existsSync(join(models, name, "reference.safetensors")));

/** A tensor of 64-bit integers in a safetensors file. */
function integers(path: string, key: string): number[] {
  const file = readFileSync(path);
  const begin = 8 + Number(file.readBigUInt64LE());
  const header = JSON.parse(file.toString("utf8", 8, begin));
  const [from, to] = header[key].data_offsets as [number, number];
  return Array.from({ length: (to - from) / 8 }, (_, i) => Number(file.readBigInt64LE(begin + from + 8 * i)));
}

test.each(names)("%s has the gradients of transformers", async (name) => {
  const path = join(models, name, "reference.safetensors");
  const expected = readSafetensors(path);
  await using learner = await Learner.load(join(models, name), { dtype: "float32", device: testDevice });
  const ids = integers(path, "ids");
  const texts = integers(path, "lengths").map((length) => ids.splice(0, length));
  await learner.tokenNll(
    texts.flatMap(([first, ...response]) => (response.length > 0 ? [{ prompt: [first!], response }] : [])),
  );
  await inDirectory(async (directory) => {
    await learner.save(directory);
    const gradients = readSafetensors(join(directory, "gradients.safetensors"));
    expect(gradients.size).toBeGreaterThan(10);
    for (const [key, { values }] of gradients) {
      const reference = expected.get(`gradient.${key}`)!.values;
      const difference = Math.hypot(...values.map((value, i) => value - reference[i]!));
      // Relative to the gradient's norm, or to 1 if that is smaller.
      expect(difference / Math.max(1, Math.hypot(...reference)), key).toBeLessThan(1e-5);
    }
  });
});
