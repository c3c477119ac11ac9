/** Helpers for SVG. */

/** Escapes text content. */
export function escaped(content: string): string {
  return content.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Rounds to a tenth of a pixel. */
export function round(pixels: number): number {
  return Math.round(pixels * 10) / 10;
}

export function text(x: number, y: number, kind: string, content: string): string {
  return `<text class="${kind}" x="${round(x)}" y="${round(y)}">${escaped(content)}</text>`;
}
