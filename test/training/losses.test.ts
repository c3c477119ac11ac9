import { describe, expect, it } from "vitest";
import type { ScoredText } from "../../lib/model/language-model.ts";
import { criticLosses, inGroups, supportOf } from "../../lib/training/losses.ts";

const signal = new AbortController().signal;
const text = (prompt: number, response: number): ScoredText => ({
  prompt: new Array<number>(prompt).fill(1),
  response: new Array<number>(response).fill(2),
});

describe("inGroups", () => {
  it("passes texts on in order, in groups of at most 2,048 tokens; a longer text is alone", async () => {
    const texts = [text(1000, 500), text(500, 48), text(1, 1), text(5000, 1), text(10, 10)];
    const groups: number[][] = [];
    const results = await inGroups(texts, signal, async (group) => {
      groups.push(group.map(({ prompt, response }) => prompt.length + response.length));
      return group.map(({ prompt }) => prompt.length);
    });
    expect(groups).toEqual([[1500, 548], [2], [5001], [20]]);
    expect(results).toEqual([1000, 500, 1, 5000, 10]);
  });

  it("counts the student's context of texts with a teacher", async () => {
    const distilled = { student: new Array<number>(1500).fill(1), teacher: [1], response: [2] };
    const sizes: number[] = [];
    await inGroups([distilled, distilled], signal, async (group) => {
      sizes.push(group.length);
      return group;
    });
    expect(sizes).toEqual([1, 1]);
  });

  it("stops between two groups", async () => {
    const controller = new AbortController();
    const calls: number[] = [];
    const computing = inGroups([text(2000, 10), text(2000, 10)], controller.signal, async (group) => {
      calls.push(group.length);
      controller.abort();
      return group;
    });
    await expect(computing).rejects.toMatchObject({ code: "ERR_ABORTED" });
    expect(calls).toEqual([1]);
  });

  it("makes no call without texts", async () => {
    expect(await inGroups([], signal, () => Promise.reject(new Error("called")))).toEqual([]);
  });
});

describe("L1", () => {
  it("is the sampled token's cross entropy for reasoning models, whose thoughts were rewritten", () => {
    expect(supportOf({ reasoning: true, support: "full" })).toBe("sampled");
    expect(supportOf({ reasoning: false, support: { topK: 4 } })).toEqual({ topK: 4 });
  });

  it("has the losses of the details if details are requested", async () => {
    const losses = Float32Array.of(1, 2);
    const side = { logProbs: losses, top: new Int32Array(0), topLogProbs: new Float32Array(0) };
    const asked: unknown[] = [];
    const model = {
      tokenKl: async (texts: readonly unknown[], options?: { detail?: number }) => {
        asked.push(options);
        return texts.map(() =>
          options?.detail === undefined ? losses : { losses, online: side, target: side },
        );
      },
    };
    const texts = [{ student: [1], teacher: [1], response: [2, 3] }];
    const plain = await criticLosses(model as never, texts, signal, { support: "full" });
    expect(plain).toEqual({ losses: [losses], details: [] });
    const detailed = await criticLosses(model as never, texts, signal, { support: "full", detail: 0 });
    expect(detailed.losses).toEqual([losses]);
    expect(detailed.details).toHaveLength(1);
    expect(asked).toEqual([{ support: "full" }, { support: "full", detail: 0 }]);
  });
});
