import { expect, test } from "vitest";
import { explain, pickSamples } from "../../lib/training/recording.ts";
import { piecesOf } from "../../lib/training/token-records.ts";
import { errandEnvironment } from "../support/errand.ts";
import { roleWriter, scriptedRoles, transitionsFrom } from "../support/roles.ts";
import { byteTokenizer } from "../support/scripted-model.ts";

test("half of the samples are those of highest L1, the others random, and none occurs twice", () => {
  const l1 = [0.1, 0.9, undefined, 0.5, 0.2, Number.NaN, 0.8, 0.3];
  const seen = new Set<number>();
  for (let seed = 0; seed < 50; seed++) {
    const picked = pickSamples(l1, 4, seed);
    expect(picked.slice(0, 2)).toEqual([1, 6]);
    expect(new Set(picked).size).toBe(4);
    expect(pickSamples(l1, 4, seed)).toEqual(picked);
    for (const i of picked.slice(2)) seen.add(i);
  }
  expect([...seen].sort()).toEqual([0, 2, 3, 4, 5, 7]);
  expect(pickSamples(l1, 0, 0)).toEqual([]);
  expect(pickSamples([0.2], 4, 0)).toEqual([0]);
});

test("the texts of tokens join to the whole text, also across characters of several tokens", () => {
  const tokenizer = byteTokenizer();
  const model = { decode: (ids: readonly number[]) => tokenizer.decode(ids) };
  for (const text of ["plain", "größer", "日本語 text", "🙂 and 🏳️‍🌈", ""]) {
    const ids = tokenizer.encode(text);
    const pieces = piecesOf(model, ids);
    expect(pieces).toHaveLength(ids.length);
    expect(pieces.join("")).toBe(text);
  }
  expect(piecesOf(model, tokenizer.encode("é"))).toEqual(["", "é"]);
  // The first byte of a character without the others.
  expect(piecesOf(model, [...tokenizer.encode("é").slice(0, 1), ...tokenizer.encode("x")])).toHaveLength(2);
});

test("log probabilities of a generation are not recorded for a rewritten one of the same length", async () => {
  const model = scriptedRoles();
  const transitions = (await transitionsFrom(model, errandEnvironment())).slice(0, 1);
  const { config } = roleWriter(model, { reasoning: true });
  const signal = new AbortController().signal;
  const recorded = async (response: string) => {
    const [generated, trained] = ["I know it.", response].map((text) => model.encode(text));
    const logProbs = new Float32Array(generated!.length).fill(-0.5);
    const target = { tokens: generated!, logProbs, text: "", finishReason: "stop", cachedTokens: 0 } as const;
    const text = { student: [1], teacher: [1], response: trained! };
    const [record] = await explain(
      { model, config, run: { signal, tokenBytes: 10_000 } },
      {
        ...{ update: 0, transitions, targets: [{ text, target }], details: [undefined] },
        refinements: [{ critiques: [], judgements: [], refinements: [] }],
        losses: [new Float32Array(trained!.length)],
      },
      [0],
      false,
    );
    return record!.tokens!.target!;
  };
  expect((await recorded("I know it.")).target).toBeDefined();
  expect((await recorded("I hope so.")).target).toBeUndefined();
});
