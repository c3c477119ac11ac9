/**
 * SHA-256 of a database written as one text, optimized for few differences from a fixed base.
 * Intermediate hash states along the base's text are cached: hashing starts near the first record
 * that differs, and unchanged text between changed records is fed as is.
 */

import { createHash, type Hash } from "node:crypto";
import { compareText } from "../../base/python-text.ts";
import { enclose, type HashedForm, hashedText } from "./text.ts";
import type { Dict } from "./values.ts";

/** Records by table and id. */
export type Tables = ReadonlyMap<string, ReadonlyMap<string, Dict>>;

/** A table's position in the base's text, in bytes. */
interface Place {
  /** In the order of the text. */
  ids: string[];
  /** Start and end of each record, including its key. */
  starts: number[];
  ends: number[];
  /** Start and end of the table's dict, including its brackets. */
  start: number;
  end: number;
}

/** Replacement of `start` to `end` of the base's text. */
interface Patch {
  start: number;
  end: number;
  text: string;
}

/** Bytes between cached states. */
const stride = 1 << 15;

export class BaseText {
  readonly #form: HashedForm;
  readonly #tables: Tables;
  readonly #bytes: Buffer;
  readonly #places = new Map<string, Place>();
  /** states[i] is the state after `stride` · (i + 1) bytes. */
  readonly #states: Hash[] = [];

  constructor(tables: Tables, form: HashedForm) {
    this.#form = form;
    this.#tables = tables;
    const parts: string[] = [];
    let length = 0;
    const write = (text: string): void => {
      parts.push(text);
      length += Buffer.byteLength(text);
    };
    const { open, separator, close } = form.dict;
    write(open);
    for (const [i, name] of [...tables.keys()].sort(compareText).entries()) {
      const table = tables.get(name)!;
      const [before, after] = form.entry(name);
      write((i === 0 ? "" : separator) + before);
      const place: Place = {
        ids: [...table.keys()].sort(compareText),
        starts: [],
        ends: [],
        start: length,
        end: 0,
      };
      write(open);
      for (const [k, id] of place.ids.entries()) {
        if (k > 0) write(separator);
        place.starts.push(length);
        write(this.#record(id, table.get(id)!));
        place.ends.push(length);
      }
      write(close(place.ids.length));
      place.end = length;
      this.#places.set(name, place);
      write(after);
    }
    write(close(tables.size));
    this.#bytes = Buffer.from(parts.join(""));
    const hash = createHash("sha256");
    for (let end = stride; end <= this.#bytes.length; end += stride) {
      hash.update(this.#bytes.subarray(end - stride, end));
      this.#states.push(hash.copy());
    }
  }

  /** The hash in hexadecimal, with `changes` replacing or added to the base's records. */
  hash(changes: Tables): string {
    const patches = [...changes].flatMap(([name, records]) => this.#patches(name, records));
    patches.sort((a, b) => a.start - b.start);
    const first = patches[0]?.start ?? this.#bytes.length;
    const kept = Math.min(Math.floor(first / stride), this.#states.length);
    const hash = kept === 0 ? createHash("sha256") : this.#states[kept - 1]!.copy();
    let at = kept * stride;
    for (const { start, end, text } of patches) {
      hash.update(this.#bytes.subarray(at, start)).update(text);
      at = end;
    }
    return hash.update(this.#bytes.subarray(at)).digest("hex");
  }

  #record(id: string, record: Dict): string {
    return this.#form.entry(id).join(hashedText(record, this.#form));
  }

  #patches(name: string, records: ReadonlyMap<string, Dict>): Patch[] {
    const place = this.#places.get(name)!;
    const base = this.#tables.get(name)!;
    const ids = [...records.keys()].sort(compareText);
    // Tables of zero or one pair have different brackets.
    if (base.size < 2) {
      const all = new Map([...base, ...records]);
      const texts = [...all.keys()].sort(compareText).map((id) => this.#record(id, all.get(id)!));
      return [{ start: place.start, end: place.end, text: enclose(texts, this.#form.dict) }];
    }
    return ids.map((id) => {
      const text = this.#record(id, records.get(id)!);
      const own = place.ids.indexOf(id);
      if (own >= 0) return { start: place.starts[own]!, end: place.ends[own]!, text };
      const next = place.ids.findIndex((other) => compareText(other, id) > 0);
      const { separator } = this.#form.dict;
      if (next === 0) return { start: place.starts[0]!, end: place.starts[0]!, text: text + separator };
      const end = next < 0 ? place.ends.at(-1)! : place.ends[next - 1]!;
      return { start: end, end, text: separator + text };
    });
  }
}
