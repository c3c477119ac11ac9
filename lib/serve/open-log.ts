/**
 * A log of open episodes, so that a server that was killed or restarted continues them: each line
 * is the whole state of an episode after a change, or says that it has ended. A later line replaces
 * an earlier one of the same name.
 */

import type { Message } from "../contract/environment.ts";
import type { AcknowledgedReward, EpisodeRecord } from "../episodes/records.ts";
import { RecordWriter, readRecords } from "../files/records.ts";
import type { ConversationJson } from "../tokens/conversation.ts";

/** What a request says about its episode, besides the name. */
export interface Relations {
  parent?: string | undefined;
  group?: string | undefined;
  /** Whether it is held out. A sub-episode of a held-out one is, too. */
  split?: "test" | undefined;
}

/** The state of an open episode. */
export interface OpenRecord extends Relations {
  name: string;
  named: boolean;
  /** Whether a reward of it was acknowledged. */
  rewarded: boolean;
  /** Absent in logs of earlier versions. */
  acknowledged?: readonly AcknowledgedReward[];
  opening: Message[];
  turns: EpisodeRecord["turns"];
  conversation: ConversationJson;
  asked: string;
  key: string;
  /** Time of the last answer or reward, in milliseconds since 1970. */
  time: number;
}

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
  #records: () => Iterable<OpenRecord> = () => [];

  /**
   * Opens or creates a log. Throws NlacError ERR_RUN for a damaged one, or one that another process
   * uses; ERR_IO.
   */
  constructor(path: string) {
    this.#path = path;
    this.#writer = RecordWriter.resume(path);
  }

  /** The open episodes, the one that changed last at the end. Throws ERR_RUN, ERR_IO. */
  read(): OpenRecord[] {
    const open = new Map<string, OpenRecord>();
    for (const record of readRecords<OpenRecord | EndRecord>(this.#path)) {
      open.delete(record.name);
      if (!("ended" in record)) open.set(record.name, record);
    }
    return [...open.values()];
  }

  /**
   * @param records gives the state of all open episodes, with which the log is rewritten now and
   *   then
   */
  start(records: () => Iterable<OpenRecord>): void {
    this.#records = records;
    this.#writer.replaceNow(records());
    this.#rewrittenBytes = this.#writer.bytes;
  }

  /** Appends a state. If `durable`, it is on disk when this returns. Throws ERR_IO. */
  put(record: OpenRecord, durable: boolean): void {
    if (durable) this.#writer.appendDurably(record);
    else this.#writer.append(record);
    this.#rewriteIfLong();
  }

  /** Notes that an episode has ended. Its record says so too, so a failure has no consequence. */
  end(name: string): void {
    try {
      this.#writer.append({ name, ended: true } satisfies EndRecord);
    } catch {}
  }

  /**
   * Writes the log anew with the open episodes only. Throws ERR_IO, ERR_ABORTED; the old log then
   * remains.
   */
  async rewrite(): Promise<void> {
    await this.#writer.replace(this.#records);
    this.#rewrittenBytes = this.#writer.bytes;
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
