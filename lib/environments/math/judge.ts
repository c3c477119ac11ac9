/** Judges two texts: reads both and makes every comparison that needs no library. */

import { type Comparison, same, type Values } from "./compare.ts";
import { OutOfFuel } from "./exact.ts";
import { answerCandidates, maxAnswerLength } from "./extract.ts";
import { bare, type Commas, clean, tokenize } from "./latex.ts";
import type { Node } from "./node.ts";
import { parse } from "./parse.ts";
import { currenciesConflict } from "./units.ts";

/** Nodes that one judgement may visit: takes milliseconds, and is far more than answers need. */
const fuelOfOneJudgement = 300_000;

/**
 * Whether `prediction` matches `gold`. Without `values`, undefined if that depends on the values of
 * expressions that are not fractions. Never throws.
 */
export function judge(gold: string, prediction: string, values: Values): boolean;
export function judge(gold: string, prediction: string): boolean | undefined;
export function judge(gold: string, prediction: string, values?: Values): boolean | undefined {
  let asked = false;
  const ask = () => {
    asked = true;
    return false;
  };
  const comparison: Comparison = {
    left: fuelOfOneJudgement,
    values: values ?? { sameValue: ask, proportional: ask },
  };
  const golds = answerCandidates(gold);
  const predictions = answerCandidates(prediction);
  try {
    if (golds.some((right) => predictions.some((answer) => agrees(right, answer, comparison)))) return true;
  } catch (error) {
    if (error instanceof OutOfFuel) return false;
    throw error;
  }
  // Comparisons that needed `values` were counted as unequal, so a yes does not depend on them.
  return asked ? undefined : false;
}

function agrees(gold: string, answer: string, comparison: Comparison): boolean {
  if (gold.length > maxAnswerLength || answer.length > maxAnswerLength) return gold.trim() === answer.trim();
  if (currenciesConflict(gold, answer)) return false;
  // \textbf{(C)}\ 7 gives the letter of a choice, and its value.
  const choice =
    /^\\text(?:bf|rm|it)?\s*\{\s*\(([A-Z])\)\s*\}(?:\\[ ,;:!]|\\q?quad\b|[~\s])*((?!\\text)[^\s,;].*)$/s.exec(
      answer,
    );
  if (choice !== null && [choice[1]!, choice[2]!].some((part) => agrees(gold, part, comparison))) return true;
  const bareGold = bare(gold);
  const bareAnswer = bare(answer);
  if (bareGold === bareAnswer) return true;
  if (bareGold === "" || bareAnswer === "") return false;
  // Braces are removed last, since they do not show in print.
  if (
    bareGold.replace(/[{}]/g, "") === bareAnswer.replace(/[{}]/g, "") &&
    !/\\frac|\\sqrt|[\^_]|\\[{}]/.test(bareGold + bareAnswer)
  )
    return true;
  const goldReadings = readings(gold);
  const answerReadings = goldReadings.length === 0 ? [] : readings(answer);
  return goldReadings.some((a) => answerReadings.some((b) => same(a, b, comparison)));
}

/** A number whose commas group thousands, with a group that begins with 0: no item of a list does. */
const groupedZeros = /(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})*,0\d\d(?:,\d{3})*(?!,?\d)/;
/** "2,0" are two roots. As a decimal number it would be 2. */
const rootAndZero = /^(?:[a-zA-Z]\s*=\s*)?[-+]?\d+,0$/;

/**
 * The possible meanings of an answer. Commas between digits are read in three ways; in a bracket
 * they separate items, unless semicolons do, or commas with spaces. If the text before the last "="
 * is not an expression (a limit, P(A|B)), it is a label.
 */
function readings(answer: string): Node[] {
  const looks = clean(answer);
  const inBracket = /(?:[([]|\\\{)[^()[\]{}]*\d,\d/.test(looks);
  const isList = !groupedZeros.test(looks);
  let kinds: Commas[] = ["list"];
  if (inBracket && looks.includes(";")) kinds = ["decimal"];
  else if (inBracket && !isList) kinds = ["thousands"];
  else if (inBracket && /\d,\d{3}(?!\d)/.test(looks) && /,\s/.test(looks)) kinds = ["list", "thousands"];
  else if (!inBracket && /\d,\d/.test(looks)) {
    kinds = ["thousands"];
    if (isList) kinds.unshift("list");
    if (!rootAndZero.test(looks)) kinds.push("decimal");
  }
  const found = kinds.flatMap((commas) => read(answer, commas) ?? []);
  // 4e-3 in programming notation is 0.004.
  if (/^-?\d+e-\d$/.test(looks)) found.push(...[read(looks.replace("e", ".0e"), "list") ?? []].flat());
  if (found.length > 0) return found;
  const label = /^([^=<>]{1,200}[^=<>!])=([^=<>]+)$/.exec(looks);
  const value = label && read(label[2]!, "list");
  if (!value) return [];
  return [{ kind: "relation", operators: ["="], parts: [{ kind: "text", text: label[1]! }, value] }];
}

function read(answer: string, commas: Commas): Node | undefined {
  const tokens = tokenize(answer, commas);
  return tokens && parse(tokens);
}
