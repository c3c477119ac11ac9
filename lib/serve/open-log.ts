/**
 * A log of open episodes, so that a server that was killed or restarted continues them: each line
 * is the whole state of an episode, what changed in it since the line before (open-changes.ts), or
 * says that it has ended. The log therefore grows in proportion to what is said.
 */

import { NlacError } from "../base/errors.ts";
import { RecordWriter, readRecords } from "../files/records.ts";
import { apply, changeOf, type Logged, loggedOf, type OpenChange } from "./open-changes.ts";
import { type OpenEpisode, type OpenRecord, openRecord } from "./open-episode.ts";
import type { Redactable } from "./redact.ts";

interface EndRecord {
  name: string;
  ended: true;
}

/** Bytes of outdated lines above which the log is rewritten. */
const maxOutdatedBytes = 64 * 2 ** 20;

export class OpenLog {
  readonly #path: string;
  readonly #writer: RecordWriter;
  /** Length of the log after it was last rewritten. */
  #rewrittenBytes = 0;
  #episodes: () => Iterable<[string, OpenEpisode]> = () => [];
  #redact = <T extends Redactable>(record: T): T => record;
  /** Number of episodes that have ended, and of those whose lines were removed since. */
  #ended = 0;
  #purged = 0;
  /** What is logged of each open episode. */
  readonly #logged = new Map<string, Logged>();

  /**
   * Opens or creates a log. Throws NlacError ERR_RUN for a damaged one, or one that another process
   * uses; ERR_IO.
   */
  constructor(path: string) {
    this.#path = path;
    this.#writer = RecordWriter.resume(path, { unsynced: true, isPrivate: true });
  }

  /** The open episodes, the one that changed last at the end. Throws ERR_RUN, ERR_IO. */
  read(): OpenRecord[] {
    const open = new Map<string, OpenRecord>();
    // Changes that a rewritten log has of episodes that ended meanwhile.
    const left = new Set<string>();
    for (const record of readRecords<OpenRecord | OpenChange | EndRecord>(this.#path)) {
      const { name } = record;
      const earlier = open.get(name);
      open.delete(name);
      if ("ended" in record) left.delete(name);
      else if (!("kept" in record)) open.set(name, record);
      else if (earlier === undefined) left.add(name);
      else if (apply(record, earlier)) open.set(name, earlier);
      else throw new NlacError("ERR_RUN", `${this.#path}: a change does not fit the episode ${name}.`);
    }
    for (const name of left)
      throw new NlacError("ERR_RUN", `${this.#path} has changes of the episode ${name}, but not its state.`);
    return [...open.values()];
  }

  /**
   * @param episodes gives all open episodes, with which the log is rewritten now and then
   * @param redact what is applied to states and changes before they are stored
   */
  start(episodes: () => Iterable<[string, OpenEpisode]>, redact = this.#redact): void {
    this.#episodes = episodes;
    this.#redact = redact;
    this.#writer.replaceNow(this.#records());
    this.#rewrittenBytes = this.#writer.bytes;
    for (const [name, episode] of episodes()) this.#logged.set(name, loggedOf(episode));
  }

  /**
   * Appends a state. If `durable`, it is on disk when this returns. Throws ERR_IO, then also if the
   * log was deleted or replaced.
   */
  put(name: string, episode: OpenEpisode, durable: boolean): void {
    const earlier = this.#logged.get(name);
    const change = earlier && changeOf(earlier, name, episode);
    const record = this.#redact<OpenRecord | OpenChange>(change ?? openRecord(name, episode));
    if (durable) {
      this.#writer.requireUnchanged();
      this.#writer.appendDurably(record);
    } else this.#writer.append(record);
    this.#logged.set(name, loggedOf(episode));
    this.#rewriteIfLong();
  }

  *#records(): Generator<OpenRecord> {
    for (const [name, episode] of this.#episodes()) yield this.#redact(openRecord(name, episode));
  }

  /** Notes that an episode has ended. Its record says so too, so a failure has no consequence. */
  end(name: string): void {
    this.#logged.delete(name);
    this.#ended++;
    try {
      this.#writer.append({ name, ended: true } satisfies EndRecord);
    } catch {}
  }

  /**
   * Writes the log anew with the open episodes only. Throws ERR_IO, ERR_ABORTED; the old log then
   * remains.
   */
  async rewrite(): Promise<void> {
    const ended = this.#ended;
    await this.#writer.replace(() => this.#records());
    this.#purged = ended;
    this.#rewrittenBytes = this.#writer.bytes;
  }

  /** Removes what the log still has of episodes that have ended. Throws as `rewrite`. */
  async purge(): Promise<void> {
    if (this.#ended > this.#purged) await this.rewrite();
  }

  close(): void {
    this.#writer.close();
  }

  #rewriteIfLong(): void {
    if (this.#writer.bytes <= this.#rewrittenBytes + maxOutdatedBytes) return;
    this.#rewrittenBytes = this.#writer.bytes;
    this.rewrite().catch(() => undefined); // the log goes on; the next attempt is made later
  }
}
