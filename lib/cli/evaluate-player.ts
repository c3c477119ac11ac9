/**
 * Plays the episodes of `nlac eval`, prints their figures, and writes the record and the report.
 */

import { evaluateReact, reactConfig } from "../algorithms/react.ts";
import { counted } from "../base/counted.ts";
import { isAborted, isBudgetSpent } from "../base/errors.ts";
import { tasksOf } from "../contract/checks.ts";
import type { Environment, Usage } from "../contract/environment.ts";
import { formatFigure, TerminalProgress } from "../display/progress.ts";
import { type EpisodeFigures, figuresOf, summarize } from "../episodes/figures.ts";
import { latestEpisodes, toRecord } from "../episodes/records.ts";
import { isFaulty, succeeded, type Trajectory } from "../episodes/trajectory.ts";
import type { RecordWriter } from "../files/records.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import type { Learner } from "../learner/learner.ts";
import type { Player } from "../playing/batches.ts";
import { noopPlayer } from "../playing/noop-player.ts";
import type { Recipe } from "../recipe/recipe.ts";
import { figureTable, type Measured } from "../report/figures.ts";
import { renderEpisodes } from "../report/page.ts";
import type { ChatService, Price } from "../services/chat-service.ts";
import type { Interval } from "../statistics/intervals.ts";
import { diagnose } from "../training/diagnose.ts";
import { criticConfig } from "./evaluate-critic.ts";
import { say, sayReport } from "./messages.ts";
import type { ModelFlags } from "./model.ts";
import { EnvironmentFailure, stoppable } from "./stop.ts";

/** The options of `nlac eval`. */
export interface EvalFlags extends ModelFlags {
  environment?: string;
  options?: Record<string, unknown>;
  split: "train" | "test";
  episodes?: number;
  trials: number;
  concurrency: number;
  temperature: number;
  constrainActions?: boolean;
  maxActionTokens?: number;
  stepTimeout?: number;
  weights: "online" | "target";
  floor?: boolean;
  record?: string;
  resume?: boolean;
  report?: string;
  budgetTokens?: number;
  budgetCost?: number;
  price?: Price;
  rewardModel?: string;
  bestOf?: number;
  critic?: string;
  diagnose?: boolean;
  transitions: number;
  branches: number;
  json?: boolean;
}

/** A player and the resources behind it, which the caller disposes of. */
export interface Agent {
  player: (environment: Environment) => Player;
  learner?: Learner;
  /** The reward model that chooses actions. */
  judge?: Learner;
  recipe?: Recipe;
  service?: ChatService;
}

/** Given in place of a model: plays the environment's `idle` actions. */
export const doNothing = "do-nothing";

/**
 * Evaluates `agent` by playing. A stop, a spent budget or an uncaught error ends it with the finished
 * episodes; other errors are thrown.
 */
