/** A report as one self-contained HTML page: nothing is loaded, and nothing in it runs. */

import { escaped } from "../bench/svg.ts";
import { renderCurves } from "./chart.ts";
import { fontFamily, inThemes, themes } from "./image.ts";
import type { Report } from "./report.ts";
import { explanations, methodTable, notes, runTable, type Table } from "./table.ts";

const css = [
  `body { font: 16px/1.5 ${fontFamily}; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }`,
  "h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 0.5rem }",
  ".wide { overflow-x: auto }",
  // The page has the name already, and a margin of its own.
  "svg.curves { display: block; width: calc(100% + 2rem); min-width: 44rem; height: auto; margin: -1.5rem 0 -1rem -2rem }",
  ".curves .title { display: none }",
  "table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums }",
  "th, td { padding: 0.35rem 0.9rem 0.35rem 0; text-align: right; white-space: nowrap }",
  "th:first-child, td:first-child { text-align: left }",
  "td:first-child { font-weight: bold }",
  "tr { border-bottom: 1px solid } th { font-weight: normal }",
  "ul { padding-left: 1.2rem; font-size: 0.875rem }",
  "footer, label { font-size: 0.875rem }",
  "body:has(#seeds:not(:checked)) .seed { display: none }",
  inThemes((theme) => {
    const { ink, faint, rule, ground } = themes[theme];
    return `body { color: ${ink}; background: ${ground} } tr { border-color: ${rule} } th, .faint, footer, label { color: ${faint} }`;
  }),
].join("\n");

export function renderPage(report: Report): string {
  const { comparison, source, date } = report;
  const commit = source.commit === null ? "" : ` at ${source.commit}`;
  const list = (lines: readonly string[]) =>
    lines.length === 0 ? [] : ["<ul>", ...lines.map((line) => `<li>${escaped(line)}</li>`), "</ul>"];
  return [
    "<!doctype html>",
    '<html lang="en">',
    "<head>",
    '<meta charset="utf-8"/>',
    '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
    '<meta name="color-scheme" content="light dark"/>',
    `<title>${escaped(comparison.name)}: nlac compare</title>`,
    `<style>\n${css}\n</style>`,
    "</head>",
    "<body>",
    `<h1>${escaped(comparison.name)}</h1>`,
    `<p class="faint">${escaped(comparison.description)}</p>`,
    `<div class="wide">${renderCurves(report)}</div>`,
    '<p><label><input type="checkbox" id="seeds" checked="checked"/> single runs</label></p>',
    "<h2>Methods</h2>",
    ...htmlTable(methodTable(report)),
    ...list(explanations(report)),
    "<h2>Runs</h2>",
    ...list(notes(report)),
    ...htmlTable(runTable(report)),
    `<footer><p>nlac ${escaped(source.version + commit)}, ${date.slice(0, 10)}</p></footer>`,
    "</body>",
    "</html>",
    "",
  ].join("\n");
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
