/** "a, b and c"; empty for an empty list. */
export function listed(items: readonly string[], last: "and" | "or" = "and"): string {
  return items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} ${last} ${items.at(-1)}`;
}
