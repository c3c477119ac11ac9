/**
 * The scripted policy with preferences, and a scripted reward model: their losses and gradients are
 * exact, so that a training's every number can be computed again.
 */

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type {
  JudgedText,
  PreferenceModel,
  PreferenceOptions,
  PreferencePair,
  PreferenceResult,
  RewardModel,
  RewardText,
  ScoredText,
  StepOptions,
  StepResult,
} from "../../lib/model/language-model.ts";
import { ScriptedModel } from "./scripted-model.ts";
import { ScriptedPolicy } from "./scripted-policy.ts";

export class ScriptedPreferences extends ScriptedPolicy implements PreferenceModel {
  readonly preferences: { pairs: PreferencePair[]; options: PreferenceOptions }[] = [];

  #gradient = 0;

  /** log π of a response: the sum over its tokens of non-zero weight. */
  total(text: ScoredText): number {
    return this.#totalAt(text, this.theta);
  }

  #totalAt({ response, weight = 1 }: ScoredText, theta: number): number {
    const used = (t: number) => (typeof weight === "number" ? weight : weight[t]!) !== 0;
    return response.reduce((sum, id, t) => sum + (used(t) ? this.logProb(id, theta) : 0), 0);
  }

  override async step(options: StepOptions): Promise<StepResult> {
    const result = await super.step(options);
    if (!result.skipped) this.theta -= options.learningRate * this.#gradient;
    this.#gradient = 0;
    return result;
  }

  override async discardGradients(): Promise<void> {
    this.#gradient = 0;
    await super.discardGradients();
  }

  async tokenPreference(
    pairs: readonly PreferencePair[],
    options: PreferenceOptions,
  ): Promise<PreferenceResult[]> {
    this.before("tokenPreference");
    this.preferences.push({ pairs: structuredClone([...pairs]), options });
    return pairs.map(({ chosen, rejected, referenceChosen, referenceRejected }) => {
      const [chosenLogProb, rejectedLogProb] = [this.total(chosen), this.total(rejected)];
      const chosenReward = options.beta * (chosenLogProb - referenceChosen);
      const rejectedReward = options.beta * (rejectedLogProb - referenceRejected);
      const share = options.beta / (1 + Math.exp(chosenReward - rejectedReward)) / pairs.length;
      const slope = (text: ScoredText) => this.#totalAt(text, 1) - this.#totalAt(text, 0);
      this.#gradient -= share * (slope(chosen) - slope(rejected));
      const loss = Math.log1p(Math.exp(rejectedReward - chosenReward));
      return { loss, chosenLogProb, rejectedLogProb, chosenReward, rejectedReward };
    });
  }
}

/** Rewards a response by `score`, of its text and its prompt's. */
export class ScriptedJudge extends ScriptedModel implements RewardModel {
  readonly labels: JudgedText[] = [];
  score: (response: string, prompt: string) => number;

  constructor(score: (response: string, prompt: string) => number) {
    super(() => "");
    this.score = score;
  }

  /** Calls of the reference's methods, in order. */
  readonly references: ("keep" | "restore")[] = [];

  async keepReference(): Promise<void> {
    this.references.push("keep");
  }

  async restoreReference(): Promise<void> {
    this.references.push("restore");
  }

  async rewards(texts: readonly RewardText[]): Promise<Float32Array> {
    return Float32Array.from(texts, ({ prompt, response }) =>
      this.score(this.decode(response), this.decode(prompt)),
    );
  }

  async rewardLoss(texts: readonly JudgedText[]): Promise<Float32Array> {
    this.labels.push(...structuredClone([...texts]));
    return Float32Array.from(texts, ({ prompt, response, label }) => {
      const q = Math.min(0.999, Math.max(0.001, this.score(this.decode(response), this.decode(prompt))));
      return -label * Math.log(q) - (1 - label) * Math.log(1 - q);
    });
  }
}

/** A judge of one weight, which learns; what it says of a text depends on the text's bytes. */
export class LearningJudge extends ScriptedJudge {
  weight = 0;
  kept?: number;
  /** Called before every operation; see `ScriptedPolicy`. */
  before: (operation: string) => void = () => undefined;
  #gradient = 0;

  constructor() {
    super((response, prompt) => 1 / (1 + Math.exp(-this.weight * feature(response, prompt))));
  }

  override async keepReference(): Promise<void> {
    this.kept = this.weight;
  }

  override async restoreReference(): Promise<void> {
    this.weight = this.kept!;
  }

  override async rewards(texts: readonly RewardText[]): Promise<Float32Array> {
    this.before("rewards");
    return super.rewards(texts);
  }

  override async rewardLoss(texts: readonly JudgedText[]): Promise<Float32Array> {
    this.before("rewardLoss");
    for (const { prompt, response, label, weight = 1 } of texts) {
      const [answer, question] = [this.decode(response), this.decode(prompt)];
      this.#gradient += weight * (this.score(answer, question) - label) * feature(answer, question);
    }
    return super.rewardLoss(texts);
  }

  override async step(options: StepOptions): Promise<StepResult> {
    this.before("step");
    this.weight -= options.learningRate * this.#gradient;
    this.#gradient = 0;
    return super.step(options);
  }

  override async discardGradients(): Promise<void> {
    this.#gradient = 0;
  }

  override async save(directory: string): Promise<void> {
    writeFileSync(join(directory, "judge.json"), JSON.stringify({ weight: this.weight, kept: this.kept }));
  }

  /** Goes on from what `save` wrote. */
  load(directory: string): this {
    return Object.assign(this, JSON.parse(readFileSync(join(directory, "judge.json"), "utf8")));
  }
}

function feature(response: string, prompt: string): number {
  return (Buffer.from(response + prompt).reduce((a, b) => a + b) % 19) / 9 - 1;
}
