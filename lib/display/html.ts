/** The frame and styles of nlac's pages, and the data and policies in them. */

import { createHash } from "node:crypto";
import { NlacError } from "../base/errors.ts";
import { fontFamily, inThemes, themes } from "./image.ts";
import { escaped } from "./svg.ts";

const sharedCss = [
  `body { font: 16px/1.5 ${fontFamily}; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }`,
  "h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 0.5rem }",
  ".wide { overflow-x: auto }",
  "table { border-collapse: collapse; font-size: 0.875rem; font-variant-numeric: tabular-nums }",
  "th, td { padding: 0.35rem 0.9rem 0.35rem 0; text-align: right; white-space: nowrap }",
  "th:first-child, td:first-child { text-align: left }",
  "td:first-child { font-weight: bold }",
  "tr { border-bottom: 1px solid } th { font-weight: normal }",
  "footer, label { font-size: 0.875rem }",
  inThemes((theme) => {
    const { ink, faint, rule, ground } = themes[theme];
    return `body { color: ${ink}; background: ${ground} } tr { border-color: ${rule} } th, .faint, footer, label { color: ${faint} }`;
  }),
].join("\n");

/** The shared styles and a page's own `css`. */
export function pageStyles(css: string): string {
  return `\n${sharedCss}\n${css}\n`;
}

/**
 * @param page.styles of the page, if they are not in a file of their own
 * @param page.head additional lines of the head
 * @param page.body lines of markup
 */
export function htmlPage(page: {
  title: string;
  styles?: string;
  head?: readonly string[];
  body: readonly string[];
}): string {
  return [
    "<!doctype html>",
    '<html lang="en">',
    "<head>",
    '<meta charset="utf-8"/>',
    ...(page.head ?? []),
    '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
    '<meta name="color-scheme" content="light dark"/>',
    `<title>${escaped(page.title)}</title>`,
    ...(page.styles === undefined ? [] : [`<style>${page.styles}</style>`]),
    "</head>",
    "<body>",
    ...page.body,
    "</body>",
    "</html>",
    "",
  ].join("\n");
}

/** The source in a content security policy that allows exactly this script or style. */
export function hashSource(text: string): string {
  return `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
}

/**
 * The page that `make` returns. Throws ERR_VALUE if it has more characters than a text of Node can
 * have, 2^29 - 24.
 */
export function pageWithData(make: () => string): string {
  try {
    return make();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new NlacError(
      "ERR_VALUE",
      "The page would have more than 536 million characters. Choose fewer episodes, samples or runs.",
      { cause: error },
    );
  }
}

/** JSON that is safe inside a script element. */
export function scriptJson(value: unknown): string {
  return JSON.stringify(value).replace(
    /[<>&\u2028\u2029]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
