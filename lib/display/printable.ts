/** Text of models, environments and files, shown in a terminal. */

/**
 * Makes control characters visible if `stream` is a terminal: there they could move the cursor,
 * change the window's title or write to the clipboard. Line breaks and tabs stay.
 */
export function printable(text: string, stream: { isTTY?: boolean } = process.stdout): string {
  if (!stream.isTTY) return text;
  return text.replaceAll("\r\n", "\n").replaceAll(/\p{Cc}/gu, (character) => {
    if (character === "\n" || character === "\t") return character;
    const code = character.charCodeAt(0);
    if (code === 0x7f) return "\u2421";
    // C0 has pictures of its own; C1 has none.
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : "\ufffd";
  });
}
