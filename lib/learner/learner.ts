/**
 * The learner: a language model with its EMA, gradients and optimizer, all of which live in C++ on
 * one thread. A call is checked here, queued there, and runs after the calls before it; the event
 * loop is never blocked.
 */

import type { LearnerDType } from "../base/dtype.ts";
import { fromNative, NlacError } from "../base/errors.ts";
import { checkBoolean, checkChoice, checkInteger, checkKeys, checkNumber } from "../base/validation.ts";
import { writeChecksums } from "../files/checksums.ts";
import type {
  DetailedKlOptions,
  DistilledText,
  GenerateOptions,
  GenerateRequest,
  Generation,
  JudgedText,
  KlDetail,
  PreferenceModel,
  PreferenceOptions,
  PreferencePair,
  PreferenceResult,
  RewardModel,
  RewardText,
  ScoredText,
  SoftQModel,
  SoftQOptions,
  SoftQResult,
  SoftQText,
  StepOptions,
  StepResult,
  SurrogateOptions,
  SurrogateResult,
  SurrogateText,
  TokenKlOptions,
  WeightSet,
} from "../model/language-model.ts";
import type { NativeLearner } from "../native/addon.ts";
import { adamWOptionNames, checkAdamWOptions, checkDivergence, checkSupport } from "../ops/options.ts";
import type { Tokenizer } from "../tokens/tokenizer.ts";
import { Generator, weightSets } from "./generation.ts";
import {
  checkArray,
  checkIds,
  checkTemperature,
  distilledTexts,
  gradientOption,
  judgedTexts,
  preferenceOptions,
  preferencePairs,
  rewardTexts,
  scoredTexts,
  softQOptions,
  softQTexts,
  surrogateOptions,
  surrogateTexts,
} from "./inputs.ts";
import type { CreateOptions, LearnerOptions, ResumeOptions } from "./options.ts";
import { finish, paddingId, prepare } from "./saving.ts";
import {
  checkLoaded,
  fromCheckpoint,
  fromConfig,
  fromModel,
  resolveDtype,
  type Source,
  writeSampling,
} from "./sources.ts";
import { ModelText } from "./text.ts";

const scorers = [...weightSets, "reference"] as const;
const klOptions = ["temperature", "support", "divergence", "withGradient", "detail"];

/**
 * A language model that learns. Calls run one after another in the order in which they were made;
 * adjacent `generate` and `save` calls run together. Every promise settles. Invalid arguments are rejected
 * before anything is computed, with an ERR_VALUE that names them. Any call may reject with
 * ERR_OUT_OF_MEMORY, or with ERR_DISPOSED after `dispose`.
 */
export class Learner extends ModelText implements PreferenceModel, RewardModel, SoftQModel, AsyncDisposable {
  readonly device: string;
  readonly dtype: LearnerDType;
  readonly seed: number;

  readonly #native: NativeLearner;
  readonly #generator: Generator;
  readonly #base: string | undefined;
  readonly #follows: boolean; // another rank writes what `save` and the exports write

  private constructor(
    native: NativeLearner,
    tokenizer: Tokenizer | undefined,
    { settings, requests, base }: Source,
  ) {
    super(native.info(), tokenizer);
    this.#native = native;
    this.#base = base;
    this.#follows = (settings.ranks?.rank ?? 0) > 0;
    this.device = settings.device;
    this.dtype = resolveDtype(settings);
    this.seed = settings.seed;
    const { info, seed, endOfTurnIds } = this;
    const render: Learner["render"] = (messages, options) => this.render(messages, options);
    const owner = { info, seed, tokenizer, endOfTurnIds, render, needTokenizer: () => this.needTokenizer() };
    this.#generator = new Generator(owner, native, settings.maxQueued, requests);
  }

  /**
   * Loads a model of one of the supported families (docs/models.md).
   *
   * @param model a known name ("SmolLM2-135M-Instruct"), a Hugging Face directory, or a .gguf file
   * @throws NlacError ERR_MODEL_NOT_FOUND, ERR_MODEL_FORMAT, ERR_DOWNLOAD, ERR_CONFIG for a bad
   *   option, ERR_DEVICE, ERR_LIBTORCH_NOT_FOUND, ERR_ADDON_NOT_FOUND, ERR_OUT_OF_MEMORY
   */
  static async load(model: string, options: LearnerOptions = {}): Promise<Learner> {
    return Learner.#open(await fromModel(model, options));
  }

