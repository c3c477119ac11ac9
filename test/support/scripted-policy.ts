/**
 * A scripted model with two numbers to learn: `theta` moves the log probabilities of the ids, `phi`
 * the values. Its losses, ratios and gradients are exact, so that a training's every number can be
 * computed again.
 */

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type {
  PolicyGradientModel,
  ScoredText,
  StepOptions,
  StepResult,
  SurrogateOptions,
  SurrogateResult,
  SurrogateText,
  WeightSet,
} from "../../lib/model/language-model.ts";
import { ScriptedModel } from "./scripted-model.ts";

/** d log p / d theta of an id. */
const slope = (id: number) => ((id % 5) - 2) / 10;
/** The value of the state before position `t` of a response, over phi; different everywhere. */
const feature = (t: number) => 0.1 + (t % 7) / 10;

export const entropy = 1.25;

export class ScriptedPolicy extends ScriptedModel implements PolicyGradientModel {
  theta = 0;
  phi = 0.5;
  reference: number | undefined;
  readonly surrogates: { texts: SurrogateText[]; options: SurrogateOptions }[] = [];
  /** Called before every operation, with its name: a test may stop or break the training there. */
  before: (operation: string) => void = () => undefined;
  #gradient = { theta: 0, phi: 0 };

  logProb(id: number, theta = this.theta): number {
    return -0.5 - (id % 3) / 10 + theta * slope(id);
  }

  override async generate(...[requests, options]: Parameters<ScriptedModel["generate"]>) {
    this.before("generate");
    return super.generate(requests, options);
  }

  async keepReference(): Promise<void> {
    this.reference = this.theta;
  }

  async restoreReference(): Promise<void> {
    if (this.reference === undefined) throw new Error("There is no reference.");
    this.theta = this.reference;
    await this.discardGradients();
  }

  override async logProbs(
    texts: readonly ScoredText[],
    { weights = "online" }: { weights?: WeightSet | "reference"; temperature?: number } = {},
  ): Promise<Float32Array[]> {
    this.before("logProbs");
    if (weights === "reference" && this.reference === undefined) throw new Error("There is no reference.");
    const theta = weights === "reference" ? this.reference : this.theta;
    return texts.map((text) => perToken(text, (t) => this.logProb(text.response[t]!, theta)));
  }

  async values(texts: readonly ScoredText[]): Promise<Float32Array[]> {
    this.before("values");
    return texts.map((text) => perToken(text, (t) => this.phi * feature(t)));
  }

  override async tokenNll(texts: readonly ScoredText[]): Promise<Float32Array[]> {
    this.before("tokenNll");
    this.events.push({ kind: "nll", texts: structuredClone([...texts]) });
    return texts.map((text) =>
      perToken(text, (t, weight) => {
        this.#gradient.theta -= weight * slope(text.response[t]!);
        return -this.logProb(text.response[t]!);
      }),
    );
  }

  async tokenSurrogate(
    texts: readonly SurrogateText[],
    options: SurrogateOptions = {},
  ): Promise<SurrogateResult[]> {
    this.before("tokenSurrogate");
    this.surrogates.push({ texts: structuredClone([...texts]), options });
    return texts.map((text) => this.#surrogate(text, options));
  }

  #surrogate(text: SurrogateText, options: SurrogateOptions): SurrogateResult {
    const { clipLow = 0.2, clipHigh = 0.2, klCoefficient = 0, entropyCoefficient = 0, value } = options;
    const { theta, phi } = this.#gradient;
    const length = text.response.length;
    const clipped = new Int32Array(length);
    const [values, valueLosses] = [new Float32Array(length), new Float32Array(length)];
    const [ratios, logProbs] = [new Float32Array(length), new Float32Array(length)];
    const losses = perToken(text, (t, weight) => {
      const id = text.response[t]!;
      const logProb = this.logProb(id);
      const ratio = Math.exp(logProb - text.oldLogProbs[t]!);
      const advantage = text.advantages[t]!;
      const held = Math.min(Math.max(ratio, 1 - clipLow), 1 + clipHigh) * advantage;
      clipped[t] = held < ratio * advantage ? (ratio > 1 ? 1 : -1) : 0;
      let loss = -Math.min(ratio * advantage, held) - entropyCoefficient * entropy;
      if (clipped[t] === 0) this.#gradient.theta -= weight * advantage * ratio * slope(id);
      if (klCoefficient > 0) {
        const difference = text.referenceLogProbs![t]! - logProb;
        loss += klCoefficient * (Math.exp(difference) - difference - 1);
        this.#gradient.theta += weight * klCoefficient * (1 - Math.exp(difference)) * slope(id);
      }
      if (value !== undefined) {
        values[t] = this.phi * feature(t);
        const miss = values[t]! - text.returns![t]!;
        valueLosses[t] = miss ** 2 / 2;
        this.#gradient.phi += weight * value.coefficient * miss * feature(t);
      }
      ratios[t] = ratio;
      logProbs[t] = logProb;
      return loss;
    });
    if (options.withGradient === false) this.#gradient = { theta, phi };
    return {
      losses,
      logProbs,
      entropies: perToken(text, () => entropy),
      ratios,
      clipped,
      ...(value === undefined ? {} : { values, valueLosses }),
    };
  }

  override async step(options: StepOptions): Promise<StepResult> {
    this.before("step");
    const { skipped } = await super.step(options);
    const { theta, phi } = this.#gradient;
    this.#gradient = { theta: 0, phi: 0 };
    if (!skipped) {
      this.theta -= options.learningRate * theta;
      this.phi -= options.learningRate * phi;
    }
    return { gradNorm: Math.hypot(theta, phi), skipped };
  }

  override async discardGradients(): Promise<void> {
    this.#gradient = { theta: 0, phi: 0 };
    await super.discardGradients();
  }

  override async save(directory: string): Promise<void> {
    const { theta, phi, reference } = this;
    writeFileSync(join(directory, "policy.json"), JSON.stringify({ theta, phi, reference }));
  }

  /** Goes on from what `save` wrote. */
  load(directory: string): this {
    return Object.assign(this, JSON.parse(readFileSync(join(directory, "policy.json"), "utf8")));
  }
}

/** One value a token, 0 where the weight is 0. */
function perToken({ response, weight = 1 }: ScoredText, value: (t: number, weight: number) => number) {
  return Float32Array.from(response, (_, t) => {
    const share = typeof weight === "number" ? weight : weight[t]!;
    return share === 0 ? 0 : value(t, share);
  });
}
