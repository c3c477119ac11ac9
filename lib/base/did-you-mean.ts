/** Guesses what was meant by a misspelt name. */

/** " (did you mean "x"?)" for a name of `known` that is spelled like `name`, else "". */
export function didYouMean(name: string, known: readonly string[]): string {
  const best = nearestName(name, known);
  return best === undefined ? "" : ` (did you mean "${best}"?)`;
}

/** The name of `known` that is spelled most like `name`; undefined if none is spelled like it. */
export function nearestName(name: string, known: readonly string[]): string | undefined {
  const limit = Math.max(1, Math.floor(name.length / 3));
  const best = known
    .map((candidate) => ({ candidate, distance: edits(name.toLowerCase(), candidate.toLowerCase()) }))
    .sort((a, b) => a.distance - b.distance)[0];
  return best !== undefined && best.distance <= limit ? best.candidate : undefined;
}

/** The Levenshtein distance: insertions, deletions and substitutions that make `a` into `b`. */
function edits(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 0; i < a.length; i++) {
    const next = [i + 1];
    for (let j = 0; j < b.length; j++)
      next.push(Math.min(next[j]! + 1, row[j + 1]! + 1, row[j]! + (a[i] === b[j] ? 0 : 1)));
    row = next;
  }
  return row[b.length]!;
}
