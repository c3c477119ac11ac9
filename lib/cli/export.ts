/** `nlac export`: writes the weights of a run or model as a Hugging Face directory. */

import { readdirSync } from "node:fs";
import { type Command, Option } from "commander";
import { emptyDirectory, requireEmpty } from "../files/disk.ts";
import { type ModelFlags, openModel } from "./model.ts";
import { withModelOptions } from "./options.ts";

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
        "write a sequence classifier: the reward model instead of the language model",
      ).conflicts("adapter"),
    )
    .option("--json", "print the result as JSON")
    .addHelpText(
      "after",
      `
Examples:
  nlac export runs/quickstart-20260101-120000 my-model
  nlac export --adapter runs/quickstart-20260101-120000 my-adapter
  nlac export --reward-model runs/rewards-20260101-120000 my-classifier`,
    )
    .action(run);
}

async function run(
  runOrModel: string,
  directory: string,
  flags: Pick<ModelFlags, "device" | "dtype"> & { adapter?: boolean; rewardModel?: boolean; json?: boolean },
): Promise<void> {
  requireEmpty(directory, "ERR_IO", "Choose another directory.");
  const { learner } = await openModel(runOrModel, flags);
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
