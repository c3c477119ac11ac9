/** Lists in sentences. */

/** "a, b and c"; empty for an empty list. */
export function listed(items: readonly string[], last: "and" | "or" = "and"): string {
  return items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} ${last} ${items.at(-1)}`;
}

/**
 * "Oslo, Rome, Tunis or one of 15 others": three names, spread over the list, whose neighbours may be
 * alike. "anything" for an empty list.
 *
 * @param other the end of a list of four names
 */
export function alternatives(names: readonly string[], other: string): string {
  const count = Math.min(3, names.length);
  const some = Array.from({ length: count }, (_, i) => names[Math.floor((i * names.length) / count)]!);
  const others = names.length - count;
  if (others > 0) some.push(others === 1 ? other : `one of ${others} others`);
  return listed(some, "or") || "anything";
}
