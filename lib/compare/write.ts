/** Writes the report files of a comparison. */

import { join } from "node:path";
import { writeAtomically } from "../files/write-atomically.ts";
import { renderCurves } from "./chart.ts";
import { renderPage } from "./page.ts";
import { type Report, reportsOfGroups } from "./report.ts";
import type { Axis } from "./run-figures.ts";
import { renderMarkdown } from "./table.ts";

/**
 * Writes all figures as JSON, the tables, the page and curves.svg (curves-GROUP.svg of each group),
 * whose x axis is `axis`; the page has all three. Fast enough to call whenever a run ends. Throws
 * ERR_IO.
 */
export function writeReport(report: Report, directory: string, axis: Axis = "steps"): void {
  const groups = reportsOfGroups(report);
  const curves = groups.map((group) => {
    const suffix = groups.length === 1 ? "" : `-${group.comparison.methods[0]!.group}`;
    return [`curves${suffix}.svg`, renderCurves(group, axis)] as const;
  });
  for (const [name, content] of [
    ["comparison.json", `${JSON.stringify(report, null, 2)}\n`],
    ["table.md", renderMarkdown(report)],
    ["index.html", renderPage(report)],
    ...curves,
  ] as const)
    writeAtomically(join(directory, name), content);
}
