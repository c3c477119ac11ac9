/**
 * Checks the texts that a learner's calls take, and converts them for the addon. `where` names a
 * text in errors.
 */

import { NlacError } from "../base/errors.ts";
import {
  checkBoolean,
  checkKeys,
  checkNumber,
  checkNumbers,
  checkObject,
  shown,
} from "../base/validation.ts";
import type {
  DistilledText,
  JudgedText,
  PreferenceOptions,
  PreferencePair,
  RewardText,
  ScoredText,
  SoftQOptions,
  SoftQText,
  SurrogateOptions,
  SurrogateText,
} from "../model/language-model.ts";
import type {
  NativeDistilledText,
  NativeJudgedText,
  NativePreferenceLoss,
  NativePreferencePair,
  NativeScoredText,
  NativeSoftQOptions,
  NativeSoftQText,
  NativeSurrogateOptions,
  NativeSurrogateText,
} from "../native/addon.ts";
import { checkPreferenceLoss } from "../ops/options.ts";
import { nativeOf } from "../ops/tensor.ts";

/** Limits of a learner's inputs. */
export interface Limits {
  readonly vocabSize: number;
  readonly maxPositions: number;
}

export function scoredTexts(texts: readonly ScoredText[], limits: Limits): NativeScoredText[] {
  checkArray(texts, "texts");
  return texts.map((text, i) => scoredText(text, `texts[${i}]`, limits));
}

function scoredText(text: ScoredText, where: string, limits: Limits): NativeScoredText {
  const { prompt, response } = promptAndResponse(text, where, limits);
  return { prompt, response, weights: checkWeights(text.weight ?? 1, response.length, `${where}.weight`) };
}

function promptAndResponse(
  text: RewardText,
  where: string,
  limits: Limits,
): Pick<NativeScoredText, "prompt" | "response"> {
  checkObject(text, where);
  const prompt = checkIds(text.prompt, `${where}.prompt`, limits);
  const response = checkIds(text.response, `${where}.response`, limits);
  checkLength(prompt.length + response.length, `${where}.prompt and .response`, limits);
  return { prompt, response };
}

export function preferencePairs(pairs: readonly PreferencePair[], limits: Limits): NativePreferencePair[] {
  checkArray(pairs, "pairs");
  return pairs.map((pair, i): NativePreferencePair => {
    const where = `pairs[${i}]`;
    checkObject(pair, where);
    const side = (name: "chosen" | "rejected") => {
      const text = scoredText(pair[name], `${where}.${name}`, limits);
      if (text.weights.some((weight) => weight !== 0 && weight !== 1)) {
        throw new NlacError("ERR_VALUE", `${where}.${name}.weight must be 0 or 1 for each token.`);
      }
      if (!text.weights.includes(1)) {
        throw new NlacError("ERR_VALUE", `${where}.${name}.weight is 0 for every token.`);
      }
      return text;
    };
    const reference = (name: "referenceChosen" | "referenceRejected") =>
      checkNumber(pair[name], `${where}.${name}`, -Number.MAX_VALUE);
    return {
      chosen: side("chosen"),
      rejected: side("rejected"),
      referenceChosen: reference("referenceChosen"),
      referenceRejected: reference("referenceRejected"),
      weight: checkFloat(pair.weight ?? 1, `${where}.weight`),
    };
  });
}

export function preferenceOptions(
  options: PreferenceOptions,
): NativePreferenceLoss & { withGradient: boolean } {
  checkKeys(options, "tokenPreference", ["beta", "loss", "labelSmoothing", "withGradient"], "ERR_VALUE");
  return {
    ...checkPreferenceLoss(options),
    withGradient: checkBoolean(options.withGradient ?? true, "withGradient"),
  };
}

export function rewardTexts(texts: readonly RewardText[], limits: Limits): NativeJudgedText[] {
  checkArray(texts, "texts");
  return texts.map((text, i) => ({
    ...promptAndResponse(text, `texts[${i}]`, limits),
    label: 0,
    weight: 1,
  }));
}

