/** `nlac rollback`: lets a run that is served and trained continue from an earlier version. */

import { resolve } from "node:path";
import type { Command } from "commander";
import { rollBackVersion } from "../agents/versions.ts";

export function registerRollback(program: Command): void {
  program
    .command("rollback")
    .description("continue a run of nlac serve --train from an earlier version")
    .argument("<run>", "a run directory")
    .argument("[version]", "a version that nlac versions lists (default: the second newest)")
    .addHelpText(
      "after",
      `
Examples:
  nlac rollback runs/live 1.96

The server must be stopped. To roll back a running server, send a request:
  curl -X POST http://127.0.0.1:8000/v1/versions/1.96/rollback

Later checkpoints are renamed to N.aside. The run is trained again on the
episodes after the version.`,
    )
    .action((run: string, version: string | undefined) => {
      const { name, checkpoint } = rollBackVersion(resolve(run), version);
      console.log(`The run continues from version ${name}, checkpoint ${checkpoint}.`);
    });
}
