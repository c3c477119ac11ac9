/** `nlac play`: watch a model play, answer it in place of the environment, or play yourself. */

import type { Command } from "commander";
import { isAborted, NlacError } from "../base/errors.ts";
import { derivedSeed, streams, uniform } from "../base/random.ts";
import { closeEnvironment, startEpisode, takeStep, tasksOf } from "../contract/checks.ts";
import { type Environment, type Episode, isOver } from "../contract/environment.ts";
import { withTimeout } from "../contract/timeout.ts";
import { formatFigure } from "../display/progress.ts";
import {
  environmentNames,
  environmentPath,
  namesEnvironment,
  openEnvironment,
} from "../environments/registry.ts";
import { costOfLeaving } from "../playing/collect.ts";
import { checkedScore, checkedStep } from "../playing/environment-answers.ts";
import { withoutThought } from "../prompts/corrected-thought.ts";
import {
  actionSummary,
  parseAction,
  policyConversation,
  policyMessages,
  unreadableMessage,
} from "../prompts/policy.ts";
import { say } from "./messages.ts";
import { type ModelFlags, type OpenedModel, openModel } from "./model.ts";
import {
  asFlag,
  isGiven,
  jsonObject,
  numberFrom,
  oneOf,
  wholeNumber,
  withGenerationOptions,
} from "./options.ts";
import { Person } from "./person.ts";
import { playYourself } from "./play-yourself.ts";
import { stoppable } from "./stop.ts";
import { fitted } from "./wrap.ts";

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
  withGenerationOptions(
    program
      .command("play")
      .description("play an environment, watch a model play, or answer a model's questions")
      .argument(
        "<environment|run|model>",
        "an environment (name or file) to play yourself; or the player: a run directory, a model name, " +
          "a Hugging Face directory or a .gguf file",
      ),
  )
    .option(
      "--environment <name>",
      `a file of your own, or one of: ${environmentNames.join(", ")} (default: the run's, else twentyQuestions)`,
    )
    .option("--options <json>", "the environment's options (default: the run's)", jsonObject)
    .option("--split <split>", "tasks to choose from: train or test", oneOf("train", "test"), "test" as const)
    .option("--task <id>", "the task's id (default: a random task by --seed)")
    .option(
      "--oracle",
      "you answer the model: think of something, reply to each question; an empty line or Ctrl-D ends",
    )
    .option("--temperature <number>", "for actions; 0 is greedy", numberFrom(0), 0.7)
    .option(
      "--max-action-tokens <number>",
      "maximum length of an action (default: the run's, else 128)",
      wholeNumber(1),
    )
    .addHelpText(
      "after",
      `
If you play yourself, each line is an action. In an environment with tools,
name {"argument": "value"} calls one. ? shows help.

Examples:
  nlac play errands
  nlac play ./my-environment.ts --task first
  nlac play SmolLM2-135M-Instruct --task apple
  nlac play SmolLM2-135M-Instruct --oracle`,
    )
    .action((first: string, flags: PlayFlags, command: Command) =>
      namesEnvironment(first) ? playAlone(first, flags, command) : play(first, flags),
    );
}

/** Options of a model that plays. */
const ofModel = ["device", "dtype", "int8Generation", "temperature", "maxActionTokens"] as const;

async function playAlone(name: string, flags: PlayFlags, command: Command): Promise<void> {
  if (flags.environment !== undefined || flags.oracle)
    throw new NlacError(
      "ERR_VALUE",
      `${name} is an environment that you play yourself: leave out --environment and --oracle, or name a model.`,
    );
  const given = ofModel.find((option) => isGiven(command, option));
  if (given !== undefined)
    throw new NlacError("ERR_VALUE", `${asFlag(given)} needs a model that plays; ${name} is an environment.`);
  const environment = await openEnvironment(environmentPath(name), flags.options);
  const person = new Person(process.stdin, process.stdout);
  try {
    await playYourself(environment, await chooseTask(environment, flags), { seed: flags.seed, person });
  } catch (error) {
    if (!isAborted(error) || !person.signal.aborted) throw error;
  } finally {
    person.close();
    await closeEnvironment(environment);
  }
  if (person.signal.aborted) sayStopped();
}

function sayStopped(): void {
  say("nlac: stopped");
  process.exitCode = 130; // the shell's convention for Ctrl-C
}

