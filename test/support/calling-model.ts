/** A scripted model whose chat template knows functions, and writes calls as Qwen's do. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { Message, ToolSchema } from "../../lib/contract/environment.ts";
import { Conversation } from "../../lib/tokens/conversation.ts";
import { ChatTemplate } from "../../lib/tokens/template.ts";
import { Tokenizer } from "../../lib/tokens/tokenizer.ts";
import { byteTokenizerParts, ScriptedModel } from "./scripted-model.ts";

const template = readFileSync(
  join(import.meta.dirname, "../fixtures/tokens/templates/qwen-like.jinja"),
  "utf8",
);

export function callingTokenizer(): Tokenizer {
  return new Tokenizer({ ...byteTokenizerParts(), chatTemplate: template });
}

export class CallingModel extends ScriptedModel {
  override readonly template = new ChatTemplate(template);
  override conversation(
    messages: readonly Message[],
    options?: { tools?: readonly ToolSchema[] },
  ): Conversation {
    return Conversation.start(this.tokenizer, this.template, messages, options);
  }
}
