/**
 * The learner: a language model with its moving average, gradients and optimizer, all of which live in C++ on a
 * thread of their own. A call is checked here, queued there, and runs after the calls before it; the event loop
 * is free meanwhile.
 */

import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { type DTypeOption, dtypeOptions, fastestDtype, type LearnerDType } from "../base/dtype.ts";
import { fromNative, NlacError, throwIfAborted } from "../base/errors.ts";
import { derivedSeed, streams } from "../base/random.ts";
import {
  checkBoolean,
  checkChoice,
  checkInteger,
  checkKeys,
  checkNumber,
  checkSeed,
  shown,
  withDefaults,
} from "../base/validation.ts";
import type { Message, ToolSchema } from "../contract/environment.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { resolveModel } from "../hub/resolve-model.ts";
import { grammarText } from "../model/grammar.ts";
import type {
  DistilledText,
  GenerateOptions,
  GenerateRequest,
  Generation,
  PolicyGradientModel,
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
import type {
  Addon,
  NativeAdapterOptions,
  NativeDistilledText,
  NativeGenerateRequest,
  NativeGenerateResult,
  NativeLearner,
  NativeLearnerOptions,
  NativeModelInfo,
  NativeScoredText,
  NativeSoftQText,
  NativeSurrogateOptions,
  NativeSurrogateText,
} from "../native/addon.ts";
import { callNative } from "../native/call-native.ts";
import { loadAddon } from "../native/load.ts";
import { fromNativeTensor, nativeOf } from "../ops/ops.ts";
import { checkAdamWOptions, checkDivergence, checkSupport } from "../ops/options.ts";
import { Conversation, type ConversationJson } from "../tokens/conversation.ts";
import { ChatTemplate, type RenderOptions } from "../tokens/template.ts";
import { Tokenizer } from "../tokens/tokenizer.ts";

/** The projections of a layer, by their Hugging Face names, in the order in which a layer computes them. */
export const projections = [
  "q_proj",
  "k_proj",
  "v_proj",
  "o_proj",
  "gate_proj",
  "up_proj",
  "down_proj",
] as const;

/**
 * Low-rank adapters (LoRA; Hu et al., 2021): a projection's W [out, in] stays as it is and computes
 * W x + (alpha / rank) · B A x. Only A [rank, in] and B [out, rank] are trained; B begins at zero.
 */
export interface AdapterOptions {
  /** At least 1. */
  rank: number;
  /** Above 0. */
  alpha: number;
  /** The projections that get one. Default: all. */
  targets?: readonly (typeof projections)[number][] | undefined;
}

export interface LearnerOptions {
  /** "cpu", "cuda" or "cuda:N". Default "cpu". */
  device?: string | undefined;
  /**
   * Type of the computation; parameters, moments and gradients are kept in float32. "auto" is the faster one on the device:
   * bfloat16, or float32 on a CPU without AVX2. Default "auto".
   */
  dtype?: DTypeOption | undefined;
  /**
   * Generation multiplies by matrices rounded to int8, packed in half the memory: faster for one text or a few at once,
   * slower for dozens, and a little off (docs/decisions/0014). Its texts, `logProbs` and `hidden` are the rounded model's;
   * all other calls compute with the weights themselves. On a CPU alone. Default false.
   */
  int8Generation?: boolean | undefined;
  /** Determines every text generated without a seed of its own. Default 0. */
  seed?: number | undefined;
  /**
   * Trains adapters on a model that stays as it is and is kept once, in `dtype`, for θ and θ̄ together. Default
   * undefined: all parameters are trained.
   */
  adapter?: AdapterOptions | undefined;
  /** Recompute activations in the backward pass: less memory, a third more time. Default false. */
  gradientCheckpointing?: boolean | undefined;
  /** Packed tokens of one forward and backward pass. Default 2048. */
  microBatchTokens?: number | undefined;
  /**
   * Bytes of keys and values in generation, of texts under way and of finished ones that may be continued, for θ and θ̄
   * each. What does not fit waits; a single text may take more. Default 2 GiB.
   */
  cacheBytes?: number | undefined;
  /** Requests of all `generate` calls that have not ended, beyond which one that will not wait fails. Default 1024. */
  maxQueued?: number | undefined;
  /** Threads of one operation, for the whole process. Default: NLAC_THREADS, or the cores there are. */
  threads?: number | undefined;
  /**
   * What is trained besides the model: "value" adds a value head, zero until trained; "q" twin soft Q heads, each as
   * large as the vocabulary matrix, that begin as the policy. Default: none, or on `resume` what was saved. `load` finds
   * heads that `save` wrote into the directory.
   */
  heads?: Heads | undefined;
}

export interface CreateOptions extends LearnerOptions {
  /** For encode, decode and chats; without one the learner takes ids only. */
  tokenizer?: Tokenizer | undefined;
}

export interface ResumeOptions extends LearnerOptions {
  /**
   * Where the model of an adapter may be too, as `load` takes it: looked at where it is not under the name or path that
   * `load` was given then.
   */
  base?: string | undefined;
}

export type ModelInfo = Readonly<NativeModelInfo>;
export type Heads = NativeModelInfo["heads"];

interface Settings {
  device: string;
  dtype: DTypeOption;
  int8Generation: boolean;
  seed: number;
  adapter: AdapterOptions | undefined;
  gradientCheckpointing: boolean;
  microBatchTokens: number;
  cacheBytes: number;
  maxQueued: number;
  threads: number | undefined;
  heads: Heads | undefined;
}

const defaults: Settings = {
  device: "cpu",
  dtype: "auto",
  int8Generation: false,
  seed: 0,
  adapter: undefined,
  gradientCheckpointing: false,
  microBatchTokens: 2048,
  cacheBytes: 2 ** 31,
  maxQueued: 1024,
  threads: undefined,
  heads: undefined,
};

/** What `save` keeps beside the core's own files. */
interface SavedSampling {
  format: 1;
  seed: number;
  /** Requests that were given a seed of the learner's. */
  requests: number;
  /** Whether tokenizer files belong to the checkpoint. */
  tokenizer: boolean;
  /** What `load` was given, a file or directory as an absolute path; only with an adapter. */
  base?: string | undefined;
}

const samplingFile = "sampling.json";
const whichs = ["online", "target"] as const;
const scorers = [...whichs, "reference"] as const;

/**
 * A language model that learns. Calls run one after another in the order they were made, but for neighbouring
 * `generate` calls, which run together; every promise settles. Any call may reject with ERR_OUT_OF_MEMORY, or with ERR_DISPOSED after `dispose`; arguments are
 * refused with ERR_VALUE before anything is computed.
 */
export class Learner implements PolicyGradientModel, SoftQModel, AsyncDisposable {
  /** Architecture and size of the model. */
  readonly info: ModelInfo;
  /** Undefined for a model that came without one. */
  readonly tokenizer: Tokenizer | undefined;
  readonly device: string;
  readonly dtype: LearnerDType;
  readonly seed: number;
  /** Those that the model's configurations name, and its tokenizer's. */
  readonly endOfTurnIds: readonly number[];

  readonly #native: NativeLearner;
  readonly #base: string | undefined;
  #template: ChatTemplate | undefined;
  readonly #maxQueued: number;
  #requests: number;
  #underWay = 0; // requests of generate calls that have not ended
  #tokenBytesGiven = false;

  private constructor(
    native: NativeLearner,
    tokenizer: Tokenizer | undefined,
    settings: Settings,
    requests: number,
    base: string | undefined,
  ) {
    this.#native = native;
    this.#base = base;
    this.info = native.info();
    this.tokenizer = tokenizer;
    this.device = settings.device;
    this.dtype = resolveDtype(settings);
    this.seed = settings.seed;
    this.#maxQueued = settings.maxQueued;
    this.#requests = requests;
    this.endOfTurnIds = [...new Set([...this.info.eosTokenIds, ...(tokenizer?.eosTokenIds ?? [])])];
  }

  /**
   * Loads a model of the Llama, Qwen2 or Qwen3 architecture.
   *
   * @param model a known name ("SmolLM2-135M-Instruct"), a Hugging Face directory, or a .gguf file
   * @throws NlacError ERR_MODEL_NOT_FOUND, ERR_MODEL_FORMAT, ERR_DOWNLOAD, ERR_CONFIG for a bad option,
   *   ERR_DEVICE, ERR_LIBTORCH_NOT_FOUND, ERR_ADDON_NOT_FOUND, ERR_OUT_OF_MEMORY
   */
  static async load(model: string, options: LearnerOptions = {}): Promise<Learner> {
    const settings = checkSettings(options);
    const addon = openAddon(settings);
    const path = await resolveModel(model);
    const native = callNative(() => addon.loadLearner(path, nativeOptions(settings)));
    // A run's checkpoints give way to later ones; the core keeps such a base with the adapter.
    const lasting = !existsSync(join(path, "learner.json"));
    const base = settings.adapter && lasting ? lastingName(model, path) : undefined;
    return Learner.#assemble(native, readTokenizer(addon, path), settings, 0, base);
  }

  /**
   * A model with random weights (normal, standard deviation 0.02), to train from scratch.
   *
   * @param config a Hugging Face config.json, as an object or as text
   * @throws NlacError ERR_MODEL_FORMAT for a config that is not supported; see `load` for the others
   */
  static async create(config: object | string, options: CreateOptions = {}): Promise<Learner> {
    const { tokenizer, ...rest } = options;
    const settings = checkSettings(rest);
    const addon = openAddon(settings);
    const json = typeof config === "string" ? config : JSON.stringify(config);
    const native = callNative(() =>
      addon.createLearner(json, BigInt(settings.seed), nativeOptions(settings)),
    );
    return Learner.#assemble(native, Promise.resolve(tokenizer), settings, 0);
  }

  /**
   * Goes on from what `save` wrote: θ, θ̄, the reference, heads, moments, pending gradients, and the random sequence.
   *
   * @param options `device`, `dtype` and the like may differ from those of the saved learner; `seed` defaults to
   *   the saved one, and so do `heads` and `adapter`, which cannot be others
   * @throws NlacError ERR_CHECKPOINT for a directory that is missing something, torn, or not a checkpoint, and where
   *   the model that an adapter belongs to is not where it was loaded from nor at `base`, or is another; ERR_CONFIG
   */
  static async resume(directory: string, options: ResumeOptions = {}): Promise<Learner> {
    const { base: elsewhere, ...rest } = options;
    const settings = checkSettings(rest);
    const saved = readSampling(directory);
    settings.seed = options.seed ?? saved.seed;
    const addon = openAddon(settings);
    const base = saved.base === undefined ? undefined : await findBase(directory, saved.base, elsewhere);
    const path = base?.path ?? "";
    const native = callNative(() => addon.resumeLearner(directory, nativeOptions(settings), path));
    const tokenizer = saved.tokenizer ? Tokenizer.fromDirectory(directory) : Promise.resolve(undefined);
    const readable = tokenizer.catch((error: unknown) => {
      throw new NlacError("ERR_CHECKPOINT", `The tokenizer of ${directory} cannot be read: ${error}`, {
        cause: error,
      });
    });
    return Learner.#assemble(native, readable, settings, saved.requests, base?.name);
  }

  /** Joins the two halves, which load side by side; if either fails, nothing of the other is left. */
  static async #assemble(
    loading: Promise<NativeLearner>,
    reading: Promise<Tokenizer | undefined>,
    settings: Settings,
    requests: number,
    base?: string,
  ): Promise<Learner> {
    const [native, tokenizer] = await Promise.allSettled([loading, reading]);
    if (native.status === "rejected") throw fromNative(native.reason);
    try {
      if (tokenizer.status === "rejected") throw tokenizer.reason;
      const learner = new Learner(native.value, tokenizer.value, settings, requests, base);
      const rows = learner.info.vocabSize;
      if (tokenizer.value !== undefined && tokenizer.value.vocabSize > rows) {
        throw new NlacError(
          "ERR_MODEL_FORMAT",
          `The tokenizer has ${tokenizer.value.vocabSize} tokens, but the model only ${rows}.`,
        );
      }
      const { heads } = learner.info;
      if (settings.heads !== undefined && settings.heads !== heads) {
        throw new NlacError(
          "ERR_CONFIG",
          `The learner was saved with heads "${heads}", not "${settings.heads}".`,
        );
      }
      return learner;
    } catch (error) {
      await native.value.dispose();
      throw error;
    }
  }

  get maxPositions(): number {
    return this.info.maxPositions;
  }

  /** Throws ERR_TOKENIZER if neither the tokenizer nor the model names such an id. */
  get endOfTurn(): number {
    // An instruct model's eos_token ends its turns; its list of ids may begin with one that ends documents.
    const named = this.tokenizer?.idOf(this.tokenizer.namedTokens.eos_token ?? "");
    const id = named ?? this.endOfTurnIds[0];
    if (id === undefined) throw new NlacError("ERR_TOKENIZER", "The model has no id that ends a turn.");
    return id;
  }

  // --- text ------------------------------------------------------------------------------------------------

  /** Ids of ordinary text; control tokens that it spells are encoded as text. Throws ERR_TOKENIZER. */
  encode(text: string): number[] {
    return this.#needTokenizer().encode(text);
  }

  /** The text of ids, control tokens included. Throws ERR_TOKENIZER. */
  decode(ids: readonly number[]): string {
    return this.#needTokenizer().decode(ids);
  }

  /**
   * The ids of messages in the model's chat template.
   *
   * @param options.addGenerationPrompt end with what opens the assistant's turn; default false
   * @throws NlacError ERR_TOKENIZER if the model has no chat template or it refuses the messages
   */
  render(messages: readonly Message[], options: RenderOptions = {}): number[] {
    return this.#chat().encode(this.#needTokenizer(), messages, options);
  }

  /** Opens a conversation, which grows by appending ids. Throws ERR_TOKENIZER, ERR_VALUE without messages. */
  conversation(messages: readonly Message[], options: { tools?: readonly ToolSchema[] } = {}): Conversation {
    return Conversation.start(this.#needTokenizer(), this.#chat(), messages, options);
  }

  restoreConversation(json: ConversationJson): Conversation {
    return Conversation.fromJSON(json, this.#needTokenizer(), this.#chat());
  }

  // --- inference -------------------------------------------------------------------------------------------

  /**
   * Samples texts, all requests at once, and those of other calls beside them: requests join the running ones in the
   * order they came, as memory allows. Calls made before a step, or any other change of the weights, see the
   * weights before it, those after it the weights after it. On a CPU a text is the same to the last bit whatever
   * else is generated meanwhile. A text ends with one of the model's end-of-turn ids or of
   * `stopTokenIds`, before one of the `stop` strings, where its grammar has nothing more, or at `maxNewTokens` or the
   * context's end.
   *
   * @param requests `tokens`: [time] ids, or `messages`
   * @returns one a request, in order; `logProbs`: [new tokens], nats
   * @throws NlacError ERR_VALUE naming the request, also for a grammar that cannot be compiled, ERR_TOKENIZER, ERR_NOT_FINITE for a broken model,
   *   ERR_ABORTED once the signal fired, within one step's time, ERR_BUSY with `wait: false`
   */
  async generate(requests: readonly GenerateRequest[], options: GenerateOptions = {}): Promise<Generation[]> {
    throwIfAborted(options.signal);
    if (options.wait === false && this.#underWay + requests.length > this.#maxQueued) {
      throw new NlacError(
        "ERR_BUSY",
        `${this.#underWay} texts are being written or wait; with these ${requests.length} it would be more than the ${this.#maxQueued} of maxQueued.`,
      );
    }
    const prepared = this.#prepare(requests);
    const groups = whichs
      .map((which) => ({ which, members: prepared.filter((request) => request.which === which) }))
      .filter(({ members }) => members.length > 0);

    let failure: unknown;
    const cancels: (() => void)[] = [];
    const cancel = () => {
      for (const stop of cancels) stop();
    };
    const { onToken } = options;
    const running = groups.map(({ which, members }) => {
      const forward = (member: number, token: number) => {
        if (failure !== undefined) return;
        try {
          onToken!(members[member]!.index, token);
        } catch (error) {
          failure = error ?? new NlacError("ERR_VALUE", "onToken threw nothing that could be passed on.");
          cancel();
        }
      };
      const generation = callNative(() =>
        this.#native.generate(
          members.map(({ native }) => native),
          which,
          onToken && forward,
        ),
      );
      cancels.push(generation.cancel);
      return generation.done;
    });

    options.signal?.addEventListener("abort", cancel, { once: true });
    this.#underWay += requests.length;
    const settled = await Promise.allSettled(running);
    this.#underWay -= requests.length;
    options.signal?.removeEventListener("abort", cancel);
    throwIfAborted(options.signal);
    if (failure !== undefined) throw failure;

    const generations = new Array<Generation>(requests.length);
    for (const [g, { members }] of groups.entries()) {
      const results = settled[g]!;
      if (results.status === "rejected") throw fromNative(results.reason);
      for (const [i, result] of results.value.entries()) {
        const { index, native } = members[i]!;
        generations[index] = this.#finish(result, native);
      }
    }
    return generations;
  }

  /**
   * Log probabilities of responses after their prompts, in nats.
   *
   * @param options.weights "online" is θ, "target" θ̄, "reference" what `keepReference` kept
   * @param options.temperature of the softmax; default 1
   * @returns per text [response tokens], 0 where the text's weight is 0
   * @throws NlacError ERR_VALUE naming the text, or when there is no reference
   */
  async logProbs(
    texts: readonly ScoredText[],
    options: { weights?: WeightSet | "reference" | undefined; temperature?: number | undefined } = {},
  ): Promise<Float32Array[]> {
    const which = checkChoice(options.weights ?? "online", "weights", scorers);
    const temperature = checkTemperature(options.temperature ?? 1);
    const scored = this.#scoredTexts(texts);
    return this.#run(() => this.#native.logProbs(scored, which, temperature));
  }

  /**
   * Values of the states before each token of the responses, by the value head of θ, in float32.
   *
   * @returns per text [response tokens], 0 where the text's weight is 0
   * @throws NlacError ERR_VALUE naming the text, ERR_CONFIG for a learner without a value head
   */
  async values(texts: readonly ScoredText[]): Promise<Float32Array[]> {
    const scored = this.#scoredTexts(texts);
    return this.#run(() => this.#native.values(scored));
  }

  /**
   * Logits of whole sequences, for tests and small inputs.
   *
   * @param sequences [time] ids each
   * @returns per sequence [time × vocab], row-major
   * @throws NlacError ERR_VALUE naming the sequence
   */
  async logits(
    sequences: readonly (readonly number[])[],
    options: { weights?: WeightSet | undefined } = {},
  ): Promise<Float32Array[]> {
    const which = checkChoice(options.weights ?? "online", "weights", whichs);
    checkArray(sequences, "sequences");
    const ids = sequences.map((sequence, i) => this.#ids(sequence, `sequences[${i}]`));
    return this.#run(() => this.#native.logits(ids, which));
  }

  // --- training --------------------------------------------------------------------------------------------

  /**
   * Negative log likelihood of responses, -log p_θ(y_t | prompt, y_<t). The gradient of Σ weight·loss over all
   * tokens adds to what is there until `step`.
   *
   * @returns unweighted losses per text, [response tokens], nats; 0 where the weight is 0
   * @throws NlacError ERR_VALUE naming the text
   */
  async tokenNll(
    texts: readonly ScoredText[],
    options: { withGradient?: boolean | undefined } = {},
  ): Promise<Float32Array[]> {
    const scored = this.#scoredTexts(texts);
    return this.#run(() => this.#native.tokenNll(scored, options.withGradient ?? true));
  }

  /**
   * KL(p_θ̄(· | teacher, y_<t) ‖ p_θ(· | student, y_<t)) per token of the response: L1 of the method (NLAC, the
   * language Bellman backup's loss). The gradient reaches θ only and adds up until `step`.
   *
   * @param options.divergence in place of that KL another one of the two distributions; see `Divergence`
   * @param options.support "full" vocabulary, { topK } of the teacher with a tail bucket, or "sampled": the
   *   cross entropy of the response's own tokens
   * @returns unweighted losses per text, [response tokens], nats; 0 where the weight is 0
   * @throws NlacError ERR_VALUE naming the text
   */
  async tokenKl(texts: readonly DistilledText[], options: TokenKlOptions = {}): Promise<Float32Array[]> {
    checkArray(texts, "texts");
    const distilled = texts.map((text, i): NativeDistilledText => {
      const where = `texts[${i}]`;
      const student = this.#ids(text.student, `${where}.student`);
      const teacher = this.#ids(text.teacher, `${where}.teacher`);
      const response = this.#ids(text.response, `${where}.response`);
      this.#checkLength(student.length + response.length, `${where}.student and .response`);
      this.#checkLength(teacher.length + response.length, `${where}.teacher and .response`);
      const weight = checkNumber(text.weight ?? 1, `${where}.weight`, -Number.MAX_VALUE);
      const kept = text.teacherHidden;
      return { student, teacher, response, weight, teacherHidden: kept && nativeOf(kept) };
    });
    const temperature = checkTemperature(options.temperature ?? 1);
    const support = checkSupport(options.support ?? "full");
    const divergence = checkDivergence(options.divergence ?? "forwardKl", options.support ?? "full");
    return this.#run(() =>
      this.#native.tokenKl(distilled, temperature, support, options.withGradient ?? true, divergence),
    );
  }

  /**
   * The clipped surrogate of PPO (Schulman et al., "Proximal policy optimization algorithms", 2017, equation 7) with
   * GRPO's estimate of the KL to a reference (Shao et al., "DeepSeekMath", 2024, equation 4), and the value head's
   * loss, in one forward and backward pass. The gradient of Σ weight·loss adds to what is there until `step`.
   *
   * @param texts lists of [response tokens]; what they hold where the weight is 0 is not looked at
   * @returns per text lists of [response tokens], 0 where the weight is 0
   * @throws NlacError ERR_VALUE naming the text and the list, ERR_CONFIG for `value` without a value head
   */
  async tokenSurrogate(
    texts: readonly SurrogateText[],
    options: SurrogateOptions = {},
  ): Promise<SurrogateResult[]> {
    const native = checkSurrogateOptions(options);
    const scored = this.#scoredTexts(texts).map((text, i): NativeSurrogateText => {
      const list = (name: keyof SurrogateText & keyof NativeSurrogateText, needed: boolean) =>
        needed ? checkList(texts[i]![name], text, `texts[${i}].${name}`) : new Float32Array();
      return {
        ...text,
        oldLogProbs: list("oldLogProbs", true),
        advantages: list("advantages", true),
        referenceLogProbs: list("referenceLogProbs", native.klCoefficient !== 0),
        returns: list("returns", native.value !== undefined),
        oldValues: list("oldValues", native.value !== undefined),
      };
    });
    return this.#run(() => this.#native.tokenSurrogate(scored, native));
  }

  /**
   * Soft actor-critic on the tokens of episodes (Haarnoja et al., 2018). An action's target is
   * y = r + γ·V̄(s'), V̄(s) = E_{a~π}[min(Q̄1, Q̄2) - α log π] under θ̄ and the policy π of θ; a text's last action has
   * y = r. The gradient of Σ weight·(qCoefficient·(½(Q1 - y)² + ½(Q2 - y)²) + policyCoefficient·KL(π ‖
   * softmax(min(Q1, Q2) / α))) over all actions adds to what is there until `step`; none flows through y, nor from
   * the KL into Q.
   *
   * @param texts episodes; a token whose weight is not 0 is an action. `rewards`: [response tokens]
   * @returns per text lists of [response tokens], 0 where no action is
   * @throws NlacError ERR_VALUE naming the text, ERR_CONFIG for a learner without Q heads
   */
  async softQ(texts: readonly SoftQText[], options: SoftQOptions): Promise<SoftQResult[]> {
    const episodes = this.#scoredTexts(texts).map(
      (text, i): NativeSoftQText => ({
        ...text,
        rewards: checkList(texts[i]!.rewards, text, `texts[${i}].rewards`),
      }),
    );
    const native = {
      temperature: checkTemperature(options.temperature),
      discount: checkNumber(options.discount ?? 1, "discount", 0, 1),
      qCoefficient: checkNumber(options.qCoefficient, "qCoefficient", 0),
      policyCoefficient: checkNumber(options.policyCoefficient, "policyCoefficient", 0),
      withGradient: checkBoolean(options.withGradient ?? true, "withGradient"),
    };
    return this.#run(() => this.#native.softQ(episodes, native));
  }

  /**
   * The Q heads hold θ's policy again, as new ones do, and θ̄'s with them: softmax(min(Q1, Q2) / α) is the policy. For
   * when other losses, a warm-up's say, have moved it since the heads were made.
   *
   * @throws NlacError ERR_CONFIG for a learner without Q heads
   */
  async resetQHeads(): Promise<void> {
    return this.#run(() => this.#native.resetQHeads());
  }

  /**
   * One AdamW step (Loshchilov and Hutter, 2019) on the gradients added up, which are then zero again, also
   * when the step is skipped because one is not finite.
   *
   * @throws NlacError ERR_VALUE, also for a `targetRate` below 1 when an earlier step has moved θ and there is no θ̄
   */
  async step(options: StepOptions): Promise<StepResult> {
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
   * θ̄ ← τ·θ + (1 - τ)·θ̄, in float32. θ̄ is made, equal to θ, by its first use: here, or wherever `weights` is
   * "target" or `tokenKl` needs a teacher. That must come before the first step. Later only a τ of 1 makes it.
   *
   * @param targetRate τ, in [0, 1]
   * @throws NlacError ERR_VALUE, also for a τ below 1 when θ has moved and there is no θ̄
   */
  async updateTarget(targetRate: number): Promise<void> {
    checkNumber(targetRate, "targetRate", 0, 1);
    return this.#run(() => this.#native.updateTarget(targetRate));
  }

  /** ‖θ̄ - θ‖ / ‖θ‖, of what is trained. Throws ERR_VALUE when θ has moved and there is no θ̄. */
  async targetDistance(): Promise<number> {
    return this.#run(() => this.#native.targetDistance());
  }

  /**
   * Keeps θ as it now is, in the learner's dtype, as the reference of `logProbs`, in place of an earlier one. `save`
   * writes it exactly; a resumed learner has it already.
   */
  async keepReference(): Promise<void> {
    return this.#run(() => this.#native.keepReference());
  }

  // --- keeping it ------------------------------------------------------------------------------------------

  /**
   * Writes everything that `resume` needs into `directory`, which is made if it does not exist; the calls
   * before this one are in it. Each file is replaced as a whole. With an adapter the loaded model is not among them:
   * `resume` looks for it under the name or path that `load` was given.
   *
   * @throws NlacError ERR_IO
   */
  async save(directory: string): Promise<void> {
    makeDirectory(directory);
    const sampling: SavedSampling = {
      format: 1,
      seed: this.seed,
      requests: this.#requests,
      tokenizer: this.tokenizer !== undefined,
      base: this.#base,
    };
    writeAtomically(join(directory, samplingFile), `${JSON.stringify(sampling, null, 2)}\n`);
    await this.#write(directory, this.#native.save(directory));
  }

  /**
   * Writes θ without its heads as a directory that transformers loads: config.json, model.safetensors in the learner's dtype,
   * tokenizer.json, and tokenizer_config.json with the chat template. An adapter is merged into its projections.
   *
   * @throws NlacError ERR_IO
   */
  async exportHuggingFace(directory: string): Promise<void> {
    makeDirectory(directory);
    await this.#write(directory, this.#native.exportHuggingFace(directory));
  }

  /**
   * Writes the adapter alone as peft loads it: adapter_model.safetensors, in float32, and adapter_config.json.
   *
   * @throws NlacError ERR_VALUE for a learner without an adapter, ERR_IO
   */
  async exportAdapter(directory: string): Promise<void> {
    if (this.info.trainableParameters === this.info.parameters) {
      throw new NlacError("ERR_VALUE", "This learner has no adapter: it trains every parameter.");
    }
    makeDirectory(directory);
    return this.#run(() => this.#native.exportAdapter(directory, this.#base ?? ""));
  }

  /**
   * Lets what has begun finish, rejects calls queued with ERR_DISPOSED and frees everything. May be called
   * again.
   */
  async dispose(): Promise<void> {
    return this.#run(() => this.#native.dispose());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose();
  }

  // --- helpers ---------------------------------------------------------------------------------------------

  async #run<T>(call: () => Promise<T>): Promise<T> {
    try {
      return await call();
    } catch (error) {
      throw fromNative(error);
    }
  }

  /** Both are waited for, so that nothing is still being written when this rejects. */
  async #write(directory: string, core: Promise<void>): Promise<void> {
    const [native, tokenizer] = await Promise.allSettled([core, this.tokenizer?.save(directory)]);
    if (native.status === "rejected") throw fromNative(native.reason);
    if (tokenizer.status === "rejected") throw ioError(directory, tokenizer.reason);
  }

  #needTokenizer(): Tokenizer {
    if (this.tokenizer !== undefined) return this.tokenizer;
    throw new NlacError("ERR_TOKENIZER", "This learner has no tokenizer; it takes and gives ids only.");
  }

  #chat(): ChatTemplate {
    this.#template ??= ChatTemplate.of(this.#needTokenizer());
    return this.#template;
  }

  /** Checks all requests before any gets a seed, so that a refused call changes nothing. */
  #prepare(requests: readonly GenerateRequest[]) {
    checkArray(requests, "requests");
    const prepared = requests.map((request, index) => ({
      index,
      which: checkChoice(request.weights ?? "online", `requests[${index}].weights`, whichs),
      seed: request.seed === undefined ? undefined : checkSeed(request.seed, `requests[${index}].seed`),
      native: this.#nativeRequest(request, `requests[${index}]`),
    }));
    if (prepared.some(({ native }) => native.stop.length > 0 || native.grammar !== ""))
      this.#giveTokenBytes();
    for (const { seed, native } of prepared) {
      native.seed = seed ?? BigInt(derivedSeed(this.seed, streams.learner, this.#requests++));
    }
    return prepared;
  }

  #nativeRequest(request: GenerateRequest, where: string): NativeGenerateRequest {
    const { tokens, messages, tools } = request;
    if ((tokens === undefined) === (messages === undefined)) {
      throw new NlacError("ERR_VALUE", `${where} needs either tokens or messages.`);
    }
    const prompt = tokens ?? this.render(messages!, { tools, addGenerationPrompt: true });
    const ids = this.#ids(prompt, `${where}.tokens`);
    const stop = [...(request.stop ?? [])];
    for (const [i, text] of stop.entries()) {
      if (typeof text === "string" && text !== "") continue;
      throw new NlacError("ERR_VALUE", `${where}.stop[${i}] must be a text of at least one character.`);
    }
    const own = this.#idList(request.stopTokenIds, `${where}.stopTokenIds`);
    const topP = checkNumber(request.topP ?? 1, `${where}.topP`, 0, 1);
    if (topP === 0) throw new NlacError("ERR_VALUE", `${where}.topP must be above 0.`);
    return {
      tokens: ids,
      maxNewTokens: checkInteger(request.maxNewTokens ?? 256, `${where}.maxNewTokens`, 1),
      temperature: checkNumber(request.temperature ?? 1, `${where}.temperature`, 0),
      topP,
      topK: checkInteger(request.topK ?? 0, `${where}.topK`, 0),
      minP: checkNumber(request.minP ?? 0, `${where}.minP`, 0, 1),
      repetitionPenalty: checkNumber(
        request.repetitionPenalty ?? 1,
        `${where}.repetitionPenalty`,
        Number.MIN_VALUE,
      ),
      forbidden: this.#idList(request.forbidden, `${where}.forbidden`),
      grammar: request.grammar === undefined ? "" : grammarText(request.grammar, `${where}.grammar`),
      forced: this.#idList(request.forced, `${where}.forced`),
      seed: 0n,
      stopTokenIds: Int32Array.from([...this.endOfTurnIds, ...own]),
      stop,
      keepHidden: checkBoolean(request.keepHidden ?? false, `${where}.keepHidden`),
      topLogProbs: checkInteger(request.topLogProbs ?? 0, `${where}.topLogProbs`, 0, this.info.vocabSize),
    };
  }

  #giveTokenBytes(): void {
    if (this.#tokenBytesGiven) return;
    const tokenizer = this.#needTokenizer();
    const bytes = tokenizer.tokenBytes();
    // Rows of the model that the tokenizer does not know have no text.
    while (bytes.length < this.info.vocabSize) bytes.push(new Uint8Array());
    // Nor control characters but line breaks, which the library would let into JSON strings that have a longest length.
    const controls = bytes.flatMap((text, id) =>
      tokenizer.specialIds.has(id) || text.some((byte) => byte < 32 && byte !== 10 && byte !== 13)
        ? [id]
        : [],
    );
    callNative(() => this.#native.setTokenBytes(bytes, Int32Array.from(controls)));
    this.#tokenBytesGiven = true;
  }

  #finish(result: NativeGenerateResult, request: NativeGenerateRequest): Generation {
    if (result.finishReason === "cancelled") {
      throw new NlacError("ERR_ABORTED", "The generation was stopped before it was finished.");
    }
    const tokens = Array.from(result.tokens);
    const stopped = tokens.length > 0 && request.stopTokenIds.includes(tokens.at(-1)!);
    const written = stopped ? tokens.slice(0, -1) : tokens;
    let text = this.tokenizer?.decode(written, { skipSpecial: true }) ?? "";
    const cuts = request.stop.map((stop) => text.indexOf(stop)).filter((at) => at >= 0);
    if (cuts.length > 0) text = text.slice(0, Math.min(...cuts));
    return {
      tokens,
      logProbs: result.logProbs,
      text,
      finishReason: result.finishReason,
      cachedTokens: result.cachedTokens,
      ...(result.hidden && { hidden: fromNativeTensor(result.hidden) }),
      ...(request.topLogProbs > 0 && { topTokens: result.topTokens, topLogProbs: result.topLogProbs }),
    };
  }

  #scoredTexts(texts: readonly ScoredText[]): NativeScoredText[] {
    checkArray(texts, "texts");
    return texts.map((text, i) => {
      const where = `texts[${i}]`;
      const prompt = this.#ids(text.prompt, `${where}.prompt`);
      const response = this.#ids(text.response, `${where}.response`);
      this.#checkLength(prompt.length + response.length, `${where}.prompt and .response`);
      return {
        prompt,
        response,
        weights: checkWeights(text.weight ?? 1, response.length, `${where}.weight`),
      };
    });
  }

  /** Ids of the vocabulary, or none. */
  #idList(values: readonly number[] | undefined, where: string): Int32Array {
    return values === undefined || values.length === 0 ? new Int32Array() : this.#ids(values, where);
  }

  /** At least one id of the vocabulary, and no more than the context holds. */
  #ids(values: readonly number[], where: string): Int32Array {
    if (!Array.isArray(values) && !((values as unknown) instanceof Int32Array)) {
      throw new NlacError("ERR_VALUE", `${where} must be an array of token ids; it is ${shown(values)}.`);
    }
    if (values.length === 0) throw new NlacError("ERR_VALUE", `${where} is empty.`);
    this.#checkLength(values.length, where);
    const { vocabSize } = this.info;
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

  #checkLength(length: number, where: string): void {
    if (length <= this.maxPositions) return;
    throw new NlacError(
      "ERR_VALUE",
      `${where}: ${length} tokens, more than the model's context of ${this.maxPositions}.`,
    );
  }
}

