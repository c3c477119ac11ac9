/**
 * How a chat template formats the turns of one conversation: the ids before and after an assistant's
 * turn, and the part of a sampled turn that stays in the history. The ids depend on the turn before
 * only; they are rendered once and remembered. Forks of the conversation share them.
 */

import { getOrAdd } from "../base/get-or-add.ts";
import type { ToolSchema } from "../contract/environment.ts";
import type { TextPiece } from "./added-tokens.ts";
import { type AnswerForm, answerPieces } from "./answer-form.ts";
import type { CallForm } from "./call-form.ts";
import { calledFunctions } from "./called-functions.ts";
import { completionText } from "./completion-text.ts";
import type { ContinuationContext } from "./continuation.ts";
import type { TurnEnd } from "./conversation-json.ts";
import { type CalledFunction, callId, isCallId } from "./messages.ts";
import { type KeptTurn, keptOf, thinkClose } from "./reasoning.ts";
import type { ChatTemplate } from "./template.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** The turn before the one in question. */
type Before = Pick<TurnEnd, "role" | "calls">;

export class TurnFormat {
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate;
  /** Whether the conversation has a system message. */
  readonly system: boolean;
  readonly tools: readonly ToolSchema[] | undefined;
  /** The ids that were rendered so far, by where they stand. */
  readonly remembered = new Map<string, readonly number[]>();
  #callForm: { form: CallForm | undefined } | undefined;

  constructor(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    system: boolean,
    tools: readonly ToolSchema[] | undefined,
  ) {
    this.tokenizer = tokenizer;
    this.template = template;
    this.system = system;
    this.tools = tools;
  }

  /** What the template needs to know of the conversation to continue it. */
  contextAfter({ role, calls }: Before): ContinuationContext {
    const { system, tools } = this;
    return { after: role, system, tools, calls };
  }

  /** The start of a turn that the model generates. */
  generationPrompt(before: Before): readonly number[] {
    return getOrAdd(this.remembered, `after ${placeOf(before)}`, () =>
      this.template.encodeContinuation(this.tokenizer, this.contextAfter(before), [], {
        addGenerationPrompt: true,
      }),
    );
  }

  /** The ids of an answer after the start of its turn, in the history or as the model generates it. */
  answer(before: Before, text: string, place: "history" | "generated"): number[] {
    const { tokenizer, template } = this;
    const { opened } = this.#answerForm(before);
    const lead = this.#lead(before, place);
    const isReasoning =
      template.reasoning !== undefined || lead.some((piece) => piece.text.includes(thinkClose));
    const pieces = answerPieces(text, lead, { opened, isReasoning });
    const isPlain = lead.length === 0 && pieces.length === 1;
    return isPlain ? tokenizer.encode(text) : tokenizer.encodeTemplate(pieces, { continues: true });
  }

