/**
 * The curves of a comparison as SVG. Thick lines are interquartile means over a method's seeds,
 * bands are their intervals, thin lines are single runs. A method and its variants have one colour;
 * the variants' lines are dashed. Follows the viewer's light or dark theme.
 */

import { fontFamily, inThemes, letterWidths, svgImage, themes } from "../display/image.ts";
import { escaped, round, text } from "../display/svg.ts";
import { coverage } from "../statistics/resampling.ts";
import { mostStepsOf } from "./comparison.ts";
import type { CurvePoint, MethodReport, Report } from "./report.ts";
import { hasLogarithmicAxis, rangeOf, smoothing } from "./report.ts";
import type { Axis } from "./run-figures.ts";
import { axisNames, formatCount, formatShare } from "./table.ts";

// Pixels.
const minWidth = 960;
const height = 560;
const plot = { left: 64, right: 716, top: 116, bottom: 468 };
const labelsAt = 742;
const margin = 32;
const labelHeight = 22;
/** The sample of a line before its name. */
const keyWidth = 34;
/** Between a line's name and its value. */
const valueGap = 7;

/** Far apart for readers with and without red-green colour blindness; test/compare measures it. */
export const colours = {
  light: ["#2759d4", "#f06f14", "#1ea480", "#af308e", "#9c5d00", "#5a4043", "#180b38"],
  dark: ["#4880b3", "#c85d0f", "#02d17c", "#d69ef3", "#e3ff15", "#7915ff", "#fff6ff"],
} as const;
/** Of the first variant of a method, the second, the third; then from the start again. */
const dashes = ["8 6", "12 5 2 5", "4 5"] as const;
/** Of methods beyond the number of colours. */
const dots = "0.5 5";
/** With more single runs than this, they and the bands are drawn fainter. */
const manyRuns = 40;

/** How a method's line is drawn. */
export interface LineStyle {
  /** Index into the colours. */
  colour: number;
  /** "" for a solid line. */
  dashes: string;
  isVariant: boolean;
}

/**
 * A method named after another one, with a dash and more ("nlac-slower" after "nlac"), is a variant
 * of it: it has the same colour, and its line is dashed.
 */
export function lineStyles(names: readonly string[]): LineStyle[] {
  const baseOf = (name: string) =>
    names
      .filter((other) => name === other || name.startsWith(`${other}-`))
      .reduce((shortest, other) => (other.length < shortest.length ? other : shortest));
  const bases = names.filter((name) => baseOf(name) === name);
  return names.map((name) => {
    const base = baseOf(name);
    const isVariant = base !== name;
    const number = bases.indexOf(base);
    const variant = names.filter((other) => other !== base && baseOf(other) === base).indexOf(name);
    const solid = number < colours.light.length ? "" : dots;
    return {
      colour: number % colours.light.length,
      dashes: isVariant ? dashes[variant % dashes.length]! : solid,
      isVariant,
    };
  });
}

/** The same for all charts, because the styles of one chart of a page apply to the others too. */
function css(): string {
  return [
    `.curves text { font-family: ${fontFamily}; font-size: 13px }`,
    ".curves .title { font-size: 20px; font-weight: bold }",
    ".curves .small { font-size: 12px }",
    ".curves .name { font-weight: bold }",
    ".curves .end { text-anchor: end }",
    ".curves .middle { text-anchor: middle }",
    ".curves .line, .curves .seed, .curves .leader, .curves .rule { fill: none }",
    ".curves .line { stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round }",
    ".curves .seed { stroke-width: 1; stroke-opacity: 0.35; stroke-linejoin: round }",
    ".curves .band { fill-opacity: 0.15 }",
    ".curves .crowded .seed { stroke-opacity: 0.18 }",
    ".curves .crowded .band { fill-opacity: 0.1 }",
    ".curves .key { fill: none; stroke-width: 2.5; stroke-linecap: round }",
    ".curves .leader { stroke-width: 1; stroke-dasharray: 1 3 }",
    inThemes((theme) => {
      const { ink, faint, rule, ground } = themes[theme];
      return [
        `.curves .ground { fill: ${ground} }`,
        `.curves text { fill: ${ink} }`,
        `.curves .small, .curves .tick { fill: ${faint} }`,
        `.curves .rule { stroke: ${rule} }`,
        ...colours[theme].map(
          (colour, i) => `.curves .s${i} { stroke: ${colour} } .curves .f${i} { fill: ${colour} }`,
        ),
      ].join("\n");
    }),
  ].join("\n");
}

