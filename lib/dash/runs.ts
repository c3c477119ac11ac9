/** The runs that a dashboard shows: given directories, and those in directories of runs. */

import { type Dirent, existsSync, readdirSync, statSync } from "node:fs";
import { basename, join, relative, resolve } from "node:path";
import { NlacError } from "../base/errors.ts";
import { onDisk } from "../files/disk.ts";
import { isRun } from "../run/description.ts";
import { DashRun } from "./run.ts";

/** Depth of directories in which runs are looked for; comparisons keep theirs in a subdirectory. */
const maxDepth = 3;
/** Milliseconds between searches for new runs. */
const searchMs = 5000;

export class DashRuns {
  readonly #roots: string[];
  readonly #runs = new Map<string, DashRun>();
  #searched = Number.NEGATIVE_INFINITY;
  #faults: string[] = [];

  /** Throws ERR_RUN for a path that is no directory. */
  constructor(paths: readonly string[]) {
    this.#roots = paths.map((path) => resolve(path));
    for (const root of this.#roots)
      if (!existsSync(root) || !onDisk(root, () => statSync(root)).isDirectory())
        throw new NlacError("ERR_RUN", `${root} is not a directory.`);
    this.#search();
  }

  get all(): DashRun[] {
    return [...this.#runs.values()];
  }

  /** Directories that cannot be read, with the reason. */
  get faults(): readonly string[] {
    return this.#faults;
  }

  /** Throws ERR_RUN for an id that no run has. */
  get(id: string): DashRun {
    const run = this.all.find((candidate) => candidate.id === id);
    if (run === undefined) throw new NlacError("ERR_RUN", `There is no run ${JSON.stringify(id)}.`);
    return run;
  }

  /** Looks for new runs, and reads what is new in all of them. */
  async poll(): Promise<void> {
    if (performance.now() - this.#searched >= searchMs) this.#search();
    for (const run of this.all) await run.poll();
  }

  #search(): void {
    this.#searched = performance.now();
    this.#faults = [];
    const found = this.#roots.flatMap((root) =>
      runsBelow(root, maxDepth, this.#faults).map((path) => ({ path, name: nameOf(root, path) })),
    );
    const present = new Set(found.map(({ path }) => path));
    for (const path of this.#runs.keys()) if (!present.has(path)) this.#runs.delete(path);
    for (const { path, name } of found) {
      if (this.#runs.has(path)) continue;
      const taken = new Set(this.all.map(({ id }) => id));
      let id = name;
      for (let i = 2; taken.has(id); i++) id = `${name} (${i})`;
      this.#runs.set(path, new DashRun(id, path));
    }
  }
}

function nameOf(root: string, path: string): string {
  return root === path ? basename(path) : relative(root, path);
}

/**
 * @param faults gets the reason for each directory that cannot be read; the others are still
 *   searched
 */
function runsBelow(path: string, depth: number, faults: string[]): string[] {
  let names: Dirent[];
  try {
    if (isRun(path)) return [path];
    if (depth === 0) return [];
    names = readdirSync(path, { withFileTypes: true });
  } catch (error) {
    faults.push(`${path} cannot be read: ${(error as Error).message}`);
    return [];
  }
  return names
    .filter((entry) => entry.isDirectory() && !entry.name.startsWith("."))
    .sort((a, b) => (a.name < b.name ? -1 : 1))
    .flatMap((entry) => runsBelow(join(path, entry.name), depth - 1, faults));
}
