/**
 * A language model that replies by a test's script and records every call. Its tokenizer is a real
 * byte-level one with a ChatML template, so that conversations are real ones.
 */

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { throwIfAborted } from "../../lib/base/errors.ts";
import type { Message, ToolSchema } from "../../lib/contract/environment.ts";
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
  TokenKlOptions,
  WeightSet,
} from "../../lib/model/language-model.ts";
import { completionText } from "../../lib/tokens/completion-text.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import type { ConversationJson } from "../../lib/tokens/conversation-json.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { Tokenizer, type TokenizerParts } from "../../lib/tokens/tokenizer.ts";

/** One token a byte, and ChatML's two control tokens. */
export function byteTokenizer(): Tokenizer {
  return new Tokenizer(byteTokenizerParts());
}

export function byteTokenizerParts(): TokenizerParts {
  const vocab: Record<string, number> = {};
  let extra = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    vocab[String.fromCodePoint(printable ? byte : extra++)] = byte;
  }
  const special = (id: number, content: string) => ({
    id,
    content,
    special: true,
    normalized: false,
    lstrip: false,
    rstrip: false,
    single_word: false,
  });
  return {
    json: {
      version: "1.0",
      added_tokens: [special(256, "<|im_start|>"), special(257, "<|im_end|>")],
      normalizer: null,
      pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
      post_processor: null,
      decoder: { type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true },
      model: { type: "BPE", vocab, merges: [] },
    } as never,
    config: { eos_token: "<|im_end|>" },
    chatTemplate:
      "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}" +
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
  };
}

/** The parts with more control tokens, from id 258 on. */
export function withControlTokens(parts: TokenizerParts, contents: readonly string[]): TokenizerParts {
  const json = parts.json as unknown as { added_tokens: Record<string, unknown>[] };
  const [special] = json.added_tokens;
  const added = contents.map((content, i) => ({ ...special, id: 258 + i, content }));
  return { ...parts, json: { ...json, added_tokens: [...json.added_tokens, ...added] } as never };
}

export const endOfTurn = 257;

export interface ScriptedCall {
  prompt: string;
  weights: WeightSet;
  request: GenerateRequest;
}

export type Event =
  | { kind: "kl"; texts: DistilledText[]; options: TokenKlOptions | undefined }
  | { kind: "nll"; texts: ScoredText[] }
  | { kind: "step"; options: StepOptions }
  | { kind: "target"; targetRate: number }
  | { kind: "discard" };

export class ScriptedModel implements LanguageModel {
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate;
  readonly maxPositions: number = 100_000;
  readonly endOfTurn = endOfTurn;
  endOfTurnIds: readonly number[] = [endOfTurn];
  readonly calls: ScriptedCall[] = [];
  readonly events: Event[] = [];
  /**
   * What the model says to a prompt. Without a stop id when it ends in "…": cut off by the limit.
   */
  reply: (prompt: string, weights: WeightSet, index: number, request: GenerateRequest) => string;
  /** Per-token KL of a text; default 1. As in the core, a text of weight 0 has a loss of 0. */
  kl: (text: DistilledText) => number = () => 1;
  /** Whether the next step is skipped. */
  skip: () => boolean = () => false;

  readonly #control: boolean;

  /**
   * @param chatTemplate default: ChatML, which keeps reasoning in the history
   * @param control further control tokens; replies may then contain them
   */
  constructor(
    reply: (prompt: string, weights: WeightSet, index: number, request: GenerateRequest) => string,
    chatTemplate: string = byteTokenizerParts().chatTemplate!,
    control: readonly string[] = [],
  ) {
    this.reply = reply;
    this.#control = control.length > 0;
    const parts = withControlTokens(byteTokenizerParts(), control);
    this.tokenizer = new Tokenizer({ ...parts, chatTemplate });
    this.template = new ChatTemplate(chatTemplate);
  }

  encode(text: string): number[] {
    return this.tokenizer.encode(text);
  }

  decode(ids: readonly number[]): string {
    return this.tokenizer.decode(ids);
  }

  conversation(messages: readonly Message[], options?: { tools?: readonly ToolSchema[] }): Conversation {
    return Conversation.start(this.tokenizer, this.template, messages, options);
  }

