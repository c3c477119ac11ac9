/**
 * The learner of all ranks, as algorithms see it. Rank 0 makes one: it splits generation and losses
 * over the ranks by tokens, and sends the calls that change or save the weights to every rank.
 */

import { type NlacError, throwIfAborted } from "../base/errors.ts";
import type { Message, ToolSchema } from "../contract/environment.ts";
import { makeDirectory } from "../files/disk.ts";
import { resolveModel } from "../hub/resolve-model.ts";
import {
  distilledTexts,
  judgedTexts,
  preferencePairs,
  rewardTexts,
  scoredTexts,
  softQTexts,
  surrogateOptions,
  surrogateTexts,
} from "../learner/inputs.ts";
import type { Learner } from "../learner/learner.ts";
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
import type { Conversation } from "../tokens/conversation.ts";
import type { ConversationJson } from "../tokens/conversation-json.ts";
import { acceptPeers } from "./handshake.ts";
import type { Ranks } from "./join.ts";
import { openLearner } from "./open-learner.ts";
import { Peers } from "./peers.ts";
import type { CommonMethod, LearnerSource, SplitMethod } from "./protocol.ts";
import { PrefixPlaces, sharesOf } from "./shares.ts";

type AnyMethod = (...args: unknown[]) => Promise<unknown>;

/**
 * A language model whose work is done by all ranks. As for `Learner`, calls run in the order they
 * were made. Any call may reject with ERR_PEER when a rank has ended: then end the process, because
 * a call on this rank's learner may still wait for it.
 */
export class DistributedLearner implements PreferenceModel, RewardModel, SoftQModel, AsyncDisposable {
  /** This rank's learner. Calls that change weights must not be made on it alone. */
  readonly own: Learner;
  readonly #peers: Peers;
  readonly #ranks: Ranks;
  readonly #places: PrefixPlaces;
  readonly #divided: boolean; // sharding 3
  readonly #layerwise: boolean; // layerwiseGeneration, with sharding 3
  /** The weights that every rank has gathered when it has made the calls so far. */
  #gathered: WeightSet | undefined;

  private constructor(own: Learner, peers: Peers, ranks: Ranks, options: LearnerSource["options"]) {
    this.own = own;
    this.#divided = options.sharding === 3;
    this.#layerwise = this.#divided && options.layerwiseGeneration === true;
    this.#peers = peers;
    this.#ranks = ranks;
    this.#places = new PrefixPlaces(peers.count + 1);
  }

  /**
   * Opens the learner of every rank. The others call `serveRank`.
   *
   * @param options.log is told which ranks it waits for, if they are late
   * @throws NlacError ERR_PEER; for the learners' own errors see `Learner`
   */
  static async open(
    source: LearnerSource,
    ranks: Ranks,
    options: { log?: ((line: string) => void) | undefined } = {},
  ): Promise<DistributedLearner> {
    // Downloaded once, before ranks of the same machine look for it.
    if (source.kind === "load") await resolveModel(source.model);
    const peers = new Peers(await acceptPeers(ranks, options.log));
    const others = Array.from({ length: peers.count }, (_, i) => peers.call(i + 1, { call: "open", source }));
    const opening = openLearner(source, ranks);
    try {
      // One failure ends all: the other ranks would wait for the rank that failed.
      const failed = new Promise<never>((_, reject) => {
        for (const call of [opening, ...others]) call.catch(reject);
      });
      await Promise.race([peers.settled([opening, ...others]), failed]);
      return new DistributedLearner(await opening, peers, ranks, source.options);
    } catch (error) {
      peers.abandon(error as NlacError);
      throw error;
    }
  }

  // --- text --------------------------------------------------------------------------------------

  get endOfTurn(): number {
    return this.own.endOfTurn;
  }
  get endOfTurnIds(): readonly number[] {
    return this.own.endOfTurnIds;
  }
  get maxPositions(): number {
    return this.own.maxPositions;
  }
  encode(text: string): number[] {
    return this.own.encode(text);
  }
  decode(...options: Parameters<Learner["decode"]>): string {
    return this.own.decode(...options);
  }
  conversation(messages: readonly Message[], options: { tools?: readonly ToolSchema[] } = {}): Conversation {
    return this.own.conversation(messages, options);
  }
  restoreConversation(json: ConversationJson): Conversation {
    return this.own.restoreConversation(json);
  }

