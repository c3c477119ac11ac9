/**
 * Checks whether an action gives away a secret of the episode. A policy that learns such an action,
 * or such a reason, learns to state what it cannot know.
 */

import type { Action, PrivilegedInformation } from "../contract/environment.ts";

/**
 * Whether the action or its thought contains the secret's words, or all texts of an entry of
 * `hidden`, also in the plural. An entry of which `seen` has a part is no longer hidden.
 *
 * @param seen what was said in the episode before the action
 */
export function leaks(
  { text, thought = "" }: Action,
  { secret, hidden = [] }: PrivilegedInformation,
  seen = "",
): boolean {
  const entries = [...(secret === undefined ? [] : [[secret]]), ...hidden.map((entry) => [entry].flat())];
  if (entries.length === 0) return false;
  // Escapes of JSON, so that "\u0061pple" is decoded.
  const plain = text.replaceAll(/\\u([0-9a-f]{4})/gi, (_, code: string) =>
    String.fromCharCode(Number.parseInt(code, 16)),
  );
  const said = [text, plain, thought].map(words);
  const before = words(seen);
  return entries.some((parts) => {
    const sought = parts.map((part) => words(part).trim()).filter((part) => part !== "");
    return (
      sought.length > 0 &&
      sought.every((part) => said.some((one) => names(one, part))) &&
      !sought.some((part) => names(before, part))
    );
  });
}

function names(said: string, part: string): boolean {
  return [part, `${part}s`, `${part}es`].some((form) => said.includes(` ${form} `));
}

/**
 * Lower-case words with one blank around each; accents, marks and invisible characters are ignored.
 * Numbers lose their separators: "24,500" and "24.5k" are "24500".
 */
export function words(text: string): string {
  const plain = text
    .normalize("NFKD")
    .replaceAll(/[\p{Mn}\p{Cf}'’`]/gu, "")
    .toLowerCase()
    .replaceAll(/(?<=\d),(?=\d{3}(?!\d))/g, "")
    .replaceAll(/\b(\d{1,6}(?:\.\d{1,3})?)k\b/g, (_, number: string) => String(Math.round(1000 * +number)));
  return ` ${plain.replaceAll(/[^\p{L}\p{N}]+/gu, " ").trim()} `;
}