function checkSettings(options: LearnerOptions): Settings {
  checkKeys(options, "A learner's options", Object.keys(defaults), "ERR_CONFIG");
  const settings = withDefaults<Settings>(defaults, options as Partial<Settings>);
  if (settings.adapter !== undefined) {
    if (typeof settings.adapter !== "object" || settings.adapter === null) {
      throw new NlacError("ERR_CONFIG", `adapter must be an object; it is ${shown(settings.adapter)}.`);
    }
    checkKeys(settings.adapter, "adapter", ["rank", "alpha", "targets"], "ERR_CONFIG");
  }
  try {
    checkChoice(settings.dtype, "dtype", dtypeOptions);
    checkInteger(settings.seed, "seed", 0);
    checkInteger(settings.microBatchTokens, "microBatchTokens", 1);
    checkInteger(settings.cacheBytes, "cacheBytes", 0);
    checkInteger(settings.maxQueued, "maxQueued", 1);
    if (settings.heads !== undefined) checkChoice(settings.heads, "heads", ["none", "value", "q"]);
    if (settings.threads !== undefined) checkInteger(settings.threads, "threads", 1, 4096);
    checkBoolean(settings.int8Generation, "int8Generation");
    const fault = int8GenerationFault(settings);
    if (fault !== undefined) throw new NlacError("ERR_VALUE", fault);
    if (typeof settings.gradientCheckpointing !== "boolean") {
      throw new NlacError("ERR_VALUE", "gradientCheckpointing must be true or false.");
    }
    if (settings.adapter !== undefined) checkAdapter(settings.adapter);
  } catch (error) {
    throw new NlacError("ERR_CONFIG", (error as Error).message, { cause: error });
  }
  return settings;
}

