import { join } from "node:path";
import { expect, test } from "vitest";
import { Corrections } from "../../lib/agents/corrections.ts";
import type { LanguageModel, ScoredText } from "../../lib/model/language-model.ts";
import { inDirectory } from "../support/tiny.ts";

test("counts by correction: a deletion or a restored checkpoint does not move the counts of others", () =>
  inDirectory(async (directory) => {
    const imitated: number[] = [];
    const model = {
      tokenNll: async (texts: ScoredText[]) => {
        imitated.push(...texts.map(({ prompt }) => prompt[0]!));
        return texts.map(() => Float32Array.of(1));
      },
      step: async () => ({ gradNorm: 1, skipped: false }),
    } as unknown as LanguageModel;
    const path = join(directory, "corrections.jsonl");
    const config = { epochs: 1, batchSize: 1, learningRate: 1, maxGradNorm: 1 };
    const corrections = new Corrections(path, config);
    const add = (number: number) =>
      corrections.add({
        ...{ episode: `e${number}`, turn: 0, prompt: [number], response: [1], text: "", time: 0 },
      });
    for (const number of [0, 1, 2]) add(number);
    await corrections.imitate(model);
    const { counts } = corrections; // of a checkpoint: the newest was imitated
    await corrections.imitate(model);
    await corrections.remove(({ episode }) => episode === "e0");
    corrections.restore(counts);
    add(3);
    while (await corrections.imitate(model));
    expect(imitated).toEqual([2, 1, 3, 1]);
    corrections.close();
    const reopened = new Corrections(path, config);
    reopened.restore(counts);
    expect(Object.values(reopened.counts)).toEqual([0, 1, 0]);
    reopened.close();
  }));
