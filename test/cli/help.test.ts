import { afterEach, expect, test } from "vitest";
import { nlac } from "../support/command-line.ts";

const { columns, isTTY } = process.stdout;
afterEach(() => {
  Object.assign(process.stdout, { columns, isTTY });
});

/** The help of a command and of all below it, by their names. */
async function helpOf(...command: string[]): Promise<Map<string, string>> {
  const { code, output } = await nlac(...command, "--help");
  expect(code).toBe(0);
  const [, listed = ""] = output.split("\nCommands:\n");
  const below = [...listed.matchAll(/^ {2}(\w[\w-]*)/gm)].map(([, name]) => name!);
  const all = new Map([[command.join(" "), output]]);
  for (const name of below.filter((name) => name !== "help" && name !== "nlac"))
    for (const [key, text] of await helpOf(...command, name)) all.set(key, text);
  return all;
}

test("every command has help that fits into 80 columns, with an example", async () => {
  const all = await helpOf();
  expect([...all.keys()]).toEqual(expect.arrayContaining(["train", "data import tau-bench", "env check"]));
  for (const [command, text] of all) {
    const wide = text.split("\n").filter((line) => [...line].length > 80);
    expect(wide, `nlac ${command} --help`).toEqual([]);
    if (!text.includes("\nCommands:\n")) expect(text).toMatch(/^Examples?:\n {2}\S/m);
  }
});

test("on a narrow terminal lines end between words, and nothing is lost", async () => {
  const words = (text: string) => text.match(/\S+/g);
  const wide = await helpOf();
  Object.assign(process.stdout, { columns: 50, isTTY: true });
  for (const [command, whole] of wide) {
    const { output: text } = await nlac(...command.split(" ").filter(Boolean), "--help");
    expect(words(text), `nlac ${command} --help`).toEqual(words(whole));
    const cut = text.split("\n").filter((line) => line.length > 50 && /\S\s+\S/.test(line));
    expect(cut, `nlac ${command} --help`).toEqual([]);
  }
});
