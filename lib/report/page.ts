/**
 * Episodes as one self-contained page with figures and searchable transcripts. Transcripts may
 * contain anything: they are embedded as escaped JSON, and the content security policy allows only
 * the page's own script and style.
 */

import { readFileSync } from "node:fs";
import { version } from "../base/version.ts";
import { hashSource, htmlPage, pageStyles, pageWithData, scriptJson } from "../display/html.ts";
import { inThemes, themes } from "../display/image.ts";
import { formatFigure } from "../display/progress.ts";
import { escaped, round } from "../display/svg.ts";
import type { EpisodeRecord } from "../episodes/records.ts";
import { servedTask } from "../episodes/served-tasks.ts";
import { isFaulty, succeeded } from "../episodes/trajectory.ts";
import { type FigureLine, figureLines, headline, type Measured } from "./figures.ts";

const script = readFileSync(new URL("browser/episodes.js", import.meta.url), "utf8");

/** Accent colours by speaker. */
const accents = {
  light: {
    agent: "#0969da",
    user: "#1a7f37",
    tool: "#9a6700",
    fault: "#cf222e",
    mark: "#fff8c5",
    raised: "#f6f8fa",
  },
  dark: {
    agent: "#4493f8",
    user: "#3fb950",
    tool: "#d29922",
    fault: "#f85149",
    mark: "#5a4500",
    raised: "#161b22",
  },
} as const;

const css = [
  "body { max-width: 52rem; overflow-wrap: anywhere }",
  "td.note { text-align: left; white-space: normal } td.bar { padding-top: 0; padding-bottom: 0 }",
  ".bar svg { display: block }",
  ".controls { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: 0.5rem; align-items: center; padding: 0.6rem 0; margin-top: 1.5rem }",
  "input, select { font: inherit; font-size: 0.875rem; color: inherit; background: transparent; border: 1px solid; border-radius: 6px; padding: 0.25rem 0.5rem; min-width: 0; max-width: 100% }",
  "option { color: initial } #search { flex: 1 1 12rem } select { flex: 0 1 9rem } #shown { flex: 0 0 auto; font-size: 0.875rem }",
  ".episode { border-bottom: 1px solid; scroll-margin-top: 4rem; content-visibility: auto; contain-intrinsic-block-size: auto 2.6rem }",
  ".episode > summary { display: flex; flex-wrap: wrap; gap: 0 0.75rem; align-items: baseline; padding: 0.5rem 0.25rem; cursor: pointer; list-style: none }",
  ".episode > summary::-webkit-details-marker { display: none }",
  ".number { flex: 0 0 3.2rem; font-variant-numeric: tabular-nums; font-weight: bold } .task { flex: 1 1 12rem }",
  ".facts { flex: 0 0 5.2rem; font-size: 0.875rem; text-align: right; font-variant-numeric: tabular-nums }",
  ".badge { font-size: 0.75rem; font-weight: normal; line-height: 1.4; border: 1px solid; border-radius: 1em; padding: 0 0.6em; white-space: nowrap }",
  ".body { padding: 0 0.25rem 1.5rem } .body > p { margin: 0; font-size: 0.875rem }",
  "h3 { display: flex; gap: 0.5rem; align-items: baseline; font-size: 0.875rem; margin: 1.25rem 0 0.25rem }",
  ".block { border-left: 3px solid; padding: 0.1rem 0 0.1rem 0.75rem; margin: 0.5rem 0 }",
  ".label { font-size: 0.75rem } summary.label, .more > summary { cursor: pointer } .more { font-size: 0.75rem; margin: 0.25rem 0 0 }",
  ".text { white-space: pre-wrap } .thought .text { font-style: italic }",
  ".code .text, .text.code { font: 0.8125rem/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace; max-height: 26rem; overflow-y: auto; padding: 0.4rem 0.6rem; border-radius: 6px }",
  "mark { color: inherit; border-radius: 2px }",
  "@media (max-width: 36rem) { body { margin: 1rem auto } .task { flex-basis: calc(100% - 4rem) } .facts { flex-basis: auto } select { flex: 1 1 6rem } }",
  // The controls take two lines on narrow screens.
  "@media (max-width: 52rem) { .episode { scroll-margin-top: 7rem } }",
  "@media (max-width: 36rem) { thead, td.bar, td:empty { display: none } tbody tr { display: flex; flex-wrap: wrap; gap: 0 0.75rem } td { padding-right: 0 } td:first-child { flex: 0 0 7rem } td.note { flex: 1 1 4rem } }",
  inThemes((theme) => {
    const { faint, rule, ground } = themes[theme];
    const { agent, user, tool, fault, mark, raised } = accents[theme];
    return [
      `.controls { background: ${ground}; border-bottom: 1px solid ${rule} } input, select, .episode { border-color: ${rule} }`,
      `.label { color: ${faint} } .block { border-color: ${rule} } .code .text, .text.code { background: ${raised} }`,
      `.agent { border-color: ${agent} } .agent .label { color: ${agent} } .user { border-color: ${user} } .user .label { color: ${user} }`,
      `.tool { border-color: ${tool} } .tool .label { color: ${tool} } .fault { border-color: ${fault} } .fault .label { color: ${fault} }`,
      `.badge { color: ${faint} } .badge.succeeded { color: ${user} } .badge.failed { color: ${tool} } .badge.faulty { color: ${fault} }`,
      `mark { background: ${mark} } .episode > summary:hover, .episode[open] > summary { background: ${raised} }`,
      `.bar .scale { fill: ${rule} } .bar .interval { fill: ${agent} } .bar .estimate { fill: ${themes[theme].ink} }`,
    ].join("\n");
  }),
].join("\n");

