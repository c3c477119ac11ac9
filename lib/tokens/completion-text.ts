/**
 * The text of a completion. Where the chat template has reasoning in messages of its own (gpt-oss), it
 * is put between <think> tags, as other models write it, and the control tokens and headers around it
 * are left out.
 */

import { thinkClose, thinkOpen } from "./reasoning.ts";
import { ChatTemplate } from "./template.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** What an id adds to the text: the id itself, or other text in its place. */
type Part = { id: number } | { text: string };

const marks = new WeakMap<Tokenizer, readonly number[] | undefined>();

/** The ids that open the answer's message, in templates with such messages. */
function answerMark(tokenizer: Tokenizer): readonly number[] | undefined {
  if (!marks.has(tokenizer)) {
    const template = tokenizer.chatTemplate === undefined ? undefined : templateOf(tokenizer);
    const answer = template?.reasoning?.answer;
    marks.set(tokenizer, answer === undefined ? undefined : tokenizer.encodeTemplate(answer));
  }
  return marks.get(tokenizer);
}

function templateOf(tokenizer: Tokenizer): ChatTemplate | undefined {
  try {
    return ChatTemplate.of(tokenizer);
  } catch {
    return undefined; // reported where the template is used
  }
}

/** Reads the ids of a completion one after another. */
export class CompletionReader {
  readonly #tokenizer: Tokenizer;
  readonly #mark: readonly number[] | undefined;
  /** The ids since the last message ended, while a header is read. */
  #header: number[] | undefined;
  #thinking = false;
  #first = true;

  constructor(tokenizer: Tokenizer) {
    this.#tokenizer = tokenizer;
    this.#mark = answerMark(tokenizer);
  }

  /** What another id adds; undefined: nothing. */
  read(id: number): Part | undefined {
    const { specialIds, callMarkIds } = this.#tokenizer;
    const special = specialIds.has(id);
    const mark = this.#mark;
    if (mark === undefined) return special && !callMarkIds.has(id) ? undefined : { id };
    // A completion that opens no message is all answer.
    if (this.#first && special) this.#header = [];
    this.#first = false;
    if (this.#header === undefined) {
      if (!special) return { id };
      this.#header = [id];
      return undefined;
    }
    this.#header.push(id);
    if (id !== mark.at(-1)) return undefined;
    const answers = mark.every((one, i) => one === this.#header!.at(i - mark.length));
    this.#header = undefined;
    const thought = this.#thinking;
    this.#thinking = !answers;
    if (answers) return thought ? { text: thinkClose } : undefined;
    return { text: thought ? "\n" : thinkOpen };
  }
}

/** The text of the ids that a model generated, without the stop id. */
export function completionText(tokenizer: Tokenizer, ids: readonly number[]): string {
  const reader = new CompletionReader(tokenizer);
  const run: number[] = [];
  let text = "";
  const flush = () => {
    text += tokenizer.decode(run.splice(0), { continues: true });
  };
  for (const id of ids) {
    const part = reader.read(id);
    if (part === undefined) continue;
    if ("id" in part) run.push(part.id);
    else {
      flush();
      text += part.text;
    }
  }
  flush();
  return text;
}