/** Why a learner of such options cannot have `int8Generation`, where it asks for it. */
export function int8GenerationFault({
  int8Generation,
  device,
}: Pick<Settings, "int8Generation" | "device">): string | undefined {
  if (!int8Generation || device === "cpu") return undefined;
  return `int8Generation needs device "cpu"; here it is "${device}".`;
}

/** The type that a learner of such options computes in. Loads the addon where "auto" is given. */
export function resolveDtype({ device, dtype }: Pick<Settings, "device" | "dtype">): LearnerDType {
  return dtype === "auto" ? fastestDtype(device, loadAddon({ device }).instructionSet()) : dtype;
}

function checkAdapter({ rank, alpha, targets }: AdapterOptions): void {
  checkInteger(rank, "adapter.rank", 1);
  checkNumber(alpha, "adapter.alpha", Number.MIN_VALUE);
  if (targets === undefined) return;
  checkArray(targets, "adapter.targets");
  if (targets.length === 0) throw new NlacError("ERR_VALUE", "adapter.targets is empty.");
  for (const [i, target] of targets.entries()) checkChoice(target, `adapter.targets[${i}]`, projections);
}

function openAddon(settings: Settings): Addon {
  const addon = loadAddon({ device: settings.device });
  if (settings.threads !== undefined) addon.setThreads(settings.threads);
  return addon;
}

