/** A text of 32,768 tokens: prefilled in chunks, with windows and YaRN, as in one pass. */

import { cpSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { Learner } from "../../lib/learner/learner.ts";
import { inDirectory } from "../support/tiny.ts";

const olmo3 = fileURLToPath(new URL("../fixtures/models/olmo3", import.meta.url));
const length = 32_768;

/**
 * OLMo 3's fixture with a longer context: a layer with a window, and one that YaRN stretches
 * 32-fold.
 */
function lengthen(directory: string): void {
  cpSync(olmo3, directory, { recursive: true });
  const path = join(directory, "config.json");
  const config = JSON.parse(readFileSync(path, "utf8"));
  config.max_position_embeddings = length;
  config.sliding_window = 1000;
  const { full_attention: full } = config.rope_parameters;
  Object.assign(full, { factor: 32, original_max_position_embeddings: 1024 });
  writeFileSync(path, JSON.stringify(config));
}

test("is continued by the tokens and log probabilities of a pass without chunks", async () => {
  await inDirectory(async (directory) => {
    const model = join(directory, "long");
    lengthen(model);
    await using learner = await Learner.load(model, { dtype: "float32" });
    const { vocabSize } = learner.info;
    const added = 24;
    const prompt = Array.from(
      { length: length - added },
      (_, i) => (i * i * 31 + i * 7 + (i >> 5)) % vocabSize,
    );
    const [generation] = await learner.generate([{ tokens: prompt, maxNewTokens: added, temperature: 0 }]);
    const { tokens, logProbs } = generation!;
    expect(tokens.length).toBeGreaterThan(0);
    const [whole] = await learner.logProbs([{ prompt, response: tokens }]);
    for (const [i, logProb] of whole!.entries()) expect(Math.abs(logProb - logProbs[i]!)).toBeLessThan(1e-4);
    // What the far text says matters: a window or a position that is cut off would give other
    // values.
    const [near] = await learner.logProbs([{ prompt: prompt.slice(-4096), response: tokens }]);
    expect(Math.max(...near!.map((logProb, i) => Math.abs(logProb - whole![i]!)))).toBeGreaterThan(1e-3);
  });
}, 300_000);
