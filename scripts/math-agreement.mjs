#!/usr/bin/env node
// Measures the grader of MATH on generated pairs of answers (docs/environments/math.md). Uses the built package.
//   python scripts/fixtures/math_pairs.py $NLAC_DATA/math 15000 > pairs.json   # needs math-verify
//   NLAC_DATA=… node scripts/math-agreement.mjs pairs.json
// Prints the pairs that the grader gets wrong by construction, its differences from Math-Verify by kind, its speed, and
// which of 100,000 random pairs of MATH's answers, different as texts, it judges to be equal.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { streams, uniform } from "../dist/base/random.js";
import { gradeMath } from "../dist/environments/math/grade.js";
import { judge } from "../dist/environments/math/judge.js";

const randomPairs = 100_000;
const read = (path) => readFileSync(path, "utf8").trim();
const cpuMs = () => Object.values(process.cpuUsage()).reduce((sum, us) => sum + us / 1000, 0);
const perSecond = (count, ms) => Math.round((1000 * count) / ms);

const pairs = JSON.parse(read(process.argv[2])).map((pair) => ({
  ...pair,
  boxed: `\\boxed{${pair.prediction}}`,
}));
const beforeJudge = cpuMs();
const hard = pairs.filter(({ gold, boxed }) => judge(gold, boxed) === undefined);
const judgeMs = cpuMs() - beforeJudge;

await gradeMath("\\pi", "\\boxed{\\pi+0}"); // starts the thread
const beforeGrade = performance.now();
for (const pair of pairs) pair.verdict = await gradeMath(pair.gold, pair.boxed);
const gradeMs = performance.now() - beforeGrade;
const beforeHard = performance.now();
for (const { gold, boxed } of hard) await gradeMath(gold, boxed);
const hardMs = performance.now() - beforeHard;

const wrong = pairs.filter(({ verdict, equal }) => verdict !== equal);
const peerWrong = pairs.filter(({ mathVerify, equal }) => mathVerify !== equal).length;
console.log(
  `${pairs.length} pairs, of which Math-Verify judges ${peerWrong} wrongly and the grader ${wrong.length}:`,
);
for (const { kind, gold, prediction, equal } of wrong) {
  console.log(`  ${equal ? "missed" : "accepted"} (${kind}): ${gold} | ${prediction}`);
}
const differences = new Map();
for (const { kind, verdict, mathVerify } of pairs) {
  if (verdict === mathVerify) continue;
  const row = `${kind}: ${verdict ? "equal" : "different"} to the grader only`;
  differences.set(row, (differences.get(row) ?? 0) + 1);
}
console.log("Differences from Math-Verify:");
for (const [row, count] of [...differences].sort((a, b) => b[1] - a[1])) console.log(`  ${count} ${row}`);
const share = (100 * (1 - hard.length / pairs.length)).toFixed(1);
const us = Math.round((1000 * judgeMs) / pairs.length);
console.log(`Without the thread: ${share} % of the pairs, ${us} µs of processor time per pair.`);
console.log(
  `Pairs a second: ${perSecond(pairs.length, gradeMs)}, with the thread ${perSecond(hard.length, hardMs)}.`,
);

const lines = ["train12000.jsonl", "test500.jsonl"].flatMap((name) =>
  read(join(process.env.NLAC_DATA ?? "", "math", name)).split("\n"),
);
const answers = [...new Set(lines.map((line) => JSON.parse(line).answer))];
let draws = 0;
const draw = () => answers[Math.floor(uniform(0, streams.split, draws++) * answers.length)];
const accepted = [];
for (let count = 0; count < randomPairs; ) {
  const [gold, prediction] = [draw(), draw()];
  if (gold === prediction) continue;
  count++;
  if (await gradeMath(gold, `\\boxed{${prediction}}`)) accepted.push(`  ${gold} | ${prediction}`);
}
console.log(`Random pairs judged equal: ${accepted.length} of ${randomPairs}`);
console.log(accepted.join("\n"));
