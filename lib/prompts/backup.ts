/**
 * Prompts of the Bellman backup in words: the target model sees the result of the action, predicts
 * what may follow (the bootstrapped future), and joins both into the evaluation that the critic
 * should have given.
 */

import type { Action, Message } from "../contract/environment.ts";
import { actionFreeNotes, correctnessForm, optimalityForm } from "./forms.ts";
import { type ActionFormat, actionSummary } from "./policy.ts";

/** The observation, the reward if not 0, and the request for the bootstrapped future d'. */
export function futureRequest(observation: readonly Message[], reward = 0): string {
  return [
    ...answered(observation, reward),
    "Starting from this point, describe one course that events may take, as far as the point where the task is",
    "achieved or lost. Keep to a few short sentences.",
  ].join("\n");
}

/**
 * The request for the target description y, after d'. `withVerdict` is false if only futures are
 * trained (k > 1).
 */
export function targetRequest(withVerdict: boolean): string {
  return joinRequest(
    "Now judge your latest action again.",
    "<Join the answer you saw with the future you described into one course of events up to success or failure at" +
      " the whole task; what comes first matters most.>",
    withVerdict,
  );
}

/** The request for y without d': the observation is joined with its consequences. */
export function observedTargetRequest(
  observation: readonly Message[],
  withVerdict: boolean,
  reward = 0,
): string {
  return joinRequest(
    [...answered(observation, reward), "Now judge your latest action."].join("\n"),
    observedFuture,
    withVerdict,
  );
}

/**
 * The request for y without d', from what really happened in the rest of the episode.
 *
 * @param rest the later turns, each as one text; an empty string where turns are left out
 * @param score total reward of the episode; undefined if it was cut short
 */
export function followedTargetRequest(
  observation: readonly Message[],
  rest: readonly string[],
  score: number | undefined,
  withVerdict: boolean,
  reward = 0,
  range: readonly [low: number, high: number] = [0, 1],
): string {
  const later = rest.flatMap((turn) => [turn === "" ? "(Some moves are left out here.)" : turn, ""]);
  const opening = [
    ...answered(observation, reward),
    ...(later.length === 0 ? [] : ["The task then went on:", "", ...later]),
    score === undefined
      ? "There the task was cut short. Nobody knows how it would have ended."
      : `There the task ended. ${scoreText(score, range)}`,
    "",
    "Now judge your latest action.",
  ].join("\n");
  return joinRequest(opening, observedFuture, withVerdict);
}

/** A later turn, as `followedTargetRequest` quotes it. */
export function followedTurnText(
  action: Action | undefined,
  observation: readonly Message[],
  reward: number,
): string {
  return [
    `You: ${action === undefined ? "(an action that could not be read)" : actionSummary(action)}`,
    `Answer: ${observationText(observation)}`,
    ...(reward === 0 ? [] : [`Reward: ${formatReward(reward)}`]),
  ].join("\n");
}

/**
 * The request for y at the end of an episode, whose outcome replaces the bootstrapped future.
 * @param reward total reward of the episode
 */
export function terminalTargetRequest(
  observation: readonly Message[],
  reward: number,
  withVerdict: boolean,
  range: readonly [low: number, high: number] = [0, 1],
): string {
  return joinRequest(
    [
      "Your latest action ended the task. It was answered as follows:",
      "",
      observationText(observation),
      "",
      scoreText(reward, range),
      "",
      "Now judge your latest action.",
    ].join("\n"),
    "<The answer you saw and how the task ended, as one course of events.>",
    withVerdict,
  );
}

/**
 * Single-step tasks: the score of the solution, the environment's answer if any, and the critic's
 * form.
 */
export function solutionTargetRequest(
  reward: number,
  observation: readonly Message[] = [],
  format: ActionFormat = "solution",
  [low, high]: readonly [low: number, high: number] = [0, 1],
): string {
  const scale = `${formatReward(high)} is correct, ${formatReward(low)} is not`;
  return [
    ...(observation.length === 0 ? [] : answered(observation)),
    `Your solution was graded. Final score: ${formatReward(reward)} (${scale}).`,
    "",
    "Judge the solution in the light of that score. Answer in exactly this form:",
    "",
    correctnessForm(format),
  ].join("\n");
}

const observedFuture =
  "<The answer you saw and what it leads to, as one course of events up to success or failure at the whole task;" +
  " what comes first matters most.>";

function scoreText(score: number, [low, high]: readonly [low: number, high: number]): string {
  return `Final score: ${formatReward(score)} (${formatReward(high)} is full success, ${formatReward(low)} is failure).`;
}

function answered(observation: readonly Message[], reward = 0): string[] {
  return [
    "Your latest action was answered as follows (by a tool, or by the person you are dealing with):",
    "",
    observationText(observation),
    "",
    ...(reward === 0 ? [] : [`It was rewarded with ${formatReward(reward)}.`, ""]),
  ];
}

function joinRequest(opening: string, future: string, withVerdict: boolean): string {
  if (!withVerdict) {
    return [opening, "", `Write only this, as plain text: ${future}`].join("\n");
  }
  return [
    `${opening} Answer in exactly this form:`,
    "",
    "Future:",
    future,
    optimalityForm,
    "",
    actionFreeNotes,
  ].join("\n");
}

/** The environment's answer as quoted to the model. */
function observationText(observation: readonly Message[]): string {
  const text = observation.map((message) => message.content).join("\n");
  return text === "" ? "(no answer)" : text;
}

/** 1, 0, 0.5: at most three decimals. */
function formatReward(reward: number): string {
  return String(Math.round(reward * 1000) / 1000);
}
