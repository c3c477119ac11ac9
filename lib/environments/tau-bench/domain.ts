/**
 * A domain of tau-bench: its shared data, read once, its policy and tools, and databases over the
 * data.
 */

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { NlacError, NotHere } from "../../base/errors.ts";
import type { ToolSchema } from "../../contract/environment.ts";
import { airlineTools } from "./airline.ts";
import { Database, type SharedData } from "./database.ts";
import { BaseText } from "./hash.ts";
import { retailTools } from "./retail.ts";
import { readJsonFile } from "./tasks.ts";
import { canonicalForm, dumps, referenceForm } from "./text.ts";
import type { Dict } from "./values.ts";

const domains = {
  retail: { tables: ["orders", "products", "users"], tools: retailTools },
  airline: { tables: ["flights", "reservations", "users"], tools: airlineTools },
};

export type DomainName = keyof typeof domains;

export const domainNames = Object.keys(domains) as DomainName[];

/** Ends an episode: the agent gives up, and the reward is computed. */
export const transferTool = "transfer_to_human_agents";

export interface Domain {
  readonly name: DomainName;
  /** Directory of its files. */
  readonly directory: string;
  /** The rules for the agent, as Markdown. */
  readonly policy: string;
  /** The tools' descriptions and parameters. */
  readonly schemas: readonly ToolSchema[];
  /** Opens a database in the initial state. Databases of a domain share unchanged records. */
  open(): Database;
}

/**
 * Reads a domain from `<data>/<name>`: one JSON file per table, `wiki.md` and `tools.json`.
 *
 * @throws NlacError ERR_CONFIG if the data is missing or invalid, ERR_IO
 */
export function openDomain(name: DomainName, data: string): Domain {
  const directory = join(data, name);
  const { tables: names, tools } = domains[name];
  const files = [...names.map((table) => `${table}.json`), "wiki.md", "tools.json"];
  const missing = files.filter((file) => !existsSync(join(directory, file)));
  if (missing.length > 0) {
    throw new NotHere(
      `tauBench: ${directory} has no ${missing.join(", ")}. Get the data with ` +
        "`git clone https://github.com/sierra-research/tau-bench && nlac data import tau-bench tau-bench DIR`, " +
        "and set data to DIR, or set NLAC_DATA to a directory that contains it as tau-bench.",
    );
  }
  const tables = new Map(names.map((table) => [table, readTable(join(directory, `${table}.json`))]));
  const shared: SharedData = {
    tables,
    tools: new Map(tools.map((tool) => [tool.name, tool])),
    canonical: new BaseText(tables, canonicalForm),
    reference: new BaseText(tables, referenceForm),
  };
  const policy = readFileSync(join(directory, "wiki.md"), "utf8");
  const schemas = readSchemas(join(directory, "tools.json"), new Set(shared.tools.keys()));
  return { name, directory, policy, schemas, open: () => new Database(shared) };
}

function readTable(path: string): Map<string, Dict> {
  const value = readJsonFile(path);
  if (!(value instanceof Map))
    throw new NlacError("ERR_CONFIG", `tauBench: ${path} must be an object of records.`);
  const records = new Map<string, Dict>();
  for (const [id, record] of value) {
    if (!(record instanceof Map))
      throw new NlacError("ERR_CONFIG", `tauBench: ${path}: ${id} must be an object.`);
    records.set(id, record);
  }
  return records;
}

/** The tools' schemas: a list of `{"type": "function", "function": …}`, as in OpenAI's API. */
function readSchemas(path: string, known: ReadonlySet<string>): ToolSchema[] {
  const entries: unknown = JSON.parse(dumps(readJsonFile(path)));
  const schemas = (Array.isArray(entries) ? entries : []).map(
    (entry: { function?: ToolSchema } | null) => entry?.function,
  );
  const named = new Set(schemas.map((schema) => schema?.name));
  if (schemas.length !== known.size || [...known].some((name) => !named.has(name))) {
    throw new NlacError(
      "ERR_CONFIG",
      `tauBench: ${path} must describe the domain's tools: ${[...known].join(", ")}.`,
    );
  }
  return schemas as ToolSchema[];
}
