import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Command } from "commander";
import { afterEach, expect, test, vi } from "vitest";
import { namesEnvironment } from "../../lib/environments/registry.ts";
import { nlac } from "../support/command-line.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const below = (directory: string) =>
  readdirSync(join(root, directory), { recursive: true, encoding: "utf8" }).map((name) =>
    join(directory, name),
  );
const pages = [...readdirSync(root), ...below("docs"), ...below("bench")].filter((name) =>
  name.endsWith(".md"),
);

/** The command lines of nlac in a page's blocks of shell, as their words. */
function commandsOf(page: string): string[][] {
  const text = readFileSync(join(root, page), "utf8");
  return [...text.matchAll(/^```sh\n(.*?)^```/gms)]
    .flatMap(([, block]) => block!.replaceAll("\\\n", " ").split(/\n| && | \| /))
    .flatMap((line) => /^(?:\w+=\S+ |npx )*nlac (.*)/.exec(line.trim().replace(/^\$ /, ""))?.[1] ?? [])
    .map(wordsOf);
}

/** Words as a shell has them, up to a comment. */
function wordsOf(line: string): string[] {
  const words = line.match(/#.*|(?:'[^']*'|"[^"]*"|[^\s'"])+/g) ?? [];
  return words
    .filter((word) => !word.startsWith("#"))
    .map((word) => word.replaceAll(/'([^']*)'|"([^"]*)"/g, "$1$2"));
}

afterEach(() => vi.restoreAllMocks());

test("the pages name environments that exist", () => {
  const named = pages.flatMap((page) => {
    const text = readFileSync(join(root, page), "utf8");
    const found = text.matchAll(/environment: \{ name: "([^"]+)"|--environment ([\w./-]+)/g);
    return [...found].map(([, inRecipe, onCommandLine]) => ({ page, name: inRecipe ?? onCommandLine! }));
  });
  expect(named.length).toBeGreaterThan(20);
  const isPlaceholder = (name: string) => /^[A-Z]+$/.test(name);
  expect(named.filter(({ name }) => !isPlaceholder(name) && !namesEnvironment(name))).toEqual([]);
});

test("docs/errors.md lists every code of an error, in the order of ErrorCode", () => {
  const read = (path: string, code: RegExp) =>
    [...readFileSync(join(root, path), "utf8").matchAll(code)].map(([, name]) => name);
  const codes = read("lib/base/errors.ts", /^ {2}\| "(ERR_\w+)"/gm);
  expect(codes.length).toBeGreaterThan(20);
  expect(read("docs/errors.md", /^\| `(ERR_\w+)`/gm)).toEqual(codes);
});

test("nlac accepts every command that the pages show", async () => {
  // Commands are parsed but not run.
  const action = Command.prototype.action;
  vi.spyOn(Command.prototype, "action").mockImplementation(function (this: Command) {
    return action.call(this, () => {});
  });
  expect((await nlac("train", "--no-such-option")).code).toBe(1);
  let parsed = 0;
  for (const page of pages) {
    for (const words of commandsOf(page)) {
      const { code, errors } = await nlac(...words);
      expect([code, errors], `${page}: nlac ${words.join(" ")}`).toEqual([0, ""]);
      parsed++;
    }
  }
  expect(parsed).toBeGreaterThan(40);
});