export function judgedTexts(texts: readonly JudgedText[], limits: Limits): NativeJudgedText[] {
  return rewardTexts(texts, limits).map((text, i) => ({
    ...text,
    label: checkNumber(texts[i]!.label, `texts[${i}].label`, 0, 1),
    weight: checkFloat(texts[i]!.weight ?? 1, `texts[${i}].weight`),
  }));
}

export function distilledTexts(texts: readonly DistilledText[], limits: Limits): NativeDistilledText[] {
  checkArray(texts, "texts");
  return texts.map((text, i): NativeDistilledText => {
    const where = `texts[${i}]`;
    checkObject(text, where);
    const student = checkIds(text.student, `${where}.student`, limits);
    const teacher = checkIds(text.teacher, `${where}.teacher`, limits);
    const response = checkIds(text.response, `${where}.response`, limits);
    checkLength(student.length + response.length, `${where}.student and .response`, limits);
    checkLength(teacher.length + response.length, `${where}.teacher and .response`, limits);
    const weight = checkNumber(text.weight ?? 1, `${where}.weight`, -Number.MAX_VALUE);
    const kept = text.teacherHidden;
    return { student, teacher, response, weight, teacherHidden: kept && nativeOf(kept) };
  });
}

export function surrogateTexts(
  texts: readonly SurrogateText[],
  { klCoefficient, value }: NativeSurrogateOptions,
  limits: Limits,
): NativeSurrogateText[] {
  return scoredTexts(texts, limits).map((text, i): NativeSurrogateText => {
    const list = (name: keyof SurrogateText & keyof NativeSurrogateText, needed: boolean) =>
      needed ? checkList(texts[i]![name], text, `texts[${i}].${name}`) : new Float32Array();
    return {
      ...text,
      oldLogProbs: list("oldLogProbs", true),
      advantages: list("advantages", true),
      referenceLogProbs: list("referenceLogProbs", klCoefficient !== 0),
      returns: list("returns", value !== undefined),
      oldValues: list("oldValues", value !== undefined),
    };
  });
}

export function softQTexts(texts: readonly SoftQText[], limits: Limits): NativeSoftQText[] {
  return scoredTexts(texts, limits).map(
    (text, i): NativeSoftQText => ({
      ...text,
      rewards: checkList(texts[i]!.rewards, text, `texts[${i}].rewards`),
    }),
  );
}

export function surrogateOptions(options: SurrogateOptions): NativeSurrogateOptions {
  const names = ["clipLow", "clipHigh", "klCoefficient", "entropyCoefficient", "value", "withGradient"];
  checkKeys(options, "tokenSurrogate", ["temperature", ...names], "ERR_VALUE");
  const { value } = options;
  if (value !== undefined) checkKeys(value, "value", ["coefficient", "clip", "detached"], "ERR_VALUE");
  return {
    temperature: checkTemperature(options.temperature ?? 1),
    clipLow: checkNumber(options.clipLow ?? 0.2, "clipLow", 0, 1),
    clipHigh: checkNumber(options.clipHigh ?? 0.2, "clipHigh", 0),
    klCoefficient: checkNumber(options.klCoefficient ?? 0, "klCoefficient", 0),
    entropyCoefficient: checkNumber(options.entropyCoefficient ?? 0, "entropyCoefficient", -Number.MAX_VALUE),
    value: value && {
      coefficient: checkNumber(value.coefficient, "value.coefficient", 0),
      clip: checkNumber(value.clip ?? 0, "value.clip", 0),
      detached: checkBoolean(value.detached ?? false, "value.detached"),
    },
    withGradient: checkBoolean(options.withGradient ?? true, "withGradient"),
  };
}

export function checkTemperature(temperature: number): number {
  return checkNumber(temperature, "temperature", Number.MIN_VALUE);
}

