import { Command, Help } from "commander";
import { afterEach, expect, test, vi } from "vitest";
import { commands } from "../../lib/cli/main.ts";
import { asTyped } from "../../lib/cli/messages.ts";
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

test("the list of commands, which imports none of them, shows each as it is", async () => {
  for (const [name, { usage, description, register }] of Object.entries(commands)) {
    const program = new Command();
    (await register())(program);
    expect(program.commands.map((command) => command.name())).toEqual([name]);
    const [command] = program.commands;
    expect(new Help().subcommandTerm(command!)).toBe(usage);
    expect(command!.description()).toBe(description);
  }
});

test.each([
  [["trian"], "unknown command 'trian' (Did you mean train?); see nlac --help"],
  [["eval"], "missing required argument 'run|model'; see nlac eval --help"],
  [["help", "trian"], "unknown command 'trian'; see nlac --help"],
  [["view", "a", "b"], "too many arguments for 'view'. Expected 1 argument but got 2; see nlac view --help"],
  // Help of the command itself, not a list with it.
  [["env", "check"], "missing required argument 'environment'; see nlac env check --help"],
  [
    ["data", "import", "tau-bench", "x"],
    "missing required argument 'directory'; see nlac data import tau-bench --help",
  ],
  [["data", "import", "foo"], "unknown command 'foo'; see nlac data import --help"],
  [["help", "train", "extra"], ""],
  [["play", "errands", "--seed", "x"], "It must be a whole number, 0 or more."],
  [["serve", "errands-base", "--port", "65536"], "It must be a whole number from 0 to 65535."],
])("%j is answered with what to do", async (argv, message) => {
  const { code, errors } = await nlac(...argv);
  expect(code).toBe(message === "" ? 0 : 1);
  expect(errors.trimEnd()).toMatch(message === "" ? /^$/ : /^nlac: ERR_VALUE: [^\n]+$/);
  expect(errors.trimEnd().endsWith(message)).toBe(true);
});

test.each([
  [["serve", "errands-base", "--keep-days", "3"], "--keep-days needs --train."],
  [["serve", "errands-base", "--max-idle-hours", "24"], "--max-idle-hours needs --train."],
  [["serve", "errands-base", "--set", "a=1"], "--set needs --train."],
  [["serve", "errands-base", "--train", "errands", "--seed", "1"], "--set config.seed=NUMBER."],
  [
    ["play", "errands", "--temperature", "1"],
    "--temperature needs a model that plays; errands is an environment.",
  ],
  [["export", "errands-base", "out", "--seed", "1"], "unknown option '--seed'; see nlac export --help"],
  [["eval", "errands-base", "--environment", "errands", "--best-of", "2"], "--best-of needs --reward-model."],
  [
    ["eval", "do-nothing", "--environment", "errands", "--reward-model", "runs/mine", "--temperature", "1"],
    "--reward-model needs a model that runs in this process.",
  ],
])("%j is refused, because the option has no effect", async (argv, message) => {
  const { code, errors } = await nlac(...argv);
  expect([code, errors.trimEnd()]).toEqual([1, expect.stringMatching(/^nlac: ERR_(CONFIG|VALUE): [^\n]+$/)]);
  expect(errors.trimEnd().endsWith(message)).toBe(true);
});

test("an error that nlac does not expect is called a bug, and says how to see more", async () => {
  const parse = vi.spyOn(Command.prototype, "parseAsync").mockRejectedValue(new TypeError("x is not a y"));
  try {
    expect((await nlac("doctor")).errors).toMatch(
      /^nlac: ERR_INTERNAL: TypeError: x is not a y \(a bug in nlac: .+ NLAC_DEBUG=1 prints the stack\)\n$/,
    );
    vi.stubEnv("NLAC_DEBUG", "1");
    expect((await nlac("doctor")).errors).toMatch(/ERR_INTERNAL: TypeError: x is not a y\n +at /);
  } finally {
    parse.mockRestore();
    vi.unstubAllEnvs();
  }
});

test("help does not show the empty default of repeatable options", async () => {
  for (const [, text] of await helpOf()) expect(text).not.toContain("[])");
});

test("a path to type is relative below the working directory, and quoted if necessary", () => {
  expect(asTyped(`${process.cwd()}/runs/mine`)).toBe("runs/mine");
  expect(asTyped(process.cwd())).toBe(process.cwd());
  expect(asTyped("/elsewhere/runs")).toBe("/elsewhere/runs");
  expect(asTyped(`${process.cwd()}/it's here`)).toBe("'it'\\''s here'");
});
