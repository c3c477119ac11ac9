/** `nlac setup`: everything the machine needs, in one command. */

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
  dryRun?: boolean;
  build: boolean;
  json?: boolean;
}

export function registerSetup(program: Command): void {
  program
    .command("setup")
    .description("find or install libtorch, and build the native addon")
    .option("--cpu", "for the CPU (the default)")
    .option("--cuda", "also for NVIDIA GPUs: the CUDA compiler and the libraries torch needs there")
    .option("--toolchain-only", "with --cuda: only what compiles the kernels, for a machine without a GPU")
    .option(
      "--from <directory>",
      "use this torch (site-packages or libtorch archive) instead of installing one",
    )
    .option("--offline", "never use the network")
    .option("--dry-run", "say what would be done, and how large it is")
    .option("--no-build", "leave the addon as it is")
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Libtorch is looked for in NLAC_LIBTORCH, LIBTORCH, nlac.config.json
({"libtorch": "DIR"}), the torch of $VIRTUAL_ENV, $CONDA_PREFIX and python3, and
$XDG_CACHE_HOME/nlac. What is missing is installed into the last with pip, with
uv, or over HTTPS by nlac itself; NLAC_INSTALLER=pip|uv|https picks one.

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
    throw new NlacError("ERR_VALUE", "--toolchain-only goes with --cuda.");
  const result = await setup({
    variant: flags.cuda ? "cuda" : "cpu",
    toolchainOnly: flags.toolchainOnly ?? false,
    ...(flags.from !== undefined && { from: flags.from }),
    offline: flags.offline ?? false,
    dryRun: flags.dryRun ?? false,
    build: flags.build,
    report: stderrReporter(),
  });
  if (flags.json) console.log(JSON.stringify(result, null, 2));
  else if (result.dryRun) console.log(`Nothing was changed; it would download ${formatBytes(result.bytes)}.`);
  else if (!flags.build) console.log("libtorch is in place.");
  else console.log("Ready. Next: `nlac train quickstart`, or `nlac doctor` to see what was found.");
}
