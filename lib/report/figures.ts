/** The figures of played episodes, as lines for the terminal's table and the page. */

import { counted } from "../base/counted.ts";
import type { Usage } from "../contract/environment.ts";
import { formatFigure } from "../display/progress.ts";
import type { Figures } from "../episodes/figures.ts";
import type { Interval } from "../statistics/intervals.ts";

/** Figures of episodes, and how they were measured. */
export interface Measured {
  /** What was measured. */
  title: string;
  figures: Figures;
  /** Success of an agent that does nothing, on the same tasks. */
  floor?: Interval;
  /** Of a served run: figures of its held-out episodes; `figures` are then those of the others. */
  heldOut?: Figures;
  /** Use of LLM services: by the environment's simulated people, and by the agent. */
  people?: Usage;
  agent?: Usage;
  /** How much critic and refiner help, by metric; see `nlac eval --diagnose`. */
  diagnosis?: Record<string, number>;
  /** Which episodes of a run the figures are about, and how its first ones went. */
  ofRun?: { first: number; last: number; before?: Interval };
}

export interface FigureLine {
  label: string;
  /** Absent if there is only a note. */
  estimate?: number;
  /** Bounds of the 95 % interval. */
  low?: number;
  high?: number;
  /** Whether it is a share, from 0 to 1. */
  isShare?: boolean;
  note?: string;
}

export function figureLines({ figures, floor, heldOut, people, agent, ofRun }: Measured): FigureLine[] {
  const { success, passHatK, reward, turns, parseRate, toolCalls, toolErrors, tokens, outcomes } = figures;
  // pass^1 is a mean over tasks. If tasks were played equally often, it is the mean over episodes too.
  const [first] = passHatK;
  const isFirst = first !== undefined && Math.abs(first.estimate - success.estimate) < 1e-9;
  const lines: FigureLine[] = [
    { label: "success", ...success, isShare: true, ...(isFirst ? { note: "pass^1" } : {}) },
  ];
  if (heldOut !== undefined) {
    const note = `success of ${counted(heldOut.episodes, "held-out episode")}`;
    lines.push({ label: "held out", ...heldOut.success, isShare: true, note });
  }
  if (floor !== undefined) lines.push({ label: "doing nothing", ...floor, isShare: true, note: "the floor" });
  if (ofRun?.before !== undefined)
    lines.push({ label: "at first", ...ofRun.before, isShare: true, note: "success of the first iteration" });
  for (const [i, interval] of passHatK.entries()) {
    const k = i + 1;
    // With many trials, show the first few, powers of two and the last.
    const isTold = k <= 8 || Number.isInteger(Math.log2(k)) || k === passHatK.length;
    if ((k > 1 || !isFirst) && isTold) lines.push({ label: `pass^${k}`, ...interval, isShare: true });
  }
  lines.push({ label: "reward", ...reward }, { label: "turns", ...turns });
  lines.push({ label: "readable", estimate: parseRate, note: "of all actions" });
  if (toolCalls > 0) {
    const note = `of ${counted(toolCalls, "call")}; ${formatFigure(toolErrors.perEpisode)} per episode`;
    lines.push({ label: "tool errors", estimate: toolErrors.share, note });
  }
  if (tokens > 0) {
    const note = `generated; ${formatFigure(tokens / figures.episodes)} per episode`;
    lines.push({ label: "tokens", estimate: tokens, note });
  }
  if (agent !== undefined) lines.push({ label: "the agent", note: usageText(agent) });
  if (people !== undefined) lines.push({ label: "the people", note: usageText(people) });
  const counts = Object.entries(outcomes).map(([outcome, count]) => `${outcome} ${count}`);
  lines.push({ label: "ended by", note: counts.join(", ") });
  return lines;
}

function usageText({ requests, promptTokens, completionTokens, cost }: Usage): string {
  const written = completionTokens.toLocaleString("en");
  return `${counted(requests, "request")}, ${counted(promptTokens, "prompt token")}, ${written} generated${cost === 0 ? "" : `, US$ ${cost.toFixed(2)}`}`;
}

export function headline({ title, figures, ofRun }: Pick<Measured, "title" | "figures" | "ofRun">): string {
  const over = `${counted(figures.episodes, "episode")} over ${counted(figures.tasks, "task")}`;
  if (ofRun === undefined) return `${title}: ${over}`;
  return `${title}: the last iteration, episodes ${ofRun.first} to ${ofRun.last} (${over})`;
}

export function figureTable(measured: Measured): string {
  const lines = figureLines(measured).map(({ label, estimate, low, high, note }) => {
    const figure = estimate === undefined ? "" : formatFigure(estimate);
    const interval = low === undefined ? "" : `[${formatFigure(low)}, ${formatFigure(high!)}]`;
    const rest = [interval, note ?? ""].filter((part) => part !== "").join("  ");
    return estimate === undefined
      ? `  ${label.padEnd(13)} ${rest}`
      : `  ${label.padEnd(13)} ${figure.padStart(8)}   ${rest}`;
  });
  return [headline(measured), `  ${"".padEnd(13)} ${"estimate".padStart(8)}   95 % interval`, ...lines].join(
    "\n",
  );
}
