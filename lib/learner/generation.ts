/**
 * `Learner.generate`: checks requests, hands them to the core, and turns its results into
 * completions.
 */

import { fromNative, NlacError, throwIfAborted } from "../base/errors.ts";
import { getOrAdd } from "../base/get-or-add.ts";
import { derivedSeed, streams } from "../base/random.ts";
import { slices } from "../base/slices.ts";
import {
  checkBoolean,
  checkChoice,
  checkInteger,
  checkKeys,
  checkNumber,
  checkObject,
  checkSeed,
  shown,
} from "../base/validation.ts";
import type { Message, ToolSchema } from "../contract/environment.ts";
import { type Grammar, grammarText } from "../model/grammar.ts";
import type { GenerateOptions, GenerateRequest, Generation } from "../model/language-model.ts";
import type { NativeGenerateRequest, NativeGenerateResult, NativeLearner } from "../native/addon.ts";
import { callNative } from "../native/call-native.ts";
import { fromNativeTensor } from "../ops/tensor.ts";
import { completionText } from "../tokens/completion-text.ts";
import type { Tokenizer } from "../tokens/tokenizer.ts";
import { checkArray, checkIdList, checkIds, type Limits } from "./inputs.ts";

export const weightSets = ["online", "target"] as const;

const requestKeys = [
  ...["tokens", "messages", "tools", "maxNewTokens", "temperature", "topP", "topK", "minP"],
  ...["repetitionPenalty", "forbidden", "grammar", "forced", "stop", "stopTokenIds", "seed", "weights"],
  ...["keepHidden", "topLogProbs"],
] as const satisfies readonly (keyof GenerateRequest)[];

/** What generation needs of the learner. */
interface Owner {
  readonly seed: number;
  readonly info: Limits;
  readonly tokenizer: Tokenizer | undefined;
  readonly endOfTurnIds: readonly number[];
  render(
    messages: readonly Message[],
    options: { tools?: readonly ToolSchema[] | undefined; addGenerationPrompt: true },
  ): number[];
  /** Throws ERR_TOKENIZER without one. */
  needTokenizer(): Tokenizer;
}

/**
 * Values that several requests of a call share (the same object): each is checked and converted
 * once.
 */
interface SharedParts {
  ids: Map<readonly number[], Int32Array>;
  grammars: Map<Grammar, string>;
}

function checkOptions(options: GenerateOptions): void {
  checkObject(options, "The options");
  const { signal, onToken, wait } = options;
  if (signal !== undefined && typeof signal?.addEventListener !== "function")
    throw new NlacError("ERR_VALUE", `signal must be an AbortSignal; it is ${shown(signal)}.`);
  if (onToken !== undefined && typeof onToken !== "function")
    throw new NlacError("ERR_VALUE", `onToken must be a function; it is ${shown(onToken)}.`);
  if (wait !== undefined) checkBoolean(wait, "wait");
}

export class Generator {
  readonly #owner: Owner;
  readonly #native: NativeLearner;
  readonly #maxQueued: number;
  #requests: number;
  #unfinished = 0; // number of requests in `generate` calls
  #tokenBytesGiven = false;

  constructor(owner: Owner, native: NativeLearner, maxQueued: number, requests: number) {
    this.#owner = owner;
    this.#native = native;
    this.#maxQueued = maxQueued;
    this.#requests = requests;
  }

  /** Number of requests that have used a seed derived from the learner's. */
  get requests(): number {
    return this.#requests;
  }

