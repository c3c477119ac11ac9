import { expect, test } from "vitest";
import { palettes } from "../../lib/dash/browser/palette.ts";

/** Relative luminance (WCAG 2). */
function luminance(colour: string): number {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const value = Number.parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

const contrast = (a: string, b: string) => {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y) as [number, number];
  return (high + 0.05) / (low + 0.05);
};

test("on the dark ground the colours of lines are readable as text too", () => {
  for (const colour of palettes.dark)
    expect([colour, contrast(colour, "#0d1117") >= 4.5]).toEqual([colour, true]);
  expect(palettes.dark).toHaveLength(palettes.light.length);
});