/**
 * The curves of all methods of `report`, which should be of one group. Steps lie on an even axis
 * from 0 if the methods take similar numbers of them; tokens on a logarithmic one.
 */
export function renderCurves(report: Report, axis: Axis = "steps"): string {
  const { comparison, measure, methods, runs } = report;
  const isLogarithmic = hasLogarithmicAxis(comparison, axis);
  const { share, marks } = scaleOf(report, axis);
  const x = (at: number) => round(plot.left + (plot.right - plot.left) * share(at));
  const y = (value: number) => round(plot.bottom - (plot.bottom - plot.top) * value);
  const path = (points: readonly (readonly [at: number, value: number])[]) =>
    points
      .filter(([at]) => at > 0 || !isLogarithmic)
      .map(([at, value], i) => `${i === 0 ? "M" : "L"}${x(at)} ${y(value)}`)
      .join("");
  const order = methods.map(({ name }) => name);
  const styles = lineStyles(order);
  const colour = (method: number) => styles[method]!.colour;
  const dashed = (method: number) =>
    styles[method]!.dashes === "" ? "" : ` stroke-dasharray="${styles[method]!.dashes}"`;
  const seeds = seedsDrawn(report);
  const success =
    measure === "evaluated"
      ? "success when evaluated"
      : `success of training episodes, mean of the last ${100 * smoothing} % of the steps`;
  const named = labels(methods, comparison.seeds.length, axis, x, y, colour, dashed);
  const width = Math.ceil(Math.max(minWidth, named.right + margin));
  const shapes = [
    `<clipPath id="plot-${axis}"><rect x="${plot.left}" y="${plot.top - 2}" width="${plot.right - plot.left + 2}" height="${plot.bottom - plot.top + 4}"/></clipPath>`,
    text(margin, 44, "title", comparison.name),
    text(
      margin,
      66,
      "small",
      `Lines: interquartile mean of ${seeds}. Bands: its ${100 * coverage} % interval. Thin lines: single runs.` +
        (styles.some(({ isVariant }) => isVariant)
          ? " Dashed: variants of the method with that colour."
          : ""),
    ),
    text(plot.left, plot.top - 16, "small", success),
    ...[0, 0.2, 0.4, 0.6, 0.8, 1].flatMap((value) => [
      `<path class="rule" d="M${plot.left} ${y(value)}H${plot.right}"/>`,
      text(plot.left - 10, y(value) + 4.5, "tick end", value.toFixed(1)),
    ]),
    ...marks.map((at) => text(x(at), plot.bottom + 24, "tick middle", formatCount(at))),
    text(
      (plot.left + plot.right) / 2,
      plot.bottom + 50,
      "small middle",
      isLogarithmic ? `${axisNames[axis]} (logarithmic)` : axisNames[axis],
    ),
    `<g${runs.length > manyRuns ? ' class="crowded"' : ""} clip-path="url(#plot-${axis})">`,
    ...methods.map(
      ({ curves }, i) => `<path class="band f${colour(i)}" d="${bandPath(curves[axis], path)}"/>`,
    ),
    ...runs.map(({ method, curve }) => {
      const i = order.indexOf(method);
      const points = curve.map((point) => [point[axis], point.value] as const);
      return `<path class="seed s${colour(i)}"${dashed(i)} d="${path(points)}"/>`;
    }),
    ...methods.map(({ curves }, i) => {
      const points = curves[axis].map(({ at, estimate }) => [at, estimate] as const);
      return `<path class="line s${colour(i)}"${dashed(i)} d="${path(points)}"/>`;
    }),
    "</g>",
    ...named.shapes,
  ];
  return svgImage(
    { kind: "curves", title: `${comparison.name}: ${success}, by ${axisNames[axis]}`, width, height },
    css(),
    shapes,
  );
}

/** "5 seeds", or "1 to 3 of 5 seeds" while runs are missing. */
function seedsDrawn({ comparison, methods }: Report): string {
  const all = comparison.seeds.length === 1 ? "1 seed" : `${comparison.seeds.length} seeds`;
  const drawn = methods.filter(({ curveRuns }) => curveRuns > 0).map(({ curveRuns }) => curveRuns);
  if (drawn.length === 0) return all;
  const [least, most] = [Math.min(...drawn), Math.max(...drawn)];
  if (least === comparison.seeds.length) return all;
  return `${least === most ? least : `${least} to ${most}`} of ${all}`;
}

