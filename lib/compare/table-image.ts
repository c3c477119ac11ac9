/** The methods' table as SVG, for where neither Markdown nor HTML can be shown. */

import { round, text } from "../display/svg.ts";
import { fontFamily, inThemes, letterWidths, svgImage, themes } from "./image.ts";
import type { Report } from "./report.ts";
import { explanations, methodTable, notes } from "./table.ts";

// Pixels.
const gap = 26;
const margin = 32;
const rowHeight = 30;
const noteHeight = 19;

const css = [
  `.table text { font-family: ${fontFamily}; font-size: 13px }`,
  ".table .title { font-size: 20px; font-weight: bold }",
  ".table .small { font-size: 12px }",
  ".table .name { font-weight: bold }",
  ".table .number, .table .heading.number { text-anchor: end }",
  ".table .rule { fill: none }",
  inThemes((theme) => {
    const { ink, faint, rule, ground } = themes[theme];
    return [
      `.table .ground { fill: ${ground} }`,
      `.table text { fill: ${ink} }`,
      `.table .small, .table .heading { fill: ${faint} }`,
      `.table .rule { stroke: ${rule} }`,
    ].join("\n");
  }),
].join("\n");

export function renderTableImage(report: Report): string {
  const { headings, rows } = methodTable(report);
  const widths = headings.map(
    (heading, i) => letterWidths.text * Math.max(heading.length, ...rows.map((cells) => cells[i]!.length)),
  );
  // Where each column ends; the first begins at the margin.
  const ends = widths.map(
    (_, i) => margin + widths.slice(0, i + 1).reduce((sum, width) => sum + width + gap, -gap),
  );
  const width = Math.ceil(ends.at(-1)! + margin);
  const row = (cells: readonly string[], baseline: number, kind: string) =>
    cells.map((cell, i) =>
      i === 0
        ? text(margin, baseline, kind === "" ? "name" : kind, cell)
        : text(ends[i]!, baseline, `${kind} number`.trim(), cell),
    );
  const rule = (y: number) => `<path class="rule" d="M${margin} ${round(y)}H${width - margin}"/>`;
  const top = 104;
  const bottom = top + rows.length * rowHeight;
  const letters = (width - 2 * margin) / letterWidths.small;
  const lines = [...explanations(report), ...notes(report)].flatMap((line) => wrapped(line, letters));
  const shapes = [
    text(margin, 44, "title", report.comparison.name),
    ...row(headings, 84, "heading"),
    rule(top - 8),
    ...rows.flatMap((cells, i) => [
      ...row(cells, top + i * rowHeight + 13, ""),
      rule(top + (i + 1) * rowHeight - 8),
    ]),
    ...lines.map((line, i) => text(margin, bottom + 20 + i * noteHeight, "small", line)),
  ];
  const height = bottom + 20 + lines.length * noteHeight + 12;
  return svgImage({ kind: "table", title: report.comparison.name, width, height }, css, shapes);
}

/** `line` in lines of so many letters at most, where its words allow it. */
function wrapped(line: string, letters: number): string[] {
  const lines: string[] = [];
  for (const word of line.split(" ")) {
    const longer = `${lines.at(-1) ?? ""} ${word}`;
    if (lines.length > 0 && longer.length <= letters) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}
