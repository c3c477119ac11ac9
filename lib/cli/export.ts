/** `nlac export`: writes the weights of a run or model as a Hugging Face directory. */

import { readdirSync } from "node:fs";
import { type Command, Option } from "commander";
import { emptyDirectory, requireEmpty } from "../files/disk.ts";
import type { Learner } from "../learner/learner.ts";
import { type ModelFlags, openModel, openRewardModel } from "./model.ts";
import { withModelOptions } from "./options.ts";

interface ExportFlags extends Pick<ModelFlags, "device" | "dtype"> {
  adapter?: boolean;
  rewardModel?: boolean;
  json?: boolean;
}

export function registerExport(program: Command): void {
  withModelOptions(
    program
      .command("export")
      .description("write a Hugging Face directory that transformers can load")
      .argument("<run|model>", "a run directory, a model name, a Hugging Face directory or a .gguf file")
      .argument("<directory>", "a new or empty directory"),
  )
    .option("--adapter", "write only the run's adapter, in peft's format, instead of the merged model")
    .addOption(
      new Option(
        "--reward-model",
        "write the reward model of a run of HOPE, as a sequence classifier, instead of the language model",
      ).conflicts("adapter"),
    )
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Examples:
  nlac export runs/quickstart-20260101-120000 my-model
  nlac export --adapter runs/quickstart-20260101-120000 my-adapter
  nlac export --reward-model runs/hope-errands my-classifier`,
    )
    .action(run);
}

/** The model to export. The reward model of a run is a model of its own. */
async function open(runOrModel: string, flags: ExportFlags): Promise<Learner> {
  return flags.rewardModel
    ? openRewardModel(runOrModel, flags)
    : (await openModel(runOrModel, flags)).learner;
}

async function run(runOrModel: string, directory: string, flags: ExportFlags): Promise<void> {
  requireEmpty(directory, "ERR_IO", "Choose another directory.");
  const learner = await open(runOrModel, flags);
  try {
    await (flags.adapter
      ? learner.exportAdapter(directory)
      : flags.rewardModel
        ? learner.exportRewardModel(directory)
        : learner.exportHuggingFace(directory));
    const files = readdirSync(directory).sort();
    console.log(flags.json ? JSON.stringify({ directory, files }) : `${directory}: ${files.join(", ")}`);
  } catch (error) {
    emptyDirectory(directory);
    throw error;
  } finally {
    await learner.dispose();
  }
}
