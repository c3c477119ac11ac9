import { describe, expect, it } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import type { GenerateRequest } from "../../lib/model/language-model.ts";
import type { Player } from "../../lib/playing/batches.ts";
import { bestOfPlayer } from "../../lib/playing/best-of-player.ts";

/** Generates the id that `next` gives for each request; 0 fails, and -1 is an empty text. */
function player(next: (request: GenerateRequest) => number) {
  const calls: GenerateRequest[][] = [];
  const self = {
    maxPositions: 64,
    conversation: () => {
      throw new Error("not used");
    },
    generate: async (requests: GenerateRequest[]) => {
      calls.push(requests);
      return requests.map((request) => {
        const id = next(request);
        return id === 0 ? new NlacError("ERR_SERVICE", "failed") : { tokens: id < 0 ? [] : [id] };
      });
    },
  } as unknown as Player;
  return { self, calls };
}

describe("bestOfPlayer", () => {
  it("takes the sample of the highest reward for each request, the first of equal ones", async () => {
    const ids = [3, 9, 9, 5, 4, 1];
    const { self, calls } = player(() => ids.shift()!);
    const judged: number[][] = [];
    const judge = {
      rewards: async (texts: readonly { prompt: readonly number[]; response: readonly number[] }[]) => {
        judged.push(texts.map(({ prompt, response }) => 100 * prompt[0]! + response[0]!));
        return Float32Array.from(texts, ({ response }) => response[0]! / 10);
      },
    };
    const best = bestOfPlayer(self, judge as never, 3);
    const requests = [{ tokens: [1], seed: 7 }, { tokens: [2] }];
    expect(await best.generate(requests, {})).toEqual([{ tokens: [9] }, { tokens: [5] }]);
    expect(judged).toEqual([[103, 109, 109, 205, 204, 201]]);
    const seeds = calls[0]!.map(({ seed }) => seed);
    expect(new Set(seeds.slice(0, 3)).size).toBe(3);
    expect(seeds.slice(3)).toEqual([undefined, undefined, undefined]);
    expect(best.maxPositions).toBe(64);
  });

  it("does not judge failures and empty texts, and returns them only if there is nothing else", async () => {
    const ids = [0, -1, 2, 0, 0, 0];
    const { self } = player(() => ids.shift()!);
    const counts: number[] = [];
    const judge = {
      rewards: async (texts: readonly unknown[]) => {
        counts.push(texts.length);
        return new Float32Array(texts.length).fill(0.01);
      },
    };
    const [some, none] = await bestOfPlayer(self, judge as never, 3).generate(
      [{ tokens: [1] }, { tokens: [2] }],
      {},
    );
    expect(some).toEqual({ tokens: [2] });
    expect(none).toBeInstanceOf(NlacError);
    expect(counts).toEqual([1]);
  });

  it("needs at least one sample", () => {
    expect(() => bestOfPlayer(player(() => 1).self, { rewards: async () => new Float32Array(0) }, 0)).toThrow(
      expect.objectContaining({ code: "ERR_VALUE" }),
    );
  });
});