function bandPath(
  curve: readonly CurvePoint[],
  path: (points: readonly (readonly [number, number])[]) => string,
): string {
  const upper = curve.map(({ at, high }) => [at, high] as const);
  const lower = curve.map(({ at, low }) => [at, low] as const).reverse();
  const outline = path([...upper, ...lower]);
  return outline === "" ? "" : `${outline}Z`;
}

/**
 * The name and last value of each line, at the height of its end unless labels would overlap, and
 * the right edge of the longest label.
 */
function labels(
  methods: readonly MethodReport[],
  seeds: number,
  axis: Axis,
  x: (at: number) => number,
  y: (value: number) => number,
  colour: (method: number) => number,
  dashed: (method: number) => string,
): { shapes: string[]; right: number } {
  const ends = methods.flatMap(({ name, curves, curveRuns }, i) => {
    const last = curves[axis].at(-1);
    if (last === undefined) return [];
    const value = formatShare(last.estimate);
    const interval = curveRuns < 2 ? "" : ` [${formatShare(last.low)}, ${formatShare(last.high)}]`;
    const some = curveRuns < seeds ? ` ${curveRuns}/${seeds}` : "";
    return [{ name, i, end: x(last.at), at: y(last.estimate), value, rest: interval + some }];
  });
  const heights = spread(ends.map(({ at }) => at));
  const widths = ends.map(
    ({ name, value, rest }) =>
      letterWidths.name * name.length +
      valueGap +
      letterWidths.text * value.length +
      letterWidths.small * rest.length,
  );
  const shapes = ends.flatMap(({ name, i, end, at, value, rest }, j) => {
    const height = heights[j]!;
    return [
      `<circle class="f${colour(i)}" cx="${end}" cy="${at}" r="4"/>`,
      `<path class="leader s${colour(i)}" d="M${end + 6} ${at}L${labelsAt - 8} ${height}"/>`,
      `<path class="key s${colour(i)}"${dashed(i)} d="M${labelsAt - 4} ${round(height)}h${keyWidth}"/>`,
      `<text x="${labelsAt + keyWidth + 4}" y="${round(height + 4.5)}"><tspan class="name">${escaped(name)}</tspan>` +
        `<tspan dx="${valueGap}">${value}</tspan><tspan class="small">${rest}</tspan></text>`,
    ];
  });
  return { shapes, right: labelsAt + keyWidth + 4 + Math.max(0, ...widths) };
}

/** `heights` moved apart by a label's height, in the same order and within the plot. */
export function spread(heights: readonly number[]): number[] {
  const order = heights.map((_, i) => i).sort((a, b) => heights[a]! - heights[b]!);
  const moved = [...heights];
  let least = plot.top;
  for (const i of order) {
    moved[i] = Math.max(moved[i]!, least);
    least = moved[i] + labelHeight;
  }
  let most = plot.bottom;
  for (const i of order.reverse()) {
    moved[i] = Math.min(moved[i]!, most);
    most = moved[i] - labelHeight;
  }
  return moved;
}

/** Maps a number to its position on the axis (0 to 1), and gives the numbers to label. */
function scaleOf(
  { comparison, runs }: Report,
  axis: Axis,
): { share: (at: number) => number; marks: number[] } {
  if (!hasLogarithmicAxis(comparison, axis)) {
    const most = mostStepsOf(comparison);
    return { share: (at) => at / most, marks: ticks(most) };
  }
  const [first, last] = rangeOf(runs, axis) ?? [1, 10];
  // Round outwards to 1, 2 or 5 times a power of ten.
  const round = (value: number, up: boolean) => {
    const power = 10 ** Math.floor(Math.log10(value));
    const steps = [1, 2, 5, 10].map((factor) => factor * power);
    return up ? steps.find((step) => step >= value)! : steps.findLast((step) => step <= value)!;
  };
  const [least, most] = [round(first, false), Math.max(round(last, true), 2 * round(first, false))];
  const powers = Array.from({ length: 20 }, (_, i) => 10 ** i);
  const factors = most / least > 1000 ? [1] : [1, 2, 5];
  const marks = powers.flatMap((power) => factors.map((factor) => factor * power));
  return {
    share: (at) => Math.log(at / least) / Math.log(most / least),
    marks: marks.filter((mark) => mark >= least && mark <= most),
  };
}

/** Round whole numbers from 0 to `most`, eight at most. */
export function ticks(most: number): number[] {
  const rough = 10 ** Math.max(0, Math.floor(Math.log10(most / 4)));
  const step = [1, 2, 5, 10].map((factor) => factor * rough).find((step) => most / step <= 7)!;
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
}
