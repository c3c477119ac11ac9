/**
 * Episodes of agents that play elsewhere: each request and its answer is a turn, kept as ids with their log probabilities,
 * until the agent says what the episode was worth. Then it is a record like those of `nlac eval --record`, to learn from.
 */

import { randomUUID } from "node:crypto";
import type { Message } from "../environments/contract.ts";
import type { Generation } from "../model.ts";
import { withoutThought } from "../prompts/corrected-thought.ts";
import { parseAction } from "../prompts/policy.ts";
import type { Trajectory, Turn } from "../rollout/trajectory.ts";
import { toRecord } from "../run/episodes.ts";
import { RecordWriter } from "../run/records.ts";
import type { Conversation } from "../tokens/conversation.ts";
import { badRequest, RequestError } from "./protocol.ts";

interface OpenEpisode {
  /** Its number in the file. */
  number: number;
  turns: Turn[];
  /** After the last turn. */
  conversation: Conversation;
  /** Names of the conversation before the last turn and after it. */
  asked: string;
  key: string;
}

/** A turn as it was served. */
export interface ServedTurn {
  /** What was said since the model's turn before. */
  observation: Message[];
  /** The conversation before the model's turn, and its name. */
  state: Conversation;
  asked: string;
  generation: Generation;
  /** The conversation after it, and its name. */
  conversation: Conversation;
  key: string;
}

export class Episodes {
  readonly #writer: RecordWriter;
  readonly #most: number;
  readonly #open = new Map<string, OpenEpisode>();
  /** Names of open episodes by the conversation that their last turn left, which may be the same for several. */
  readonly #byKey = new Map<string, Set<string>>();
  /** Names of those that are over. */
  readonly #closed = new Set<string>();
  #numbers = 0;
  recorded = 0;
  /** Never rewarded. */
  forgotten = 0;

  /**
   * @param path a new file, or one that is to grow
   * @param most open episodes; beyond, the one that was begun first is forgotten
   * @throws NlacError ERR_IO, ERR_RUN
   */
  constructor(path: string, most: number) {
    this.#writer = new RecordWriter(path);
    this.#most = most;
  }

  /**
   * The name of the episode that a request belongs to: by its header, or by the conversation that it continues, or a new one.
   * A request that is made again, since its answer was lost, belongs where it did.
   *
   * @param known name of the conversation that the request continues, `asked` of the one that it comes to
   * @throws RequestError of status 400 for a conversation that is not the named episode's, or an episode that is over
   */
  nameOf(header: string | undefined, known: string | undefined, asked: string): string {
    if (header === undefined) return [...(this.#byKey.get(known ?? "") ?? [])].at(-1) ?? randomUUID();
    if (this.#closed.has(header)) throw conflict(`The episode ${header} is over.`);
    const open = this.#open.get(header);
    if (open !== undefined && open.key !== known && open.asked !== asked) {
      throw conflict(
        `The messages do not continue episode ${header}: they must repeat its turns as they were answered. What is no part ` +
          "of it is to be asked without its header.",
      );
    }
    return header;
  }

  /** Throws a RequestError of status 400 if the episode went on another way meanwhile. */
  add(name: string, known: string | undefined, served: ServedTurn): void {
    const { observation, state, asked, generation, conversation, key } = served;
    const parsed = parseAction(withoutThought(generation.text), "call");
    const turn: Turn = {
      state,
      tokens: generation.tokens,
      logProbs: generation.logProbs,
      text: generation.text,
      ...(parsed.ok ? { action: parsed.action } : { malformed: parsed.reason }),
      ...{ observation: [], reward: 0, done: false, info: {} },
    };
    const episode = this.#open.get(name);
    if (episode === undefined) {
      this.#begin(name, { number: this.#numbers++, turns: [turn], conversation, asked, key });
      return;
    }
    if (episode.asked === asked) episode.turns.pop();
    else if (episode.key !== known) throw conflict(`The episode ${name} has gone on with another answer.`);
    const before = episode.turns.at(-1);
    if (before !== undefined) before.observation = observation;
    episode.turns.push(turn);
    this.#unlink(name, episode);
    Object.assign(episode, { conversation, asked, key });
    this.#link(name, episode);
  }

  /**
   * Adds `reward` to the episode's last turn; with `done` the episode is over and written.
   * Throws a RequestError of status 404 or 400.
   */
  reward(
    name: string,
    reward: number,
    done: boolean,
  ): { id: string; turns: number; reward: number; done: boolean } {
    const episode = this.#open.get(name);
    if (episode === undefined) {
      if (this.#closed.has(name)) throw conflict(`The episode ${name} is over.`);
      throw new RequestError(
        404,
        "invalid_request_error",
        `There is no episode ${name}.`,
        "episode_not_found",
      );
    }
    const last = episode.turns.at(-1)!;
    last.reward += reward;
    last.done = done;
    const total = episode.turns.reduce((sum, turn) => sum + turn.reward, 0);
    if (done) {
      this.#writer.append(toRecord(trajectory(name, episode, total)));
      this.#writer.sync();
      this.recorded++;
      this.#forget(name, episode);
      this.#closed.add(name);
    }
    return { id: name, turns: episode.turns.length, reward: total, done };
  }

  close(): void {
    this.forgotten += this.#open.size;
    this.#open.clear();
    this.#writer.close();
  }

  #begin(name: string, episode: OpenEpisode): void {
    this.#open.set(name, episode);
    this.#link(name, episode);
    if (this.#open.size <= this.#most) return;
    const [oldest, forgotten] = this.#open.entries().next().value!;
    this.#forget(oldest, forgotten);
    this.forgotten++;
  }

  #forget(name: string, episode: OpenEpisode): void {
    this.#open.delete(name);
    this.#unlink(name, episode);
  }

  #link(name: string, { key }: OpenEpisode): void {
    this.#byKey.set(key, (this.#byKey.get(key) ?? new Set()).add(name));
  }

  #unlink(name: string, { key }: OpenEpisode): void {
    const names = this.#byKey.get(key);
    names?.delete(name);
    if (names?.size === 0) this.#byKey.delete(key);
  }
}

function trajectory(name: string, { number, turns, conversation }: OpenEpisode, reward: number): Trajectory {
  return { id: number, task: name, seed: 0, turns, conversation, reward, outcome: "done" };
}

/** Not 409, which clients take for a reason to try again. */
function conflict(message: string): RequestError {
  return badRequest(message, null, "episode_conflict");
}
