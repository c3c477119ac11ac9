/** A report as one self-contained HTML page without scripts. */

import { htmlPage, pageStyles } from "../display/html.ts";
import { escaped } from "../display/svg.ts";
import { renderCurves } from "./chart.ts";
import { type Report, reportsOfGroups } from "./report.ts";
import { axes } from "./run-figures.ts";
import { explanations, methodTable, notes, provenance, runTable, type Table } from "./table.ts";

const css = [
  // The page has its own heading and margin: hide the drawing's title and crop most of its margin.
  "svg.curves { display: block; width: calc(100% * 32 / 31); min-width: 44rem; height: auto; margin: -1.5rem 0 -1rem calc(-100% / 31) }",
  // Only sideways: the cropped margin below the drawing is no reason to scroll.
  ".wide:has(> svg.curves) { overflow-y: hidden }",
  ".curves .title { display: none }",
  "ul { padding-left: 1.2rem; font-size: 0.875rem }",
  "body:has(#seeds:not(:checked)) .seed { display: none }",
].join("\n");

export function renderPage(report: Report): string {
  const { comparison } = report;
  const groups = reportsOfGroups(report);
  const list = (lines: readonly string[]) =>
    lines.length === 0 ? [] : ["<ul>", ...lines.map((line) => `<li>${escaped(line)}</li>`), "</ul>"];
  return htmlPage({
    title: `${comparison.name}: nlac compare`,
    styles: pageStyles(css),
    body: [
      `<h1>${escaped(comparison.name)}</h1>`,
      `<p class="faint">${escaped(comparison.description)}</p>`,
      '<p><label><input type="checkbox" id="seeds" checked="checked"/> single runs</label></p>',
      ...groups.flatMap((group) => [
        ...(groups.length === 1 ? [] : [`<h2>${escaped(group.comparison.name)}</h2>`]),
        ...axes.map((axis) => `<div class="wide">${renderCurves(group, axis)}</div>`),
        ...(groups.length === 1 ? ["<h2>Methods</h2>"] : []),
        ...htmlTable(methodTable(group)),
      ]),
      ...list(explanations(report)),
      "<h2>Runs</h2>",
      ...list(notes(report)),
      ...htmlTable(runTable(report)),
      `<footer><p>${escaped(provenance(report))}</p></footer>`,
    ],
  });
}

function htmlTable({ headings, rows }: Table): string[] {
  const row = (kind: string, cells: readonly string[]) =>
    `<tr>${cells.map((cell) => `<${kind}>${escaped(cell)}</${kind}>`).join("")}</tr>`;
  return [
    '<div class="wide"><table>',
    `<thead>${row("th", headings)}</thead>`,
    "<tbody>",
    ...rows.map((cells) => row("td", cells)),
    "</tbody>",
    "</table></div>",
  ];
}
