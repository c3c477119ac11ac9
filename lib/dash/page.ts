/**
 * The dashboard's page: its frame, script and styles. Served, the page may load nothing but these
 * three files; exported, it is one file that contains its data and loads nothing.
 */

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { NlacError } from "../base/errors.ts";
import { hashSource, htmlPage, pageWithData, scriptJson } from "../display/html.ts";

export interface Assets {
  script: string;
  styles: string;
}

/** The bundle that the build makes. Throws ERR_IO without one. */
export function readAssets(directory = fileURLToPath(new URL("assets/", import.meta.url))): Assets {
  const read = (name: string) => {
    const path = join(directory, name);
    if (!existsSync(path))
      throw new NlacError("ERR_IO", `${path} is missing: run "npm run build" in the checkout.`);
    return readFileSync(path, "utf8");
  };
  return { script: read("main.js"), styles: read("main.css") };
}

const title = "nlac dash";
const head = ['<meta name="referrer" content="no-referrer"/>', '<link rel="icon" href="data:,"/>'];
const body = ['<div id="app"></div>', "<noscript><p>The dashboard needs JavaScript.</p></noscript>"];

/** Of both pages: scripts cannot turn text into markup. */
const always = [
  "default-src 'none'",
  "img-src data:",
  "base-uri 'none'",
  "form-action 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
];

/** The policy of the served page, for the header. */
export const servedPolicy = [
  ...always,
  "script-src 'self'",
  "style-src 'self'",
  "connect-src 'self'",
  "frame-ancestors 'none'",
].join("; ");

export function servedPage(): string {
  return htmlPage({
    title,
    head: ['<link rel="stylesheet" href="/main.css"/>', ...head],
    body: [...body, '<script type="module" src="/main.js"></script>'],
  });
}

/**
 * @param data answers by path and query
 * @throws NlacError ERR_VALUE if it is too large
 */
export function exportedPage({ script, styles }: Assets, data: Record<string, unknown>): string {
  const sources = [`script-src ${hashSource(script)}`, `style-src ${hashSource(styles)}`];
  const policy = [...always, ...sources].join("; ");
  return pageWithData(() =>
    htmlPage({
      title,
      styles,
      head: [`<meta http-equiv="Content-Security-Policy" content="${policy}"/>`, ...head],
      body: [
        ...body,
        `<script type="application/json" id="data">${scriptJson(data)}</script>`,
        `<script type="module">${script}</script>`,
      ],
    }),
  );
}
