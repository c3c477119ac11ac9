/**
 * The Bellman backup in words: the target model sees what the action led to, says what may follow from there
 * (the bootstrapped future), and joins both into the evaluation that the critic should have given.
 */

import type { Message } from "../environments/contract.ts";
import { actionFreeNotes, optimalityForm } from "./forms.ts";

/** The observation and the request for the bootstrapped future d'. */
export function futureRequest(observation: readonly Message[]): string {
  return [
    "Your latest action was answered as follows (by a tool, or by the person you are dealing with):",
    "",
    observationText(observation),
    "",
    "Starting from this point, describe one course that events may take, as far as the point where the task is",
    "achieved or lost. Keep to a few short sentences.",
  ].join("\n");
}

/** The request for the target description y, after d'. `withVerdict` is false when only a future is trained (k > 1). */
export function targetRequest(withVerdict: boolean): string {
  return joinRequest(
    "Now judge your latest action again.",
    "<Join the answer you saw with the future you described into one course of events up to success or failure at" +
      " the whole task; what comes first matters most.>",
    withVerdict,
  );
}

/** The same at the end of an episode: the outcome stands in the place of a bootstrapped future. */
export function terminalTargetRequest(
  observation: readonly Message[],
  reward: number,
  withVerdict: boolean,
): string {
  return joinRequest(
    [
      "Your latest action ended the task. It was answered as follows:",
      "",
      observationText(observation),
      "",
      `Final score: ${formatReward(reward)} (1 is full success, 0 is failure).`,
      "",
      "Now judge your latest action.",
    ].join("\n"),
    "<The answer you saw and how the task ended, as one course of events.>",
    withVerdict,
  );
}

/** Single-step tasks: the score of the solution, and the same form as the critic's. */
export function solutionTargetRequest(reward: number): string {
  return [
    `Your solution was graded. Final score: ${formatReward(reward)} (1 is correct, 0 is not).`,
    "",
    "Judge the solution in the light of that score. Answer in exactly this form:",
    "",
    "Correctness:",
    '<"Yes" or "No". After a "No", say where the solution goes wrong. A right value counts as wrong when it is not',
    "given in the form \\boxed{answer}.>",
  ].join("\n");
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

/** What the environment answered, as it is quoted to the model. */
export function observationText(observation: readonly Message[]): string {
  const text = observation.map((message) => message.content).join("\n");
  return text === "" ? "(no answer)" : text;
}

/** 1, 0, 0.5: at most three decimals. */
export function formatReward(reward: number): string {
  return String(Math.round(reward * 1000) / 1000);
}