function nativeOptions(settings: Settings): NativeLearnerOptions {
  const { device, int8Generation, gradientCheckpointing, microBatchTokens, cacheBytes } = settings;
  const dtype = resolveDtype(settings);
  const adapter = settings.adapter && nativeAdapter(settings.adapter, settings.seed);
  return {
    ...{ device, dtype, int8Generation, gradientCheckpointing, microBatchTokens, cacheBytes },
    ...{ heads: settings.heads ?? "none", adapter },
  };
}

function nativeAdapter({ rank, alpha, targets }: AdapterOptions, seed: number): NativeAdapterOptions {
  const wanted = projections.filter((name) => targets === undefined || targets.includes(name));
  return { rank, alpha, targets: wanted, seed: BigInt(seed) };
}

/** What a model is found by again, also from another directory: its name, or the absolute path that it is at. */
function lastingName(model: string, path: string): string {
  return existsSync(model) ? path : model;
}

/** The model that a checkpoint's adapter belongs to, by the name it was saved with or where else it may be. */
async function findBase(
  directory: string,
  saved: string,
  elsewhere: string | undefined,
): Promise<{ name: string; path: string }> {
  const reasons: string[] = [];
  for (const model of new Set([saved, elsewhere ?? saved])) {
    try {
      const path = await resolveModel(model);
      return { name: lastingName(model, path), path };
    } catch (error) {
      reasons.push((error as Error).message);
    }
  }
  throw new NlacError(
    "ERR_CHECKPOINT",
    `The adapter in ${directory} belongs to the model ${saved}, which is not there. Put it back, or say where it is now: ` +
      `\`base\` of Learner.resume, the recipe's \`model\` in a run's run.json. ${reasons.join(" ")}`,
  );
}