  /** The requests with their prompts as ids, and with the seeds that `generate` would give them. */
  prepared(requests: readonly GenerateRequest[]): GenerateRequest[] {
    return this.#prepare(requests).map(({ native, index }) => {
      const { messages: _messages, tools: _tools, ...rest } = requests[index]!;
      return { ...rest, tokens: Array.from(native.tokens), seed: native.seed };
    });
  }

  /** With `together`, the weights of all requests, the core is called even if there are none. */
  async generate(
    requests: readonly GenerateRequest[],
    options: GenerateOptions = {},
    together?: (typeof weightSets)[number],
  ): Promise<Generation[]> {
    checkOptions(options);
    throwIfAborted(options.signal);
    checkArray(requests, "requests");
    if (options.wait === false && this.#unfinished + requests.length > this.#maxQueued) {
      throw new NlacError(
        "ERR_BUSY",
        `${this.#unfinished} requests are unfinished; ${requests.length} more exceed maxQueued, ${this.#maxQueued}.`,
      );
    }
    const prepared = this.#prepare(requests);
    const groups = weightSets
      .map((which) => ({ which, members: prepared.filter((request) => request.which === which) }))
      .filter(({ which, members }) => members.length > 0 || which === together);

    let failure: unknown;
    const fail = (error: unknown) => {
      failure ??= error ?? new NlacError("ERR_VALUE", "onToken threw undefined.");
      cancel();
    };
    const callbacks: unknown[] = []; // what an asynchronous onToken has returned
    const cancels: (() => void)[] = [];
    const cancel = () => {
      for (const stop of cancels) stop();
    };
    const { onToken } = options;
    const running = groups.map(({ which, members }) => {
      const forward = (member: number, token: number) => {
        if (failure !== undefined) return;
        try {
          const returned: unknown = onToken!(members[member]!.index, token);
          if (returned instanceof Promise) callbacks.push(returned.catch(fail));
        } catch (error) {
          fail(error);
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
    this.#unfinished += requests.length;
    const settled = await Promise.allSettled(running);
    await Promise.all(callbacks);
    this.#unfinished -= requests.length;
    options.signal?.removeEventListener("abort", cancel);
    throwIfAborted(options.signal);
    if (failure !== undefined) throw failure;

    const generations = new Array<Generation>(requests.length);
    const turn = slices();
    for (const [g, { members }] of groups.entries()) {
      const results = settled[g]!;
      if (results.status === "rejected") throw fromNative(results.reason);
      for (const [i, result] of results.value.entries()) {
        const { index, native } = members[i]!;
        generations[index] = this.#finish(result, native);
        await turn();
      }
    }
    return generations;
  }

  /** Checks all requests before it assigns seeds, so that a refused call changes nothing. */
  #prepare(requests: readonly GenerateRequest[]) {
    checkArray(requests, "requests");
    for (const [i, request] of requests.entries()) {
      checkKeys(request, `requests[${i}]`, requestKeys, "ERR_VALUE");
    }
    const shared: SharedParts = { ids: new Map(), grammars: new Map() };
    const prepared = requests.map((request, index) => ({
      index,
      which: checkChoice(request.weights ?? "online", `requests[${index}].weights`, weightSets),
      seed: request.seed === undefined ? undefined : checkSeed(request.seed, `requests[${index}].seed`),
      native: this.#nativeRequest(request, `requests[${index}]`, shared),
    }));
    if (prepared.some(({ native }) => native.stop.length > 0 || native.grammar !== ""))
      this.#giveTokenBytes();
    for (const { seed, native } of prepared) {
      native.seed = seed ?? BigInt(derivedSeed(this.#owner.seed, streams.learner, this.#requests++));
    }
    return prepared;
  }

  #nativeRequest(
    request: GenerateRequest,
    where: string,
    { ids: checkedIds, grammars }: SharedParts,
  ): NativeGenerateRequest {
    const { tokens, messages, tools, grammar } = request;
    if ((tokens === undefined) === (messages === undefined)) {
      throw new NlacError("ERR_VALUE", `${where} needs either tokens or messages.`);
    }
    const prompt = tokens ?? this.#owner.render(messages!, { tools, addGenerationPrompt: true });
    const ids = getOrAdd(checkedIds, prompt, () => checkIds(prompt, `${where}.tokens`, this.#owner.info));
    checkArray(request.stop ?? [], `${where}.stop`);
    const stop = [...(request.stop ?? [])];
    for (const [i, text] of stop.entries()) {
      if (typeof text === "string" && text !== "") continue;
      throw new NlacError("ERR_VALUE", `${where}.stop[${i}] must be a text of at least one character.`);
    }
    const own = checkIdList(request.stopTokenIds, `${where}.stopTokenIds`, this.#owner.info);
    const topP = checkNumber(request.topP ?? 1, `${where}.topP`, 0, 1);
    if (topP === 0) throw new NlacError("ERR_VALUE", `${where}.topP must be above 0.`);
    const forbidden = checkIdList(request.forbidden, `${where}.forbidden`, this.#owner.info);
    const text =
      grammar === undefined
        ? ""
        : getOrAdd(grammars, grammar, () => grammarText(grammar, `${where}.grammar`));
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
      forbidden: text === "" ? forbidden : Int32Array.of(...forbidden, ...this.#marksWithout(text)),
      grammar: text,
      forced: checkIdList(request.forced, `${where}.forced`, this.#owner.info),
      seed: 0n,
      stopTokenIds: Int32Array.from([...this.#owner.endOfTurnIds, ...own]),
      stop,
      keepHidden: checkBoolean(request.keepHidden ?? false, `${where}.keepHidden`),
      topLogProbs: checkInteger(
        request.topLogProbs ?? 0,
        `${where}.topLogProbs`,
        0,
        this.#owner.info.vocabSize,
      ),
    };
  }

  /** The marks of calls that a grammar does not name: its texts must not contain such control tokens. */
  #marksWithout(grammar: string): number[] {
    const tokenizer = this.#owner.needTokenizer();
    const named = grammar.replaceAll("\\", ""); // quotes in marks are escaped
    const isForbidden = (id: number) =>
      id < this.#owner.info.vocabSize && !named.includes(tokenizer.contentOf(id)!);
    return [...tokenizer.callMarkIds].filter(isForbidden);
  }

  #giveTokenBytes(): void {
    if (this.#tokenBytesGiven) return;
    const tokenizer = this.#owner.needTokenizer();
    const { vocabSize } = this.#owner.info;
    const bytes = tokenizer.tokenBytes().slice(0, vocabSize);
    // The model may have more rows than the tokenizer has tokens; the others have no text.
    while (bytes.length < vocabSize) bytes.push(new Uint8Array());
    // Control tokens get no text, except the marks of calls (see `#marksWithout`). Control
    // characters other than line breaks get none either: the grammar library would allow them in
    // JSON strings with a maxLength.
    const { specialIds, callMarkIds } = tokenizer;
    const controls = bytes.flatMap((text, id) =>
      (specialIds.has(id) && !callMarkIds.has(id)) ||
      text.some((byte) => byte < 32 && byte !== 10 && byte !== 13)
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
    const { tokenizer } = this.#owner;
    let text = tokenizer === undefined ? "" : completionText(tokenizer, written);
    const cuts = request.stop.map((stop) => text.indexOf(stop)).filter((at) => at >= 0);
    if (cuts.length > 0) text = text.slice(0, Math.min(...cuts));
    text = tokenizer?.withoutFirstSpace(text) ?? text;
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
}
