/** A report as an SVG chart: bars of the medians, a whisker over the quartiles. Light and dark as the viewer is. */

import { formatBytes } from "../display/reporter.ts";
import { escaped, round, text } from "../display/svg.ts";
import { formatFigure, formatSpeedup, formatTime } from "./format.ts";
import { isQuiet, nameOf } from "./machine.ts";
import type { CaseResult, Report, RowResult } from "./run.ts";

// Pixels.
const width = 960;
const margin = 32;
const barsAt = 220;
const barsWidth = 540;
const rowHeight = 26;
const barHeight = 16;
const caseGap = 34;
const lineHeight = 17;

const css = `
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f }
.page { fill: #ffffff }
.title { font-size: 20px; font-weight: 600 }
.case { font-size: 14px; font-weight: 600 }
.small, .missing { fill: #6e7781; font-size: 12px }
.missing { font-style: italic }
.value { font-weight: 600 }
.ours { fill: #1a7f5a } .peer { fill: #a9b4c0 } .limit { fill: #dfe5eb }
.whisker { stroke: #24292f; stroke-width: 1.2 }
.axis { stroke: #d0d7de; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .page { fill: #0d1117 } .small, .missing { fill: #8d96a0 }
  .ours { fill: #3fb987 } .peer { fill: #5b6675 } .limit { fill: #2d343d }
  .whisker { stroke: #e6edf3 } .axis { stroke: #30363d }
}`;

export function renderSvg(report: Report): string {
  const { suite, device, threads, trials, machine, source, date } = report;
  const place = machine.gpu ?? `${nameOf(machine)}, ${threads} of ${machine.cores} cores`;
  const build = source.commit === null ? source.version : `${source.version} at ${source.commit}`;
  const shapes = [
    text(margin, 46, "title", `nlac bench ${suite}`),
    text(
      margin,
      68,
      "small",
      `${place} · ${device} · nlac ${build} · ${date.slice(0, 10)}${isQuiet(machine) ? "" : " · not a quiet machine"}`,
    ),
  ];
  let y = 104;
  for (const result of report.cases) {
    shapes.push(...renderCase(result, y));
    y += 18 + result.rows.length * rowHeight + figuresOf(result).length * lineHeight + caseGap;
  }
  const each = trials === 1 ? "one process a row" : `${trials} processes a row`;
  const says = [
    `Median time of a call, ${each}; shorter is better. The whisker spans the quartiles.`,
    "×: how many times as long as nlac. Bytes: peak memory beyond the inputs.",
  ];
  shapes.push(...says.map((line, i) => text(margin, y - 4 + i * lineHeight, "small", line)));
  const height = y + 37;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img">`,
    `<title>nlac bench ${escaped(suite)}</title>`,
    `<style>${css}\n</style>`,
    `<rect class="page" width="${width}" height="${height}" rx="8"/>`,
    ...shapes,
    "</svg>\n",
  ].join("\n");
}

function renderCase({ title, rows }: CaseResult, top: number): string[] {
  const longest = Math.max(...rows.map(({ time }) => time?.q3 ?? 0), Number.MIN_VALUE);
  const scale = (milliseconds: number) => (milliseconds / longest) * barsWidth;
  const bottom = top + 14 + rows.length * rowHeight;
  return [
    text(margin, top, "case", title),
    `<line class="axis" x1="${barsAt}" x2="${barsAt}" y1="${top + 12}" y2="${bottom}"/>`,
    ...rows.flatMap((row, i) => renderRow(row, top + 14 + i * rowHeight, scale)),
    ...figuresOf({ rows }).map((figure, i) =>
      text(barsAt, bottom + (i + 1) * lineHeight, "small", formatFigure(figure)),
    ),
  ];
}

function figuresOf({ rows }: Pick<CaseResult, "rows">) {
  return rows.flatMap(({ figures }) => figures);
}

function renderRow(row: RowResult, top: number, scale: (milliseconds: number) => number): string[] {
  const baseline = top + rowHeight / 2 + 4.5;
  const label = `<text x="${barsAt - 10}" y="${baseline}" text-anchor="end">${escaped(row.name)}</text>`;
  const { time } = row;
  if (time === null) return [label, text(barsAt + 10, baseline, "missing", row.missing ?? "")];
  const barTop = top + (rowHeight - barHeight) / 2;
  const middle = top + rowHeight / 2;
  const [low, end, high] = [time.q1, time.median, time.q3].map((value) => round(scale(value)));
  const notes = [
    ...(row.speedup === null ? [] : [formatSpeedup(row.speedup)]),
    ...(row.bytes === null || row.role === "limit" ? [] : [formatBytes(row.bytes)]),
  ];
  return [
    label,
    `<rect class="${row.role}" x="${barsAt}" y="${barTop}" width="${Math.max(1.5, end!)}" height="${barHeight}" rx="2"/>`,
    `<line class="whisker" x1="${round(barsAt + low!)}" x2="${round(barsAt + high!)}" y1="${middle}" y2="${middle}"/>`,
    `<text x="${round(barsAt + high! + 8)}" y="${baseline}"><tspan class="value">${formatTime(time.median)}</tspan>` +
      `<tspan class="small" dx="8">${notes.join(" · ")}</tspan></text>`,
  ];
}
