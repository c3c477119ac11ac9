/** `nlac init`: makes a project with an environment, a recipe and a test, which trains as it is. */

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { basename, join, relative, resolve, sep } from "node:path";
import type { Command } from "commander";
import { z } from "zod";
import { NlacError } from "../base/errors.ts";
import { version } from "../base/version.ts";
import { makeDirectory, readJson } from "../files/disk.ts";
import { writeAtomically } from "../files/write-atomically.ts";
import { packageRoot } from "../native/paths.ts";
import { inShell } from "./messages.ts";

export function registerInit(program: Command): void {
  program
    .command("init")
    .description("make a project: an environment, a recipe that trains in a minute, and a test")
    .argument("[directory]", "the project's directory", ".")
    .addHelpText(
      "after",
      `
An existing package.json gets the missing scripts and dependencies. An existing
README.md, tsconfig.json or .gitignore is not changed. If any other file of the
project exists, it is an error, and nothing is written.

Examples:
  nlac init my-agent && cd my-agent && npm install
  npx nlac setup && npm run train

  nlac init`,
    )
    .action(init);
}

/** Files that npm would not publish under their own names. */
const renamed: Readonly<Record<string, string>> = { gitignore: ".gitignore" };

/** Files of the template that an existing project may have already: its own stay as they are. */
const kept: readonly string[] = [".gitignore", "README.md", "tsconfig.json"];

function init(directory: string): void {
  const path = resolve(directory);
  const template = join(packageRoot(), "templates", "project");
  const name = nameFrom(basename(path));
  const files = readdirSync(template).map((file) => ({
    path: join(path, renamed[file] ?? file),
    text: readFileSync(join(template, file), "utf8").replaceAll("__NAME__", name),
  }));
  const isPresent = (file: { path: string }) => existsSync(file.path);
  const isKept = (file: { path: string }) => kept.includes(basename(file.path)) && isPresent(file);
  const present = files.filter((file) => isPresent(file) && !isKept(file)).map((file) => basename(file.path));
  if (present.length > 0)
    throw new NlacError(
      "ERR_IO",
      `${path} already has ${present.join(", ")}. Name a new directory, or move ${present.length === 1 ? "it" : "them"}.`,
    );
  const packagePath = join(path, "package.json");
  const described = packageOf(packagePath, name);
  const indent = existsSync(packagePath) ? indentOf(readFileSync(packagePath, "utf8")) : 2;
  makeDirectory(path);
  const own = files
    .filter(isKept)
    .map((file) => basename(file.path))
    .sort();
  for (const file of files) if (!isKept(file)) writeAtomically(file.path, file.text);
  writeAtomically(packagePath, `${JSON.stringify(described, null, indent)}\n`);
  const here = relative(process.cwd(), path);
  console.log(
    [
      `Made ${name}: desk.ts (environment), recipe.ts (training) and desk.test.ts.`,
      ...(own.length === 0
        ? []
        : [`Your ${own.join(", ")} ${own.length === 1 ? "was" : "were"} not changed.`]),
      "",
      ...(here === "" ? [] : [`  cd ${inShell(here)}`]),
      "  npm install",
      "  npx nlac setup      # once per machine",
      "  npm test",
      "  npm run train       # about a minute on a CPU",
    ].join("\n"),
  );
}

/** A name that npm accepts. */
function nameFrom(text: string): string {
  const name = text
    .toLowerCase()
    .replaceAll(/[^a-z0-9-]+/g, "-")
    .replaceAll(/^-+|-+$/g, "");
  return name === "" ? "agent" : name;
}

/** The indentation of a JSON file, as npm finds it too. */
function indentOf(text: string): string | number {
  return /^\s*\{\r?\n([ \t]+)/.exec(text)?.[1] ?? 2;
}

const scripts = {
  test: "node --import jiti/register desk.test.ts",
  typecheck: "tsc",
  check: "nlac env check ./desk.ts",
  train: "nlac train recipe.ts --run runs/desk",
};

const packageSchema = z.looseObject({
  scripts: z.record(z.string(), z.string()).default({}),
  dependencies: z.record(z.string(), z.string()).default({}),
  devDependencies: z.record(z.string(), z.string()).default({}),
});

/**
 * What another project depends on to get this package: what the project that has it depends on, for
 * example a tarball, or the checkout itself. A relative path in it becomes absolute.
 */
export function sourceOf(root: string): string {
  const parts = root.split(sep);
  if (!parts.includes("node_modules")) return `file:${root}`;
  // With pnpm, the innermost node_modules belongs to its store.
  for (let end = parts.length - 1; end > 0; end--) {
    const project = parts.slice(0, end).join(sep);
    if (parts[end] !== "node_modules" || !existsSync(join(project, "package.json"))) continue;
    const { dependencies, devDependencies } = readJson(
      join(project, "package.json"),
      packageSchema,
      "ERR_CONFIG",
    );
    const given = dependencies.nlac ?? devDependencies.nlac;
    const path = /^(?:file:|(?=\.{0,2}\/))(.+)$/.exec(given ?? "")?.[1];
    if (path !== undefined) return `file:${resolve(project, path)}`;
    if (given !== undefined) return given;
  }
  return `^${version}`;
}

/** The project's package.json: the existing one with the missing fields. Throws ERR_CONFIG. */
function packageOf(path: string, name: string): object {
  const own = readJson(join(packageRoot(), "package.json"), packageSchema, "ERR_CONFIG");
  const found = existsSync(path) ? readJson(path, packageSchema, "ERR_CONFIG") : undefined;
  const { scripts: givenScripts = {}, dependencies = {}, devDependencies = {}, ...rest } = found ?? {};
  // `npm init` writes a test script that only fails.
  const { test, ...others } = givenScripts;
  const kept = test === undefined || test.includes("no test specified") ? others : givenScripts;
  const tools = Object.fromEntries(
    ["@types/node", "jiti", "typescript"].map((tool) => [
      tool,
      own.devDependencies[tool] ?? own.dependencies[tool]!,
    ]),
  );
  return {
    // "type" decides how the files of an existing package are read; those of the template need
    // none.
    ...(found === undefined ? { name, version: "0.0.0", private: true, type: "module" } : rest),
    scripts: { ...scripts, ...kept },
    dependencies: { nlac: sourceOf(packageRoot()), ...dependencies },
    devDependencies: { ...tools, ...devDependencies },
  };
}
