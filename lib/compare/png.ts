/** SVG as PNG, by resvg: a library with prebuilt binaries. It draws text with the fonts of the machine. */

import { Resvg } from "@resvg/resvg-js";

const probe = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text y="9">A</text></svg>';

/** Whether text can be drawn: a bare machine or container has no font, and all text would be left out silently. */
export function canDrawText(font: { loadSystemFonts?: boolean } = {}): boolean {
  return new Resvg(probe, { font }).getBBox() !== undefined;
}

/** Twice as many pixels as the image's own, in its light theme. */
export function renderPng(svg: string): Uint8Array {
  return new Resvg(svg, { fitTo: { mode: "zoom", value: 2 } }).render().asPng();
}
