/** `nlac play`: watch a model play an episode, or answer it yourself in the environment's place. */

import { stdin, stdout } from "node:process";
import { createInterface } from "node:readline/promises";
import type { Command } from "commander";
import type { Environment } from "../environments/contract.ts";
import { environmentNames, makeEnvironment } from "../environments/registry.ts";
import { NlacError } from "../errors.ts";
import { withoutThought } from "../prompts/corrected-thought.ts";
import { actionSummary, parseAction, policyMessages } from "../prompts/policy.ts";
import { derivedSeed, streams, uniform } from "../random.ts";
import { type ModelFlags, openModel } from "./model.ts";
import { jsonObject, numberFrom, wholeNumber, withModelOptions } from "./options.ts";

interface PlayFlags extends ModelFlags {
  environment?: string;
  options?: Record<string, unknown>;
  split: "train" | "test";
  task?: string;
  oracle?: boolean;
  temperature: number;
  maxActionTokens?: number;
}

export function registerPlay(program: Command): void {
  withModelOptions(
    program
      .command("play")
      .description("watch a model play, or be the one who answers it")
      .argument("<run|model>", "a run directory, a model name, a Hugging Face directory or a .gguf file"),
  )
    .option(
      "--environment <name>",
      `one of: ${environmentNames.join(", ")} (default: the run's, else twentyQuestions)`,
    )
    .option("--options <json>", "the environment's options (default: the run's)", jsonObject)
    .option("--split <split>", "tasks to choose from: train or test", "test")
    .option("--task <id>", "the task by its name (default: a random one by --seed)")
    .option("--oracle", "you answer: think of something, reply to each question, end with an empty line")
    .option("--temperature <number>", "of the actions; 0 is greedy", numberFrom(0), 0.7)
    .option("--max-action-tokens <number>", "longest action (default: the run's, else 128)", wholeNumber(1))
    .addHelpText(
      "after",
      `
Examples:
  nlac play SmolLM2-135M-Instruct --task apple
  nlac play SmolLM2-135M-Instruct --oracle`,
    )
    .action(play);
}

async function play(runOrModel: string, flags: PlayFlags): Promise<void> {
  const { learner, recipe } = await openModel(runOrModel, flags);
  const reader = flags.oracle ? createInterface({ input: stdin, output: stdout }) : undefined;
  try {
    const name = flags.environment ?? recipe?.environment.name ?? "twentyQuestions";
    const options = flags.options ?? (name === recipe?.environment.name ? recipe.environment.options : {});
    const environment: Environment = makeEnvironment(name, options);
    const task = await chooseTask(environment, flags);
    const seed = flags.seed ?? 0;
    const episode = await environment.start(task, { seed });
    const messages = policyMessages(episode.observation, environment.actionFormat);
    const conversation = learner.conversation(messages, { tools: episode.observation.tools });
    for (const { role, content } of messages) console.log(`[${role}]\n${content}\n`);
    if (!flags.oracle) console.log(`(the task: ${environment.taskId(task)})\n`);

    for (let turn = 0; turn < environment.maxTurns; turn++) {
      const prompt = conversation.prompt();
      if (prompt.length >= learner.maxPositions) {
        console.log("The conversation has outgrown the model's context.");
        break;
      }
      const [generation] = await learner.generate([
        {
          tokens: prompt,
          maxNewTokens: Math.min(
            flags.maxActionTokens ?? recipe?.config.maxActionTokens ?? 128,
            learner.maxPositions - prompt.length,
          ),
          temperature: flags.temperature,
          seed: derivedSeed(seed, streams.policy, turn),
        },
      ]);
      conversation.appendGeneration(generation!);
      console.log(`${turn + 1}. ${generation!.text.trim()}`);
      const parsed = parseAction(withoutThought(generation!.text), environment.actionFormat);
      if (reader !== undefined) {
        const answer = await reader.question("   you: ").catch(() => "");
        if (answer.trim() === "") break;
        conversation.append({ role: "user", content: answer });
        continue;
      }
      if (!parsed.ok) {
        console.log(`   (not readable: ${parsed.reason})`);
        conversation.append({ role: "user", content: `That could not be read: ${parsed.reason}.` });
        continue;
      }
      const result = await episode.step(parsed.action);
      console.log(
        `   ${actionSummary(parsed.action)} → ${result.observation.map(({ content }) => content).join(" ")}`,
      );
      conversation.append(...result.observation);
      if (result.done) {
        console.log(`\nReward: ${result.reward}`);
        break;
      }
    }
    await episode.close();
    await environment.close();
  } finally {
    reader?.close();
    await learner.dispose();
  }
}

async function chooseTask(environment: Environment, flags: PlayFlags): Promise<unknown> {
  if (flags.split !== "train" && flags.split !== "test") {
    throw new NlacError("ERR_CONFIG", `--split is train or test, not ${flags.split}.`);
  }
  if (flags.task === undefined) {
    const tasks = await environment.tasks(flags.split);
    return tasks[Math.floor(uniform(flags.seed ?? 0, streams.evaluation, 0) * tasks.length)];
  }
  for (const split of ["train", "test"] as const) {
    const found = (await environment.tasks(split)).find((task) => environment.taskId(task) === flags.task);
    if (found !== undefined) return found;
  }
  throw new NlacError("ERR_CONFIG", `${environment.name} has no task ${JSON.stringify(flags.task)}.`);
}
