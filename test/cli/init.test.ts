import { spawnSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, expect, test } from "vitest";
import { version } from "../../lib/base/version.ts";
import { sourceOf } from "../../lib/cli/init.ts";
import { nlac } from "../support/command-line.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));
const place = mkdtempSync(join(tmpdir(), "nlac-init-"));
afterAll(() => rmSync(place, { recursive: true, force: true }));

const files = [
  ".gitignore",
  "README.md",
  "desk.test.ts",
  "desk.ts",
  "package.json",
  "recipe.ts",
  "tsconfig.json",
];

/**
 * Does what `npm install` would; the package was built before the tests. Returns how to run node
 * there.
 */
function installed(project: string): (...args: string[]) => { status: number | null; text: string } {
  const modules = join(project, "node_modules");
  mkdirSync(modules);
  symlinkSync(root.slice(0, -1), join(modules, "nlac"));
  for (const name of ["@types", "undici-types", "jiti", "typescript"])
    symlinkSync(join(root, "node_modules", name), join(modules, name));
  return (...args) => {
    const { status, stdout, stderr } = spawnSync(process.execPath, args, { cwd: project, encoding: "utf8" });
    return { status, text: stdout + stderr };
  };
}

test("a new project type-checks, passes its tests and trains", async () => {
  const project = join(place, "My Agent");
  const { output, code } = await nlac("init", project);
  expect(code).toBe(0);
  expect(output).toContain("npm run train");
  expect(readdirSync(project).sort()).toEqual(files);
  const described = JSON.parse(readFileSync(join(project, "package.json"), "utf8"));
  expect(described).toMatchObject({
    name: "my-agent",
    type: "module",
    dependencies: { nlac: `file:${root.slice(0, -1)}` },
  });

  const run = installed(project);
  expect(run("node_modules/typescript/bin/tsc")).toEqual({ status: 0, text: "" });
  expect(described.scripts).toMatchObject({
    typecheck: "tsc",
    test: "node --import jiti/register desk.test.ts",
  });
  const tested = run("--import", "jiti/register", "desk.test.ts");
  expect(tested.text).toContain("# fail 0");
  expect(tested.status).toBe(0);

  const checked = await nlac("env", "check", join(project, "desk.ts"));
  expect(checked).toMatchObject({ code: 0, output: expect.stringContaining("no violations") });
  const set = [
    "iterations=1",
    "episodesPerIteration=4",
    "updatesPerIteration=2",
    "batchSize=4",
    "evaluation.episodes=4",
  ];
  const trained = await nlac(
    "train",
    join(project, "recipe.ts"),
    ...["--run", join(project, "runs", "desk"), "--json"],
    ...set.flatMap((change) => ["--set", `config.${change}`]),
  );
  expect(trained.errors).not.toContain("ERR_");
  expect(JSON.parse(trained.output)).toMatchObject({ updates: 2, episodes: 4, stopped: false });
}, 300_000);

test("an existing package.json keeps its fields, scripts and versions", async () => {
  const project = join(place, "existing");
  mkdirSync(project);
  const given = {
    name: "mine",
    scripts: { test: 'echo "Error: no test specified" && exit 1', train: "mine" },
    dependencies: { nlac: "file:../nlac-0.1.0.tgz", zod: "^4" },
  };
  writeFileSync(join(project, "package.json"), JSON.stringify(given));
  expect((await nlac("init", project)).code).toBe(0);
  expect(JSON.parse(readFileSync(join(project, "package.json"), "utf8"))).toMatchObject({
    name: "mine",
    scripts: { test: "node --import jiti/register desk.test.ts", train: "mine", typecheck: "tsc" },
    dependencies: given.dependencies,
    devDependencies: {
      typescript: expect.any(String),
      jiti: expect.any(String),
      "@types/node": expect.any(String),
    },
  });
});

