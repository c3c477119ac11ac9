/**
 * A learner that serves requests and is trained at the same time. To the server it is a model whose
 * weights have a version; to an algorithm it is a language model whose calls wait for their share
 * of the device. Weights change only while no request is admitted.
 */

import type { Learner } from "../learner/learner.ts";
import type {
  DetailedKlOptions,
  DistilledText,
  GenerateOptions,
  GenerateRequest,
  Generation,
  KlDetail,
  LanguageModel,
  ScoredText,
  StepOptions,
  StepResult,
  SurrogateOptions,
  SurrogateResult,
  SurrogateText,
  TokenKlOptions,
  WeightSet,
} from "../model/language-model.ts";
import type { Admission, ServedModel } from "../serve/conversation-cache.ts";
import type { DeviceShare } from "./device-share.ts";

/** Requests per generation of training, few enough that requests of clients can join. */
const groupSize = 8;
/** Milliseconds after which new requests wait until weights are replaced. */
const maxReplaceWaitMs = 10_000;
/** Tokens of the first training job, before the speed is known. */
const firstTokens = 256;

export interface SharedLearnerOptions {
  share: DeviceShare;
  /** Milliseconds after which new requests wait until a training job has run. Default 60,000. */
  maxTrainingWaitMs?: number;
  /** Numbers this start of the server; the first part of a version. */
  start: number;
  /** Weight changes so far; the second part of a version. */
  changes: number;
  /** Names of the kept versions. */
  keptVersions: () => readonly string[];
  /** Admits requests to kept versions other than the current one. */
  pinned: { admit(version: string): Promise<Admission> };
}

export class SharedLearner implements LanguageModel, ServedModel {
  readonly share: DeviceShare;
  readonly #maxTrainingWaitMs: number;
  #learner: Learner;
  #start: number;
  #changes: number;
  readonly #keptVersions: () => readonly string[];
  readonly #pinned: SharedLearnerOptions["pinned"];
  /** Fires when training has to stop: calls that wait for the device then throw ERR_ABORTED. */
  #signal: AbortSignal | undefined;
  /** Measured milliseconds per token of a training job. */
  #tokenMs: number | undefined;
  #stepMs = 0;

  constructor(
    learner: Learner,
    { share, maxTrainingWaitMs = 60_000, start, changes, keptVersions, pinned }: SharedLearnerOptions,
  ) {
    this.#maxTrainingWaitMs = maxTrainingWaitMs;
    this.#learner = learner;
    this.share = share;
    this.#start = start;
    this.#changes = changes;
    this.#keptVersions = keptVersions;
    this.#pinned = pinned;
  }

  /**
   * Names the current weights: the number of the server's start, a dot, and the weight changes so
   * far.
   */
  get version(): string {
    return `${this.#start}.${this.#changes}`;
  }

  /** Number of the server's start. */
  get start(): number {
    return this.#start;
  }

  /** The signal for training's calls from now on. */
  set signal(signal: AbortSignal) {
    this.#signal = signal;
  }

  /** Replaces the learner while no request is admitted, and frees the earlier one. */
  async replace(learner: Learner, start: number, changes: number): Promise<void> {
    const change = async () => {
      const earlier = this.#learner;
      this.#learner = learner;
      this.#start = start;
      this.#changes = changes;
      await earlier.dispose();
    };
    await this.share.alone(0, undefined, change, maxReplaceWaitMs);
  }

  async dispose(): Promise<void> {
    await this.#learner.dispose();
  }

  // --- for the server --------------------------------------------------------------------------

  get tokenizer() {
    return this.#learner.tokenizer;
  }