/**
 * A page of figures and episodes. `player` names the agent; `isServed`: they are those of the clients
 * of `nlac serve --train`. Throws ERR_VALUE if it is too large.
 */
export function renderEpisodes(
  measured: Measured & { player: string; isServed?: boolean },
  episodes: readonly EpisodeRecord[],
): string {
  const styles = pageStyles(css);
  const policy = [
    "default-src 'none'",
    `script-src ${hashSource(script)}`,
    `style-src ${hashSource(styles)}`,
    "base-uri 'none'",
    "form-action 'none'",
  ].join("; ");
  const select = (id: string, all: string) =>
    `<select id="${id}" aria-label="${id}"><option value="">${all}</option></select>`;
  return pageWithData(() =>
    htmlPage({
      title: `${measured.title}: nlac`,
      styles,
      head: [`<meta http-equiv="Content-Security-Policy" content="${policy}"/>`],
      body: [
        `<h1>${escaped(measured.title)}</h1>`,
        `<p class="faint">${escaped(headline({ ...measured, title: measured.player }))}</p>`,
        '<div class="wide"><table>',
        "<thead><tr><th></th><th></th><th></th><th>95 % interval</th><th></th></tr></thead>",
        "<tbody>",
        ...figureLines(measured).map(figureRow),
        "</tbody>",
        "</table></div>",
        ...diagnosisTable(measured.diagnosis),
        '<div class="controls">',
        '<input type="search" id="search" placeholder="Search the transcripts" aria-label="search"/>',
        select("result", "any result"),
        select("outcome", "any ending"),
        select("task", "any task"),
        select("split", "any split"),
        '<span id="shown" class="faint" role="status"></span>',
        "</div>",
        '<main id="episodes"></main>',
        "<noscript><p>Showing the episodes needs JavaScript.</p></noscript>",
        `<footer><p>nlac ${escaped(version)}</p></footer>`,
        `<script type="application/json" id="data">${scriptJson(dataOf(episodes, measured.isServed))}</script>`,
        `<script>${script}</script>`,
      ],
    }),
  );
}

/** What `nlac eval --diagnose` measured. */
function diagnosisTable(diagnosis: Measured["diagnosis"]): string[] {
  if (diagnosis === undefined) return [];
  const rows = Object.entries(diagnosis).map(
    ([name, value]) => `<tr><td>${escaped(name)}</td><td>${escaped(formatFigure(value))}</td></tr>`,
  );
  return [
    "<h2>Critic and refiner</h2>",
    '<div class="wide"><table><tbody>',
    ...rows,
    "</tbody></table></div>",
  ];
}

function figureRow({ label, estimate, low, high, isShare, note }: FigureLine): string {
  const cells = [
    estimate === undefined ? "" : formatFigure(estimate),
    isShare && low !== undefined && !Number.isNaN(estimate!) ? bar(estimate!, low, high!) : "",
    low === undefined ? "" : `[${formatFigure(low)}, ${formatFigure(high!)}]`,
  ];
  const [figure, drawn, interval] = cells as [string, string, string];
  return [
    `<tr><td>${escaped(label)}</td><td>${escaped(figure)}</td><td class="bar">${drawn}</td>`,
    `<td>${escaped(interval)}</td><td class="note faint">${escaped(note ?? "")}</td></tr>`,
  ].join("");
}

/** A share and its interval on a scale from 0 to 1; widths in pixels. */
function bar(estimate: number, low: number, high: number): string {
  const width = 160;
  const rect = (kind: string, x: number, y: number, w: number, h: number) =>
    `<rect class="${kind}" x="${round(x)}" y="${y}" width="${round(w)}" height="${h}" rx="1"/>`;
  return [
    `<svg width="${width + 2}" height="12" aria-hidden="true">`,
    rect("scale", 0, 5, width + 2, 2),
    rect("interval", low * width, 3, Math.max(2, (high - low) * width), 6),
    rect("estimate", estimate * width, 0, 2, 12),
    "</svg>",
  ].join("");
}

/** The data for the script. Each distinct text is stored once: openings repeat often. */
function dataOf(episodes: readonly EpisodeRecord[], isServed = false): unknown {
  const texts = new Map<string, number>();
  const place = (text: string): number => {
    const known = texts.get(text);
    if (known === undefined) texts.set(text, texts.size);
    return known ?? texts.size - 1;
  };
  const drawn = episodes.map((episode) => {
    const { id, task, seed, outcome, reward, fault, opening = [] } = episode;
    return {
      ...{ id, outcome, reward, fault, split: episode.split === "test" ? "held out" : "training" },
      ...(isServed ? { name: task, task: servedTask(episode) } : { task, seed }),
      result: isFaulty(episode) ? "faulty" : succeeded(episode) ? "succeeded" : "failed",
      opening: opening.map(({ role, content }) => [role, place(content)]),
      turns: episode.turns.map(({ text, action, malformed, observation, reward, info }) => ({
        text,
        action,
        malformed,
        observation,
        reward,
        info,
      })),
    };
  });
  return { texts: [...texts.keys()], episodes: drawn };
}
