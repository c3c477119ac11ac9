/**
 * A database: records that all episodes share and none changes, and over them what one episode changed. Opening one
 * copies nothing, a record is copied when a call changes it, and a hash is worked out when it is asked for.
 */

import type { BaseText, Tables } from "./hash.ts";
import { asKey, dict, PythonError } from "./python.ts";
import { hashedText, referenceForm, repr } from "./text.ts";
import { bind, type Tool } from "./tools.ts";
import { copyOf, type Dict, fromJavaScript, parseJson, type Value } from "./values.ts";

/** What a domain's databases share. */
export interface SharedData {
  readonly tables: Tables;
  readonly tools: ReadonlyMap<string, Tool>;
  readonly canonical: BaseText;
  readonly reference: BaseText;
}

export interface CallResult {
  /**
   * What the tool answered: JSON or a plain text; "Error: …" where it refused or failed; null for
   * Python's None.
   */
  observation: string | null;
  /** Whether it refused or failed, or there is no such tool. */
  failed: boolean;
}

/** A state of a database between two calls. It does not change, and works its hashes out once, when they are read. */
export class DatabaseState {
  readonly #shared: SharedData;
  readonly #changes: Tables;
  #sha256: string | undefined;
  #referenceHash: string | undefined;

  constructor(shared: SharedData, changes: Tables) {
    this.#shared = shared;
    this.#changes = changes;
  }

  /** Of the canonical JSON: keys sorted, no spaces, numbers as ECMAScript prints them. */
  get sha256(): string {
    this.#sha256 ??= this.#shared.canonical.hash(this.#changes);
    return this.#sha256;
  }

  /** What tau-bench itself compares. */
  get referenceHash(): string {
    this.#referenceHash ??= this.#shared.reference.hash(this.#changes);
    return this.#referenceHash;
  }

  /** Whether the reference hashes would be equal, without working them out. */
  equals(other: DatabaseState): boolean {
    return [...this.#shared.tables.keys()].every((table) => {
      const ids = [this, other].flatMap((state) => [...(state.#changes.get(table)?.keys() ?? [])]);
      return ids.every((id) => this.#text(table, id) === other.#text(table, id));
    });
  }

  /** A record, or undefined. Not to be changed. */
  record(table: string, id: string): Dict | undefined {
    return this.#changes.get(table)?.get(id) ?? this.#shared.tables.get(table)?.get(id);
  }

  /** A table's records, not to be changed: the shared ones in the data's order, then new ones. */
  records(table: string): ReadonlyMap<string, Dict> {
    const shared = this.#shared.tables.get(table)!;
    const changed = this.#changes.get(table);
    return changed === undefined ? shared : new Map([...shared, ...changed]);
  }

  /** The state with `records` in the place of those of the same ids. */
  with(records: Tables): DatabaseState {
    const changes = new Map(this.#changes);
    for (const [table, edited] of records)
      changes.set(table, new Map([...(changes.get(table) ?? []), ...edited]));
    return new DatabaseState(this.#shared, changes);
  }

  #text(table: string, id: string): string | undefined {
    const record = this.record(table, id);
    return record === undefined ? undefined : hashedText(record, referenceForm);
  }
}

/** One episode's database. */
export class Database {
  readonly #tools: ReadonlyMap<string, Tool>;
  #state: DatabaseState;
  /** Records that the call in progress has changed. */
  readonly #edits = new Map<string, Map<string, Dict>>();

  constructor(shared: SharedData) {
    this.#tools = shared.tools;
    this.#state = new DatabaseState(shared, new Map());
  }

  get state(): DatabaseState {
    return this.#state;
  }

  /**
   * Calls a tool.
   *
   * @param args a JSON object; as text or as read by `parseJson` where 54.0 must not become 54. Nothing of it is kept.
   */
  call(name: string, args: string | Dict | Readonly<Record<string, unknown>>): CallResult {
    const called = this.#tools.get(name);
    if (called === undefined) return { observation: `Unknown action ${name}`, failed: true };
    let observation: string | null;
    try {
      observation = called.run(this, ...bind(called, readArguments(args)));
    } catch (error) {
      // A SyntaxError: the text was not JSON. A RangeError: a nesting or a number beyond all bounds.
      if (!(error instanceof PythonError || error instanceof SyntaxError || error instanceof RangeError))
        throw error;
      observation = `Error: ${error.message}`;
    }
    if (this.#edits.size > 0) {
      this.#state = this.#state.with(new Map(this.#edits));
      this.#edits.clear();
    }
    return { observation, failed: observation?.startsWith("Error: ") ?? false };
  }

  /** For tools: whether `table` has a record `id`. Throws PythonError for an id that has no hash. */
  has(table: string, id: Value): boolean {
    return this.#find(table, id) !== undefined;
  }

  /** For tools: a record as it is now, not to be changed. Throws PythonError where there is none. */
  get(table: string, id: Value): Dict {
    const record = this.#find(table, id);
    if (record === undefined) throw new PythonError(repr(id));
    return record;
  }

  /** For tools: a record to be changed. Throws PythonError where there is none. */
  edit(table: string, id: Value): Dict {
    const edited = this.#edits.get(table)?.get(id as string);
    if (edited !== undefined) return edited;
    const copy = copyOf(this.get(table, id));
    this.put(table, id as string, copy);
    return copy;
  }

  /** For tools: a new record, or another in the place of one. */
  put(table: string, id: string, record: Dict): void {
    const edits = this.#edits.get(table) ?? new Map<string, Dict>();
    this.#edits.set(table, edits.set(id, record));
  }

  /** For tools: a table's records as the last call left them, not to be changed. */
  records(table: string): ReadonlyMap<string, Dict> {
    return this.#state.records(table);
  }

  #find(table: string, id: Value): Dict | undefined {
    const key = asKey(id);
    if (key === undefined) return undefined;
    return this.#edits.get(table)?.get(key) ?? this.#state.record(table, key);
  }
}

function readArguments(args: string | Dict | Readonly<Record<string, unknown>>): Dict {
  if (args instanceof Map) return copyOf(args);
  return dict(typeof args === "string" ? parseJson(args) : fromJavaScript(args));
}