async function play(runOrModel: string, flags: PlayFlags): Promise<void> {
  const { learner, recipe } = await openModel(runOrModel, flags).catch((error: unknown) => {
    if (!(error instanceof NlacError) || error.code !== "ERR_MODEL_NOT_FOUND") throw error;
    const message = `${error.message} It is not an environment either: there are ${environmentNames.join(", ")}.`;
    throw new NlacError(error.code, message, { cause: error });
  });
  const person = flags.oracle ? new Person(process.stdin, process.stdout) : undefined;
  let signal: AbortSignal | undefined;
  try {
    await stoppable(say, "the episode", (stop) => {
      // At a terminal the person's reader gets Ctrl-C; a signal must also end its waiting for a line.
      stop.addEventListener("abort", () => person?.close());
      signal = person === undefined ? stop : AbortSignal.any([stop, person.signal]);
      return showEpisode({ learner, recipe }, flags, person, signal);
    });
  } catch (error) {
    if (!isAborted(error) || !signal?.aborted) throw error;
  } finally {
    person?.close();
    await learner.dispose();
  }
  if (signal?.aborted) sayStopped();
}

/** Shows one episode of a model; with `person`, who answers it in place of the environment. */
async function showEpisode(
  { learner, recipe }: OpenedModel,
  flags: PlayFlags,
  person: Person | undefined,
  signal: AbortSignal,
): Promise<void> {
  const name = environmentPath(flags.environment ?? recipe?.environment.name ?? "twentyQuestions");
  const options = flags.options ?? (name === recipe?.environment.name ? recipe.environment.options : {});
  const environment = await openEnvironment(name, options);
  const { actionFormat, maxTurns } = environment;
  let episode: Episode | undefined;
  try {
    const task = await chooseTask(environment, flags);
    const { seed } = flags;
    const started = await withTimeout(() => startEpisode(environment, task, { seed, signal }), { signal });
    episode = started;
    const messages = policyMessages(started.observation, actionFormat);
    const conversation = policyConversation(learner, started.observation, actionFormat);
    for (const { role, content } of messages) console.log(fitted(`[${role}]\n${content}\n`));
    if (person === undefined) console.log(fitted(`(the task: ${environment.taskId(task)})\n`));

    let reward = 0;
    let done = false;
    let turn = 0;
    for (; turn < maxTurns && !done; turn++) {
      const prompt = conversation.prompt();
      if (prompt.length >= learner.maxPositions) {
        console.log("The conversation exceeds the model's context length.");
        break;
      }
      const [generation] = await learner.generate(
        [
          {
            tokens: prompt,
            maxNewTokens: Math.min(
              flags.maxActionTokens ?? recipe?.config.maxActionTokens ?? 128,
              learner.maxPositions - prompt.length,
            ),
            temperature: flags.temperature,
            seed: derivedSeed(flags.seed, streams.policy, turn),
          },
        ],
        { signal },
      );
      conversation.appendGeneration(generation!);
      console.log(fitted(`${turn + 1}. ${generation!.text.trim()}`));
      if (person !== undefined) {
        const answer = await person.ask("   you: ");
        if (answer === undefined || answer.trim() === "") {
          if (!signal.aborted) console.log(`Ended at turn ${turn + 1}.`);
          break;
        }
        conversation.append({ role: "user", content: answer });
        continue;
      }
      const parsed = parseAction(withoutThought(generation!.text), actionFormat, conversation.tools);
      if (!parsed.ok) {
        console.log(fitted(`   (not readable: ${parsed.reason})`));
        conversation.append(unreadableMessage(parsed.reason, actionFormat));
        continue;
      }
      const result = checkedStep(
        await withTimeout(() => takeStep(environment, started, parsed.action), { signal }),
      );
      const answer = result.observation.map(({ content }) => content).join(" ");
      console.log(fitted(`   ${actionSummary(parsed.action)} → ${answer}`));
      conversation.append(...result.observation);
      reward += result.reward + (result.score ?? 0);
      done = isOver(result);
    }
    if (person === undefined) {
      if (!done && turn === maxTurns) reward += await withTimeout(() => checkedScore(started), { signal });
      const total = done ? reward : reward + costOfLeaving(environment, reward);
      console.log(`\nReward: ${formatFigure(total)}`);
    }
  } finally {
    await episode?.close();
    await closeEnvironment(environment);
  }
}

async function chooseTask(environment: Environment, flags: PlayFlags): Promise<unknown> {
  if (flags.task === undefined) {
    const tasks = await tasksOf(environment, flags.split);
    if (tasks.length === 0)
      throw new NlacError("ERR_CONFIG", `${environment.name} has no ${flags.split} tasks.`);
    return tasks[Math.floor(uniform(flags.seed, streams.evaluation, 0) * tasks.length)];
  }
  const names: string[] = [];
  for (const split of ["train", "test"] as const) {
    for (const task of await tasksOf(environment, split)) {
      const name = environment.taskId(task);
      if (name === flags.task) return task;
      names.push(name);
    }
  }
  const some = names.length > 4 ? `${names.slice(0, 4).join(", ")}, …` : names.join(", ");
  throw new NlacError(
    "ERR_CONFIG",
    `${environment.name} has no task ${JSON.stringify(flags.task)}; there are ${some}.`,
  );
}
