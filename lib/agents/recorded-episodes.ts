/** Looks up the recorded episodes of a served run, and the ids of a person's better answer. */

import { existsSync } from "node:fs";
import { inSlices } from "../base/slices.ts";
import { type EpisodeRecord, readPlacedEpisodes } from "../episodes/records.ts";
import { RecordWriter } from "../files/records.ts";
import type { LanguageModel } from "../model/language-model.ts";
import { noEpisode, noTurn, requireTrained } from "../serve/request-error.ts";
import type { Conversation } from "../tokens/conversation.ts";
import type { WrittenCalls } from "../tokens/template.ts";
import type { CorrectionRequest } from "./endpoints.ts";

/** Creates the file of a recording if it does not exist, so that it can be read. Throws ERR_IO. */
export function createRecording(path: string): void {
  if (!existsSync(path)) RecordWriter.resume(path, { isPrivate: true }).close();
}

/** Bytes per read of one episode. */
const chunkBytes = 2 ** 16;

export class RecordedEpisodes {
  readonly #path: string;
  readonly #model: LanguageModel;
  readonly #recording: { readonly replacements: number };
  /** Where the latest episode of each name begins in the file, up to `#end`: about 0.1 KB each. */
  readonly #places = new Map<string, number>();
  #end = 0;
  /** The `replacements` of the recording for which these hold. */
  #replacements = 0;
  #searching: Promise<unknown> = Promise.resolve();

  /** @param recording says how often the file was replaced */
  constructor(path: string, model: LanguageModel, recording: { readonly replacements: number }) {
    this.#path = path;
    this.#model = model;
    this.#recording = recording;
  }

  /**
   * The conversation before a turn, for a correction. The first call reads the whole file, later
   * ones what was added since. Throws a RequestError of status 404, or 400, also if the episode is
   * held out; ERR_RUN and ERR_IO for the file.
   */
  async stateOf(episode: string, turn: number): Promise<Conversation> {
    const found = this.#searching.then(() => this.#find(episode));
    this.#searching = found.catch(() => undefined);
    const record = await found;
    if (record === undefined) throw noEpisode(episode);
    const { turns, split, conversation } = record;
    requireTrained(episode, split);
    const corrected = turns[turn];
    if (corrected === undefined) throw noTurn(turns.length);
    return this.#model.restoreConversation(conversation).prefix(corrected.state);
  }

  async #find(episode: string): Promise<EpisodeRecord | undefined> {
    do await this.#readOn();
    while (this.#replacements !== this.#recording.replacements); // it was replaced meanwhile
    const place = this.#places.get(episode);
    if (place === undefined) return undefined;
    for (const { record } of readPlacedEpisodes(this.#path, { from: place, chunkBytes })) return record;
    return undefined;
  }

  /** Notes the places of the episodes after `#end`. */
  async #readOn(): Promise<void> {
    if (this.#replacements !== this.#recording.replacements) {
      this.#places.clear();
      this.#end = 0;
      this.#replacements = this.#recording.replacements;
    }
    const added = readPlacedEpisodes(this.#path, { from: this.#end });
    for await (const { record, start, end } of inSlices(added)) {
      this.#places.set(record.task, start);
      this.#end = end;
    }
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
