/** Small parts of SVG. */

/** For what stands between tags. */
export function escaped(content: string): string {
  return content.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** To a tenth of a pixel. */
export function round(pixels: number): number {
  return Math.round(pixels * 10) / 10;
}

export function text(x: number, y: number, kind: string, content: string): string {
  return `<text class="${kind}" x="${round(x)}" y="${round(y)}">${escaped(content)}</text>`;
}
