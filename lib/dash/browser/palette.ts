/**
 * Eight colours that differ in hue and lightness (after Okabe and Ito), for a light and a dark
 * ground.
 */
export const palettes = {
  light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a6761d", "#56b4e9", "#7e57c2", "#757575"],
  dark: ["#3a96dd", "#e8702a", "#1fb58a", "#d98fb8", "#b98a35", "#f0e442", "#a78bdb", "#9a9a9a"],
} as const;