  versions(): readonly string[] {
    return [this.version, ...this.#keptVersions()];
  }

  /** Admits a request; the weights stay as they are until it leaves. */
  async admit(version?: string): Promise<Admission> {
    if (version !== undefined && version !== this.version) return this.#pinned.admit(version);
    const visit = await this.share.enter();
    // The weights may have changed while it waited for a training job.
    if (version !== undefined && version !== this.version) {
      visit.leave();
      return this.#pinned.admit(version);
    }
    const learner = this.#learner;
    return {
      version: this.version,
      leave: visit.leave,
      generate: (requests, { onToken, ...options } = {}) =>
        learner.generate(requests, {
          ...options,
          onToken: (request, token) => {
            visit.firstToken();
            onToken?.(request, token);
          },
        }),
    };
  }

  // --- for an algorithm ------------------------------------------------------------------------

  encode(text: string): number[] {
    return this.#learner.encode(text);
  }

  decode(...options: Parameters<LanguageModel["decode"]>): string {
    return this.#learner.decode(...options);
  }

  conversation(...options: Parameters<LanguageModel["conversation"]>) {
    return this.#learner.conversation(...options);
  }

  restoreConversation(...options: Parameters<LanguageModel["restoreConversation"]>) {
    return this.#learner.restoreConversation(...options);
  }

  get endOfTurn(): number {
    return this.#learner.endOfTurn;
  }

  get endOfTurnIds(): readonly number[] {
    return this.#learner.endOfTurnIds;
  }

  get maxPositions(): number {
    return this.#learner.maxPositions;
  }

  /** Generates for training, a few requests at a time, so that requests of clients can join. */
  async generate(requests: readonly GenerateRequest[], options: GenerateOptions = {}): Promise<Generation[]> {
    const generations: Generation[] = [];
    const { onToken } = options;
    for (let start = 0; start < requests.length; start += groupSize) {
      await this.share.quiet(this.#signal, this.#maxTrainingWaitMs);
      const group = requests.slice(start, start + groupSize);
      const shifted = onToken && { onToken: (i: number, token: number) => onToken(start + i, token) };
      generations.push(...(await this.#learner.generate(group, { ...options, ...shifted })));
    }
    return generations;
  }

  async keepReference(): Promise<void> {
    await this.#alone(this.#stepMs, () => this.#learner.keepReference());
  }

  async logProbs(
    texts: readonly ScoredText[],
    options?: { weights?: WeightSet | "reference"; temperature?: number },
  ): Promise<Float32Array[]> {
    return this.#inJobs(texts, (group) => this.#learner.logProbs(group, options));
  }

  async tokenNll(
    texts: readonly ScoredText[],
    options?: { withGradient?: boolean },
  ): Promise<Float32Array[]> {
    return this.#inJobs(texts, (group) => this.#learner.tokenNll(group, options));
  }

  async tokenKl(texts: readonly DistilledText[], options: DetailedKlOptions): Promise<KlDetail[]>;
  async tokenKl(texts: readonly DistilledText[], options?: TokenKlOptions): Promise<Float32Array[]>;
  async tokenKl(
    texts: readonly DistilledText[],
    options?: TokenKlOptions & { detail?: number },
  ): Promise<(Float32Array | KlDetail)[]> {
    return this.#inJobs<DistilledText, Float32Array | KlDetail>(texts, (group) =>
      this.#learner.tokenKl(group, options),
    );
  }

  async tokenSurrogate(
    texts: readonly SurrogateText[],
    options?: SurrogateOptions,
  ): Promise<SurrogateResult[]> {
    return this.#inJobs(texts, (group) => this.#learner.tokenSurrogate(group, options));
  }

  async step(options: StepOptions): Promise<StepResult> {
    return this.#alone(this.#stepMs, async () => {
      const started = performance.now();
      const result = await this.#learner.step(options);
      this.#stepMs = performance.now() - started;
      if (!result.skipped) this.#changes++;
      return result;
    });
  }

  async discardGradients(): Promise<void> {
    await this.#learner.discardGradients();
  }

  /**
   * Does nothing: the caches are useful to clients, and a served run does not repeat bit for bit.
   */
  async dropCaches(): Promise<void> {}

  async discardMoments(moments: string): Promise<void> {
    await this.#learner.discardMoments(moments);
  }

  async updateTarget(targetRate: number): Promise<void> {
    await this.#alone(this.#stepMs, () => this.#learner.updateTarget(targetRate));
  }

  async targetDistance(): Promise<number> {
    return this.#alone(this.#stepMs, () => this.#learner.targetDistance());
  }

  /**
   * Requests are answered meanwhile, because weights change only between training's calls, of which
   * this is one.
   */
  async save(directory: string): Promise<void> {
    await this.#learner.save(directory);
  }

  // --- helpers ---------------------------------------------------------------------------------

  #alone<T>(estimatedMs: number, job: () => Promise<T>): Promise<T> {
    return this.share.alone(estimatedMs, this.#signal, job, this.#maxTrainingWaitMs);
  }

  /**
   * Runs `compute` on groups of texts, each as large as one job may take, but at least one text.
   */
  async #inJobs<T extends ScoredText | DistilledText, Result>(
    texts: readonly T[],
    compute: (group: readonly T[]) => Promise<Result[]>,
  ): Promise<Result[]> {
    const all: Result[] = [];
    for (let start = 0; start < texts.length; ) {
      const most = this.#tokenMs === undefined ? firstTokens : this.share.jobMs / this.#tokenMs;
      let end = start + 1;
      let tokens = lengthOf(texts[start]!);
      while (end < texts.length && tokens + lengthOf(texts[end]!) <= most) tokens += lengthOf(texts[end++]!);
      const group = texts.slice(start, end);
      const computed = await this.#alone(tokens * (this.#tokenMs ?? 0), async () => {
        const started = performance.now();
        const results = await compute(group);
        const tokenMs = (performance.now() - started) / Math.max(1, tokens);
        this.#tokenMs = this.#tokenMs === undefined ? tokenMs : 0.8 * this.#tokenMs + 0.2 * tokenMs;
        return results;
      });
      all.push(...computed);
      start = end;
    }
    return all;
  }
}

function lengthOf(text: ScoredText | DistilledText): number {
  const prompt = "prompt" in text ? text.prompt.length : text.student.length + text.teacher.length;
  return prompt + text.response.length;
}