  restoreConversation(json: ConversationJson): Conversation {
    return Conversation.fromJSON(json, this.tokenizer, this.template);
  }

  async generate(requests: readonly GenerateRequest[], options?: GenerateOptions): Promise<Generation[]> {
    // Like a real one, it takes a moment: an abort can come in between.
    await new Promise((resolve) => setImmediate(resolve));
    throwIfAborted(options?.signal);
    return requests.map((request, i) => {
      const prompt = this.decode(request.tokens!);
      const weights = request.weights ?? "online";
      this.calls.push({ prompt, weights, request });
      const text = this.reply(prompt, weights, i, request);
      const cut = text.endsWith("…");
      const said = cut ? text.slice(0, -1) : text;
      const ids = this.#control ? this.tokenizer.encodeTemplate(said) : this.encode(said);
      const tokens = [...ids, ...(cut ? [] : [endOfTurn])];
      for (const token of tokens) options?.onToken?.(i, token);
      const { topLogProbs: most = 0 } = request;
      // The written token is the most probable, those after it in the vocabulary less and less.
      const top = tokens.flatMap((token) =>
        Array.from({ length: most }, (_, k) => [token + k, -0.5 - k] as const),
      );
      return {
        tokens,
        logProbs: new Float32Array(tokens.length).fill(-0.5),
        text: this.#control ? completionText(this.tokenizer, ids) : said,
        finishReason: cut ? ("length" as const) : ("stop" as const),
        cachedTokens: 0,
        ...(most > 0 && {
          topTokens: Int32Array.from(top, ([id]) => id),
          topLogProbs: Float32Array.from(top, ([, logProb]) => logProb),
        }),
      };
    });
  }

  async logProbs(texts: readonly ScoredText[]): Promise<Float32Array[]> {
    return texts.map(({ response }) => new Float32Array(response.length).fill(-0.5));
  }

  async tokenNll(texts: readonly ScoredText[]): Promise<Float32Array[]> {
    this.events.push({ kind: "nll", texts: structuredClone([...texts]) });
    return texts.map(({ response }) => new Float32Array(response.length).fill(0.5));
  }

  async tokenKl(texts: readonly DistilledText[], options: DetailedKlOptions): Promise<KlDetail[]>;
  async tokenKl(texts: readonly DistilledText[], options?: TokenKlOptions): Promise<Float32Array[]>;
  async tokenKl(
    texts: readonly DistilledText[],
    options?: TokenKlOptions & { detail?: number },
  ): Promise<(Float32Array | KlDetail)[]> {
    this.events.push({ kind: "kl", texts: structuredClone([...texts]), options });
    return texts.map((text) => {
      const losses = new Float32Array(text.response.length).fill(text.weight === 0 ? 0 : this.kl(text));
      const count = options?.detail;
      if (count === undefined) return losses;
      // As in `generate`: the written token is the most probable.
      const top = text.response.flatMap((id) => Array.from({ length: count }, (_, k) => [id + k, -0.5 - k]));
      const side = {
        logProbs: new Float32Array(text.response.length).fill(-0.5),
        top: Int32Array.from(top, ([id]) => id!),
        topLogProbs: Float32Array.from(top, ([, logProb]) => logProb!),
      };
      return { losses, online: side, target: side };
    });
  }

  async step(options: StepOptions): Promise<StepResult> {
    this.events.push({ kind: "step", options });
    if (options.targetRate !== undefined) await this.updateTarget(options.targetRate);
    const skipped = this.skip();
    return { gradNorm: skipped ? Number.NaN : 1, skipped };
  }

  async discardGradients(): Promise<void> {
    this.events.push({ kind: "discard" });
  }

  async dropCaches(): Promise<void> {}

  async discardMoments(): Promise<void> {}

  async updateTarget(targetRate: number): Promise<void> {
    this.events.push({ kind: "target", targetRate });
  }

  async targetDistance(): Promise<number> {
    return 0;
  }

  async save(directory: string): Promise<void> {
    writeFileSync(join(directory, "events.json"), JSON.stringify(this.events.length));
  }
}