  // --- split by tokens ---------------------------------------------------------------------------

  /**
   * As `Learner.generate`. A conversation goes to the rank that has its prefix in its cache. With
   * `onToken`, or for a request with `keepHidden`, this rank generates all of them. With sharding 3
   * the ranks first gather the weights, and requests of θ wait for those of θ̄ or the reverse,
   * because one set is complete at a time. With `layerwiseGeneration` the ranks gather layers while
   * they generate, and each call waits for the one before it.
   */
  async generate(requests: readonly GenerateRequest[], options: GenerateOptions = {}): Promise<Generation[]> {
    throwIfAborted(options.signal);
    if (!this.#divided) return this.#generate(requests, options);
    const prepared = this.own.prepareRequests(requests);
    const generations = new Array<Generation>(prepared.length);
    // All calls are made before the first is awaited, so that no other call comes between them.
    const calls = (["online", "target"] as const).flatMap((weights) => {
      const places = [...prepared.keys()].filter((i) => (prepared[i]!.weights ?? "online") === weights);
      if (places.length === 0) return [];
      const { onToken } = options;
      const gathering = this.#layerwise ? undefined : this.#gather(weights);
      const generating = this.#generate(
        places.map((i) => prepared[i]!),
        { ...options, ...(onToken && { onToken: (request, token) => onToken(places[request]!, token) }) },
        this.#layerwise ? weights : undefined,
      );
      const finished = generating.then((part) => {
        for (const [j, i] of places.entries()) generations[i] = part[j]!;
      });
      return [gathering, finished];
    });
    for (const call of await Promise.allSettled(calls)) if (call.status === "rejected") throw call.reason;
    return generations;
  }

