/** Times of day. 10:30 is one, although it looks like a ratio that could be reduced. */

import type { Node } from "./node.ts";

export interface TimeOfDay {
  hour: number;
  /** Minutes and seconds, 0 if they are not given. */
  rest: [number, number];
  half?: "am" | "pm";
  /** False for a plain number, and for a ratio in lowest terms, such as 4:17. */
  certain: boolean;
}

/** A node that may be a time of day: a ratio as on a clock, or a number of hours. */
export function timeOfDay(node: Node): TimeOfDay | undefined {
  const half = node.kind === "unit" ? /^([ap]m)$/i.exec(node.unit)?.[1]?.toLowerCase() : undefined;
  const of = node.kind === "unit" ? node.of : node;
  const items = of.kind === "ratio" ? of.items : [of];
  const digits = items.map((item) => (item.kind === "number" ? item.digits : ""));
  if (!/^\d\d?(?::[0-5]\d){0,2}$/.test(digits.join(":"))) return undefined;
  const [hour, minute = 0, second = 0] = digits.map(Number) as [number, number?, number?];
  if (hour > 24) return undefined;
  const reducible =
    digits.length > 1 && (/:0/.test(digits.join(":")) || common(common(hour, minute), second) > 1);
  return {
    hour,
    rest: [minute, second],
    ...(half !== undefined && { half: half as "am" | "pm" }),
    certain: half !== undefined || reducible,
  };
}

/** Whether two times are equal. 1:30 and 13:30 are both 1:30 p.m., but different from each other. */
export function sameTime(a: TimeOfDay, b: TimeOfDay): boolean {
  if (a.rest.join() !== b.rest.join()) return false;
  if ((a.half === undefined) === (b.half === undefined)) return onDay(a) === onDay(b);
  return onDay(a) === onDay(b) || a.hour === b.hour;
}

/** The hour from 0 to 24. */
function onDay({ hour, half }: TimeOfDay): number {
  return half === undefined ? hour : (hour % 12) + (half === "pm" ? 12 : 0);
}

/** The greatest common divisor. */
function common(a: number, b: number): number {
  return b === 0 ? a : common(b, a % b);
}
