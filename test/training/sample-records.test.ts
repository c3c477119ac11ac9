import { expect, test } from "vitest";
import { refine } from "../../lib/roles/refinements.ts";
import { writeTargets } from "../../lib/roles/targets.ts";
import { episodeSample, sampleRecord } from "../../lib/training/sample-records.ts";
import { errandEnvironment } from "../support/errand.ts";
import { act, critique, roleWriter, scriptedRoles, target, transitionsFrom } from "../support/roles.ts";

const model = scriptedRoles();
const transitions = await transitionsFrom(model, errandEnvironment());
const [first, , last] = transitions;

test("a sample has every completion by role, numbered after the first, with its figures", async () => {
  const writer = roleWriter(model, { refinements: 2 });
  const [targets, refinements] = [await writeTargets(writer, transitions), await refine(writer, transitions)];
  const { texts, facts, parsed, ...place } = sampleRecord(7, first!, targets[0]!, refinements[0]!, 0.5);
  expect(place).toEqual({ update: 7, trajectory: 0, turn: 0 });
  expect(texts).toEqual({
    future: "a future text",
    target,
    attempt: act("soap"),
    ...{ critique, "critique 2": critique, refinement: act("key"), "refinement 2": act("key") },
  });
  expect(facts).toEqual({ reward: 0, terminated: false, truncated: false, l1: 0.5, changed: true });
  const no = { ok: true, yes: false };
  expect(parsed).toEqual({
    ...{ target: no, attempt: { ok: true }, critique: no, "critique 2": no, refinement: { ok: true } },
  });
});

test("what was dropped has its cause, and no L1", () => {
  const nothing = { critiques: [], judgements: [], refinements: [] };
  const refinement = { ...nothing, dropped: "context", reason: "too long" } as const;
  const { facts } = sampleRecord(0, last!, { dropped: "unreadable" }, refinement, undefined);
  expect(facts).toEqual({
    ...{ reward: 0, terminated: true, truncated: false },
    ...{ targetDropped: "unreadable", refinementDropped: "too long" },
  });
});

test("a whole episode has its sequences, with control tokens", () => {
  const text = (letter: string) => ({
    ...{ prompt: model.encode("?"), response: [...model.encode(letter), model.endOfTurn] },
    ...{ weight: [1, 1], turns: [] },
  });
  expect(episodeSample(model, 3, { id: 5, reward: 1 }, [text("a"), text("b")], { steps: 2 })).toEqual({
    ...{ update: 3, trajectory: 5, facts: { reward: 1, steps: 2 } },
    texts: { episode: "a<|im_end|>", "episode 2": "b<|im_end|>" },
  });
});
