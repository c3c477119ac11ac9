/** Looks up the recorded episodes of a served run, and the ids of a person's better answer. */

import { existsSync } from "node:fs";
import { inSlices } from "../base/slices.ts";
import { readEpisodeRecords } from "../episodes/records.ts";
import { RecordWriter } from "../files/records.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { badRequest, RequestError, requireTrained } from "../serve/request-error.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { WrittenCalls } from "../tokens/template.ts";
import type { CorrectionRequest } from "./endpoints.ts";

export class RecordedEpisodes {
  readonly #path: string;
  readonly #model: LanguageModel;

  constructor(path: string, model: LanguageModel) {
    this.#path = path;
    this.#model = model;
  }

  /** Creates the file if it does not exist, so that it can be read. Throws ERR_IO. */
  create(): void {
    if (!existsSync(this.#path)) RecordWriter.resume(this.#path, { isPrivate: true }).close();
  }

  /**
   * The conversation before a turn, for a correction. Throws a RequestError of status 404, or 400,
   * also if the episode is held out.
   */
  async stateOf(episode: string, turn: number): Promise<Conversation> {
    for await (const { task, turns, split, conversation } of inSlices(readEpisodeRecords(this.#path))) {
      if (task !== episode) continue;
      requireTrained(episode, split);
      const found = turns[turn];
      if (found === undefined)
        throw badRequest(`The episode has ${turns.length} turns; the first is turn 0.`, "turn");
      return this.#model.restoreConversation(conversation).prefix(found.state);
    }
    throw new RequestError(
      404,
      "invalid_request_error",
      `There is no episode ${episode}.`,
      "episode_not_found",
    );
  }
}

/** The ids of an answer after `state`, with the end of the turn. */
export function answerIds(
  model: LanguageModel,
  state: Conversation,
  { content, tool_call: call }: CorrectionRequest,
): { text: string; tokens: number[] } {
  const thought = content ?? "";
  const {
    text,
    tokens,
    end = model.endOfTurn,
  }: WrittenCalls = call === undefined
    ? { text: thought, tokens: state.writeAnswer(thought) }
    : state.writeCall({
        name: call.name,
        arguments: JSON.stringify(call.arguments),
        ...(thought === "" ? {} : { thought }),
      });
  return { text, tokens: [...tokens, end] };
}
