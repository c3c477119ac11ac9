/**
 * A report as an SVG chart: bars of medians with whiskers over the quartiles, in light and dark.
 */

import { fontFamily, inThemes, svgImage, themes } from "../display/image.ts";
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

/** Colours of nlac's bars, of other libraries', and of the limit's. */
const colours = {
  light: { ours: "#1a7f5a", peer: "#a9b4c0", limit: "#dfe5eb" },
  dark: { ours: "#3fb987", peer: "#5b6675", limit: "#2d343d" },
} as const;

const css = [
  `.bench text { font-family: ${fontFamily}; font-size: 13px }`,
  ".bench .title { font-size: 20px; font-weight: bold }",
  ".bench .case { font-size: 14px; font-weight: bold }",
  ".bench .small, .bench .missing { font-size: 12px }",
  ".bench .missing { font-style: italic }",
  ".bench .value { font-weight: bold }",
  ".bench .whisker { stroke-width: 1.2 } .bench .axis { stroke-width: 1 }",
  inThemes((theme) => {
    const { ink, faint, rule, ground } = themes[theme];
    const { ours, peer, limit } = colours[theme];
    return [
      `.bench .ground { fill: ${ground} }`,
      `.bench text { fill: ${ink} }`,
      `.bench .small, .bench .missing { fill: ${faint} }`,
      `.bench .ours { fill: ${ours} } .bench .peer { fill: ${peer} } .bench .limit { fill: ${limit} }`,
      `.bench .whisker { stroke: ${ink} } .bench .axis { stroke: ${rule} }`,
    ].join("\n");
  }),
].join("\n");

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
  return svgImage({ kind: "bench", title: `nlac bench ${suite}`, width, height }, css, shapes);
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
