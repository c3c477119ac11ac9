/**
 * Converts an official checkout of sierra-research/tau-bench to the layout that `tauBench` reads.
 * Records and policies are already files; tasks, tools and rules are literals in Python source,
 * which are parsed and not executed.
 */

import { existsSync, readdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { join, resolve } from "node:path";
import { fromFileSystem, NlacError } from "../../base/errors.ts";
import { makeDirectory, requireEmpty } from "../../files/disk.ts";
import { writeAtomically } from "../../files/write-atomically.ts";
import { type DomainName, domainNames, openDomain } from "./domain.ts";
import { readLiteral } from "./literals.ts";
import { readTasks } from "./tasks.ts";
import { dumps } from "./text.ts";
import type { Value } from "./values.ts";

/** Number of imported tasks by domain and split. */
export type Imported = Record<DomainName, Record<string, number>>;

/**
 * @param checkout a clone of https://github.com/sierra-research/tau-bench
 * @param out a new or empty directory, to be read with `tauBench({ data })`
 * @throws NlacError ERR_CONFIG for an unexpected checkout, ERR_IO
 */
export function importTauBench(checkout: string, out: string): Imported {
  const environments = join(checkout, "tau_bench", "envs");
  if (!domainNames.every((name) => existsSync(join(environments, name)))) {
    throw new NlacError(
      "ERR_CONFIG",
      `${checkout} is not a checkout of tau-bench. Make one with \`git clone https://github.com/sierra-research/tau-bench\`.`,
    );
  }
  requireEmpty(out, "ERR_IO", "Choose another directory.");
  // Renamed once it is complete and can be opened.
  const beside = `${resolve(out)}.${process.pid}.partial`;
  try {
    const counts = domainNames.map((name) => [name, importDomain(join(environments, name), name, beside)]);
    const license = join(checkout, "LICENSE");
    if (existsSync(license)) writeAtomically(join(beside, "LICENSE"), readFileSync(license));
    renameSync(beside, out);
    return Object.fromEntries(counts) as Imported;
  } catch (error) {
    rmSync(beside, { recursive: true, force: true });
    throw fromFileSystem(error);
  }
}

function importDomain(source: string, name: DomainName, out: string): Record<string, number> {
  const directory = join(out, name);
  makeDirectory(directory);
  const read = (...path: string[]) => readFileSync(join(source, ...path), "utf8");
  const write = (file: string, text: string) => writeAtomically(join(directory, file), text);
  for (const file of readdirSync(join(source, "data")).filter((file) => file.endsWith(".json"))) {
    write(file, read("data", file));
  }
  write("wiki.md", read("wiki.md"));
  write("rules.json", lines(readLiteral(read("rules.py"), /^RULES = /m, `${name}/rules.py`)));
  write("tools.json", lines(readTools(join(source, "tools"))));
  const counts: Record<string, number> = {};
  for (const file of readdirSync(source)) {
    const split = /^tasks_(\w+)\.py$/.exec(file)?.[1];
    if (split === undefined) continue;
    const tasks = readLiteral(read(file), /^TASKS\w* = /m, `${name}/${file}`, ["Task", "Action"]);
    if (!Array.isArray(tasks)) throw new NlacError("ERR_CONFIG", `${name}/${file} has no list of tasks.`);
    const numbered = tasks.map((task, i) => {
      if (!(task instanceof Map))
        throw new NlacError("ERR_CONFIG", `${name}/${file}: task ${i} is not an object.`);
      return new Map([["index", BigInt(i)], ...task]);
    });
    write(`tasks_${split}.json`, lines(numbered));
    counts[split] = readTasks(join(directory, `tasks_${split}.json`), split).length;
  }
  openDomain(name, out);
  return counts;
}

/** The tools' schemas, in the order in which the domain lists the tools. */
function readTools(directory: string): Value[] {
  const schemas = new Map<string, Value>();
  for (const file of readdirSync(directory).filter((name) => name.endsWith(".py"))) {
    const source = readFileSync(join(directory, file), "utf8");
    const tool = /^class (\w+)\(Tool\):/m.exec(source)?.[1];
    if (tool !== undefined) schemas.set(tool, readLiteral(source, /def get_info\([^\n]*:\s*return /, file));
  }
  const listed = /^ALL_TOOLS = \[([\s\w,]*)\]/m.exec(
    readFileSync(join(directory, "__init__.py"), "utf8"),
  )?.[1];
  const names = listed?.split(",").map((name) => name.trim()) ?? [];
  return names
    .filter((name) => name !== "")
    .map((name) => {
      const schema = schemas.get(name);
      if (schema === undefined) throw new NlacError("ERR_CONFIG", `${directory} has no tool ${name}.`);
      return schema;
    });
}

/** A list as JSON, one item per line. */
function lines(value: Value): string {
  return Array.isArray(value) ? `[\n${value.map(dumps).join(",\n")}\n]\n` : `${dumps(value)}\n`;
}
