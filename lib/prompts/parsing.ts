/** Parses the sections of a reply: `Tag:` lines, each with the text after it. */

/** A parsed reply, or the reason why parsing failed, worded so that a model can act on it. */
export type Parsed<T> = ({ ok: true } & T) | { ok: false; reason: string };

export function malformed(reason: string): { ok: false; reason: string } {
  return { ok: false, reason };
}

/** A call as JSON, not yet checked, and the keys that its arguments may have. */
export interface FoundCall {
  json: string;
  keys: readonly string[];
  /** The id that the model gave the call, in forms that have one. */
  id?: string | undefined;
}

/**
 * Splits `text` at lines that begin with one of `tags` followed by a colon. Strict: every tag
 * exactly once, in the given order, nothing but white space before the first, no empty section.
 */
export function sections<Tag extends string>(
  text: string,
  tags: readonly Tag[],
): Parsed<{ sections: Record<Tag, string> }> {
  const found: { tag: Tag; start: number; end: number }[] = [];
  for (const tag of tags) {
    const matches = [...text.matchAll(new RegExp(`^[ \\t]*${tag}:`, "gm"))];
    if (matches.length === 0) return malformed(`the line "${tag}:" is missing`);
    if (matches.length > 1) return malformed(`"${tag}:" occurs ${matches.length} times instead of once`);
    const match = matches[0]!;
    found.push({ tag, start: match.index, end: match.index + match[0].length });
  }
  const result = {} as Record<Tag, string>;
  for (const [i, { tag, end }] of found.entries()) {
    const next = found[i + 1];
    if (next !== undefined && next.start < end) return malformed(`"${tag}:" must come before "${next.tag}:"`);
    const body = text.slice(end, next?.start).trim();
    if (body === "") return malformed(`nothing stands after "${tag}:"`);
    result[tag] = body;
  }
  if (text.slice(0, found[0]!.start).trim() !== "") {
    return malformed(`the reply must begin with "${tags[0]}:"`);
  }
  return { ok: true, sections: result };
}

export interface Verdict {
  /** True for Yes. */
  yes: boolean;
  /** One sentence after a No on how to do better. Empty for a Yes. */
  advice: string;
}

/**
 * Parses "Yes", or "No" and a sentence. A No without a reason is malformed, because the refiner
 * could not use it.
 */
export function parseVerdict(body: string): Parsed<Verdict> {
  const match = /^["'*]*(yes|no)\b["'*]*[\s.,:;–—-]*/i.exec(body);
  if (match === null) return malformed('the verdict must begin with "Yes" or "No"');
  const rest = body.slice(match[0].length).trim();
  if (match[1]!.toLowerCase() === "yes") return { ok: true, yes: true, advice: "" };
  if (rest === "") return malformed('a "No" must say in one sentence what would be better');
  return { ok: true, yes: false, advice: rest };
}
