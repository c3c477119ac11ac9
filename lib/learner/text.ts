/** A model's text: its tokenizer, chat template and conversations. Computes nothing natively. */

import { NlacError } from "../base/errors.ts";
import { checkKeys } from "../base/validation.ts";
import type { Message, ToolSchema } from "../contract/environment.ts";
import type { ModelInfo } from "../native/addon.ts";
import { Conversation } from "../tokens/conversation.ts";
import type { ConversationJson } from "../tokens/conversation-json.ts";
import { ChatTemplate } from "../tokens/template.ts";
import type { RenderOptions } from "../tokens/template-renderer.ts";
import type { DecodeOptions, Tokenizer } from "../tokens/tokenizer.ts";

export abstract class ModelText {
  /** Architecture and size of the model. */
  readonly info: ModelInfo;
  /** Undefined for a model without a tokenizer. */
  readonly tokenizer: Tokenizer | undefined;
  /** The end-of-turn ids of the model's configurations and of its tokenizer. */
  readonly endOfTurnIds: readonly number[];
  #template: ChatTemplate | undefined;

  constructor(info: ModelInfo, tokenizer: Tokenizer | undefined) {
    this.info = info;
    this.tokenizer = tokenizer;
    const ids = new Set([...info.eosTokenIds, ...(tokenizer?.eosTokenIds ?? [])]);
    this.endOfTurnIds = [...ids].filter((id) => id < info.vocabSize);
  }

  get maxPositions(): number {
    return this.info.maxPositions;
  }

  /** Throws ERR_TOKENIZER if neither the tokenizer nor the model names such an id. */
  get endOfTurn(): number {
    // An instruct model's eos_token ends its turns; its list of ids may begin with one that ends
    // documents.
    const named = this.tokenizer?.idOf(this.tokenizer.namedTokens.eos_token ?? "");
    const id = named ?? this.endOfTurnIds[0];
    if (id === undefined) throw new NlacError("ERR_TOKENIZER", "The model has no id that ends a turn.");
    return id;
  }

  /**
   * Ids of ordinary text; text that spells a control token is encoded as text. Throws
   * ERR_TOKENIZER.
   */
  encode(text: string): number[] {
    return this.needTokenizer().encode(text);
  }

  /** The text of ids, control tokens included. Throws ERR_TOKENIZER. */
  decode(ids: readonly number[], options: Pick<DecodeOptions, "continues"> = {}): string {
    checkKeys(options, "decode", ["continues"], "ERR_VALUE");
    return this.needTokenizer().decode(ids, options);
  }

  /**
   * The ids of messages in the model's chat template.
   *
   * @param options.addGenerationPrompt append the start of an assistant's turn; default false
   * @throws NlacError ERR_TOKENIZER if the model has no chat template or it refuses the messages
   */
  render(messages: readonly Message[], options: RenderOptions = {}): number[] {
    checkKeys(options, "render", ["tools", "addGenerationPrompt"], "ERR_VALUE");
    return this.#chat().encode(this.needTokenizer(), messages, options);
  }

  /**
   * Opens a conversation, which grows by appending ids. Throws ERR_TOKENIZER, ERR_VALUE without
   * messages.
   */
  conversation(messages: readonly Message[], options: { tools?: readonly ToolSchema[] } = {}): Conversation {
    checkKeys(options, "conversation", ["tools"], "ERR_VALUE");
    return Conversation.start(this.needTokenizer(), this.#chat(), messages, options);
  }

  restoreConversation(json: ConversationJson): Conversation {
    return Conversation.fromJSON(json, this.needTokenizer(), this.#chat());
  }

  /** Throws ERR_TOKENIZER for a model without a tokenizer. */
  protected needTokenizer(): Tokenizer {
    if (this.tokenizer !== undefined) return this.tokenizer;
    throw new NlacError("ERR_TOKENIZER", "This learner has no tokenizer: it reads and returns ids only.");
  }

  #chat(): ChatTemplate {
    this.#template ??= ChatTemplate.of(this.needTokenizer());
    return this.#template;
  }
}
