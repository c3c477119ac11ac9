/** `nlac generate`: streams one reply of a model. */

import type { Command } from "commander";
import type { Message } from "../contract/environment.ts";
import { printable } from "../display/printable.ts";
import { TextStream } from "../tokens/text-stream.ts";
import { type ModelFlags, openModel } from "./model.ts";
import { numberFrom, oneOf, wholeNumber, withGenerationOptions } from "./options.ts";

interface GenerateFlags extends ModelFlags {
  system?: string;
  maxNewTokens: number;
  temperature: number;
  topP: number;
  weights: "online" | "target";
  json?: boolean;
}

export function registerGenerate(program: Command): void {
  withGenerationOptions(
    program
      .command("generate")
      .description("generate a run's or a model's reply to a prompt")
      .argument("<run|model>", "a run directory, a model name, a Hugging Face directory or a .gguf file")
      .argument("<prompt>", "the user message"),
  )
    .option("--system <text>", "a system message")
    .option("--max-new-tokens <number>", "maximum length of the reply in tokens", wholeNumber(1), 256)
    .option("--temperature <number>", "sampling temperature; 0 is greedy", numberFrom(0), 0.7)
    .option("--top-p <number>", "probability mass for nucleus sampling", numberFrom(0), 1)
    .option(
      "--weights <which>",
      "weights that generate: online, or target (the EMA)",
      oneOf("online", "target"),
      "online" as const,
    )
    .option("--json", "print text, tokens and log probabilities as JSON")
    .addHelpText(
      "after",
      `
Example:
  nlac generate SmolLM2-135M-Instruct "What is the capital of France?"`,
    )
    .action(run);
}

async function run(runOrModel: string, prompt: string, flags: GenerateFlags): Promise<void> {
  const { learner } = await openModel(runOrModel, flags);
  try {
    const messages: Message[] = [];
    if (flags.system !== undefined) messages.push({ role: "system", content: flags.system });
    messages.push({ role: "user", content: prompt });
    const pieces = new TextStream(learner.tokenizer!, []);
    const [generation] = await learner.generate(
      [
        {
          messages,
          maxNewTokens: flags.maxNewTokens,
          temperature: flags.temperature,
          topP: flags.topP,
          seed: flags.seed,
          weights: flags.weights,
        },
      ],
      {
        onToken: (_, token) => {
          if (flags.json) return;
          process.stdout.write(printable(pieces.add(token)));
        },
      },
    );
    if (flags.json) {
      const { logProbs, ...rest } = generation!;
      console.log(JSON.stringify({ ...rest, logProbs: Array.from(logProbs) }));
    } else {
      const text = generation!.text;
      process.stdout.write(printable(`${text.slice(pieces.sent.length)}\n`));
    }
  } finally {
    await learner.dispose();
  }
}