  /**
   * A model with random weights (normal, standard deviation 0.02), to train from scratch.
   *
   * @param config a Hugging Face config.json, as an object or as text
   * @throws NlacError ERR_MODEL_FORMAT for a config that is not supported; otherwise as `load`
   */
  static async create(config: object | string, options: CreateOptions = {}): Promise<Learner> {
    return Learner.#open(fromConfig(config, options));
  }

  /**
   * Continues from what `save` wrote: θ, θ̄, the reference, heads, moments, pending gradients, and
   * the random sequence.
   *
   * @param options `heads` and `adapter` cannot be changed; these, `dtype` and `seed` default to the
   *   saved ones
   * @throws NlacError ERR_CHECKPOINT that names the file, for a directory that is incomplete,
   *   damaged or not a checkpoint, and if the adapter's model is found neither where it was nor at
   *   `base`, or is another model; ERR_CONFIG
   */
  static async resume(directory: string, options: ResumeOptions = {}): Promise<Learner> {
    return Learner.#open(await fromCheckpoint(directory, options));
  }

  /** Waits for both parts of a source. If either fails, the other is freed. */
  static async #open(source: Source): Promise<Learner> {
    const { settings } = source;
    const [native, tokenizer] = await Promise.allSettled([source.native, source.tokenizer]);
    if (native.status === "rejected") throw fromNative(native.reason);
    try {
      if (tokenizer.status === "rejected") throw tokenizer.reason;
      const learner = new Learner(native.value, tokenizer.value, source);
      checkLoaded(learner.info, tokenizer.value, settings);
      return learner;
    } catch (error) {
      await native.value.dispose();
      throw error;
    }
  }

  // --- inference -------------------------------------------------------------------------------

  /**
   * Samples completions. All requests run at once, together with those of other calls: a request
   * joins the running ones as soon as there is memory for it, in the order of arrival. Calls made
   * before a step, or before any other change of the weights, use the weights before it. On a CPU a
   * completion has the same bits whatever else is generated at the same time. A completion ends
   * with one of the model's end-of-turn ids or of `stopTokenIds`, before one of the `stop` strings,
   * at the end of its grammar, at `maxNewTokens`, or at the context's end.
   *
   * @param requests `tokens`: [time] ids, or `messages`
   * @returns one per request, in order; `logProbs`: [new tokens], nats
   * @throws NlacError ERR_VALUE that names the request, also for a grammar that cannot be compiled;
   *   ERR_TOKENIZER; ERR_NOT_FINITE for a broken model; ERR_ABORTED within one token's time after
   *   the signal fires; ERR_BUSY with `wait: false`
   */
  async generate(requests: readonly GenerateRequest[], options: GenerateOptions = {}): Promise<Generation[]> {
    return this.#generator.generate(requests, options);
  }

  /**
   * `generate` by all ranks together, with `sharding: 3` and `layerwiseGeneration`: all ranks make
   * the call, also those without requests. `DistributedLearner` does.
   *
   * @param requests all of the weights `weights`
   */
  async generateTogether(
    requests: readonly GenerateRequest[],
    options: GenerateOptions,
    weights: WeightSet,
  ): Promise<Generation[]> {
    return this.#generator.generate(requests, options, checkChoice(weights, "weights", weightSets));
  }

  /** The requests with prompts as ids and with the seeds of `generate`, which throws the same. */
  prepareRequests(requests: readonly GenerateRequest[]): GenerateRequest[] {
    return this.#generator.prepared(requests);
  }

  /**
   * Log probabilities of responses after their prompts, in nats.
   *
   * @param options.weights "online" is θ, "target" θ̄, "reference" is what `keepReference` stored
   * @param options.temperature of the softmax; default 1
   * @returns per text [response tokens], 0 where the text's weight is 0
   * @throws NlacError ERR_VALUE if there is no reference
   */
  async logProbs(
    texts: readonly ScoredText[],
    options: { weights?: WeightSet | "reference" | undefined; temperature?: number | undefined } = {},
  ): Promise<Float32Array[]> {
    checkKeys(options, "logProbs", ["weights", "temperature"], "ERR_VALUE");
    const which = checkChoice(options.weights ?? "online", "weights", scorers);
    const temperature = checkTemperature(options.temperature ?? 1);
    const scored = scoredTexts(texts, this.info);
    return this.#run(() => this.#native.logProbs(scored, which, temperature));
  }

  /**
   * With `sharding: 3`: collects the weights that generate next from all ranks, which all call it.
   * They stay complete until they change, or until the next loss or scoring call. Does nothing
   * otherwise. `DistributedLearner` calls it, unless generation is layerwise.
   */
  async gatherWeights(weights: WeightSet): Promise<void> {
    const which = checkChoice(weights, "weights", weightSets);
    return this.#run(() => this.#native.gather(which));
  }

  /**
   * Values of the states before each token of the responses, by the value head of θ, in float32.
   *
   * @returns per text [response tokens], 0 where the text's weight is 0
   * @throws NlacError ERR_CONFIG for a learner without a value head
   */
  async values(texts: readonly ScoredText[]): Promise<Float32Array[]> {
    const scored = scoredTexts(texts, this.info);
    return this.#run(() => this.#native.values(scored));
  }

  /** Logits of sequences of ids, for tests and small inputs: [time × vocab] each, row-major. */
  async logits(
    sequences: readonly (readonly number[])[],
    options: { weights?: WeightSet | undefined } = {},
  ): Promise<Float32Array[]> {
    checkKeys(options, "logits", ["weights"], "ERR_VALUE");
    const which = checkChoice(options.weights ?? "online", "weights", weightSets);
    checkArray(sequences, "sequences");
    const ids = sequences.map((sequence, i) => checkIds(sequence, `sequences[${i}]`, this.info));
    return this.#run(() => this.#native.logits(ids, which));
  }

  // --- training --------------------------------------------------------------------------------

  /**
   * Negative log likelihood of responses, -log p_θ(y_t | prompt, y_<t). Accumulates the gradient of
   * Σ weight·loss over all tokens until `step`.
   *
   * @returns unweighted losses per text, [response tokens], nats; 0 where the weight is 0
   */
  async tokenNll(
    texts: readonly ScoredText[],
    options: { withGradient?: boolean | undefined } = {},
  ): Promise<Float32Array[]> {
    const withGradient = gradientOption(options, "tokenNll");
    const scored = scoredTexts(texts, this.info);
    return this.#run(() => this.#native.tokenNll(scored, withGradient));
  }

  /**
   * KL(p_θ̄(· | teacher, y_<t) ‖ p_θ(· | student, y_<t)) per token of the response: NLAC's L1.
   * Accumulates the gradient of θ until `step`.
   *
   * @param options.divergence another divergence of the two distributions instead; see `Divergence`
   * @param options.support "full" vocabulary, { topK } of the teacher with a tail bucket, or
   *   "sampled": the cross entropy of the response's own tokens
   * @param options.detail also returns both models' log probabilities and this number of their most
   *   probable tokens, from the same logits. With the support "sampled", θ̄ is then computed too
   * @returns unweighted losses per text, [response tokens], nats; 0 where the weight is 0
   */
  async tokenKl(texts: readonly DistilledText[], options: DetailedKlOptions): Promise<KlDetail[]>;
  async tokenKl(texts: readonly DistilledText[], options?: TokenKlOptions): Promise<Float32Array[]>;
  async tokenKl(
    texts: readonly DistilledText[],
    options: TokenKlOptions & { detail?: number } = {},
  ): Promise<Float32Array[] | KlDetail[]> {
    checkKeys(options, "tokenKl", klOptions, "ERR_VALUE");
    const distilled = distilledTexts(texts, this.info);
    const temperature = checkTemperature(options.temperature ?? 1);
    const support = checkSupport(options.support ?? "full");
    const divergence = checkDivergence(options.divergence ?? "forwardKl", options.support ?? "full");
    const { detail } = options;
    const withGradient = checkBoolean(options.withGradient ?? true, "withGradient");
    const most = detail === undefined ? -1 : checkInteger(detail, "detail", 0, this.info.vocabSize);
    const rest = [temperature, support, withGradient, divergence, most] as const;
    return this.#run(() => this.#native.tokenKl(distilled, ...rest));
  }

  /**
   * The clipped surrogate of PPO (Schulman et al., "Proximal policy optimization algorithms", 2017,
   * equation 7) with GRPO's estimate of the KL to a reference (Shao et al., "DeepSeekMath", 2024,
   * equation 4), and the value head's loss, in one forward and backward pass. Accumulates the
   * gradient of Σ weight·loss until `step`.
   *
   * @param texts lists of [response tokens]; entries of tokens of weight 0 are not read
   * @returns per text lists of [response tokens], 0 where the weight is 0
   * @throws NlacError ERR_CONFIG for `value` without a value head
   */
  async tokenSurrogate(
    texts: readonly SurrogateText[],
    options: SurrogateOptions = {},
  ): Promise<SurrogateResult[]> {
    const native = surrogateOptions(options);
    const scored = surrogateTexts(texts, native, this.info);
    return this.#run(() => this.#native.tokenSurrogate(scored, native));
  }

  /**
   * The loss of preference pairs: DPO, or another of `PreferenceLoss`. Both responses of a pair are
   * in one micro-batch, which may therefore exceed `microBatchTokens`. Accumulates the gradient of
   * Σ weight·loss over pairs until `step`.
   *
   * @throws NlacError ERR_VALUE also for a response without a token of weight 1
   */
  async tokenPreference(
    pairs: readonly PreferencePair[],
    options: PreferenceOptions,
  ): Promise<PreferenceResult[]> {
    const native = preferencePairs(pairs, this.info);
    const settings = preferenceOptions(options);
    return this.#run(() => this.#native.tokenPreference(native, settings));
  }

  async rewards(texts: readonly RewardText[]): Promise<Float32Array> {
    const native = rewardTexts(texts, this.info);
    return this.#run(() => this.#native.rewards(native));
  }

  async rewardLoss(
    texts: readonly JudgedText[],
    options: { withGradient?: boolean | undefined } = {},
  ): Promise<Float32Array> {
    const withGradient = gradientOption(options, "rewardLoss");
    const native = judgedTexts(texts, this.info);
    return this.#run(() => this.#native.rewardLoss(native, withGradient));
  }

  /**
   * Soft actor-critic on the tokens of episodes (Haarnoja et al., 2018); algorithms/sac.ts has the
   * targets and losses. Accumulates the gradient of Σ weight·(qCoefficient·L_Q +
   * policyCoefficient·L_π) until `step`. No gradient flows through the targets, and none from L_π
   * into Q.
   *
   * @param texts episodes; a token whose weight is not 0 is an action. `rewards`: [response tokens]
   * @returns per text lists of [response tokens], 0 at tokens that are no actions
   * @throws NlacError ERR_CONFIG for a learner without Q heads
   */
  async softQ(texts: readonly SoftQText[], options: SoftQOptions): Promise<SoftQResult[]> {
    const episodes = softQTexts(texts, this.info);
    const native = softQOptions(options);
    return this.#run(() => this.#native.softQ(episodes, native));
  }

  async resetQHeads(): Promise<void> {
    return this.#run(() => this.#native.resetQHeads());
  }

  /**
   * One AdamW step (Loshchilov and Hutter, 2019) on the accumulated gradients. They are zero
   * afterwards, also if the step is skipped because a gradient is not finite.
   *
   * @throws NlacError ERR_VALUE, also for a `targetRate` below 1 if an earlier step has changed θ
   *   and there is no θ̄
   */
  async step(options: StepOptions): Promise<StepResult> {
    checkKeys(options, "step", [...adamWOptionNames, "moments", "targetRate"], "ERR_VALUE");
    const native = { ...checkAdamWOptions(options), moments: options.moments ?? "" };
    const { targetRate } = options;
    if (targetRate !== undefined) checkNumber(targetRate, "targetRate", 0, 1);
    return this.#run(() => this.#native.step(native, targetRate));
  }

  async discardGradients(): Promise<void> {
    return this.#run(() => this.#native.discardGradients());
  }

  async discardMoments(moments: string): Promise<void> {
    return this.#run(() => this.#native.discardMoments(moments));
  }

  async dropCaches(): Promise<void> {
    return this.#run(() => this.#native.dropCaches());
  }

  /**
   * θ̄ ← τ·θ + (1 - τ)·θ̄, in float32. The first use creates θ̄ as a copy of θ: this call,
   * `weights: "target"`, or `tokenKl`. It must come before the first step; later, only τ = 1
   * creates θ̄.
   * @param targetRate τ, in [0, 1]
   * @throws NlacError ERR_VALUE, also for a τ below 1 if a step has changed θ and there is no θ̄
   */
  async updateTarget(targetRate: number): Promise<void> {
    checkNumber(targetRate, "targetRate", 0, 1);
    return this.#run(() => this.#native.updateTarget(targetRate));
  }

  /**
   * ‖θ̄ - θ‖ / ‖θ‖ over the trained parameters. Throws ERR_VALUE if a step has changed θ and there
   * is no θ̄.
   */
  async targetDistance(): Promise<number> {
    return this.#run(() => this.#native.targetDistance());
  }

  /**
   * Stores a copy of θ, in the learner's dtype, as the reference of `logProbs`. It replaces an
   * earlier one, and `save` includes it.
   */
  async keepReference(): Promise<void> {
    return this.#run(() => this.#native.keepReference());
  }

  /**
   * θ ← the reference, with the precision of the learner's dtype. Drops pending gradients; moments
   * stay.
   *
   * @throws NlacError ERR_VALUE if there is no reference
   */
  async restoreReference(): Promise<void> {
    return this.#run(() => this.#native.restoreReference());
  }

  // --- saving ----------------------------------------------------------------------------------

  /**
   * Writes everything that `resume` needs into `directory`, which is created if necessary. The
   * checkpoint contains the effects of all earlier calls. Each file is replaced as a whole;
   * checksums.json is written last. The files are written from the weights themselves, by a thread of
   * their own: `generate` runs meanwhile, and later calls of other kinds wait. With an adapter, the
   * loaded model is not saved: `resume` looks for it under the name or path that `load` was given.
   *
   * @throws NlacError ERR_IO
   */
  async save(directory: string): Promise<void> {
    if (this.#follows) return this.#run(() => this.#native.save(directory));
    prepare(directory);
    // The core's part begins even if this rank cannot write the rest: other ranks wait for it.
    await finish(directory, this.#native.save(directory), this.#saveSampling(directory));
  }

  async #saveSampling(directory: string): Promise<void> {
    writeSampling(directory, {
      seed: this.seed,
      requests: this.#generator.requests,
      dtype: this.dtype,
      tokenizer: this.tokenizer !== undefined,
      base: this.#base,
    });
    await this.tokenizer?.save(directory);
  }

  /**
   * Writes θ without its heads as a directory that transformers loads: config.json,
   * model.safetensors in the learner's dtype, tokenizer.json, and tokenizer_config.json with the
   * chat template. An adapter is merged into its projections.
   *
   * @throws NlacError ERR_IO
   */
  async exportHuggingFace(directory: string): Promise<void> {
    if (this.#follows) return this.#run(() => this.#native.exportHuggingFace(directory));
    prepare(directory);
    await finish(directory, this.#native.exportHuggingFace(directory), this.tokenizer?.save(directory));
  }

  /**
   * Writes the reward model as a sequence classifier of transformers with one label: `rewards`
   * returns σ of its logit. The padding token, also in the tokenizer's configuration, is one that
   * ends no turn, because the classifier reads the last token that is not padding.
   *
   * @throws NlacError ERR_CONFIG for a learner without a value head, ERR_IO
   */
  async exportRewardModel(directory: string): Promise<void> {
    if (this.info.heads !== "value") {
      throw new NlacError("ERR_CONFIG", 'A reward model needs a learner with heads "value".');
    }
    const pad = paddingId(this.info, this.tokenizer, this.endOfTurnIds);
    if (this.#follows) return this.#run(() => this.#native.exportRewardModel(directory, pad));
    prepare(directory);
    const changes = pad < 0 ? {} : { pad_token: this.tokenizer?.decode([pad]) ?? null };
    const core = this.#native.exportRewardModel(directory, pad);
    await finish(directory, core, this.tokenizer?.save(directory, changes));
  }

  /**
   * Writes the adapter in peft's format: adapter_model.safetensors, in float32, and
   * adapter_config.json.
   *
   * @throws NlacError ERR_VALUE for a learner without an adapter, ERR_IO
   */
  async exportAdapter(directory: string): Promise<void> {
    if (this.info.trainableParameters === this.info.parameters) {
      throw new NlacError("ERR_VALUE", "This learner has no adapter: it trains every parameter.");
    }
    if (this.#follows) return this.#run(() => this.#native.exportAdapter(directory, this.#base ?? ""));
    prepare(directory);
    await this.#run(() => this.#native.exportAdapter(directory, this.#base ?? ""));
    await writeChecksums(directory);
  }

  /**
   * Finishes the running call, rejects queued calls with ERR_DISPOSED, and frees all memory. May be
   * called more than once.
   */
  async dispose(): Promise<void> {
    return this.#run(() => this.#native.dispose());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose();
  }

  // --- helpers ---------------------------------------------------------------------------------

  async #run<T>(call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      throw fromNative(error);
    }
  }
}