/** A model without a tokenizer is one that takes ids only. */
async function readTokenizer(addon: Addon, path: string): Promise<Tokenizer | undefined> {
  if (path.endsWith(".gguf")) return Tokenizer.fromGguf(callNative(() => addon.ggufMetadata(path)));
  return existsSync(join(path, "tokenizer.json")) ? Tokenizer.fromDirectory(path) : undefined;
}

function readSampling(directory: string): SavedSampling {
  const path = join(directory, samplingFile);
  try {
    const saved = JSON.parse(readFileSync(path, "utf8")) as SavedSampling;
    if (saved.format !== 1) throw new Error(`format ${saved.format} is not known to this version`);
    checkInteger(saved.seed, "seed", 0);
    checkInteger(saved.requests, "requests", 0);
    if (saved.base !== undefined && typeof saved.base !== "string") throw new Error("base is not a text");
    return saved;
  } catch (error) {
    throw new NlacError(
      "ERR_CHECKPOINT",
      `${directory} is no saved learner: ${path}: ${(error as Error).message}`,
      { cause: error },
    );
  }
}

function makeDirectory(directory: string): void {
  try {
    mkdirSync(directory, { recursive: true });
  } catch (error) {
    throw ioError(directory, error);
  }
}

function ioError(directory: string, error: unknown): NlacError {
  if (error instanceof NlacError) return error;
  return new NlacError("ERR_IO", `${directory} cannot be written: ${(error as Error).message}`, {
    cause: error,
  });
}

