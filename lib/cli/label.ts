/** `nlac label`: Monte-Carlo values of the actions in a run's episodes, as JSON lines. */

import type { Command } from "commander";
import { closeEnvironment } from "../contract/checks.ts";
import type { Environment } from "../contract/environment.ts";
import { openEnvironment } from "../environments/registry.ts";
import { episodesPath, readEpisodes } from "../episodes/records.ts";
import { recipeOf } from "../recipe/run-recipe.ts";
import { actionValues, unitScale } from "../training/returns.ts";
import { type ModelFlags, openModel } from "./model.ts";
import { numberFrom, oneOf, withModelOptions } from "./options.ts";

interface LabelFlags extends Pick<ModelFlags, "device" | "dtype"> {
  discount?: number;
  scaling?: "range" | "observed";
  prefixes: boolean;
}

export function registerLabel(program: Command): void {
  withModelOptions(
    program
      .command("label")
      .description("print the mean return of every action in a run's episodes, as JSON lines")
      .argument("<run>", "a run directory"),
  )
    .option("--discount <number>", "discount of rewards per turn (default: the run's, else 1)", numberFrom(0))
    .option(
      "--scaling <how>",
      "scale returns to [0, 1] by the reward range or the observed range (default: the run's, else range)",
      oneOf("range", "observed"),
    )
    .option("--no-prefixes", "count the return of a branch only for its own actions, not for those before it")
    .addHelpText(
      "after",
      `
A line has a state and an action: the first episode that took the action in the
state, its turn, both texts, "value" (the mean return of all episodes that took
the action), "label" (the value scaled to [0, 1]), "count" (the number of these
episodes) and "branched" (whether only branches took the action). HOPE's reward
model has the same targets, but each iteration's from its own episodes; here all
episodes of the run count together.

Example:
  nlac label runs/hope-errands > labels.jsonl`,
    )
    .action(label);
}

async function label(run: string, flags: LabelFlags): Promise<void> {
  const recipe = recipeOf(run);
  const { config, environment: given } = recipe;
  const { learner } = await openModel(run, flags);
  let environment: Environment | undefined;
  try {
    environment = await openEnvironment(given.name, given.options);
    const discount = flags.discount ?? ("discount" in config ? config.discount : 1);
    const prefixes = flags.prefixes && !("prefixes" in config && !config.prefixes);
    const values = actionValues(readEpisodes(episodesPath(run), learner), {
      discount,
      prefixes,
    });
    const all = values.map(({ value }) => value);
    const scaling = flags.scaling ?? ("scaling" in config ? config.scaling : "range");
    const scale = unitScale(scaling, environment, all);
    for (const { trajectory, turn, state, action, value, count, branched } of values)
      console.log(
        JSON.stringify({
          ...{ task: trajectory.task, trajectory: trajectory.id, turn },
          state: learner.decode(state.prompt()),
          action: learner.decode(action),
          ...{ value, label: scale(value), count, branched },
        }),
      );
  } finally {
    await learner.dispose();
    if (environment !== undefined) await closeEnvironment(environment);
  }
}
