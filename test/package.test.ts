/** The package as installed in a project: the files of its tarball. */

import { execFileSync, spawnSync } from "node:child_process";
import { copyFileSync, cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";
import { afterAll, beforeAll, expect, test } from "vitest";
import { write } from "./support/files-and-servers.ts";

const root = fileURLToPath(new URL("..", import.meta.url));

test("the tarball has what its pages link to, and nothing that makes npm build at installation", () => {
  const packed = execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], { cwd: root });
  const [{ files }] = JSON.parse(packed.toString());
  const paths = new Set<string>(files.map(({ path }: { path: string }) => path));
  // npm runs `node-gyp rebuild` where it finds one: `npm ci` does not even look at "gypfile":
  // false.
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

test("links of all pages lead to files and headings that exist", async () => {
  const { checkLinks } = (await import(join(root, "scripts/check-links.mjs"))) as {
    checkLinks: (root: string) => string[];
  };
  expect(checkLinks(root)).toEqual([]);
});

/** A checkout that has not been compiled, and what its launcher does there. */
const checkout = mkdtempSync(join(tmpdir(), "nlac-checkout-"));
function launch(...args: string[]) {
  return spawnSync(process.execPath, [join(checkout, "bin", "nlac.js"), ...args], { encoding: "utf8" });
}
let compiling: ReturnType<typeof launch>;
/**
 * A project that has nlac, those of its dependencies that its declarations name, and nothing else.
 */
const project = mkdtempSync(join(tmpdir(), "nlac-project-"));

beforeAll(() => {
  for (const part of ["bin", "lib", "scripts", "package.json", "tsconfig.json"])
    cpSync(join(root, part), join(checkout, part), { recursive: true });
  symlinkSync(join(root, "node_modules"), join(checkout, "node_modules"));
  compiling = launch("--version");
  const installed = join(project, "node_modules", "nlac");
  cpSync(join(checkout, "dist"), join(installed, "dist"), { recursive: true });
  copyFileSync(join(root, "package.json"), join(installed, "package.json"));
  for (const name of ["hono", "zod"])
    symlinkSync(join(root, "node_modules", name), join(project, "node_modules", name));
  write(join(project, "package.json"), JSON.stringify({ type: "module" }));
}, 300_000);
afterAll(() => {
  rmSync(checkout, { recursive: true });
  rmSync(project, { recursive: true });
});

test("the launcher compiles a checkout once, and passes on the command line's output", () => {
  expect(compiling).toMatchObject({ status: 0, stderr: expect.stringContaining("compiling") });
  expect(launch("--version")).toMatchObject({
    status: 0,
    stdout: expect.stringMatching(/^\d+\.\d+\.\d+\n$/),
    stderr: "",
  });
  expect(launch("trian")).toMatchObject({ status: 1, stderr: expect.stringMatching(/^nlac: ERR_VALUE: /) });
  rmSync(join(checkout, "dist"), { recursive: true });
  rmSync(join(checkout, "tsconfig.json"));
  expect(launch("--version")).toMatchObject({ status: 1, stderr: expect.stringContaining("ERR_BUILD") });
}, 120_000);

/** What the excerpts of the pages, which are not complete programs, take from around them. */
const around = `import { environments, evaluateReact, type Learner, type RecipeInput, servicePlayer } from "nlac";
import { type AiTool, aiTools, chatService, defineEnvironment, type Environment, mcpTools } from "nlac/environments";
declare const model: Learner, environment: Environment, weather: AiTool;
declare const rest: Omit<Parameters<typeof defineEnvironment>[0], "tools" | "dispose">;
declare const cities: { city: string; country: string }[], testCountries: Set<string>;
declare const aliases: Record<string, string[]>;
`;

/** An excerpt as a program. */
function completed(excerpt: string): string {
  const code = excerpt.replaceAll("{ …,", "{ ...rest,");
  if (/^\w+: /.test(code)) return `${around}export const part: Partial<RecipeInput> = { ${code} };`;
  // Its own names come before those around it.
  const body = code.replaceAll(/^import .*$/gm, "");
  return `${around}export async function excerpt() {\n${body}\n}`;
}

test("the pages' TypeScript compiles there", () => {
  const blocks = ["README.md", ...readdirSync(join(root, "docs"), { recursive: true, encoding: "utf8" })]
    .filter((page) => page.endsWith(".md") && page !== "api.md")
    .map((page) => (page === "README.md" ? page : join("docs", page)))
    .flatMap((page) => [...readFileSync(join(root, page), "utf8").matchAll(/^```ts\n(.*?)^```/gms)])
    .map(([, block]) => block!);
  const isComplete = (block: string) => /^(import|export) /m.test(block) && !/\{ …,/.test(block);
  expect(blocks.filter(isComplete).length).toBeGreaterThan(12);
  const examples = blocks.map((block, i) =>
    write(join(project, `example-${i}.ts`), isComplete(block) ? block : completed(block)),
  );
  // One of them is an agent of this package.
  symlinkSync(join(root, "node_modules", "openai"), join(project, "node_modules", "openai"));
  // Node's own types would bring what the declarations must bring themselves.
  const flags = ["--ignoreConfig", "--strict", "--noEmit", "--module", "nodenext", "--target", "es2022"];
  expect(tsc(project, ...flags, ...examples)).toBe("");
}, 300_000);

test("every entry point loads, from CommonJS too, and nlac does so without mathjs and openai", () => {
  const copy = mkdtempSync(join(tmpdir(), "nlac-copy-"));
  try {
    cpSync(join(project, "node_modules", "nlac"), copy, { recursive: true });
    symlinkSync(join(root, "node_modules"), join(copy, "node_modules"));
    const hook = "export const load = (url, context, next) => (process._rawDebug(url), next(url, context));";
    const register = `import { register } from "node:module"; register(${JSON.stringify(dataUrl(hook))});`;
    const loadedBy = (entry: string) => {
      const args = ["--import", dataUrl(register), "--input-type=module", "--eval", `import "${entry}";`];
      const { status, stderr } = spawnSync(process.execPath, args, { cwd: copy, encoding: "utf8" });
      expect([entry, status, stderr.includes("/dist/")]).toEqual([entry, 0, true]);
      return stderr;
    };
    const { exports } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
    const loaded = new Map(
      Object.keys(exports).map((path) => [path, loadedBy(path.replace(".", "nlac"))] as const),
    );
    expect([...loaded.keys()]).toEqual([
      ".",
      "./environments",
      "./models",
      "./serving",
      "./ops",
      "./compare",
    ]);
    for (const modules of loaded.values()) expect(modules).not.toMatch(/node_modules\/(mathjs|openai)\//);
    expect(loaded.get(".")).toMatch(/\/zod\//);
    // CommonJS: require() of an ES module, in every Node version that "engines" names.
    const script = 'console.log(typeof require("nlac").trainNlac)';
    const run = spawnSync(process.execPath, ["--eval", script], { cwd: copy, encoding: "utf8" });
    expect(run.stdout).toBe("function\n");
  } finally {
    rmSync(copy, { recursive: true });
  }
}, 120_000);

test("docs/api.md is up to date; `npm run api` writes it", async () => {
  const { apiReport } = (await import(join(root, "scripts/api-report.mjs"))) as {
    apiReport: (directory: string) => string;
  };
  const report = apiReport(join(project, "node_modules", "nlac"));
  expect(readFileSync(join(root, "docs", "api.md"), "utf8")).toBe(report);
  expect(report).toContain("Names without a comment: none.");
}, 300_000);

test("an editor shows the description of a recipe's field there", () => {
  const recipe = `import { defineRecipe } from "nlac";
export default defineRecipe({
  algorithm: "nlac", name: "n", model: "m", environment: { name: "errands" }, learner: { cacheBytes: 1 }, warmup: { batchSize: 2 },
  config: { targetRate: 0.02, schedule: { warmupSteps: 3 }, evaluation: { every: 4 } },
});`;
  const file = write(join(project, "recipe.ts"), recipe);
  const service = ts.createLanguageService({
    getCompilationSettings: () => ({ module: ts.ModuleKind.NodeNext, strict: true, types: [] }),
    getScriptFileNames: () => [file],
    getScriptVersion: () => "0",
    getScriptSnapshot: (name) => {
      const text = ts.sys.readFile(name);
      return text === undefined ? undefined : ts.ScriptSnapshot.fromString(text);
    },
    getCurrentDirectory: () => project,
    getDefaultLibFileName: ts.getDefaultLibFilePath,
    ...{ fileExists: ts.sys.fileExists, readFile: ts.sys.readFile, directoryExists: ts.sys.directoryExists },
  });
  const told = (field: string) =>
    ts.displayPartsToString(service.getQuickInfoAtPosition(file, recipe.indexOf(`${field}:`))?.documentation);
  expect(told("targetRate")).toMatch(/^τ: the step of the EMA /);
  const fields = [
    "name",
    "model",
    "cacheBytes",
    "batchSize",
    "schedule",
    "warmupSteps",
    "evaluation",
    "every",
  ];
  for (const field of fields) expect([field, told(field).length > 10]).toEqual([field, true]);
}, 300_000);

test("every field of a method's configuration has a description there", () => {
  const index = join(project, "node_modules", "nlac", "dist", "index.d.ts");
  const program = ts.createProgram([index], { module: ts.ModuleKind.NodeNext, strict: true, types: [] });
  const checker = program.getTypeChecker();
  const exported = checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(index)!)!);
  const configs = exported.filter(({ name }) => name.endsWith("ConfigInput"));
  expect(configs.length).toBeGreaterThanOrEqual(11);
  const bare = configs.flatMap((config) =>
    checker
      .getPropertiesOfType(checker.getDeclaredTypeOfSymbol(checker.getAliasedSymbol(config)))
      .filter((field) => field.getDocumentationComment(checker).length === 0)
      .map((field) => `${config.name}.${field.name}`),
  );
  expect(bare).toEqual([]);
}, 300_000);

function dataUrl(script: string): string {
  return `data:text/javascript,${encodeURIComponent(script)}`;
}

/** What the compiler finds, run in `directory`. */
function tsc(directory: string, ...flags: string[]): string {
  const compiler = join(root, "node_modules", "typescript", "bin", "tsc");
  return spawnSync(process.execPath, [compiler, ...flags], { cwd: directory, encoding: "utf8" }).stdout;
}
