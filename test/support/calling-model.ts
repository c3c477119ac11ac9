/** A scripted model whose chat template knows functions, and writes calls as Qwen's do. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer, type TokenizerParts } from "../../lib/tokens/tokenizer.ts";
import { byteTokenizerParts, ScriptedModel } from "./scripted-model.ts";

const template = readFileSync(
  join(import.meta.dirname, "../fixtures/tokens/templates/qwen-like.jinja"),
  "utf8",
);

export function callingTokenizerParts(): TokenizerParts {
  return { ...byteTokenizerParts(), chatTemplate: template };
}

export function callingTokenizer(): Tokenizer {
  return new Tokenizer(callingTokenizerParts());
}

export class CallingModel extends ScriptedModel {
  constructor(reply: ConstructorParameters<typeof ScriptedModel>[0]) {
    super(reply, template);
  }
}
