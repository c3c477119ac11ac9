/** Formats figures for tables and charts. */

import type { Figure } from "./suite.ts";

/** Three digits and a unit: 0.0123 ms → "12.3 µs". */
export function formatTime(milliseconds: number): string {
  const { unit, factor } = timeUnit(milliseconds);
  return `${threeDigits(milliseconds * factor)} ${unit}`;
}

/** A range in one unit: "408–420 ms". */
export function formatTimes(low: number, high: number): string {
  const { unit, factor } = timeUnit(low);
  return `${threeDigits(low * factor)}–${threeDigits(high * factor)} ${unit}`;
}

/** Three digits without an exponent: 1234.5 → "1235", 0.5 → "0.500". */
export function threeDigits(value: number): string {
  if (value === 0) return "0";
  const decimals = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(decimals, 6));
}

export function formatPercent(share: number): string {
  return `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

export function formatSpeedup(factor: number): string {
  return `${factor < 100 ? threeDigits(factor) : factor.toFixed(0)} ×`;
}

/** "growth 12.0 bytes a request, of 64.0 at most". */
export function formatFigure({ name, value, unit, most }: Figure): string {
  const bound = most === null ? "" : `, of ${threeDigits(most)} at most`;
  return `${name} ${threeDigits(value)} ${unit}${bound}`;
}

export function isExceeded({ value, most }: Figure): boolean {
  return most !== null && value > most;
}

function timeUnit(milliseconds: number): { unit: string; factor: number } {
  if (milliseconds >= 1000) return { unit: "s", factor: 1e-3 };
  if (milliseconds >= 1) return { unit: "ms", factor: 1 };
  return milliseconds >= 1e-3 ? { unit: "µs", factor: 1e3 } : { unit: "ns", factor: 1e6 };
}
