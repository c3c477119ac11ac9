/** Counts with their nouns. */

/** "1 update", "1,048 updates". */
export function counted(count: number, what: string, number = count.toLocaleString("en")): string {
  return `${number} ${what}${count === 1 ? "" : "s"}`;
}
