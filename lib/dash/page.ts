/**
 * The dashboard's page: its frame, script and styles. Served, the page may load nothing but these
 * three files; exported, it is one file that contains its data and loads nothing.
 */

import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { NlacError } from "../base/errors.ts";

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

const frame = (head: readonly string[], body: readonly string[]) =>
  [
    "<!doctype html>",
    '<html lang="en">',
    "<head>",
    '<meta charset="utf-8"/>',
    ...head,
    '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
    '<meta name="color-scheme" content="light dark"/>',
    '<meta name="referrer" content="no-referrer"/>',
    '<link rel="icon" href="data:,"/>',
    "<title>nlac dash</title>",
    "</head>",
    "<body>",
    '<div id="app"></div>',
    "<noscript><p>The dashboard needs JavaScript.</p></noscript>",
    ...body,
    "</body>",
    "</html>",
    "",
  ].join("\n");

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
  return frame(
    ['<link rel="stylesheet" href="/main.css"/>'],
    ['<script type="module" src="/main.js"></script>'],
  );
}

/** @param data answers by path and query */
export function exportedPage({ script, styles }: Assets, data: Record<string, unknown>): string {
  const hash = (text: string) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
  const policy = [...always, `script-src ${hash(script)}`, `style-src ${hash(styles)}`].join("; ");
  return frame(
    [`<meta http-equiv="Content-Security-Policy" content="${policy}"/>`, `<style>${styles}</style>`],
    [
      `<script type="application/json" id="data">${embedded(data)}</script>`,
      `<script type="module">${script}</script>`,
    ],
  );
}

/** JSON that is safe inside a script element. */
function embedded(value: unknown): string {
  return JSON.stringify(value).replace(
    /[<>&\u2028\u2029]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