  /** With `together`, the weights of all requests, every rank takes part in every step. */
  async #generate(
    requests: readonly GenerateRequest[],
    options: GenerateOptions,
    together?: WeightSet,
  ): Promise<Generation[]> {
    const { signal, onToken } = options;
    const here = onToken !== undefined || requests.some(({ keepHidden }) => keepHidden);
    if (this.#peers.count === 0 || (here && together === undefined))
      return this.own.generate(requests, options);
    const prepared = this.own.prepareRequests(requests);
    const prompts = prepared.map(({ tokens }) => tokens!);
    const keys = prepared.map(({ weights = "online" }) => weights);
    const sizes = prepared.map(({ maxNewTokens = 256 }, i) => prompts[i]!.length + maxNewTokens);
    const parts = here
      ? sharesOf(sizes, this.#peers.count + 1, () => 0)
      : this.#places.shares(prompts, keys, sizes);
    const generations = await this.#inParts<GenerateRequest, Generation>(
      together === undefined ? "generate" : "generateTogether",
      prepared,
      parts,
      together === undefined ? [{}] : [{}, together],
      { ...(signal && { signal }), ...(onToken && { onToken }) },
    );
    for (const [rank, part] of parts.entries())
      for (const i of part) this.#places.note([...prompts[i]!, ...generations[i]!.tokens], keys[i]!, rank);
    return generations;
  }

  async logProbs(
    texts: readonly ScoredText[],
    options: { weights?: WeightSet | "reference" | undefined; temperature?: number | undefined } = {},
  ): Promise<Float32Array[]> {
    scoredTexts(texts, this.own.info);
    return this.#split("logProbs", texts, sizeOfScored, options, false);
  }

  async values(texts: readonly ScoredText[]): Promise<Float32Array[]> {
    scoredTexts(texts, this.own.info);
    return this.#split("values", texts, sizeOfScored, undefined, false);
  }

  async tokenNll(
    texts: readonly ScoredText[],
    options: { withGradient?: boolean | undefined } = {},
  ): Promise<Float32Array[]> {
    scoredTexts(texts, this.own.info);
    return this.#split("tokenNll", texts, sizeOfScored, options, options.withGradient ?? true);
  }

  /** As `Learner.tokenKl`. A text with `teacherHidden` is computed by this rank, which has it. */
  async tokenKl(texts: readonly DistilledText[], options: DetailedKlOptions): Promise<KlDetail[]>;
  async tokenKl(texts: readonly DistilledText[], options?: TokenKlOptions): Promise<Float32Array[]>;
  async tokenKl(
    texts: readonly DistilledText[],
    options: TokenKlOptions & { detail?: number } = {},
  ): Promise<(Float32Array | KlDetail)[]> {
    distilledTexts(texts, this.own.info);
    return this.#split("tokenKl", texts, sizeOfDistilled, options, options.withGradient ?? true, (text) =>
      text.teacherHidden === undefined ? undefined : 0,
    );
  }

  async tokenSurrogate(
    texts: readonly SurrogateText[],
    options: SurrogateOptions = {},
  ): Promise<SurrogateResult[]> {
    surrogateTexts(texts, surrogateOptions(options), this.own.info);
    return this.#split("tokenSurrogate", texts, sizeOfScored, options, options.withGradient ?? true);
  }

  async softQ(texts: readonly SoftQText[], options: SoftQOptions): Promise<SoftQResult[]> {
    softQTexts(texts, this.own.info);
    return this.#split("softQ", texts, sizeOfScored, options, options.withGradient ?? true);
  }

  async tokenPreference(
    pairs: readonly PreferencePair[],
    options: PreferenceOptions,
  ): Promise<PreferenceResult[]> {
    preferencePairs(pairs, this.own.info);
    const size = ({ chosen, rejected }: PreferencePair) => sizeOfScored(chosen) + sizeOfScored(rejected);
    return this.#split("tokenPreference", pairs, size, options, options.withGradient ?? true);
  }

  async rewards(texts: readonly RewardText[]): Promise<Float32Array> {
    rewardTexts(texts, this.own.info);
    return Float32Array.from(
      await this.#split<RewardText, number>("rewards", texts, sizeOfScored, undefined, false),
    );
  }

  async rewardLoss(
    texts: readonly JudgedText[],
    options: { withGradient?: boolean } = {},
  ): Promise<Float32Array> {
    judgedTexts(texts, this.own.info);
    const withGradient = options.withGradient ?? true;
    return Float32Array.from(
      await this.#split<JudgedText, number>("rewardLoss", texts, sizeOfScored, options, withGradient),
    );
  }

  // --- by every rank -----------------------------------------------------------------------------

  async step(options: StepOptions): Promise<StepResult> {
    this.#places.clear();
    return this.#all("step", options) as Promise<StepResult>;
  }

  async updateTarget(targetRate: number): Promise<void> {
    this.#places.clear();
    await this.#all("updateTarget", targetRate);
  }

  async dropCaches(): Promise<void> {
    this.#places.clear();
    await this.#all("dropCaches");
  }

  async discardGradients(): Promise<void> {
    await this.#all("discardGradients");
  }

  async discardMoments(moments: string): Promise<void> {
    await this.#all("discardMoments", moments);
  }

  async targetDistance(): Promise<number> {
    return this.#all("targetDistance") as Promise<number>;
  }

  async keepReference(): Promise<void> {
    await this.#all("keepReference");
  }

  async restoreReference(): Promise<void> {
    await this.#all("restoreReference");
  }

  async resetQHeads(): Promise<void> {
    this.#places.clear();
    await this.#all("resetQHeads");
  }

  /**
   * As `Learner.save`. The checkpoint is that of one learner: any number of ranks can resume it.
   * Rank 0 writes it, and receives the parts of the others while all ranks generate.
   */
  async save(directory: string): Promise<void> {
    await this.#write("save", directory);
  }

  async exportHuggingFace(directory: string): Promise<void> {
    await this.#write("exportHuggingFace", directory);
  }

  async exportRewardModel(directory: string): Promise<void> {
    await this.#write("exportRewardModel", directory);
  }

  async exportAdapter(directory: string): Promise<void> {
    await this.#write("exportAdapter", directory);
  }

  /**
   * Ends the other ranks and frees this one's learner. After ERR_PEER it does not wait for the
   * learner.
   */
  async dispose(): Promise<void> {
    if (this.#peers.lost !== undefined) {
      this.own.dispose().catch(() => {});
      return;
    }
    this.#peers.end();
    await this.own.dispose();
    await this.#ranks.native.dispose();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose();
  }

  // --- helpers -----------------------------------------------------------------------------------

  /** Starts to gather weights on all ranks, unless they are gathered. */
  async #gather(weights: WeightSet): Promise<void> {
    if (this.#gathered === weights) return;
    const done = this.#all("gatherWeights", weights);
    this.#gathered = weights;
    try {
      await done;
    } catch (error) {
      this.#gathered = undefined;
      throw error;
    }
  }

  /**
   * Texts are checked first: a rank that refused its texts would not join the exchanges of the
   * others, which would wait for it.
   */
  async #split<Text, Result>(
    method: SplitMethod,
    texts: readonly Text[],
    size: (text: Text) => number,
    options: object | undefined,
    withGradient: boolean,
    fixed: (text: Text) => number | undefined = () => undefined,
  ): Promise<Result[]> {
    this.#gathered = undefined;
    const parts = sharesOf(texts.map(size), this.#peers.count + 1, (i) => fixed(texts[i]!));
    try {
      return await this.#inParts<Text, Result>(method, texts, parts, options === undefined ? [] : [options]);
    } catch (error) {
      // It is unknown which texts the ranks' gradients contain.
      if (withGradient && this.#peers.lost === undefined) await this.discardGradients();
      throw error;
    }
  }

  /**
   * Every rank is called, also without texts: from sharding 2 on the ranks exchange gradients, and
   * with 3 parameters, in the call. `local` are options of this rank's call only.
   */
  async #inParts<Item, Result>(
    method: SplitMethod,
    items: readonly Item[],
    parts: readonly number[][],
    rest: readonly unknown[],
    local: GenerateOptions = {},
  ): Promise<Result[]> {
    const calls = parts.map((part, rank) => {
      const own = part.map((i) => items[i]!);
      if (rank > 0) return this.#peers.call(rank, { call: method, args: [own, ...rest] }, local.signal);
      const [options, ...others] = rest;
      const args = rest.length === 0 ? [] : [{ ...(options as object), ...local }, ...others];
      return (this.own[method] as AnyMethod).call(this.own, own, ...args);
    });
    const results = await this.#values(calls);
    const merged = new Array<Result>(items.length);
    for (const [rank, part] of parts.entries()) {
      for (const [j, i] of part.entries()) merged[i] = (results[rank] as Result[])[j]!;
    }
    return merged;
  }

  /** Makes the call on every rank. Returns rank 0's result. */
  async #all(method: CommonMethod, ...args: unknown[]): Promise<unknown> {
    this.#gathered = undefined;
    const others = Array.from({ length: this.#peers.count }, (_, i) =>
      this.#peers.call(i + 1, { call: method, args }),
    );
    const own = (this.own[method] as AnyMethod).apply(this.own, args);
    return (await this.#values([own, ...others]))[0];
  }

  /** If the directory cannot be made, no rank begins, because the others would wait for this one. */
  async #write(
    method: "save" | "exportHuggingFace" | "exportRewardModel" | "exportAdapter",
    directory: string,
  ): Promise<void> {
    makeDirectory(directory);
    await this.#all(method, directory);
  }

  /**
   * Waits for all ranks. If some failed, throws the original error: ranks that only noticed the
   * failure of another one reject with ERR_PEER.
   */
  async #values(calls: readonly Promise<unknown>[]): Promise<unknown[]> {
    const settled = await this.#peers.settled(calls);
    const failures = settled.flatMap((one) => (one.status === "rejected" ? [one.reason as NlacError] : []));
    const reason = failures.find(({ code }) => code !== "ERR_PEER") ?? failures[0];
    if (reason !== undefined) throw reason;
    return settled.map((one) => (one as PromiseFulfilledResult<unknown>).value);
  }
}

function sizeOfScored({ prompt, response }: RewardText): number {
  return prompt.length + response.length;
}

/** θ reads one context and θ̄ the other. */
function sizeOfDistilled({ student, teacher, response }: DistilledText): number {
  return student.length + teacher.length + 2 * response.length;
}