export async function evaluatePlayer(
  player: string,
  agent: Agent,
  environment: Environment,
  flags: EvalFlags,
  record: RecordWriter | undefined,
): Promise<void> {
  const { split, episodes, trials, concurrency, temperature, constrainActions, stepTimeout, seed, weights } =
    flags;
  const of = agent.recipe?.config;
  const maxActionTokens = flags.maxActionTokens ?? of?.maxActionTokens;
  const config = {
    ...{ split, episodes, trials, concurrency, temperature, constrainActions, stepTimeout, seed },
    ...{ maxActionTokens, maxPromptTokens: of?.maxPromptTokens },
  };
  const diagnosed = flags.diagnose ? { ...criticConfig(agent.recipe, "--diagnose"), seed } : undefined;
  const model = agent.player(environment);
  const withFloor = flags.floor ?? (environment.idle !== undefined && environment.usage === undefined);
  const idle = withFloor && player !== doNothing ? noopPlayer(environment) : undefined;
  const played = flags.resume ? playedBefore(flags.record!) : [];
  const finished: Trajectory[] = [];
  let stopped = true;
  let stage = "";
  let failure: string | undefined;
  let people: Usage | undefined;
  let floor: Interval | undefined;
  let diagnosis: Record<string, number> | undefined;

  const progress = new TerminalProgress();
  const note = (line: string) => progress.note(line);
  await stoppable(note, "with the finished episodes", async (signal) => {
    await evaluateReact({
      ...{ model, environment, config, weights, signal, played },
      onProgress: showing("play", progress, agent.learner !== undefined),
      onEpisode: (trajectory) => {
        finished.push(trajectory);
        record?.append({ ...toRecord(trajectory), ...(split === "test" ? { split } : {}) });
        const judged = finished.filter((episode) => !isFaulty(episode));
        progress.show({ success: judged.filter(succeeded).length / judged.length });
      },
    }).finally(() => {
      people = environment.usage?.();
    });
    if (idle !== undefined) {
      const onProgress = showing("floor", progress, false);
      progress.hide("success"); // that of the agent
      // The limit counts the agent's tokens; this player's tokens are bytes.
      const unlimited = { ...config, maxPromptTokens: undefined };
      const { success } = await evaluateReact({
        ...{ model: idle, environment, signal, onProgress },
        config: unlimited,
      });
      floor = success;
    }
    if (diagnosed !== undefined) {
      stage = ", in the diagnosis";
      const { transitions, branches } = flags;
      diagnosis = await diagnose({
        ...{ model: agent.learner!, environment, tasks: await tasksOf(environment, split), number: 0 },
        trajectories: finished.sort((a, b) => a.id - b.id),
        playing: {
          concurrency,
          ...(constrainActions === undefined ? {} : { constrainActions }),
          ...(stepTimeout === undefined ? {} : { stepTimeout }),
        },
        config: {
          ...diagnosed,
          actionTemperature: temperature,
          maxActionTokens: reactConfig.parse(config).maxActionTokens,
          diagnostics: { every: 1, transitions, branches },
        },
        run: { signal, progress },
      });
    }
    stopped = false;
  })
    .catch((error: unknown) => {
      if (isAborted(error)) return;
      if (!(error instanceof EnvironmentFailure || isBudgetSpent(error))) throw error;
      failure = `${error.code}: ${error.message}`;
    })
    .finally(() => progress.end());
  record?.sync();

  const all = [...played, ...finished.map(figuresOf)].sort((a, b) => a.id - b.id);
  const measured: Measured = {
    title: `${environment.name}, ${split}`,
    figures: summarize(all, trials),
    ...(floor === undefined ? {} : { floor }),
    ...(people === undefined ? {} : { people }),
    ...(agent.service === undefined ? {} : { agent: agent.service.usage() }),
    ...(diagnosis === undefined ? {} : { diagnosis }),
  };
  const { figures, title: _, ...more } = measured;
  const json = { environment: environment.name, split, ...figures, ...more, stopped };
  console.log(flags.json ? JSON.stringify(json) : figureTable(measured));
  if (diagnosis !== undefined && !flags.json) console.log(`\n${diagnosisTable(diagnosis)}`);
  if (flags.report !== undefined) {
    const records = flags.record === undefined ? finished.map(toRecord) : latestEpisodes(flags.record);
    writeAtomically(flags.report, renderEpisodes({ ...measured, player }, records));
    sayReport(flags.report);
  }
  const [fault, ...others] = finished.flatMap(({ fault }) => fault ?? []);
  if (fault !== undefined) {
    const failed =
      others.length === 0 ? "an episode failed" : `${others.length + 1} episodes failed, the first`;
    say(`nlac: ${failed} with ${fault.code}: ${fault.message}`);
    if (all.every(isFaulty)) process.exitCode = 1;
  }
  if (stopped) {
    const go = record === undefined || flags.diagnose ? "" : "; continue with the same command and --resume";
    const why = failure === undefined ? "" : ` (${failure})`;
    say(`nlac: stopped after ${counted(all.length, "episode")}${stage}${why}${go}`);
    process.exitCode = failure === undefined ? 130 : 1;
  }
}

/** Returns a callback that shows the progress of a phase, with token counts if `counting`. */
function showing(phase: string, progress: TerminalProgress, counting: boolean) {
  let written: number | undefined;
  return (finished: number, total: number, tokens: number): void => {
    if (written === undefined) progress.phase(phase, total);
    progress.advance(finished, counting ? tokens - (written ?? 0) : 0);
    written = tokens;
  };
}

/** Figures of the recorded episodes that need not be played again. */
function playedBefore(file: string): EpisodeFigures[] {
  return latestEpisodes(file)
    .map(figuresOf)
    .filter((episode) => !isFaulty(episode));
}

/** The names are those of the training metrics (docs/algorithms/nlac.md). */
function diagnosisTable(figures: Record<string, number>): string {
  const lines = Object.entries(figures).map(
    ([name, value]) => `  ${name.padEnd(32)} ${formatFigure(value).padStart(8)}`,
  );
  return ["critic and refiner", ...lines].join("\n");
}
