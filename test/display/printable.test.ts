import { expect, test } from "vitest";
import { LiveLines } from "../../lib/display/live-lines.ts";
import { printable } from "../../lib/display/printable.ts";

const terminal = { isTTY: true };

test("every control character but line breaks and tabs is made visible in a terminal", () => {
  const codes = [...Array(0x20).keys(), ...Array.from({ length: 0x21 }, (_, i) => 0x7f + i)];
  for (const code of codes.filter((code) => code !== 9 && code !== 10)) {
    const shown = printable(`a${String.fromCharCode(code)}b`, terminal);
    expect(shown).toMatch(/^a[\u2400-\u2421\ufffd]b$/);
  }
  // Sets the clipboard, clears the screen by an 8-bit code, overwrites the line.
  expect(printable("\u001b]52;c;eA==\u0007\u009b2J\rok", terminal)).toBe("␛]52;c;eA==␇\ufffd2J␍ok");
  const text = "Grüße,\tzwei\r\nZeilen 😀 שלום";
  expect(printable(text, terminal)).toBe(text.replace("\r", ""));
});

test("what is not a terminal gets the text as it is", () => {
  expect(printable("\u001b[2J\r\n", {})).toBe("\u001b[2J\r\n");
});

test("a note above the progress cannot control the terminal", () => {
  let written = "";
  const stream = { isTTY: true, write: (text: string) => (written += text) };
  new LiveLines(stream).note("warning: \u001b]0;title\u0007");
  expect(written).toBe("warning: ␛]0;title␇\n");
});