test.each([{ type: "commonjs" }, {}])(
  "a CommonJS package stays one, and its project works: %o",
  async (given) => {
    const project = mkdtempSync(join(place, "common-"));
    writeFileSync(join(project, "package.json"), JSON.stringify(given));
    writeFileSync(join(project, "index.js"), 'console.log(require("node:os").EOL);');
    expect((await nlac("init", project)).code).toBe(0);
    const described = JSON.parse(readFileSync(join(project, "package.json"), "utf8"));
    expect(described.type).toBe(given.type);
    const run = installed(project);
    expect(run("index.js").status).toBe(0);
    expect(run("node_modules/typescript/bin/tsc")).toEqual({ status: 0, text: "" });
    expect(run("--import", "jiti/register", "desk.test.ts").text).toContain("# fail 0");
    expect((await nlac("env", "check", join(project, "desk.ts"))).code).toBe(0);
    const recipe = join(project, "recipe.ts");
    expect(await nlac("train", recipe, "--dry-run")).toMatchObject({ code: 0 });
  },
  120_000,
);

test("existing files are never changed", async () => {
  const project = join(place, "taken");
  mkdirSync(project);
  writeFileSync(join(project, "desk.ts"), "mine");
  const { code, errors } = await nlac("init", project);
  expect(code).toBe(1);
  expect(errors).toMatch(/ERR_IO: .*taken already has desk\.ts\. Name a new directory, or move it\./);
  expect(readdirSync(project)).toEqual(["desk.ts"]);
  writeFileSync(join(project, "package.json"), "{");
  rmSync(join(project, "desk.ts"));
  expect((await nlac("init", project)).errors).toMatch(/ERR_CONFIG: .*package\.json cannot be read/);
  expect(existsSync(join(project, "recipe.ts"))).toBe(false);
});

test("a project with a README, a tsconfig.json and a .gitignore keeps them and gets the rest", async () => {
  const project = join(place, "a product");
  mkdirSync(project);
  const own = ["README.md", "tsconfig.json", ".gitignore"];
  for (const name of own) writeFileSync(join(project, name), "mine");
  const { code, output } = await nlac("init", project);
  expect(code).toBe(0);
  expect(output).toContain("Your .gitignore, README.md, tsconfig.json were not changed.");
  expect(output).toMatch(/^ {2}cd '.*a product'$/m); // as a shell takes it
  expect(readdirSync(project).sort()).toEqual(files);
  for (const name of own) expect(readFileSync(join(project, name), "utf8")).toBe("mine");
});

test("an existing package.json keeps its indentation, so that a diff shows what was added", async () => {
  const project = join(place, "tabs");
  mkdirSync(project);
  const path = join(project, "package.json");
  writeFileSync(path, '{\n\t"name": "mine",\n\t"version": "1.0.0"\n}\n');
  expect(await nlac("init", project)).toMatchObject({ code: 0 });
  expect(readFileSync(path, "utf8")).toMatch(
    /^\{\n\t"name": "mine",\n\t"version": "1\.0\.0",\n\t"scripts": \{\n\t\t"/,
  );
  expect((await nlac("init", "--help")).output).not.toContain("never changed"); // package.json is
});

test.skipIf(!existsSync("/proc/self"))("a directory that cannot be made is an error", async () => {
  expect(await nlac("init", "/proc/agent")).toMatchObject({
    code: 1,
    errors: expect.stringMatching(/^nlac: ERR_IO: \/proc\/agent cannot be used/),
  });
});

test("a project depends on what the project that has nlac depends on", () => {
  const owner = join(place, "owner");
  const at = (...path: string[]) => join(owner, "node_modules", ...path);
  mkdirSync(owner);
  const depending = (dependencies: object) =>
    writeFileSync(join(owner, "package.json"), JSON.stringify(dependencies));
  depending({ dependencies: { nlac: "file:../nlac-0.1.0.tgz" } });
  expect(sourceOf(at("nlac"))).toBe(`file:${join(place, "nlac-0.1.0.tgz")}`);
  // pnpm's store
  expect(sourceOf(at(".pnpm", "nlac@0.1.0", "node_modules", "nlac"))).toBe(
    `file:${join(place, "nlac-0.1.0.tgz")}`,
  );
  depending({ devDependencies: { nlac: "./nlac.tgz" } }); // as bun writes it
  expect(sourceOf(at("nlac"))).toBe(`file:${join(owner, "nlac.tgz")}`);
  depending({ dependencies: { nlac: "^0.1.0" } });
  expect(sourceOf(at("nlac"))).toBe("^0.1.0");
  depending({});
  expect(sourceOf(at("nlac"))).toBe(`^${version}`);
  expect(sourceOf(join(place, "checkout"))).toBe(`file:${join(place, "checkout")}`);
});
