/** Removes the first key, which was added first, if there are more than `most`. */
export function dropOldest(keyed: Map<unknown, unknown> | Set<unknown>, most: number): void {
  if (keyed.size > most) keyed.delete(keyed.keys().next().value);
}
