/** `nlac versions`: lists the stored versions of a run that is served and trained. */

import { resolve } from "node:path";
import type { Command } from "commander";
import { listVersions } from "../agents/versions.ts";
import { formatFigure } from "../display/progress.ts";
import { say } from "./messages.ts";

export function registerVersions(program: Command): void {
  program
    .command("versions")
    .description("list the stored versions of a run of nlac serve --train")
    .argument("<run>", "a run directory")
    .option("--json", "print the versions as JSON")
    .addHelpText(
      "after",
      `
Examples:
  nlac versions runs/live

Every answer names its version in the header x-nlac-version. A version is stored
as long as its checkpoint; clients request it as the model MODEL@VERSION. The
metrics are means over the latest episodes before the version was saved.`,
    )
    .action((run: string, { json }: { json?: boolean }) => {
      const versions = listVersions(resolve(run));
      if (json) return console.log(JSON.stringify(versions, null, 2));
      if (versions.length === 0) say(`nlac: ${run} has no version yet: it has not saved a checkpoint.`);
      for (const { name, checkpoint, time, quality } of versions) {
        const metrics = Object.entries(quality).map(([key, value]) => `${key} ${formatFigure(value)}`);
        const when = new Date(time).toISOString().slice(0, 19).replace("T", " ");
        console.log([name, `checkpoint ${checkpoint}`, `${when} UTC`, ...metrics].join("  "));
      }
    });
}
