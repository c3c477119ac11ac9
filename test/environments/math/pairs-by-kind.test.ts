/**
 * Pairs of fourteen kinds from scripts/fixtures/math_pairs_by_kind.py. The grader was developed on
 * one half of them; the other half was counted only at the end.
 */

import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { gradeMath } from "../../../lib/environments/math/grade.ts";

type Pair = [
  kind: string,
  gold: string,
  prediction: string,
  equal: boolean,
  mathVerify: boolean,
  heldOut: boolean,
];

/** Counts of pairs, equal and different, and of how many of each were judged so. */
interface Tally {
  pairs: number;
  equal: number;
  equalFound: number;
  differentFound: number;
  likeMathVerify: number;
  mathVerifyRight: number;
}

const least = 0.95;
const fixture = new URL("../../fixtures/math/pairs-by-kind.json", import.meta.url);
const pairs = JSON.parse(readFileSync(fixture, "utf8")) as Pair[];

async function tally(half: readonly Pair[]): Promise<Map<string, Tally>> {
  const byKind = new Map<string, Tally>();
  for (const [kind, gold, prediction, equal, mathVerify] of half) {
    const solution = kind === "answers without a box" ? prediction : `\\boxed{${prediction}}`;
    const verdict = await gradeMath(gold, solution);
    for (const name of ["all", kind]) {
      const counts = byKind.get(name) ?? {
        pairs: 0,
        equal: 0,
        equalFound: 0,
        differentFound: 0,
        likeMathVerify: 0,
        mathVerifyRight: 0,
      };
      counts.pairs++;
      if (equal) counts.equal++;
      if (equal && verdict) counts.equalFound++;
      if (!equal && !verdict) counts.differentFound++;
      if (verdict === mathVerify) counts.likeMathVerify++;
      if (mathVerify === equal) counts.mathVerifyRight++;
      byKind.set(name, counts);
    }
  }
  return byKind;
}

function table(title: string, byKind: ReadonlyMap<string, Tally>): string {
  const rows = [...byKind].map(
    ([kind, t]) =>
      `| ${kind} | ${t.equalFound} of ${t.equal} | ${t.differentFound} of ${t.pairs - t.equal} | ` +
      `${t.likeMathVerify} of ${t.pairs} | ${t.mathVerifyRight} of ${t.pairs} |`,
  );
  return [
    title,
    "| kind | equal pairs found | different pairs told apart | verdicts like Math-Verify's | Math-Verify right |",
    "| --- | --- | --- | --- | --- |",
    ...rows,
  ].join("\n");
}

it.each([
  ["the half developed on", false],
  ["the half held out", true],
] as const)("accepts 95 %% of the equal pairs and none of the others: %s", async (title, heldOut) => {
  const byKind = await tally(pairs.filter((pair) => pair[5] === heldOut));
  console.info(table(title, byKind));
  const all = byKind.get("all")!;
  expect(all.equalFound / all.equal).toBeGreaterThanOrEqual(least);
  expect(all.differentFound).toBe(all.pairs - all.equal);
});

it("has 2,000 pairs of fourteen kinds, half of them different", () => {
  expect(pairs).toHaveLength(2000);
  expect(new Set(pairs.map(([kind]) => kind)).size).toBe(14);
  const equal = pairs.filter((pair) => pair[3]).length;
  expect(equal).toBeGreaterThan(980);
  expect(equal).toBeLessThan(1020);
});
