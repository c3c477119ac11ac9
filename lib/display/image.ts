/** Fonts, colours and the frame of nlac's charts. */

import { escaped } from "./svg.ts";

/** The last entries are fonts on Linux. */
export const fontFamily =
  "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, DejaVu Sans, Liberation Sans, Noto Sans, sans-serif";

/** Assumed width of a letter in pixels: text is not measured. */
export const letterWidths = { name: 8.6, text: 7.6, small: 6.7 } as const;

/** Colours of text and background, light and dark. */
export const themes = {
  light: { ink: "#1f2328", faint: "#59636e", rule: "#d8dee4", ground: "#ffffff" },
  dark: { ink: "#e6edf3", faint: "#9198a1", rule: "#30363d", ground: "#0d1117" },
} as const;

export type Theme = keyof typeof themes;

/** The CSS of `rules` for the light theme, and for the dark one if the viewer prefers it. */
export function inThemes(rules: (theme: Theme) => string): string {
  return `${rules("light")}\n@media (prefers-color-scheme: dark) {\n${rules("dark")}\n}`;
}

/** A complete image with a background. Its styles apply only below the class `kind`. */
export function svgImage(
  { kind, title, width, height }: { kind: string; title: string; width: number; height: number },
  css: string,
  shapes: readonly string[],
): string {
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" class="${kind}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img">`,
    `<title>${escaped(title)}</title>`,
    `<style>\n${css}\n</style>`,
    `<rect class="ground" width="${width}" height="${height}" rx="8"/>`,
    ...shapes,
    "</svg>\n",
  ].join("\n");
}
