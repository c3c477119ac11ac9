import { expect, test } from "vitest";
import { bootstrapFutures } from "../../lib/roles/futures.ts";
import { errandEnvironment } from "../support/errand.ts";
import { callsOf, roleWriter, scriptedRoles, transitionsFrom } from "../support/roles.ts";

type Config = Parameters<typeof roleWriter>[1];

/** Futures of the first two transitions of an episode; the third is left out. */
async function futuresOf(model = scriptedRoles(), config: Config = {}, room = Number.POSITIVE_INFINITY) {
  const transitions = await transitionsFrom(model, errandEnvironment());
  const chains = transitions.map(({ state, action }, i) =>
    i === 2 ? undefined : state.fork().appendGeneration({ tokens: action }),
  );
  const before = chains.map((chain) => chain && model.decode(chain.tokens));
  const longest = Math.max(...chains.map((chain) => chain?.tokens.length ?? 0));
  Object.assign(model, { maxPositions: longest + room });
  const futures = await bootstrapFutures(roleWriter(model, config), chains, transitions);
  /** What was appended to each conversation. */
  const appended = chains.map((chain, i) => chain && model.decode(chain.tokens).slice(before[i]!.length));
  return { futures, before, appended };
}

test("by default d' is requested after the observation and its reward, under θ̄", async () => {
  const model = scriptedRoles();
  const { futures, appended } = await futuresOf(model);
  expect(futures.map((future) => future?.text)).toEqual(["a future text", "a future text", undefined]);
  expect(futures[2]).toBeUndefined();
  expect(model.calls.map(({ weights }) => weights)).toEqual(["target", "target"]);
  for (const text of appended.slice(0, 2))
    expect(text).toMatch(/OBSERVED wants key.*Starting from this point.*a future text<\|im_end\|>\s*$/s);
});

test("as in eq. 1, the successor predicts d' at s' from an action of the target policy", async () => {
  const model = scriptedRoles();
  const { futures, before, appended } = await futuresOf(model, { bootstrap: "successor" });
  expect(futures.map((future) => future?.text)).toEqual(["foreseen", "foreseen", undefined]);
  expect(new Set(model.calls.map(({ weights }) => weights))).toEqual(new Set(["target"]));
  const [next, foretold] = [callsOf(model, "policy"), callsOf(model, "critic")];
  expect([next.length, foretold.length]).toEqual([2, 2]);
  for (const [i, { prompt }] of next.entries()) {
    expect(prompt.startsWith(before[i]!)).toBe(true);
    expect(prompt.slice(before[i]!.length)).toContain("OBSERVED wants key");
    expect(foretold[i]!.prompt.startsWith(prompt)).toBe(true);
    // The future without its verdict, and without the action that it was predicted for.
    expect(appended[i]).toMatch(/foreseen<\|im_end\|>\s*$/);
    expect(appended[i]).not.toMatch(/bring the key|soap/);
  }
  const k3 = scriptedRoles();
  const { futures: predicted } = await futuresOf(k3, { bootstrap: "successor", futures: 3 });
  expect(predicted[0]!.text).toBe("a successor text");
});

test.each([
  ["unreadable", "no form at all"],
  ["cut_off", "Future:\nit …"],
])("a prediction that cannot be parsed is dropped as %s", async (dropped, critic) => {
  const model = scriptedRoles({ critic });
  const { futures } = await futuresOf(model, { bootstrap: "successor" });
  expect(futures[0]).toMatchObject({ dropped, generation: expect.anything() });
  expect(futures[0]!.text).toBeUndefined();
});

test.each(["request", "successor"] as const)(
  "without room in the context there is no future (%s)",
  async (bootstrap) => {
    const { futures } = await futuresOf(scriptedRoles(), { bootstrap }, 1);
    expect(futures).toEqual([{ dropped: "context" }, { dropped: "context" }, undefined]);
  },
);
