/**
 * Whether markup is well formed: every element closed in order, every & an entity, attributes
 * quoted and once.
 */

const token = /<!doctype html>|<(\/?)([a-z][\w-]*)((?:\s+[\w:-]+="[^"<]*")*)\s*(\/?)>|([^<]+)/giy;

/** What is wrong with `markup`, and where; undefined when nothing is. */
export function faultOf(markup: string): string | undefined {
  const open: string[] = [];
  let at = 0;
  while (at < markup.length) {
    token.lastIndex = at;
    const found = token.exec(markup);
    const where = JSON.stringify(markup.slice(at, at + 60));
    if (found === null) return `no markup: ${where}`;
    const [whole, closing, name, attributes = "", empty, text] = found;
    if (/&(?!amp;|lt;|gt;|quot;|#\d+;)/.test(text ?? attributes)) return `a bare &: ${where}`;
    const names = [...attributes.matchAll(/([\w:-]+)=/g)].map(([, attribute]) => attribute);
    if (new Set(names).size < names.length) return `an attribute twice: ${where}`;
    if (closing) {
      if (open.pop() !== name) return `</${name}> out of order: ${where}`;
    } else if (name !== undefined && !empty) open.push(name);
    // A style sheet is not markup.
    const skipped = name === "style" && !closing ? markup.indexOf("</style>", at) : at + whole.length;
    at = skipped;
  }
  return open.length === 0 ? undefined : `not closed: ${open.join(", ")}`;
}
