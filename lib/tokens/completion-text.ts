/**
 * The text of a completion. Where reasoning stands between control tokens (Gemma 4) or in messages
 * of its own (gpt-oss), it is put between <think> tags, as other models write it. Headers of messages
 * are left out, except that of a call, from which the call is read. Of gpt-oss's messages after an
 * answer only a call is shown: what is shown is in the history too (reasoning.ts), except for
 * reasoning and an answer before a call.
 */

import { channelCall, mayBeHeader } from "./channel-call.ts";
import { type ReasoningForm, thinkClose, thinkOpen } from "./reasoning.ts";
import { ChatTemplate } from "./template.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** What an id adds to the text: ids, itself among them, or other text in its place. */
export type Part = { id: number } | { text: string };

const forms = new WeakMap<Tokenizer, ReasoningForm | undefined>();

function formOf(tokenizer: Tokenizer): ReasoningForm | undefined {
  if (!forms.has(tokenizer)) {
    const template = tokenizer.chatTemplate === undefined ? undefined : templateOf(tokenizer);
    forms.set(tokenizer, template?.reasoning);
  }
  return forms.get(tokenizer);
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
  readonly #reader: { read(id: number): readonly Part[]; end?(): readonly Part[] };

  constructor(tokenizer: Tokenizer) {
    const form = formOf(tokenizer);
    if (form?.messages !== undefined) this.#reader = new MessagesReader(tokenizer, form.messages);
    else if (form?.tags !== undefined) this.#reader = new TagsReader(tokenizer, form.tags);
    else this.#reader = { read: (id) => (isText(tokenizer, id) ? [{ id }] : []) };
  }

  /** What another id adds. */
  read(id: number): readonly Part[] {
    return this.#reader.read(id);
  }

  /** What the ids add that were held back, at the end. */
  end(): readonly Part[] {
    return this.#reader.end?.() ?? [];
  }
}

function isText({ specialIds, callMarkIds }: Tokenizer, id: number): boolean {
  return !specialIds.has(id) || callMarkIds.has(id);
}

/** Longest name of a channel that is held back, in ids. */
const maxHeld = 128;

/** Reasoning and answer are messages (gpt-oss). A completion that opens none is all answer. */
class MessagesReader {
  readonly #tokenizer: Tokenizer;
  readonly #opening: string;
  readonly #answer: readonly number[];
  /** The ids since the last message ended, while a header is read. */
  #header: number[] | undefined = [];
  /** Whether the header may still be the start of an answer without one. */
  #maybeText = true;
  #thinking = false;
  /** Whether an answer has begun. */
  #answered = false;
  /** In a message after the answer. */
  #hidden = false;
  /** In a call's message, whose texts may contain the marks of calls. */
  #calling = false;

  constructor(tokenizer: Tokenizer, { opening, answer }: NonNullable<ReasoningForm["messages"]>) {
    this.#tokenizer = tokenizer;
    this.#opening = opening;
    this.#answer = tokenizer.encodeTemplate(answer);
  }

  read(id: number): readonly Part[] {
    const special = this.#tokenizer.specialIds.has(id);
    if (this.#header === undefined) {
      if (!special || (this.#calling && isText(this.#tokenizer, id))) return this.#hidden ? [] : [{ id }];
      this.#header = [id];
      this.#calling = false;
      return [];
    }
    this.#header.push(id);
    if (special) this.#maybeText = false;
    if (this.#maybeText) return this.#isHeader() ? [] : this.end();
    if (id !== this.#answer.at(-1)) return [];
    return this.#opened(this.#header);
  }

  end(): readonly Part[] {
    const ids = this.#header ?? [];
    // Under a grammar, a header may be spelled without its control tokens.
    const call = this.#callIn(ids);
    this.#calling = call.length > 0;
    const closes = this.#thinking && this.#calling;
    const isText = this.#maybeText && (this.#calling || !this.#isHeader());
    const parts = isText ? ids.map((id) => ({ id })) : call;
    this.#answered ||= isText;
    this.#header = undefined;
    this.#maybeText = false;
    return closes ? [{ text: thinkClose }, ...parts] : parts;
  }

  /** The text of a call's message; nothing of other messages. */
  #callIn(ids: readonly number[]): readonly Part[] {
    const text = this.#tokenizer.decode(ids, { continues: true });
    const start = text.lastIndexOf(this.#opening);
    const own = start < 0 ? text : text.slice(start + this.#opening.length);
    return channelCall(own) === undefined ? [] : [{ text: own }];
  }

  /** Whether the held ids may be the start of a call's header. */
  #isHeader(): boolean {
    const text = this.#tokenizer.decode(this.#header ?? [], { continues: true });
    return channelCall(text) === undefined && mayBeHeader(text);
  }

  #opened(header: readonly number[]): readonly Part[] {
    // A call in the channel of answers is a malformed call.
    const call = this.#callIn(header);
    const endsAsAnswer = this.#answer.every((id, i) => id === header.at(i - this.#answer.length));
    const answers = call.length === 0 && endsAsAnswer;
    this.#header = undefined;
    const thought = this.#thinking;
    this.#calling = call.length > 0;
    this.#hidden = this.#answered && !this.#calling;
    this.#answered ||= answers;
    this.#thinking = !answers && !this.#calling && !this.#hidden;
    if (this.#hidden) return [];
    if (this.#thinking) return [{ text: thought ? "\n" : thinkOpen }];
    return [...(thought ? [{ text: thinkClose }] : []), ...call];
  }
}

/** Reasoning stands between control tokens, after a line with a name (Gemma 4). */
class TagsReader {
  readonly #tokenizer: Tokenizer;
  readonly #open: number | undefined;
  readonly #close: number | undefined;
  /** The ids of the name's line, while it is read. */
  #line: number[] | undefined;
  #thinking = false;

  constructor(tokenizer: Tokenizer, { mark, close }: NonNullable<ReasoningForm["tags"]>) {
    this.#tokenizer = tokenizer;
    this.#open = tokenizer.idOf(mark);
    this.#close = tokenizer.idOf(close);
  }

  read(id: number): readonly Part[] {
    if (id === this.#open) {
      this.#line = [];
      return [];
    }
    if (id === this.#close) {
      const opens = this.#line !== undefined;
      const closes = this.#thinking || opens;
      this.#line = undefined;
      this.#thinking = false;
      return closes ? [{ text: `${opens ? thinkOpen : ""}${thinkClose}` }] : [];
    }
    if (!isText(this.#tokenizer, id)) return [];
    if (this.#line === undefined) return [{ id }];
    this.#line.push(id);
    const text = this.#tokenizer.decode(this.#line, { continues: true });
    const end = text.indexOf("\n");
    if (end < 0 && this.#line.length <= maxHeld) return [];
    this.#line = undefined;
    this.#thinking = true;
    return [{ text: thinkOpen + text.slice(end + 1) }];
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
  const add = (parts: readonly Part[]) => {
    for (const part of parts) {
      if ("id" in part) run.push(part.id);
      else {
        flush();
        text += part.text;
      }
    }
  };
  for (const id of ids) add(reader.read(id));
  add(reader.end());
  flush();
  return text;
}
