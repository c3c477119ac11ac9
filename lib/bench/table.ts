/** A case for the terminal: a table, and bars of the medians. */

import { formatBytes } from "../display/reporter.ts";
import {
  formatFigure,
  formatPercent,
  formatSpeedup,
  formatTime,
  formatTimes,
  isExceeded,
  threeDigits,
} from "./format.ts";
import { isQuiet, nameOf } from "./machine.ts";
import type { CaseResult, Report, RowResult } from "./run.ts";

export interface Style {
  /** Maximum columns. */
  columns: number;
  colour: boolean;
}

const gap = "  ";
/** Minimum columns of a bar. */
const minBar = 24;
/** Columns for the median after a bar: " 1234 ms" at most. */
const labelWidth = 8;

/** The machine and source in one or two lines. */
export function renderHeading({ suite, device, threads, trials, machine, source, quick }: Report): string {
  const place = machine.gpu ?? `${nameOf(machine)}, ${threads} of ${machine.cores} cores`;
  const build = source.commit === null ? source.version : `${source.version} at ${source.commit}`;
  const each = trials === 1 ? "one process a row" : `${trials} processes a row`;
  const lines = [`nlac ${build} · ${suite} · ${device} · ${place} · ${each}${quick ? " · quick" : ""}`];
  if (!isQuiet(machine)) {
    lines.push(
      `The machine is not quiet (${Math.round(100 * machine.busy)} % of it is taken): these times are unreliable.`,
    );
  }
  return lines.join("\n");
}

export function renderCase(result: CaseResult, style: Style): string {
  const { rows, title } = result;
  const table = tableOf(result);
  const measured = rows.filter(({ time }) => time !== null);
  // Bars are placed next to the table if there is room, else below it.
  const beside = style.columns - table.width - gap.length >= minBar;
  const room = style.columns - gap.length - (beside ? table.width : table.names + labelWidth);
  const bars = measured.length > 1 ? barsOf(rows, room) : [];
  const lines = rows.map((row, i) => {
    if (row.missing !== null) {
      const room = Math.max(20, style.columns - table.names - gap.length);
      return paint(`${row.name.padEnd(table.names)}${gap}${cut(row.missing, room)}`, "dim", style);
    }
    const bar = beside && bars[i] !== undefined ? gap + bars[i] : "";
    return paint((table.lines[i]! + bar).trimEnd(), colours[row.role], style);
  });
  const heading = measured.length > 0 ? [paint(table.heading, "dim", style)] : [];
  const parts = [paint(title, "bold", style), "", ...heading, ...lines];
  if (!beside && bars.length > 0) parts.push("", ...chartLines(rows, bars, table.names, style));
  const figures = measured.flatMap((row) => row.figures);
  if (figures.length > 0)
    parts.push("", ...figures.map((figure) => `${isExceeded(figure) ? "! " : ""}${formatFigure(figure)}`));
  const notes = measured.filter(({ agrees }) => agrees === false).map((row) => disagreement(row, result));
  if (notes.length > 0) parts.push("", ...notes);
  return parts.join("\n");
}

interface Column {
  heading: string;
  cell(row: RowResult): string | null;
}

function tableOf({ rows, unit }: CaseResult) {
  // If a call has no results, all its memory is scratch.
  const results = rows.some(({ bytes, scratchBytes }) => bytes !== scratchBytes);
  const columns: Column[] = [
    { heading: "median", cell: ({ time }) => time && formatTime(time.median) },
    { heading: "quartiles", cell: ({ time }) => time && formatTimes(time.q1, time.q3) },
    { heading: "least", cell: ({ time }) => time && formatTime(time.min) },
    { heading: "memory", cell: ({ bytes }) => (bytes === null ? null : formatBytes(bytes)) },
    {
      heading: "scratch",
      cell: ({ scratchBytes: bytes }) => (results && bytes !== null ? formatBytes(bytes) : null),
    },
    { heading: unit, cell: ({ rate }) => (rate === null ? null : threeDigits(rate)) },
    { heading: "of limit", cell: ({ ofLimit }) => (ofLimit === null ? null : formatPercent(ofLimit)) },
    { heading: "speed-up", cell: ({ speedup }) => (speedup === null ? null : formatSpeedup(speedup)) },
  ];
  const filled = columns
    .map(({ heading, cell }) => ({ heading, cells: rows.map((row) => cell(row) ?? "") }))
    .filter(({ cells }) => cells.some((cell) => cell !== ""))
    .map((column) => ({
      ...column,
      width: Math.max(column.heading.length, ...column.cells.map((cell) => cell.length)),
    }));
  const names = Math.max(...rows.map(({ name }) => name.length));
  const line = (name: string, cells: readonly string[]) =>
    name.padEnd(names) + cells.map((cell, i) => gap + cell.padStart(filled[i]!.width)).join("");
  return {
    names,
    width: filled.reduce((sum, { width }) => sum + gap.length + width, names),
    heading: line(
      "",
      filled.map(({ heading }) => heading),
    ),
    lines: rows.map((row, i) =>
      line(
        row.name,
        filled.map(({ cells }) => cells[i]!),
      ),
    ),
  };
}

/** A bar for each row with a time, at most `room` columns wide. */
function barsOf(rows: readonly RowResult[], room: number): (string | undefined)[] {
  const longest = Math.max(...rows.map(({ time }) => time?.median ?? 0));
  return rows.map(({ time, role }) =>
    time === null ? undefined : renderBar(time.median / longest, room, role === "limit" ? "▒" : "█"),
  );
}

function chartLines(
  rows: readonly RowResult[],
  bars: readonly (string | undefined)[],
  names: number,
  style: Style,
): string[] {
  return rows.flatMap(({ name, role, time }, i) => {
    if (time === null || bars[i] === undefined) return [];
    return [paint(`${name.padEnd(names)}${gap}${bars[i]} ${formatTime(time.median)}`, colours[role], style)];
  });
}

const eighths = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/** A bar of `share` of `width` cells, in eighths; never empty if above 0. */
export function renderBar(share: number, width: number, full = "█"): string {
  const count = Math.max(share > 0 ? 1 : 0, Math.round(share * width * 8));
  return full.repeat(Math.floor(count / 8)) + eighths[count % 8]!;
}

function disagreement({ name, check }: RowResult, { rows }: CaseResult): string {
  const ours = rows.find(({ role }) => role === "ours");
  return `! ${name} computes another result: ${check}; nlac has ${ours?.check}.`;
}

function cut(text: string, length: number): string {
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}

type Colour = "bold" | "dim" | "green" | "plain";

const colours = { ours: "green", peer: "plain", limit: "dim" } as const;
const codes: Record<Colour, string> = { bold: "1", dim: "2", green: "32", plain: "" };

function paint(text: string, colour: Colour, style: Style): string {
  return style.colour && codes[colour] !== "" ? `\x1b[${codes[colour]}m${text}\x1b[0m` : text;
}