  /** What the model writes before an answer. Where reasoning is dropped, `opening` has it. */
  #lead(before: Before, place: "history" | "generated"): readonly TextPiece[] {
    const form = this.#answerForm(before);
    if (this.template.reasoning === undefined) return form[place];
    return place === "generated" && form.opened ? form.generated : [];
  }

  /** The ids that end a reasoning that the prompt has opened, before calls. */
  endOfReasoning(before: Before, place: "history" | "generated"): number[] {
    if (!this.#answerForm(before).opened) return [];
    return this.tokenizer.encodeTemplate(this.#lead(before, place), { continues: true });
  }

  #answerForm(before: Before): AnswerForm {
    return this.template.answerForm(this.tokenizer, this.contextAfter(before));
  }

  /**
   * The start of a turn in the history. It differs from the generation prompt if the template drops
   * reasoning.
   */
  opening(
    before: Before,
    calls: readonly CalledFunction[] | undefined,
    reasoning: "template" | "kept" = "template",
  ): readonly number[] {
    const form = reasoning === "template" ? this.template.reasoning : undefined;
    // A call's message follows the generation prompt, with a header of its own.
    const isMessage = calls !== undefined && form?.messages !== undefined;
    return form === undefined || isMessage ? this.generationPrompt(before) : this.#earlierOpening(before);
  }

  /** The start of a turn of text that was not sampled after the generation prompt. */
  openingOfText(before: Before): readonly number[] {
    const { followsPrompt } = this.#answerForm(before);
    return followsPrompt ? this.opening(before, undefined) : this.#earlierOpening(before);
  }

  #earlierOpening(before: Before): readonly number[] {
    return getOrAdd(this.remembered, `earlier, after ${placeOf(before)}`, () =>
      this.template.encodeOpening(this.tokenizer, this.contextAfter(before)),
    );
  }

  /**
   * The part of a sampled turn that stays in the history, and its calls if results are rendered with
   * them. If the template ends turns of calls in its own way, nothing stays of a stop id that ends the
   * other kind of turn.
   */
  kept(
    tokens: readonly number[],
    reasoning: "template" | "kept" = "template",
  ): KeptTurn & { calls: readonly CalledFunction[] | undefined } {
    const { template, tokenizer } = this;
    const form = reasoning === "template" ? template.reasoning : undefined;
    const kept =
      form === undefined ? { head: [], from: 0, to: tokens.length } : keptOf(tokenizer, tokens, form);
    const { from, to } = kept;
    const callForm = this.callForm;
    if (callForm === undefined || (callForm.end === undefined && !template.readsCallIds))
      return { ...kept, calls: undefined };
    const calls = this.calledOf(calledFunctions(completionText(tokenizer, tokens.slice(from, to)), callForm));
    if (callForm.end === undefined) return { ...kept, calls };
    const last = to > from ? tokens[to - 1]! : undefined;
    const ended = last !== undefined && tokenizer.eosTokenIds.includes(last);
    const fits = (last === tokenizer.idOf(callForm.end)) === (calls !== undefined);
    return { ...kept, to: ended && !fits ? to - 1 : to, calls };
  }

  /** The part of a turn's end that is missing after `tokens`. */
  closingAfter(tokens: readonly number[], calls: readonly CalledFunction[] | undefined): readonly number[] {
    const { template, tokenizer, system, tools } = this;
    const endOfCalls = calls === undefined ? undefined : this.callForm?.end;
    if (endOfCalls !== undefined) {
      const end = tokenizer.idOf(endOfCalls);
      return end === undefined || tokens.at(-1) === end ? [] : [end];
    }
    const closing = getOrAdd(this.remembered, "closing", () =>
      template.encodeClosing(tokenizer, { system, tools }),
    );
    for (let written = Math.min(closing.length, tokens.length); written > 0; written--) {
      const tail = tokens.slice(-written);
      if (tail.every((id, i) => id === closing[i])) return closing.slice(written);
    }
    const last = tokens.at(-1);
    if (last === undefined || !tokenizer.eosTokenIds.includes(last)) return closing;
    return closing.slice(closing.findIndex((id) => tokenizer.specialIds.has(id)) + 1);
  }

  /**
   * The form of calls with which results are rendered; undefined without tools, and if the template
   * does not support calls. Only rendered for vocabularies with an id that ends turns of calls, and
   * for templates that show ids.
   */
  get callForm(): CallForm | undefined {
    const { template, tokenizer, system, tools = [] } = this;
    const isPossible = tools.length > 0 && (tokenizer.callEndIds.size > 0 || template.readsCallIds);
    this.#callForm ??= {
      form: isPossible ? template.knownCallForm(tokenizer, { system, tools }) : undefined,
    };
    return this.#callForm.form;
  }

  /** What of `calls` their results are rendered with; undefined if nothing. */
  calledOf(calls: readonly { name: string; id?: string | undefined }[]): CalledFunction[] | undefined {
    const form = this.callForm;
    if (form === undefined || calls.length === 0) return undefined;
    if (this.template.readsCallIds)
      return calls.map(({ name, id }, i) => ({ name, id: isCallId(id) ? id : callId(i) }));
    return form.end === undefined ? undefined : calls.map(({ name }) => ({ name }));
  }
}

/** Where a turn stands, for what is remembered. */
function placeOf({ role, calls }: Before): string {
  return calls === undefined ? role : `${role} of calls`;
}
