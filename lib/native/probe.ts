/** Loads the addon in a child process, so that a crash does not end this one. */

import { spawnSync } from "node:child_process";
import { join } from "node:path";
import type { InstructionSet } from "../base/dtype.ts";
import type { Libtorch } from "./libtorch.ts";
import { type Installation, openmpRuntimes } from "./load.ts";

export type Probe =
  | { loads: true; torch: string; cuda: boolean; instructionSet: InstructionSet; openmp: string[] }
  | { loads: false; reason: string };

const SCRIPT = `
const [loader, addon, ...paths] = process.argv.slice(1);
require(loader).load(paths);
const { torchVersion, cudaAvailable, instructionSet } = require(addon);
process.report.excludeNetwork = true; // it would look up host names
const { sharedObjects } = process.report.getReport();
console.log(
  JSON.stringify({ torch: torchVersion(), cuda: cudaAvailable(), instructionSet: instructionSet(), sharedObjects }),
);`;

export function probeAddon(installation: Installation, libtorch: Libtorch): Probe {
  const files = ["nlac_loader.node", "nlac.node"].map((name) => join(installation.directory, name));
  const run = spawnSync(process.execPath, ["-e", SCRIPT, ...files, ...libtorch.preload], {
    encoding: "utf8",
    maxBuffer: 1 << 26,
    timeout: 60_000,
  });
  if (run.status !== 0) {
    const said = run.stderr.split("\n").find((line) => /Error/.test(line)) ?? run.stderr.trim().slice(-300);
    return { loads: false, reason: run.signal ? `ended by ${run.signal}` : said };
  }
  const { sharedObjects, ...found } = JSON.parse(run.stdout) as Omit<
    Probe & { loads: true },
    "loads" | "openmp"
  > & { sharedObjects: string[] };
  return { loads: true, ...found, openmp: openmpRuntimes(sharedObjects) };
}
