/** The difference of two texts by words: the longest common subsequence. */

export interface Part {
  kind: "same" | "removed" | "added";
  text: string;
}

/** Longer texts would take too long: they are shown as replaced. */
const maxWords = 1500;

export function difference(before: string, after: string): Part[] {
  const [x, y] = [before.match(/\s+|[^\s]+/g) ?? [], after.match(/\s+|[^\s]+/g) ?? []];
  if (x.length > maxWords || y.length > maxWords)
    return [
      { kind: "removed", text: before },
      { kind: "added", text: after },
    ];
  const width = y.length + 1;
  const longest = new Uint16Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i--)
    for (let j = y.length - 1; j >= 0; j--)
      longest[i * width + j] =
        x[i] === y[j]
          ? longest[(i + 1) * width + j + 1]! + 1
          : Math.max(longest[(i + 1) * width + j]!, longest[i * width + j + 1]!);
  const parts: Part[] = [];
  const add = (kind: Part["kind"], text: string) => {
    const last = parts.at(-1);
    if (last?.kind === kind) last.text += text;
    else parts.push({ kind, text });
  };
  let [i, j] = [0, 0];
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) {
      add("same", x[i]!);
      i++;
      j++;
    } else if (
      i < x.length &&
      (j === y.length || longest[(i + 1) * width + j]! >= longest[i * width + j + 1]!)
    )
      add("removed", x[i++]!);
    else add("added", y[j++]!);
  }
  return parts;
}
