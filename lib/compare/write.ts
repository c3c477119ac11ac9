/** What a comparison leaves in its directory beside the runs. */

import { join } from "node:path";
import { writeAtomically } from "../files/write-atomically.ts";
import { renderCurves } from "./chart.ts";
import { renderPage } from "./page.ts";
import type { Report } from "./report.ts";
import type { Axis } from "./run-figures.ts";
import { renderMarkdown } from "./table.ts";

/**
 * Every number, and what reads them for a person; `axis` is that of curves.svg, and the page has
 * all three. Cheap enough for each time that a run ends. Throws ERR_IO.
 */
export function writeReport(report: Report, directory: string, axis: Axis = "steps"): void {
  const curves = renderCurves(report, axis);
  for (const [name, content] of [
    ["comparison.json", `${JSON.stringify(report, null, 2)}\n`],
    ["table.md", renderMarkdown(report)],
    ["index.html", renderPage(report)],
    ["curves.svg", curves],
  ] as const)
    writeAtomically(join(directory, name), content);
}