function checkArray(value: unknown, where: string): void {
  if (!Array.isArray(value)) {
    throw new NlacError("ERR_VALUE", `${where} must be an array; it is ${shown(value)}.`);
  }
}

/** One weight for all of a response, or one a token. */
function checkWeights(weight: number | ArrayLike<number>, tokens: number, where: string): Float32Array {
  if (typeof weight === "number") return Float32Array.of(checkFloat(weight, where));
  checkOneEach(weight, tokens, where);
  return Float32Array.from(weight, (value, i) => checkFloat(value, `${where}[${i}]`));
}

/** One number for each token of a response; where the weight is 0 it may be anything. */
function checkList(list: unknown, { response, weights }: NativeScoredText, where: string): Float32Array {
  checkOneEach(list, response.length, where);
  const weightOf = (i: number) => (weights.length === 1 ? weights[0] : weights[i]);
  return Float32Array.from(list, (value, i) => (weightOf(i) === 0 ? 0 : checkFloat(value, `${where}[${i}]`)));
}

function checkOneEach(list: unknown, tokens: number, where: string): asserts list is ArrayLike<number> {
  if (!Array.isArray(list) && !(ArrayBuffer.isView(list) && "length" in list)) {
    throw new NlacError("ERR_VALUE", `${where} must be an array of numbers; it is ${shown(list)}.`);
  }
  if ((list as ArrayLike<number>).length === tokens) return;
  throw new NlacError(
    "ERR_VALUE",
    `${where} needs one number for each of ${tokens} response tokens; it has ${(list as ArrayLike<number>).length}.`,
  );
}

/** A number that is still finite as a float32. */
function checkFloat(value: unknown, where: string): number {
  if (typeof value === "number" && Number.isFinite(Math.fround(value))) return value;
  throw new NlacError("ERR_VALUE", `${where} must be a finite float32 number; it is ${shown(value)}.`);
}

function checkSurrogateOptions(options: SurrogateOptions): NativeSurrogateOptions {
  const { value } = options;
  return {
    temperature: checkTemperature(options.temperature ?? 1),
    clipLow: checkNumber(options.clipLow ?? 0.2, "clipLow", 0, 1),
    clipHigh: checkNumber(options.clipHigh ?? 0.2, "clipHigh", 0),
    klCoefficient: checkNumber(options.klCoefficient ?? 0, "klCoefficient", 0),
    entropyCoefficient: checkNumber(options.entropyCoefficient ?? 0, "entropyCoefficient", -Number.MAX_VALUE),
    value: value && {
      coefficient: checkNumber(value.coefficient, "value.coefficient", 0),
      clip: checkNumber(value.clip ?? 0, "value.clip", 0),
    },
    withGradient: options.withGradient ?? true,
  };
}

function checkTemperature(temperature: number): number {
  return checkNumber(temperature, "temperature", Number.MIN_VALUE);
}
