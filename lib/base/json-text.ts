/** Scans JSON as text, so that the spelling of its parts can be kept: 250.0 stays 250.0. */

export interface JsonShape {
  /** Deepest nesting of brackets outside of strings. */
  depth: number;
  /** End of the outermost bracket; undefined if it is not closed. */
  end?: number;
  /** Keys of the outermost object, decoded, and their positions including quotes. */
  keys: { text: string; start: number; end: number }[];
}

/** Scans possible JSON up to the end of the first bracket. Takes linear time for any input. */
export function shapeOf(text: string): JsonShape {
  const shape: JsonShape = { depth: 0, keys: [] };
  let depth = 0;
  for (const { 0: mark, index } of text.matchAll(/"(?:[^"\\]|\\[\s\S]?)*(?:"|$)|[{}[\]]/g)) {
    const end = index + mark.length;
    if (mark === "{" || mark === "[") shape.depth = Math.max(shape.depth, ++depth);
    else if (mark === "}" || mark === "]") depth--;
    else if (depth === 1 && /^\s*:/.test(text.slice(end, end + 64)))
      shape.keys.push({ text: unquoted(mark), start: index, end });
    if (depth <= 0 && shape.depth > 0) return { ...shape, end };
  }
  return shape;
}

/** The members of a valid JSON object, each value as it is spelled. */
export function membersOf(object: string): { key: string; value: string }[] {
  const { keys, end } = shapeOf(object);
  return keys.map(({ text, end: after }, i) => {
    const next = keys[i + 1]?.start ?? (end ?? object.length) - 1;
    const value = object.slice(after, next).replace(/^\s*:\s*/, "");
    return { key: text, value: (keys[i + 1] === undefined ? value : value.replace(/,\s*$/, "")).trim() };
  });
}

/** The items of a valid JSON list, each as it is spelled. */
export function itemsOf(list: string): string[] {
  const items: string[] = [];
  let [depth, start] = [0, list.indexOf("[") + 1];
  for (const { 0: mark, index } of list.matchAll(/"(?:[^"\\]|\\[\s\S])*"|[{}[\],]/g)) {
    if (mark === "{" || mark === "[") depth++;
    const ends = (mark === "," && depth === 1) || (mark === "]" && depth === 1);
    if (mark === "}" || mark === "]") depth--;
    if (!ends) continue;
    items.push(list.slice(start, index).trim());
    start = index + 1;
  }
  return items.length === 1 && items[0] === "" ? [] : items;
}

function unquoted(string: string): string {
  try {
    return JSON.parse(string) as string;
  } catch {
    return string;
  }
}
