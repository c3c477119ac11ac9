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

interface ChartProps {
  lines: readonly Line[];
  height?: number;
  /** Charts of one key show their cursors at the same place. */
  group?: string;
  onCursor?: (x: number | null) => void;
  /** The part to show; all of it without. */
  zoom?: Zoom | undefined;
  /** A part was selected; undefined shows all of it again. */
  onZoom?: (zoom: Zoom | undefined) => void;
}

export function Chart({ lines, height = 150, group, onCursor, zoom, onZoom }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const isDark = scheme.value;
  useEffect(() => {
    const element = box.current!;
    let plot: uPlot | undefined;
    const draw = () => {
      plot?.destroy();
      plot = new uPlot(
        optionsOf(lines, element, isDark, { height, group, onCursor, zoom, onZoom }),
        dataOf(lines),
        element,
      );
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
    };
  }, [lines, height, isDark, group, zoom?.join()]);
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
  lines: readonly Line[],
  element: HTMLElement,
  isDark: boolean,
  { height, group, onCursor, zoom, onZoom }: Omit<ChartProps, "lines" | "height"> & { height: number },
): uPlot.Options {
  const [ink, rule] = isDark ? ["#9198a1", "#262c36"] : ["#59636e", "#e7ebef"];
  const font = "11px system-ui, sans-serif";
  const axis = { stroke: ink, font, grid: { stroke: rule, width: 1 }, ticks: { show: false } };
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  for (const { name, colour, x, low } of lines) {
    const stroke = colourOf(colour);
    const dash = isDashed(colour) ? { dash: [7, 4] } : {};
    series.push({
      label: name,
      stroke,
      width: 1.5,
      spanGaps: true,
      pxAlign: 0, // points rounded to pixels make a slow curve uneven
      points: { show: x.length === 1 },
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
          const at = plot.cursor.idx;
          onCursor?.(at === null || at === undefined ? null : (plot.data[0][at] ?? null));
        },
      ],
    },
  };
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
