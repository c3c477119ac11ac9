/** `nlac setup`: installs libtorch and builds the native addon. */

import type { Command } from "commander";
import { NlacError } from "../base/errors.ts";
import { formatBytes, stderrReporter } from "../display/reporter.ts";
import { setup } from "../native/setup.ts";

interface SetupFlags {
  cpu?: boolean;
  cuda?: boolean;
  toolchainOnly?: boolean;
  from?: string;
  offline?: boolean;
  fetchOnly?: boolean;
  dryRun?: boolean;
  build: boolean;
  json?: boolean;
}

export function registerSetup(program: Command): void {
  program
    .command("setup")
    .description("find or install libtorch, and compile the native addon if none loads")
    .option("--cpu", "set up for the CPU (the default)")
    .option("--cuda", "also for NVIDIA GPUs: the CUDA compiler and the libraries that torch needs")
    .option("--toolchain-only", "with --cuda: only the compiler and headers, for a machine without a GPU")
    .option(
      "--from <directory>",
      "use this torch (site-packages or libtorch archive) instead of installing one",
    )
    .option("--offline", "never use the network")
    .option("--fetch-only", "only download, for `setup --offline` on a machine without a network")
    .option("--dry-run", "print what would be done, and the size of the download")
    .option("--no-build", "do not build the addon")
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
setup searches for libtorch in NLAC_LIBTORCH, LIBTORCH, nlac.config.json
({"libtorch": "DIR"}), the torch of $VIRTUAL_ENV, $CONDA_PREFIX and python3, and
$XDG_CACHE_HOME/nlac. It installs what is missing into $XDG_CACHE_HOME/nlac. It
downloads only the needed files of torch's wheels (HTTP range requests). If that
fails, it installs whole wheels with pip, uv or its own download.
NLAC_INSTALLER=ranges|pip|uv|https selects one of these. The native addon is
compiled only if no existing one loads.

For a machine without a network, run \`nlac setup --fetch-only\` on another one
and copy $XDG_CACHE_HOME/nlac/downloads; then run \`nlac setup --offline\`.

Examples:
  nlac setup
  nlac setup --cuda --dry-run
  nlac setup --from /opt/venv/lib/python3.11/site-packages`,
    )
    .action(run);
}

async function run(flags: SetupFlags): Promise<void> {
  if (flags.cpu && flags.cuda) throw new NlacError("ERR_VALUE", "--cpu and --cuda exclude each other.");
  if (flags.toolchainOnly && !flags.cuda)
    throw new NlacError("ERR_VALUE", "--toolchain-only requires --cuda.");
  const result = await setup({
    variant: flags.cuda ? "cuda" : "cpu",
    toolchainOnly: flags.toolchainOnly ?? false,
    ...(flags.from !== undefined && { from: flags.from }),
    offline: flags.offline ?? false,
    fetchOnly: flags.fetchOnly ?? false,
    dryRun: flags.dryRun ?? false,
    build: flags.build,
    report: stderrReporter(),
  });
  if (flags.json) console.log(JSON.stringify(result, null, 2));
  else if (result.dryRun) console.log(`Nothing was changed. Download size: ${formatBytes(result.bytes)}.`);
  else if (flags.fetchOnly) console.log("Downloaded. Next: `npx nlac setup --offline` on the other machine.");
  else if (!flags.build) console.log("libtorch is in place.");
  else console.log("Ready. Next: `npx nlac train quickstart`, or `npx nlac doctor` to see what was found.");
}
