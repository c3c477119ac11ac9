/** What a project gets that installs nlac: the files of its tarball. */

import { execFileSync, spawnSync } from "node:child_process";
import { copyFileSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { temporaryDirectory, write } from "./native/helpers.ts";

const root = fileURLToPath(new URL("..", import.meta.url));

test("the tarball has what its pages link to, and nothing that makes npm build at installation", () => {
  const packed = execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], { cwd: root });
  const [{ files }] = JSON.parse(packed.toString());
  const paths = new Set<string>(files.map(({ path }: { path: string }) => path));
  // npm runs `node-gyp rebuild` where it finds one: `npm ci` does not even look at "gypfile": false.
  expect(paths).not.toContain("binding.gyp");
  const links = [...readFileSync(join(root, "README.md"), "utf8").matchAll(/\]\(([\w./-]+)\)/g)];
  expect(links.length).toBeGreaterThan(10);
  for (const [, link] of links) expect(paths).toContain(link!.endsWith("/") ? `${link}README.md` : link);
  const pages = [...paths].filter((path) => path.endsWith(".md") && !path.startsWith("third_party"));
  const sources = pages.flatMap(
    (page) => readFileSync(join(root, page), "utf8").match(/\blib\/[\w/-]+\.ts/g) ?? [],
  );
  expect(sources.length).toBeGreaterThan(10);
  for (const source of sources) expect(paths).toContain(source);
});

test("the pages' TypeScript compiles in a project that has nlac, zod and nothing else", () => {
  const project = temporaryDirectory();
  const installed = join(project, "node_modules", "nlac");
  tsc(root, "-p", "tsconfig.json", "--emitDeclarationOnly", "--outDir", join(installed, "dist"));
  copyFileSync(join(root, "package.json"), join(installed, "package.json"));
  symlinkSync(join(root, "node_modules", "zod"), join(project, "node_modules", "zod"));
  write(join(project, "package.json"), JSON.stringify({ type: "module" }));
  const examples = ["README.md", "docs/training.md", "docs/environments/your-own.md", "docs/comparing.md"]
    .flatMap((page) => [...readFileSync(join(root, page), "utf8").matchAll(/^```ts\n(.*?)^```/gms)])
    .map(([, example]) => example!)
    .filter((example) => /^(import|export) /m.test(example) && !example.includes("…"))
    .map((example, i) => write(join(project, `example-${i}.ts`), example));
  expect(examples.length).toBeGreaterThan(3);
  // Node's own types would bring what the declarations must bring themselves.
  const flags = ["--ignoreConfig", "--strict", "--noEmit", "--module", "nodenext", "--target", "es2022"];
  expect(tsc(project, ...flags, ...examples)).toBe("");
});

/** What the compiler finds, run in `directory`. */
function tsc(directory: string, ...flags: string[]): string {
  const compiler = join(root, "node_modules", "typescript", "bin", "tsc");
  return spawnSync(process.execPath, [compiler, ...flags], { cwd: directory, encoding: "utf8" }).stdout;
}
