/**
 * A database: shared, immutable records, and the changes of one episode on top. Opening one copies
 * nothing, a record is copied when a call changes it, and hashes are computed on demand.
 */

import { getOrAdd } from "../../base/get-or-add.ts";
import { bindArguments } from "./bind-arguments.ts";
import type { BaseText, Tables } from "./hash.ts";
import { asKey, dict, PythonError } from "./python.ts";
import { hashedText, referenceForm, repr } from "./text.ts";
import { copyOf, type Dict, fromJavaScript, parseJson, type Value } from "./values.ts";

export interface Tool {
  readonly name: string;
  /** In order. All are required, and no others are accepted. */
  readonly parameters: readonly string[];
  /**
   * Returns the observation; null is Python's None, where the original ends without a return.
   * Throws PythonError; changes made before stay, as in the original.
   */
  run(database: Database, ...args: Value[]): string | null;
}

/** Shared by all databases of a domain. */
export interface SharedData {
  readonly tables: Tables;
  readonly tools: ReadonlyMap<string, Tool>;
  readonly canonical: BaseText;
  readonly reference: BaseText;
}

export interface CallResult {
  /**
   * The tool's answer: JSON or plain text; "Error: …" if it refused or failed; null for Python's
   * None.
   */
  observation: string | null;
  /** Whether the tool refused or failed, or does not exist. */
  failed: boolean;
}

/** An immutable state of a database between two calls. Hashes are computed when first read. */
export class DatabaseState {
  readonly #shared: SharedData;
  readonly #changes: Tables;
  #sha256: string | undefined;
  #referenceHash: string | undefined;

  constructor(shared: SharedData, changes: Tables) {
    this.#shared = shared;
    this.#changes = changes;
  }

  /** Hash of the canonical JSON: keys sorted, no spaces, numbers formatted as in ECMAScript. */
  get sha256(): string {
    this.#sha256 ??= this.#shared.canonical.hash(this.#changes);
    return this.#sha256;
  }

  /** The hash that tau-bench itself compares. */
  get referenceHash(): string {
    this.#referenceHash ??= this.#shared.reference.hash(this.#changes);
    return this.#referenceHash;
  }

  /** Whether the reference hashes would be equal, without computing them. */
  equals(other: DatabaseState): boolean {
    return [...this.#shared.tables.keys()].every((table) => {
      const ids = [this, other].flatMap((state) => [...(state.#changes.get(table)?.keys() ?? [])]);
      return ids.every((id) => this.#text(table, id) === other.#text(table, id));
    });
  }

  /** A record, or undefined. Do not change it. */
  record(table: string, id: string): Dict | undefined {
    return this.#changes.get(table)?.get(id) ?? this.#shared.tables.get(table)?.get(id);
  }

  /** A table's records, in the data's order, then new ones. Do not change them. */
  records(table: string): ReadonlyMap<string, Dict> {
    const shared = this.#shared.tables.get(table)!;
    const changed = this.#changes.get(table);
    return changed === undefined ? shared : new Map([...shared, ...changed]);
  }

  /** The state with `records` replacing those of the same ids. */
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

/** The database of one episode. */
export class Database {
  readonly #tools: ReadonlyMap<string, Tool>;
  #state: DatabaseState;
  /** Records changed by the call in progress. */
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
   * @param args a JSON object; as text or as parsed by `parseJson` if 54.0 must not become 54. No
   *   reference to it is stored.
   */
  call(name: string, args: string | Dict | Readonly<Record<string, unknown>>): CallResult {
    const called = this.#tools.get(name);
    if (called === undefined) return { observation: `Unknown action ${name}`, failed: true };
    let observation: string | null;
    try {
      observation = called.run(this, ...bindArguments(called, readArguments(args)));
    } catch (error) {
      // A SyntaxError: the text was not JSON. A RangeError: its nesting or a number exceeds the
      // limits.
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

  /** For tools: whether `table` has a record `id`. Throws PythonError for an unhashable id. */
  has(table: string, id: Value): boolean {
    return this.#find(table, id) !== undefined;
  }

  /** For tools: the current record. Do not change it. Throws PythonError if there is none. */
  get(table: string, id: Value): Dict {
    const record = this.#find(table, id);
    if (record === undefined) throw new PythonError(repr(id));
    return record;
  }

  /** For tools: a record that may be changed. Throws PythonError if there is none. */
  edit(table: string, id: Value): Dict {
    const edited = this.#edits.get(table)?.get(id as string);
    if (edited !== undefined) return edited;
    const copy = copyOf(this.get(table, id));
    this.put(table, id as string, copy);
    return copy;
  }

  /** For tools: adds or replaces a record. */
  put(table: string, id: string, record: Dict): void {
    getOrAdd(this.#edits, table, () => new Map()).set(id, record);
  }

  /** For tools: a table's records after the previous call. Do not change them. */
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
