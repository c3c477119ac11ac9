/** Reports of long-running work: lines, and a progress bar at a terminal. */

import { LiveLines, type ProgressStream, progressBar } from "./live-lines.ts";

export interface Reporter {
  line(text: string): void;
  /** `total` is undefined if unknown. May be called often; updates are throttled. */
  progress(label: string, done: number, total: number | undefined, unit: "bytes" | "steps"): void;
}

export const silent: Reporter = { line: () => {}, progress: () => {} };

/** Reports to stderr, because stdout is for results. The bar is shown only at a terminal. */
export function stderrReporter(stream: ProgressStream = process.stderr): Reporter {
  const lines = new LiveLines(stream);
  let last = Number.NEGATIVE_INFINITY;
  return {
    line: (text) => lines.note(text),
    progress(label, done, total, unit) {
      const finished = total !== undefined && done >= total;
      const now = performance.now();
      if (!stream.isTTY || (!finished && now - last < 100)) return;
      last = now;
      if (finished) lines.clear();
      else lines.draw([progressLine(label, done, total, unit, lines.width)]);
    },
  };
}

function progressLine(
  label: string,
  done: number,
  total: number | undefined,
  unit: "bytes" | "steps",
  columns: number,
): string {
  const amount = (n: number) => (unit === "bytes" ? formatBytes(n) : String(n));
  if (total === undefined || total <= 0) return done === 0 ? `${label} …` : `${label} ${amount(done)}`;
  const share = Math.min(1, done / total);
  const right = `${String(Math.floor(share * 100)).padStart(3)} % of ${amount(total)}`;
  const width = Math.max(0, Math.min(40, columns - label.length - right.length - 2));
  return `${label} ${progressBar(share, width)} ${right}`;
}

/** Decimal units: 530604548 → "531 MB". */
export function formatBytes(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  for (const [unit, size] of [
    ["kB", 1e3],
    ["MB", 1e6],
  ] as const)
    if (bytes < size * 1000) return `${(bytes / size).toFixed(bytes < size * 10 ? 1 : 0)} ${unit}`;
  return `${(bytes / 1e9).toFixed(1)} GB`;
}