export function softQOptions(options: SoftQOptions): NativeSoftQOptions {
  const names = ["discount", "qCoefficient", "policyCoefficient", "withGradient", "detached"];
  checkKeys(options, "softQ", ["temperature", ...names], "ERR_VALUE");
  return {
    temperature: checkTemperature(options.temperature),
    discount: checkNumber(options.discount ?? 1, "discount", 0, 1),
    qCoefficient: checkNumber(options.qCoefficient, "qCoefficient", 0),
    policyCoefficient: checkNumber(options.policyCoefficient, "policyCoefficient", 0),
    withGradient: checkBoolean(options.withGradient ?? true, "withGradient"),
    detached: checkBoolean(options.detached ?? false, "detached"),
  };
}

/** The option of losses that have no other. */
export function gradientOption(options: { withGradient?: boolean | undefined }, where: string): boolean {
  checkKeys(options, where, ["withGradient"], "ERR_VALUE");
  return checkBoolean(options.withGradient ?? true, "withGradient");
}

/** Ids of the vocabulary; may be empty. */
export function checkIdList(
  values: readonly number[] | undefined,
  where: string,
  limits: Limits,
): Int32Array {
  return values === undefined || values.length === 0 ? new Int32Array() : checkIds(values, where, limits);
}

/** One or more ids of the vocabulary, at most as many as fit into the context. */
export function checkIds(values: readonly number[], where: string, limits: Limits): Int32Array {
  if (!Array.isArray(values) && !((values as unknown) instanceof Int32Array)) {
    throw new NlacError("ERR_VALUE", `${where} must be an array of token ids; it is ${shown(values)}.`);
  }
  if (values.length === 0) throw new NlacError("ERR_VALUE", `${where} is empty.`);
  checkLength(values.length, where, limits);
  const { vocabSize } = limits;
  const ids = new Int32Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const id = values[i]!;
    if (!Number.isInteger(id) || id < 0 || id >= vocabSize) {
      throw new NlacError(
        "ERR_VALUE",
        `${where}[${i}] must be a token id below ${vocabSize}; it is ${shown(id)}.`,
      );
    }
    ids[i] = id;
  }
  return ids;
}

function checkLength(length: number, where: string, { maxPositions }: Limits): void {
  if (length <= maxPositions) return;
  throw new NlacError(
    "ERR_VALUE",
    `${where}: ${length} tokens, more than the model's context of ${maxPositions}.`,
  );
}

export function checkArray(value: unknown, where: string): void {
  if (!Array.isArray(value)) {
    throw new NlacError("ERR_VALUE", `${where} must be an array; it is ${shown(value)}.`);
  }
}

/** One weight for the whole response, or one per token. */
function checkWeights(weight: number | ArrayLike<number>, tokens: number, where: string): Float32Array {
  if (typeof weight === "number") return Float32Array.of(checkFloat(weight, where));
  checkOneEach(weight, tokens, where);
  return Float32Array.from(weight, (value, i) => checkFloat(value, `${where}[${i}]`));
}

/** One number per token of a response. Numbers of tokens whose weight is 0 are not checked. */
function checkList(list: unknown, { response, weights }: NativeScoredText, where: string): Float32Array {
  checkOneEach(list, response.length, where);
  const weightOf = (i: number) => (weights.length === 1 ? weights[0] : weights[i]);
  return Float32Array.from(list, (value, i) => (weightOf(i) === 0 ? 0 : checkFloat(value, `${where}[${i}]`)));
}

function checkOneEach(list: unknown, tokens: number, where: string): asserts list is ArrayLike<number> {
  checkNumbers(list, where);
  if (list.length === tokens) return;
  throw new NlacError(
    "ERR_VALUE",
    `${where} needs one number for each of ${tokens} response tokens; it has ${list.length}.`,
  );
}

/** A number that is still finite as a float32. */
function checkFloat(value: unknown, where: string): number {
  if (typeof value === "number" && Number.isFinite(Math.fround(value))) return value;
  throw new NlacError("ERR_VALUE", `${where} must be a finite float32 number; it is ${shown(value)}.`);
}
