/** A chart of curves, drawn by uPlot. */

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { palettes } from "./palette.ts";

export interface Line {
  name: string;
  /** Place in the palette. */
  colour: number;
  x: readonly number[];
  y: readonly (number | null)[];
  /** An interval around the line. */
  low?: readonly number[];
  high?: readonly number[];
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const scheme = signal(dark.matches);
dark.addEventListener("change", () => {
  scheme.value = dark.matches;
});

export function colourOf(place: number): string {
  const palette = palettes[scheme.value ? "dark" : "light"];
  return palette[place % palette.length]!;
}

/** Lines beyond the number of colours are dashed, to differ from those whose colour they repeat. */
export function isDashed(place: number): boolean {
  return place >= palettes.light.length;
}

/** A part of the x axis. */
export type Zoom = readonly [low: number, high: number];

/** The chart in which a drag began: charts in step all get its end. */
let dragged: HTMLElement | undefined;

/** Most points of a line whose points are marked: a line between few of them says little. */
const markedPoints = 30;

interface ChartProps {
  lines: readonly Line[];
  /** What is on the x axis. */
  over: string;
  height?: number;
  /** Charts of one key show their cursors at the same place. */
  group?: string;
  /** The pointer is at this place on the x axis of this chart; null when it leaves. */
  onCursor?: (x: number | null) => void;
  /** The part to show; all of it without. */
  zoom?: Zoom | undefined;
  /** A part was selected; undefined shows all of it again. */
  onZoom?: (zoom: Zoom | undefined) => void;
}

export function Chart({ lines, over, height = 150, group, onCursor, zoom, onZoom }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const drawn = useRef<uPlot | undefined>(undefined);
  const latest = useRef(lines);
  latest.current = lines;
  const isDark = scheme.value;
  const kinds = lines.map(({ name, colour, low }) => `${name} ${colour} ${low !== undefined}`).join("\n");
  useEffect(() => {
    const element = box.current!;
    let plot: uPlot | undefined;
    const label = document.createElement("span");
    label.className = "at";
    const draw = () => {
      const options = optionsOf(
        latest,
        element,
        isDark,
        { over, height, group, onCursor, zoom, onZoom },
        label,
      );
      plot = new uPlot(options, dataOf(latest.current), element);
      plot.over.append(label);
      drawn.current = plot;
    };
    // Drawn once it is in sight: a page may have a hundred charts.
    const sight = new IntersectionObserver((entries) => {
      if (plot === undefined && entries.some(({ isIntersecting }) => isIntersecting)) draw();
    });
    sight.observe(element);
    // Before uPlot's own listeners.
    const press = () => {
      dragged = element;
    };
    const showAll = () => onZoom?.(undefined);
    element.addEventListener("mousedown", press, true);
    element.addEventListener("dblclick", showAll);
    const size = new ResizeObserver(() => plot?.setSize({ width: element.clientWidth, height }));
    size.observe(element);
    return () => {
      element.removeEventListener("mousedown", press, true);
      element.removeEventListener("dblclick", showAll);
      sight.disconnect();
      size.disconnect();
      plot?.destroy();
      drawn.current = undefined;
    };
  }, [kinds, over, height, isDark, group, zoom?.join()]);
  // New values do not end a drag, and the cursor stays.
  useEffect(() => drawn.current?.setData(dataOf(lines)), [lines]);
  return <div class="chart" ref={box} style={{ minHeight: `${height}px` }} />;
}

/** All lines on one x axis; where a line has no point, it is continued. */
function dataOf(lines: readonly Line[]): uPlot.AlignedData {
  const tables = lines.map(({ x, y, low, high }): uPlot.AlignedData => {
    const bounds = low && high ? [[...high], [...low]] : [];
    return [[...x], [...y], ...bounds] as uPlot.AlignedData;
  });
  const sorted = tables.filter(([x]) => x.length > 0);
  if (sorted.length === 0) return [[]];
  return uPlot.join(
    tables,
    tables.map((table) => table.map(() => 2)),
  );
}

function optionsOf(
  latest: { readonly current: readonly Line[] },
  element: HTMLElement,
  isDark: boolean,
  { over, height, group, onCursor, zoom, onZoom }: Omit<ChartProps, "lines" | "height"> & { height: number },
  label: HTMLElement,
): uPlot.Options {
  const [ink, rule] = isDark ? ["#9198a1", "#262c36"] : ["#59636e", "#e7ebef"];
  const font = "11px system-ui, sans-serif";
  const axis = { stroke: ink, font, grid: { stroke: rule, width: 1 }, ticks: { show: false } };
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  for (const [place, { name, colour, low }] of latest.current.entries()) {
    const stroke = colourOf(colour);
    const dash = isDashed(colour) ? { dash: [7, 4] } : {};
    series.push({
      label: name,
      stroke,
      width: 1.5,
      spanGaps: true,
      pxAlign: 0, // points rounded to pixels make a slow curve uneven
      points: { show: () => (latest.current[place]?.x.length ?? 0) <= markedPoints, size: 4 },
      ...dash,
    });
    if (low === undefined) continue;
    const edge = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
    bands.push({ series: [series.length, series.length + 1], fill: `${stroke}26` });
    series.push({ ...edge }, { ...edge });
  }
  return {
    ...{ width: element.clientWidth, height, series, bands },
    legend: { show: false },
    padding: [8, 12, 0, 0],
    scales: {
      x: { time: false, ...(zoom && { range: () => [...zoom] }) },
      y: { range: (_, low, high) => rangeOf(low, high) },
    },
    axes: [
      { ...axis, size: 26, space: 70, values: (_, ticks) => ticks.map(compact) },
      { ...axis, size: 48, space: 32, values: (_, ticks) => ticks.map(compact) },
    ],
    cursor: {
      y: false,
      points: { size: 6 },
      // The value at or before the cursor, as in the title of a panel.
      dataIdx: (plot, series, nearest, at) => {
        const x = pointedAt(plot, at);
        let i = nearest;
        while (i > 0 && (plot.data[0][i]! > x || plot.data[series]![i] == null)) i--;
        return i;
      },
      drag: { x: onZoom !== undefined, y: false, setScale: false },
      ...(group && { sync: { key: group } }),
    },
    hooks: {
      setSelect: [
        (plot) => {
          const { left, width } = plot.select;
          if (dragged !== element || width === 0) return;
          dragged = undefined;
          const at = (place: number) => Number(plot.posToVal(place, "x").toPrecision(6));
          onZoom?.([at(left), at(left + width)]);
        },
      ],
      setCursor: [
        (plot) => {
          const { left = -1 } = plot.cursor;
          // Charts of a group get the cursor of the one under the pointer.
          const isHere = left >= 0 && plot.over.matches(":hover");
          label.hidden = !isHere;
          if (left < 0) onCursor?.(null);
          if (!isHere) return;
          const x = pointedAt(plot, plot.posToVal(left, "x"));
          onCursor?.(x);
          label.textContent = `${over} ${Math.floor(x).toLocaleString("en")}`;
          label.style.left = `${left}px`;
          label.style.translate = `${-(100 * left) / plot.over.clientWidth}% 0`;
        },
      ],
    },
  };
}

/** The place of a point if it is at most 5 pixels from the cursor, which is at `x`; otherwise `x`. */
function pointedAt(plot: uPlot, x: number): number {
  const near = plot.data[0][plot.valToIdx(x)] ?? x;
  return Math.abs(plot.valToPos(near, "x") - plot.valToPos(x, "x")) <= 5 ? near : x;
}

/** Some space around the values; constant ones are not at the edge of a scale that dwarfs them. */
function rangeOf(low: number | null, high: number | null): uPlot.Range.MinMax {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) / 2, low + Math.abs(low) / 2];
  return uPlot.rangeNum(low, high, 0.1, true);
}

function compact(value: number): string {
  if (Math.abs(value) < 10_000) return String(Number(value.toPrecision(6)));
  return new Intl.NumberFormat("en", { notation: "compact" }).format(value);
}
